//! `BridgeSender` and `BridgeReceiver`: the two ends of a bridge, each with its own thread (bridge §2).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use tensorpool_core::bridge::assembly::Loss;
use tensorpool_core::bridge::session_ledger::LedgerStart;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::wire::chunk::{Fault, Limits, Revision};
use tensorpool_core::wire::fallback_uri::FallbackUri;
use tensorpool_dataplane::bridge::receiver::{Config as ReceiverConfig, Receiver};
use tensorpool_dataplane::bridge::sender::{Config as SenderConfig, Sender};
use tensorpool_dataplane::bridge::source::Source;

use crate::bridge_keys::BridgeKeys;
use crate::conductor::Conductor;
use crate::consumer::Consumer;
use crate::errors;
use crate::producer::Producer;
use crate::stats::{BridgeReceiverState, BridgeSenderCounters, losses};

fn unmapped(stream_id: u32) -> PyErr {
    PyKeyError::new_err(format!("stream {stream_id} is not mapped here"))
}

/// Sends the frames of consumers over one Aeron stream, on a thread of its own (bridge §2).
///
/// Any thread may call the methods. All of them raise `ForkedError` in a forked child; those that take a
/// stream id raise `KeyError` for a stream that was not added.
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
    /// Starts the thread. `chunk_bytes` of None: as many as fit one datagram of `mtu_bytes`, or of the
    /// publication's MTU. With `keys` chunks are sealed with the first of them. Raises `ValueError` for an
    /// unknown idle strategy.
    #[new]
    #[pyo3(signature = (conductor, channel, stream_id, *, mtu_bytes = None, chunk_bytes = None, max_chunk_bytes = 65_535, max_payload_bytes = 1 << 30, integrity = false, traces = true, keys = None, idle = "backoff"))]
    fn new(
        conductor: &Bound<'_, Conductor>,
        channel: String,
        stream_id: i32,
        mtu_bytes: Option<u32>,
        chunk_bytes: Option<u32>,
        max_chunk_bytes: u32,
        max_payload_bytes: u32,
        integrity: bool,
        traces: bool,
        keys: Option<&Bound<'_, BridgeKeys>>,
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
            traces,
            keys: keys.map(|keys| keys.get().shared()),
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

    /// Sends the frames of that consumer from now on. No other code may poll it. Raises `ValueError` if its
    /// stream is sent already.
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

    /// Allows the frames of an epoch to be sent: its announce was forwarded.
    fn on_announce(&self, py: Python<'_>, stream_id: u32, epoch: u64) -> PyResult<()> {
        self.source(py, stream_id)?.on_announce(epoch);
        Ok(())
    }

    /// Returns the frames that the consumer received by outcome, and the chunks and bytes sent.
    fn counters(&self, py: Python<'_>, stream_id: u32) -> PyResult<BridgeSenderCounters> {
        BridgeSenderCounters::of(py, &*self.source(py, stream_id)?)
    }

    /// Returns the sessions of this run, the position in the last of them, and the frames of the stream
    /// sent up to there. None while there is no publication.
    fn position(&self, py: Python<'_>, stream_id: u32) -> PyResult<Option<(Vec<i32>, i64, u64)>> {
        let source = self.source(py, stream_id)?;
        Ok(py.detach(|| self.sender.position_of(&source)).map(|p| (p.sessions, p.position, p.sent)))
    }

    /// Returns frames sent, their bytes, and frames not sent; over all streams.
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

    /// Whether the publication exists.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.sender.is_ready()))
    }

    /// Whether a receiver subscribes to the publication.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.sender.is_connected()))
    }

    /// Ends the thread and closes the publication.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.sender.stop());
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

