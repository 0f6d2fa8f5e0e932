//! `BridgeSender` and `BridgeReceiver`: the two ends of a bridge, each with its own thread (bridge §2).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use tensorpool_core::bridge::assembly::Loss;
use tensorpool_core::bridge::session_ledger::LedgerStart;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::wire::chunk::{ChunkLimits, Fault, Revision};
use tensorpool_core::wire::fallback_uri::FallbackUri;
use tensorpool_dataplane::bridge::receiver::{Config as ReceiverConfig, Receiver};
use tensorpool_dataplane::bridge::sender::{Config as SenderConfig, Sender};
use tensorpool_dataplane::bridge::source::SourceStream;

use crate::bridge_keys::BridgeKeys;
use crate::conductor::Conductor;
use crate::consumer::Consumer;
use crate::errors;
use crate::options::{BridgeSettings, ReceiverLimits, StreamAddress};
use crate::producer::Producer;
use crate::records::{
    BridgeReason, BridgeTotals, ChunkSizes, ParsedFallbackUri, SenderPosition, SessionCounts,
};
use crate::stats::{BridgeReceiverState, BridgeSenderCounters};

const NS_PER_MS: u64 = 1_000_000;

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
    sources: Mutex<HashMap<u32, Arc<SourceStream>>>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

impl BridgeSender {
    fn sources(&self) -> MutexGuard<'_, HashMap<u32, Arc<SourceStream>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn source(&self, py: Python<'_>, stream_id: u32) -> PyResult<Arc<SourceStream>> {
        errors::check_fork(py, self.fork_guard)?;
        self.sources().get(&stream_id).cloned().ok_or_else(|| unmapped(stream_id))
    }
}

#[pymethods]
impl BridgeSender {
    /// Starts the thread. Without `chunk_bytes` in the settings a chunk has as many as fit one datagram of
    /// `mtu_bytes`, or of the publication's MTU. With `keys` chunks are sealed with the first of them. Raises
    /// `ValueError` for an unknown idle strategy.
    #[new]
    #[pyo3(signature = (conductor, payload, settings, keys = None))]
    fn new(
        conductor: &Bound<'_, Conductor>,
        payload: StreamAddress,
        settings: BridgeSettings,
        keys: Option<&Bound<'_, BridgeKeys>>,
    ) -> PyResult<Self> {
        let config = SenderConfig {
            channel: payload.channel,
            stream_id: payload.stream_id,
            mtu_bytes: settings.mtu_bytes,
            chunk_bytes: settings.chunk_bytes,
            max_chunk_bytes: settings.max_chunk_bytes,
            max_payload_bytes: settings.max_payload_bytes,
            revision: if settings.integrity { Revision::Second } else { Revision::First },
            traces: settings.forward_traces,
            keys: keys.map(|keys| keys.get().shared()),
        };
        let idle = settings.idle.parse().map_err(PyValueError::new_err)?;
        conductor.get().check_fork(conductor.py())?;
        let sender = Arc::new(Sender::start(config, idle)?);
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
        BridgeSenderCounters::from_source(py, &*self.source(py, stream_id)?)
    }

    /// Returns what was sent of a stream, and up to which position. None while there is no publication.
    fn position(&self, py: Python<'_>, stream_id: u32) -> PyResult<Option<SenderPosition>> {
        let source = self.source(py, stream_id)?;
        let position = py.detach(|| self.sender.position_of(&source));
        Ok(position.map(|p| SenderPosition { sessions: p.sessions, position: p.position, sent: p.sent }))
    }

    /// Returns the frames sent, and not sent, of all streams.
    fn totals(&self, py: Python<'_>) -> PyResult<BridgeTotals> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.sender.totals()).into())
    }

