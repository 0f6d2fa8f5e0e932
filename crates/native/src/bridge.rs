//! `BridgeSender` and `BridgeReceiver`: the two ends of a bridge, each with its own thread (bridge §2).

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use tensorpool_core::bridge::assembly::{Ignored, Loss};
use tensorpool_core::bridge::session_ledger::LedgerStart;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::wire::chunk::{Fault, Limits, Revision};
use tensorpool_core::wire::fallback_uri::FallbackUri;
use tensorpool_dataplane::bridge::receiver::{Config as ReceiverConfig, Receiver};
use tensorpool_dataplane::bridge::sender::{Config as SenderConfig, Sender};
use tensorpool_dataplane::bridge::source::Source;

use crate::conductor::Conductor;
use crate::consumer::Consumer;
use crate::errors;
use crate::producer::Producer;

fn unmapped(stream_id: u32) -> PyErr {
    PyKeyError::new_err(format!("stream {stream_id} is not mapped here"))
}

fn losses<'py>(py: Python<'py>, lost: &[u64; Loss::COUNT]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for why in Loss::ALL {
        dict.set_item(why.as_str(), lost[*why as usize])?;
    }
    Ok(dict)
}

#[pyclass(frozen, module = "tensorpool._native")]
pub struct BridgeSender {
    sender: Arc<Sender>,
    sources: Mutex<HashMap<u32, Arc<Source>>>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

impl BridgeSender {
    fn sources(&self) -> MutexGuard<'_, HashMap<u32, Arc<Source>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn source(&self, py: Python<'_>, stream_id: u32) -> PyResult<Arc<Source>> {
        errors::check_fork(py, self.fork_guard)?;
        self.sources().get(&stream_id).cloned().ok_or_else(|| unmapped(stream_id))
    }
}

#[pymethods]
impl BridgeSender {
    #[new]
    #[pyo3(signature = (conductor, channel, stream_id, *, mtu_bytes = None, chunk_bytes = None, max_chunk_bytes = 65_535, max_payload_bytes = 1 << 30, integrity = false, idle = "backoff"))]
    fn new(
        conductor: &Bound<'_, Conductor>,
        channel: String,
        stream_id: i32,
        mtu_bytes: Option<u32>,
        chunk_bytes: Option<u32>,
        max_chunk_bytes: u32,
        max_payload_bytes: u32,
        integrity: bool,
        idle: &str,
    ) -> PyResult<Self> {
        let revision = if integrity { Revision::Second } else { Revision::First };
        let config = SenderConfig {
            channel,
            stream_id,
            mtu_bytes,
            chunk_bytes,
            max_chunk_bytes,
            max_payload_bytes,
            revision,
        };
        conductor.get().check_fork(conductor.py())?;
        let sender = Arc::new(Sender::start(config, idle.parse().map_err(PyValueError::new_err)?)?);
        let id = conductor.get().add(conductor.py(), sender.clone())?;
        Ok(Self {
            sender,
            sources: Mutex::default(),
            conductor: conductor.clone().unbind(),
            id,
            fork_guard: ForkGuard::current(),
        })
    }

    /// Sends the frames of that consumer from now on. Nobody else may poll it.
    fn add(&self, py: Python<'_>, consumer: &Bound<'_, Consumer>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let plane = consumer.get().plane();
        let stream_id = plane.stream_id();
        let mut sources = self.sources();
        if sources.contains_key(&stream_id) {
            return Err(PyValueError::new_err(format!("stream {stream_id} is sent already")));
        }
        sources.insert(stream_id, py.detach(|| self.sender.add(plane)));
        Ok(())
    }

    /// The announce of that epoch was forwarded: its frames may follow.
    #[pyo3(name = "announced")]
    fn on_announce(&self, py: Python<'_>, stream_id: u32, epoch: u64) -> PyResult<()> {
        self.source(py, stream_id)?.on_announce(epoch);
        Ok(())
    }