/// Receives frames from a bridge sender and writes them with local producers, on a thread of its own
/// (bridge §2).
///
/// Any thread may call the methods. All of them raise `ForkedError` in a forked child; those that take a
/// stream id raise `KeyError` for a stream that was not added.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct BridgeReceiver {
    receiver: Arc<Receiver>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl BridgeReceiver {
    /// Starts the thread. A frame that is incomplete after `timeout_ns` is lost; a source that announces
    /// nothing for `silence_ns` is stale. With `fits_session_mtu` chunks also have to fit the MTU of their
    /// sender. With `keys` only messages are accepted that are sealed with one of them, at a time that differs
    /// from this host's clock by `max_age_ns` at most. Raises `ValueError` for an unknown idle strategy.
    #[new]
    #[pyo3(signature = (conductor, channel, stream_id, control_channel, control_stream_id, *, chunk_bytes, max_payload_bytes, timeout_ns, silence_ns, fits_session_mtu = false, integrity = false, keys = None, max_age_ns = 0, idle = "backoff"))]
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
        fits_session_mtu: bool,
        integrity: bool,
        keys: Option<&Bound<'_, BridgeKeys>>,
        max_age_ns: u64,
        idle: &str,
    ) -> PyResult<Self> {
        let config = ReceiverConfig {
            payload_channel: channel,
            payload_stream_id: stream_id,
            control_channel,
            control_stream_id,
            limits: Limits { chunk_bytes, payload_bytes: max_payload_bytes, needs_checksum: integrity },
            fits_session_mtu,
            keys: keys.map(|keys| (keys.get().shared(), max_age_ns)),
            timeout_ns,
            silence_ns,
        };
        conductor.get().check_fork(conductor.py())?;
        let receiver = Arc::new(Receiver::start(config, idle.parse().map_err(PyValueError::new_err)?)?);
        let id = conductor.get().add(conductor.py(), receiver.clone())?;
        Ok(Self { receiver, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Adds a source stream and its destination. `progress`: channel and stream id that its progress is
    /// forwarded to. Raises `ValueError` if the stream was added already.
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

    /// Removes the destination: nothing is written with that producer when this returns. Returns False if
    /// there was none.
    fn clear_destination(&self, py: Python<'_>, stream_id: u32) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.clear_destination(stream_id)))
    }

    /// Returns the source streams that have no destination at the moment.
    fn without_destination(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.without_destination()))
    }

    /// Returns the state of a mapping: the announced layout of its source, and its counters.
    fn state(&self, py: Python<'_>, stream_id: u32) -> PyResult<BridgeReceiverState> {
        errors::check_fork(py, self.fork_guard)?;
        let state = py.detach(|| self.receiver.state_of(stream_id)).ok_or_else(|| unmapped(stream_id))?;
        BridgeReceiverState::of(py, state)
    }

    /// Returns the outcome of a stream's frames in these sessions: delivered, turned away, lost by reason;
    /// and whether that is all of them.
    fn received(
        &self,
        py: Python<'_>,
        stream_id: u32,
        sessions: Vec<i32>,
    ) -> PyResult<(u64, u64, Py<PyDict>, bool)> {
        errors::check_fork(py, self.fork_guard)?;
        let result = py.detach(|| self.receiver.received(stream_id, &sessions));
        let (counts, is_all) = result.ok_or_else(|| unmapped(stream_id))?;
        Ok((counts.delivered, counts.turned_away, losses(py, &counts.lost)?, is_all))
    }

    /// Returns the same counts as `received`, up to a position in one session, or up to its start.
    ///
    /// None: the session has not been read up to there yet, or the position is too old and a later one must
    /// be requested.
    #[pyo3(signature = (stream_id, session, position = None))]
    fn ledger_start(
        &self,
        py: Python<'_>,
        stream_id: u32,
        session: i32,
        position: Option<i64>,
    ) -> PyResult<Option<(u64, u64, Py<PyDict>)>> {
        errors::check_fork(py, self.fork_guard)?;
        let result = py.detach(|| self.receiver.ledger_start(stream_id, session, position));
        match result.ok_or_else(|| unmapped(stream_id))? {
            LedgerStart::At(counts) => {
                Ok(Some((counts.delivered, counts.turned_away, losses(py, &counts.lost)?)))
            }
            LedgerStart::Ahead | LedgerStart::Unknown => Ok(None),
        }
    }

    /// Returns frames delivered, their bytes, and frames that were received in part and not delivered; over
    /// all streams.
    fn totals(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.totals()))
    }

    /// Returns the number of rejected messages of the payload stream, by reason.
    fn rejected<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        errors::check_fork(py, self.fork_guard)?;
        let (faults, unmapped, fragments, messages) = py.detach(|| self.receiver.rejected());
        let dict = PyDict::new(py);
        for fault in Fault::ALL {
            dict.set_item(fault.as_str(), faults[*fault as usize])?;
        }
        dict.set_item("unmapped", unmapped)?;
        dict.set_item("fragments", fragments)?;
        dict.set_item("messages_overflowed", messages)?;
        Ok(dict)
    }

    /// Returns up to `limit` messages of the control stream that are neither announces nor progress.
    #[pyo3(signature = (limit = 64))]
    fn poll_messages<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyList>> {
        errors::check_fork(py, self.fork_guard)?;
        let messages = py.detach(|| self.receiver.poll_messages(limit));
        PyList::new(py, messages.iter().map(|message| PyBytes::new(py, message)))
    }

    /// Whether the subscriptions exist.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.is_ready()))
    }

    /// Whether a sender publishes to the payload stream.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.is_connected()))
    }

    /// Ends the thread and closes the subscriptions.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.receiver.stop());
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

/// A channel and a stream id.
type ChannelStream = (String, i32);

/// Returns the parts of a `bridge://` URI: its id, channel and stream id of payloads, those of control, and
/// the source stream id. Raises `ValueError` with the reason if the URI is invalid.
#[pyfunction]
pub fn parse_fallback_uri(text: &str) -> PyResult<(String, ChannelStream, ChannelStream, u32)> {
    let uri = FallbackUri::parse(text).map_err(PyValueError::new_err)?;
    Ok((uri.instance_id, uri.payload, uri.control, uri.stream_id))
}

/// Returns the reasons why frames are lost at a receiver: (name, meaning, whether a chunk was never
/// received).
#[pyfunction]
pub fn bridge_reasons() -> Vec<(&'static str, &'static str, bool)> {
    Loss::ALL.iter().map(|why| (why.as_str(), why.meaning().trim(), why.is_incomplete())).collect()
}