    /// Payload bytes in the chunks of a frame. None while there is no publication.
    #[getter]
    fn chunk_sizes(&self, py: Python<'_>) -> PyResult<Option<ChunkSizes>> {
        errors::check_fork(py, self.fork_guard)?;
        let sizes = py.detach(|| self.sender.chunk_sizes());
        Ok(sizes.map(|sizes| ChunkSizes { first_bytes: sizes.first, rest_bytes: sizes.rest }))
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
    /// Starts the thread. A frame that is incomplete after the `assembly_timeout_ms` of the settings is lost; a
    /// source that announces nothing for `silence_ns` is stale. With `fits_session_mtu` chunks also have to fit
    /// the MTU of their sender. With `keys` only messages are accepted that are sealed with one of them, at a
    /// time that differs from this host's clock by `key_max_age_ns` at most. Raises `ValueError` for an unknown
    /// idle strategy.
    #[new]
    #[pyo3(signature = (conductor, payload, control, settings, limits, keys = None))]
    fn new(
        conductor: &Bound<'_, Conductor>,
        payload: StreamAddress,
        control: StreamAddress,
        settings: BridgeSettings,
        limits: ReceiverLimits,
        keys: Option<&Bound<'_, BridgeKeys>>,
    ) -> PyResult<Self> {
        let config = ReceiverConfig {
            payload_channel: payload.channel,
            payload_stream_id: payload.stream_id,
            control_channel: control.channel,
            control_stream_id: control.stream_id,
            limits: ChunkLimits {
                chunk_bytes: limits.chunk_bytes,
                payload_bytes: settings.max_payload_bytes,
                needs_checksum: settings.integrity,
            },
            fits_session_mtu: limits.fits_session_mtu,
            keys: keys.map(|keys| (keys.get().shared(), settings.key_max_age_ns)),
            timeout_ns: settings.assembly_timeout_ms * NS_PER_MS,
            silence_ns: limits.silence_ns,
        };
        let idle = settings.idle.parse().map_err(PyValueError::new_err)?;
        conductor.get().check_fork(conductor.py())?;
        let receiver = Arc::new(Receiver::start(config, idle)?);
        let id = conductor.get().add(conductor.py(), receiver.clone())?;
        Ok(Self { receiver, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Adds a source stream and its destination. `progress`: where its progress is forwarded to. Raises `ValueError` if the stream was added already.
    #[pyo3(signature = (stream_id, dest_stream_id, progress = None))]
    fn add(
        &self,
        py: Python<'_>,
        stream_id: u32,
        dest_stream_id: u32,
        progress: Option<StreamAddress>,
    ) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let progress = progress.map(|address| (address.channel, address.stream_id));
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
        BridgeReceiverState::from_state(py, state)
    }

    /// Returns what became of a stream's frames in these sessions.
    fn received(&self, py: Python<'_>, stream_id: u32, sessions: Vec<i32>) -> PyResult<SessionCounts> {
        errors::check_fork(py, self.fork_guard)?;
        let result = py.detach(|| self.receiver.received(stream_id, &sessions));
        let (counts, is_all) = result.ok_or_else(|| unmapped(stream_id))?;
        SessionCounts::from_counts(py, &counts, is_all)
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
    ) -> PyResult<Option<SessionCounts>> {
        errors::check_fork(py, self.fork_guard)?;
        let result = py.detach(|| self.receiver.ledger_start(stream_id, session, position));
        match result.ok_or_else(|| unmapped(stream_id))? {
            LedgerStart::At(counts) => SessionCounts::from_counts(py, &counts, true).map(Some),
            LedgerStart::Ahead | LedgerStart::Unknown => Ok(None),
        }
    }

    /// Returns the frames delivered, and those received in part and not delivered, of all streams.
    fn totals(&self, py: Python<'_>) -> PyResult<BridgeTotals> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.receiver.totals()).into())
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

    /// Returns, for each source stream, the number of its chunks, and of its announces and progress messages.
    /// Only what was opened and decoded is counted, whatever became of it.
    fn traffic(&self, py: Python<'_>) -> PyResult<HashMap<u32, (u64, u64)>> {
        errors::check_fork(py, self.fork_guard)?;
        let traffic = py.detach(|| self.receiver.traffic());
        Ok(traffic.into_iter().map(|(stream_id, t)| (stream_id, (t.chunks, t.messages))).collect())
    }

    /// Subscribes to the payload stream again, for a stream of Aeron that has stopped.
    fn reopen_payload(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.receiver.reopen_payload());
        Ok(())
    }

    /// Subscribes to the control stream again.
    fn reopen_control(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.receiver.reopen_control());
        Ok(())
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

/// Returns the parts of a `bridge://` URI. Raises `ValueError` with the reason if the URI is invalid.
#[pyfunction]
pub fn parse_fallback_uri(text: &str) -> PyResult<ParsedFallbackUri> {
    Ok(FallbackUri::parse(text).map_err(PyValueError::new_err)?.into())
}

/// Returns the reasons why frames are lost at a receiver.
#[pyfunction]
pub fn bridge_reasons() -> Vec<BridgeReason> {
    Loss::ALL.iter().map(|loss| (*loss).into()).collect()
}