    /// Frames that the consumer received, by outcome.
    fn counters<'py>(&self, py: Python<'py>, stream_id: u32) -> PyResult<Bound<'py, PyDict>> {
        let source = self.source(py, stream_id)?;
        let c = source.counters();
        let dict = PyDict::new(py);
        for (name, counter) in [
            ("sent", &c.sent),
            ("chunks", &c.chunks),
            ("bytes", &c.bytes),
            ("overwritten", &c.overwritten),
            ("unannounced", &c.unannounced),
            ("not_connected", &c.not_connected),
            ("closed", &c.closed),
            ("too_many_chunks", &c.too_many_chunks),
            ("too_long", &c.too_long),
        ] {
            dict.set_item(name, counter.load(Ordering::Relaxed))?;
        }
        Ok(dict)
    }

    /// The sessions of this run, the position in the last of them, and the frames of the stream sent up to
    /// there. None while there is no publication.
    #[pyo3(name = "place")]
    fn position(&self, py: Python<'_>, stream_id: u32) -> PyResult<Option<(Vec<i32>, i64, u64)>> {
        let source = self.source(py, stream_id)?;
        Ok(py.detach(|| self.sender.position_of(&source)).map(|p| (p.sessions, p.position, p.sent)))
    }

    /// Frames sent, their bytes, and frames not sent; over all streams.
    #[pyo3(name = "sums")]
    fn totals(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.sender.totals()))
    }

    /// Payload bytes in the first chunk of a frame and in the others. None while there is no publication.
    #[getter(slices)]
    fn chunk_sizes(&self, py: Python<'_>) -> PyResult<Option<(u32, u32)>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.sender.chunk_sizes()).map(|s| (s.first, s.rest)))
    }

    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.sender.is_ready()))
    }

    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.sender.is_connected()))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.sender.stop());
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

#[pyclass(frozen, module = "tensorpool._native")]
pub struct BridgeReceiver {
    receiver: Arc<Receiver>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl BridgeReceiver {
    #[new]
    #[pyo3(signature = (conductor, channel, stream_id, control_channel, control_stream_id, *, chunk_bytes, max_payload_bytes, timeout_ns, silence_ns, integrity = false, idle = "backoff"))]
    fn new(
        conductor: &Bound<'_, Conductor>,
        channel: String,
        stream_id: i32,
        control_channel: String,
        control_stream_id: i32,
        chunk_bytes: u32,
        max_payload_bytes: u32,
        timeout_ns: u64,
        silence_ns: u64,
        integrity: bool,
        idle: &str,
    ) -> PyResult<Self> {
        let config = ReceiverConfig {
            payload_channel: channel,
            payload_stream_id: stream_id,
            control_channel,
            control_stream_id,
            limits: Limits { chunk_bytes, payload_bytes: max_payload_bytes, needs_checksum: integrity },
            timeout_ns,
            silence_ns,
        };
        conductor.get().check_fork(conductor.py())?;
        let receiver = Arc::new(Receiver::start(config, idle.parse().map_err(PyValueError::new_err)?)?);
        let id = conductor.get().add(conductor.py(), receiver.clone())?;
        Ok(Self { receiver, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Adds a source stream and its destination. `progress`: channel and stream id that its progress is
    /// forwarded to.
    #[pyo3(signature = (stream_id, dest_stream_id, progress = None))]
    fn add(
        &self,
        py: Python<'_>,
        stream_id: u32,
        dest_stream_id: u32,
        progress: Option<(String, i32)>,
    ) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        if py.detach(|| self.receiver.add(stream_id, dest_stream_id, progress)) {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("stream {stream_id} is received already")))
    }

    /// Sets a producer that nothing was written with as the destination.
    #[pyo3(name = "give")]
    fn set_destination(
        &self,
        py: Python<'_>,
        stream_id: u32,
        producer: &Bound<'_, Producer>,
    ) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let (plane, _) = producer.get().parts(py);
        if py.detach(|| self.receiver.set_destination(stream_id, plane)) {
            Ok(())
        } else {
            Err(unmapped(stream_id))
        }
    }

    /// Removes the destination: nothing is written with that producer when this returns.
    #[pyo3(name = "take")]
    fn clear_destination(&self, py: Python<'_>, stream_id: u32) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.clear_destination(stream_id)))
    }

    /// Source streams that have no destination at the moment.
    #[pyo3(name = "wanting")]
    fn without_destination(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.without_destination()))
    }

    /// The state of a mapping: the announced layout of its source, and its counters.
    #[pyo3(name = "standing")]
    fn state<'py>(&self, py: Python<'py>, stream_id: u32) -> PyResult<Bound<'py, PyDict>> {
        errors::check_fork(py, self.fork_guard)?;
        let state = py.detach(|| self.receiver.state_of(stream_id)).ok_or_else(|| unmapped(stream_id))?;
        let dict = PyDict::new(py);
        let announced = state.announced;
        dict.set_item("epoch", announced.as_ref().map(|a| a.epoch))?;
        dict.set_item("nslots", announced.as_ref().map(|a| a.nslots))?;
        let pools =
            announced.map(|a| a.pools.iter().map(|p| (p.pool_id, p.stride_bytes)).collect::<Vec<_>>());
        dict.set_item("pools", pools.unwrap_or_default())?;
        dict.set_item("has_destination", state.has_destination)?;
        dict.set_item("seen", state.seen)?;
        let counters = &state.counters;
        for (name, value) in [
            ("delivered", counters.delivered),
            ("bytes", counters.bytes),
            ("chunks", counters.chunks),
            ("span", counters.span),
            ("turned_away", counters.turned_away),
            ("announces", state.announces),
            ("announces_ignored", state.announces_ignored),
            ("progress_said", state.progress_sent),
            ("progress_dropped", state.progress_dropped),
        ] {
            dict.set_item(name, value)?;
        }
        dict.set_item("lost", losses(py, &counters.lost)?)?;
        let ignored = PyDict::new(py);
        for why in Ignored::ALL {
            ignored.set_item(why.as_str(), counters.ignored(*why))?;
        }
        dict.set_item("chunks_ignored", ignored)?;
        Ok(dict)
    }

    /// The outcome of a stream's frames in these sessions: delivered, turned away, lost by reason; and
    /// whether that is all of them.
    fn received<'py>(
        &self,
        py: Python<'py>,
        stream_id: u32,
        sessions: Vec<i32>,
    ) -> PyResult<(u64, u64, Bound<'py, PyDict>, bool)> {
        errors::check_fork(py, self.fork_guard)?;
        let result = py.detach(|| self.receiver.received(stream_id, &sessions));
        let (counts, is_all) = result.ok_or_else(|| unmapped(stream_id))?;
        Ok((counts.delivered, counts.turned_away, losses(py, &counts.lost)?, is_all))
    }

    /// As `received`, up to a position in one session, or up to its start. None: the session has not been
    /// read up to there yet, or the position is too old and a later one must be requested.
    #[pyo3(name = "cut", signature = (stream_id, session, position = None))]
    fn ledger_start<'py>(
        &self,
        py: Python<'py>,
        stream_id: u32,
        session: i32,
        position: Option<i64>,
    ) -> PyResult<Option<(u64, u64, Bound<'py, PyDict>)>> {
        errors::check_fork(py, self.fork_guard)?;
        let result = py.detach(|| self.receiver.ledger_start(stream_id, session, position));
        match result.ok_or_else(|| unmapped(stream_id))? {
            LedgerStart::At(counts) => {
                Ok(Some((counts.delivered, counts.turned_away, losses(py, &counts.lost)?)))
            }
            LedgerStart::Ahead | LedgerStart::Unknown => Ok(None),
        }
    }

    /// Frames delivered, their bytes, and frames that were received in part and not delivered; over all
    /// streams.
    #[pyo3(name = "sums")]
    fn totals(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.totals()))
    }

    /// Rejected messages of the payload stream, by reason.
    #[pyo3(name = "refused")]
    fn rejected<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        errors::check_fork(py, self.fork_guard)?;
        let (faults, unmapped, fragments, messages) = py.detach(|| self.receiver.rejected());
        let dict = PyDict::new(py);
        for fault in Fault::ALL {
            dict.set_item(fault.as_str(), faults[*fault as usize])?;
        }
        dict.set_item("unmapped", unmapped)?;
        dict.set_item("fragments", fragments)?;
        dict.set_item("words_overflowed", messages)?;
        Ok(dict)
    }

    /// Messages of the control stream that are neither announces nor progress.
    #[pyo3(name = "words", signature = (limit = 64))]
    fn poll_messages<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyList>> {
        errors::check_fork(py, self.fork_guard)?;
        let messages = py.detach(|| self.receiver.poll_messages(limit));
        PyList::new(py, messages.iter().map(|message| PyBytes::new(py, message)))
    }

    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.is_ready()))
    }

    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.is_connected()))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.receiver.stop());
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

/// A channel and a stream id.
type ChannelStream = (String, i32);

/// The parts of a `bridge://` URI: its id, channel and stream id of payloads and of control, the source
/// stream id.
#[pyfunction]
#[pyo3(name = "parse_fallback")]
pub fn parse_fallback_uri(text: &str) -> PyResult<(String, ChannelStream, ChannelStream, u32)> {
    let uri = FallbackUri::parse(text).map_err(PyValueError::new_err)?;
    Ok((uri.instance_id, uri.payload, uri.control, uri.stream_id))
}

/// Why frames are lost at a receiver: (name, meaning, whether a chunk never came).
#[pyfunction]
pub fn bridge_reasons() -> Vec<(&'static str, &'static str, bool)> {
    Loss::ALL.iter().map(|why| (why.as_str(), why.meaning().trim(), why.is_incomplete())).collect()
}
