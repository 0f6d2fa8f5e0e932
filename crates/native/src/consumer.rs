//! `Consumer`: poll, wait, latest frame, counters and metadata.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tensorpool_core::consumer::hello_state::ConsumerRequest;
use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::wire::driver::Role;
use tensorpool_dataplane::consumer as plane;
use tensorpool_dataplane::consumer::{BatchEnd, WaitOutcome};
use tensorpool_dataplane::idle::IdleStrategy;

use crate::conductor::Conductor;
use crate::errors;
use crate::frame::Frame;
use crate::frame_batch::{BatchTarget, FrameBatch};
use crate::metadata::{MetadataListener, Origin, SourceMetadata};
use crate::options::{Connection, ConsumerOptions, LeaseOptions, RequestOptions};
use crate::progress::Progress;
use crate::records;
use crate::stats::{ConsumerCounters, ConsumerState, LatencyReport, LeaseStatus, MetadataCounters};
use crate::wait::{deadline, until};

thread_local! {
    /// The buffer of a poll's frames, reused so that polling does not allocate.
    static FRAME_BUFFER: RefCell<Vec<plane::Frame>> = const { RefCell::new(Vec::new()) };
}

/// The native part of `tensorpool.Consumer`: reads the descriptors of a stream and maps its regions.
///
/// Several threads may read one consumer; each frame then goes to one of them. Every method raises
/// `ForkedError` in a forked child. `tensorpool.open().consumer(...)` creates one.
#[pyclass(frozen, subclass, module = "tensorpool._native")]
pub struct Consumer {
    consumer: Arc<plane::Consumer>,
    origin: Arc<Origin>,
    conductor: Py<Conductor>,
    id: u64,
    idle: IdleStrategy,
    latest_only: bool,
    fork_guard: ForkGuard,
}

impl Consumer {
    fn take(&self, py: Python<'_>, limit: usize) -> PyResult<Vec<plane::Frame>> {
        let mut frames = FRAME_BUFFER.with_borrow_mut(std::mem::take);
        frames.clear();
        // Waiting frames are read at once, because releasing the interpreter takes longer. A poll without
        // frames releases it for other threads.
        if self.consumer.try_poll(limit, &mut frames) == 0 {
            py.detach(|| self.consumer.poll(limit, &mut frames));
        }
        if frames.is_empty()
            && let Err(error) = self.raise_refusal(py)
        {
            recycle(frames);
            return Err(error);
        }
        Ok(frames)
    }

    fn newest(&self, py: Python<'_>) -> PyResult<Option<plane::Frame>> {
        let frame = py.detach(|| self.consumer.latest());
        if frame.is_none() {
            self.raise_refusal(py)?;
        }
        Ok(frame)
    }

    /// Raises the refusal that is not reported yet.
    fn raise_refusal(&self, py: Python<'_>) -> PyResult<()> {
        match self.consumer.take_refused() {
            Some(r) => Err(errors::refused(py, &r.message, r.reason, &r.uri)),
            None => Ok(()),
        }
    }

    /// One frame if there is one now.
    fn try_poll_one(&self, py: Python<'_>) -> PyResult<Option<plane::Frame>> {
        if self.latest_only {
            return self.newest(py);
        }
        let frame = self.consumer.try_poll_one().or_else(|| py.detach(|| self.consumer.poll_one()));
        if frame.is_none() {
            self.raise_refusal(py)?;
        }
        Ok(frame)
    }

    fn frame(&self, frame: plane::Frame) -> Frame {
        Frame::new(frame, self.origin.clone(), self.fork_guard)
    }

    pub fn parts(&self, py: Python<'_>) -> (Arc<plane::Consumer>, Py<Conductor>) {
        (self.consumer.clone(), self.conductor.clone_ref(py))
    }

    /// For a join, which polls without the interpreter and makes frames of this consumer.
    pub fn join_parts(&self) -> (Arc<plane::Consumer>, Arc<Origin>) {
        (self.consumer.clone(), self.origin.clone())
    }

    /// For loops that poll without the interpreter.
    pub fn plane(&self) -> Arc<plane::Consumer> {
        self.consumer.clone()
    }

    fn source_metadata(&self, py: Python<'_>) -> PyResult<Option<&SourceMetadata>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.origin.metadata.as_ref())
    }
}

fn recycle(mut frames: Vec<plane::Frame>) {
    frames.clear();
    FRAME_BUFFER.with_borrow_mut(|kept| *kept = frames);
}

#[pymethods]
impl Consumer {
    /// Adds a consumer to the connection's conductor. `fallback_uri` is read while there is no shared memory to
    /// use. `sends_hello_unmapped`: it sends hellos then, too.
    ///
    /// Raises `ValueError` for an unknown idle strategy.
    #[new]
    #[pyo3(signature = (connection, stream_id, options, *, descriptor_channel, descriptor_stream_id, freshness_ns, request, lease = None, metadata = None, fallback_uri = None, sends_hello_unmapped = false, fallback_bytes = 1 << 30))]
    fn new(
        connection: Connection<'_>,
        stream_id: u32,
        options: ConsumerOptions,
        descriptor_channel: String,
        descriptor_stream_id: i32,
        freshness_ns: u64,
        request: RequestOptions,
        lease: Option<LeaseOptions>,
        metadata: Option<&Bound<'_, MetadataListener>>,
        fallback_uri: Option<String>,
        sends_hello_unmapped: bool,
        fallback_bytes: u64,
    ) -> PyResult<Self> {
        let idle = options.idle.parse().map_err(pyo3::exceptions::PyValueError::new_err)?;
        let config = plane::Config {
            stream_id,
            descriptor_channel,
            descriptor_stream_id,
            max_outstanding_seq_gap: options.max_outstanding_seq_gap,
            freshness_ns,
            min_interval_ns: options.min_interval_ns,
            hello_period_ns: connection.report_period_ns,
            supports_shm: options.supports_shm,
            sends_hello_unmapped,
            dedicated_control_stream: options.control_stream_id,
            dedicated_qos_stream: options.qos_stream_id,
            fallback: plane::FallbackOptions {
                uri: fallback_uri,
                max_bytes: fallback_bytes,
                // Freshness is three announce periods. A bridge's receiver waits for five.
                silence_ns: freshness_ns / 3 * 5,
                idle,
            },
        };
        let lease_options =
            lease.map(|l| l.for_endpoint(&connection, stream_id, Role::Consumer, false, None)).transpose()?;
        let request = ConsumerRequest { is_remote: !options.supports_shm, ..request.request() };
        let consumer = Arc::new(plane::Consumer::new(config, request, lease_options));
        let metadata = metadata.map(|listener| SourceMetadata::new(listener, stream_id));
        let origin =
            Arc::new(Origin { counters: consumer.counters().clone(), metadata, device: OnceLock::new() });
        let conductor = connection.conductor;
        let id = conductor.get().add(conductor.py(), consumer.clone())?;
        Ok(Self {
            consumer,
            origin,
            conductor: conductor.unbind(),
            id,
            idle,
            latest_only: options.policy == "latest",
            fork_guard: ForkGuard::current(),
        })
    }

    /// The stream that this consumer reads.
    #[getter]
    fn stream_id(&self) -> u32 {
        self.consumer.stream_id()
    }

    /// The mapped epoch. None while no regions are mapped.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.consumer.mapping().map(|m| m.epoch)))
    }

    /// Number of slots in the header ring: how many frames fit before the oldest is overwritten. None while
    /// no regions are mapped.
    #[getter]
    fn nslots(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.consumer.mapping().map(|m| m.nslots)))
    }

    /// The highest sequence received in the current epoch. None before the first.
    #[getter]
    fn last_seq(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.consumer.last_seq()))
    }

    /// Whether a publication of descriptors is connected, or frames come from a fallback.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.consumer.is_connected()))
    }

    /// Whether the subscription exists, so that descriptors published from now on are received.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.consumer.is_ready()))
    }

    /// Returns its consumer id, mode, streams, phase and fallback URI.
    fn state(&self, py: Python<'_>) -> PyResult<ConsumerState> {
        errors::check_fork(py, self.fork_guard)?;
        Ok((&*self.consumer).into())
    }

    /// Returns the state of the lease: its ids, how often it was granted, refused and ended, and why there
    /// is none (`code`, `message`). None for a consumer without a driver.
    fn lease(&self, py: Python<'_>) -> PyResult<Option<LeaseStatus>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(LeaseStatus::from_lease(py, self.consumer.lease()))
    }

    /// Whether the consumer was closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.consumer.is_closed())
    }

    /// Returns the frames that are ready, oldest first, without waiting.
    ///
    /// At most `limit` frames. The list is empty if none is ready or the consumer is closed. Frames that
    /// were overwritten before this call are counted as drops and not returned: a caller that is slower than
    /// its producer gets later frames. Any thread may call this.
    ///
    /// Raises `RegionRejected` once, if the announced regions were rejected and there are no frames.
    ///
    ///     for frame in consumer.poll(16):
    ///         with frame:
    ///             work(frame.array)
    #[pyo3(signature = (limit = 64))]
    fn poll<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyList>> {
        errors::check_fork(py, self.fork_guard)?;
        let mut frames = self.take(py, limit)?;
        let list = PyList::empty(py);
        for frame in frames.drain(..) {
            list.append(Bound::new(py, self.frame(frame))?)?;
        }
        recycle(frames);
        Ok(list)
    }

    /// Returns the newest frame that is ready, without waiting, or None.
    ///
    /// The frames before it are counted as `skipped`. Any thread may call this.
    ///
    /// Raises `RegionRejected` once, if the announced regions were rejected and there is no frame.
    ///
    ///     frame = consumer.latest()
    ///     if frame is not None:
    ///         show(frame.copy())
    fn latest(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.newest(py)?.map(|f| self.frame(f)))
    }

    /// Returns the next frame. None if there was none within `timeout` seconds, or the consumer was closed.
    ///
    /// `timeout` of None waits without end, 0 does not wait. A consumer with policy "latest" returns the
    /// newest frame. Releases the GIL while it waits; Ctrl-C ends the wait. Any thread may call this.
    ///
    /// Raises `RegionRejected` if the announced regions were rejected, `ValueError` for a negative timeout.
    #[pyo3(signature = (timeout = None))]
    fn receive_or_none(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Frame>> {
        errors::check_fork(py, self.fork_guard)?;
        let deadline = deadline(timeout)?;
        loop {
            if let Some(frame) = self.try_poll_one(py)? {
                return Ok(Some(self.frame(frame)));
            }
            match self.wait_until(py, deadline)? {
                // All messages may be of other streams, again and again: the deadline and Ctrl-C are still
                // checked.
                WaitOutcome::Ready => py.check_signals()?,
                WaitOutcome::TimedOut | WaitOutcome::Closed => return Ok(None),
                WaitOutcome::Refused(r) => {
                    return Err(errors::refused(py, &r.message, r.reason, &r.uri));
                }
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Ok(None);
            }
        }
    }

    /// Returns up to `n` frames of one layout as one array. None if there was none within `timeout` seconds, or
    /// the consumer was closed.
    ///
    /// For small frames at a high rate: the frames are copied and checked natively, without the GIL and without
    /// an object for each. A frame that was overwritten before or during its copy is left out, and counts as
    /// `late`. A batch ends before a frame of another shape, element type, metadata version or epoch; that frame
    /// begins the next one.
    ///
    /// Waits for the first frame, and returns with those that are there. `at_least` waits for more: until so many
    /// were taken, the layout changes, or the time is over. `timeout` of None waits without end, 0 does not wait.
    /// `out` receives the frames: an array of at least one row, with the shape and type of the frames behind
    /// its first axis; no more frames are taken than it has rows. Ctrl-C ends the wait. Any thread may call this.
    ///
    /// Raises `ValueError` if `out` does not fit the next frame, which then stays, and `RegionRejected` if the
    /// announced regions were rejected.
    ///
    ///     batch = consumer.take_or_none(4096, timeout=1.0)
    ///     if batch is not None:
    ///         spectrum += batch.array.sum(axis=0)
    #[pyo3(signature = (n, out = None, timeout = None, at_least = 1))]
    fn take_or_none(
        &self,
        py: Python<'_>,
        n: usize,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        at_least: usize,
    ) -> PyResult<Option<FrameBatch>> {
        errors::check_fork(py, self.fork_guard)?;
        if n == 0 || at_least == 0 || at_least > n {
            return Err(pyo3::exceptions::PyValueError::new_err(format!(
                "n={n}, at_least={at_least}: take 1 frame or more, and wait for no more than n"
            )));
        }
        self.take_batch(py, n, at_least, out, deadline(timeout)?)
    }

    /// Returns up to `limit` frames of one layout that are ready, as one array, without waiting. None if there
    /// are none.
    ///
    /// As `take_or_none` with a timeout of 0.
    ///
    ///     while (batch := consumer.poll_batch()) is not None:
    ///         histogram += np.bincount(batch.array.ravel(), minlength=256)
    #[pyo3(signature = (limit = 1024, out = None))]
    fn poll_batch(
        &self,
        py: Python<'_>,
        limit: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<FrameBatch>> {
        self.take_or_none(py, limit, out, Some(0.0), 1)
    }

    /// Waits up to `timeout` seconds for a message that `poll` would read, and reads nothing.
    ///
    /// Returns False on timeout and when the consumer is closed. `timeout` of None waits without end. The
    /// message may be of another stream, so `poll` may return no frame. Releases the GIL; Ctrl-C ends the
    /// wait.
    ///
    /// Raises `RegionRejected` if the announced regions were rejected, `ValueError` for a negative timeout.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        match self.wait_until(py, deadline(timeout)?)? {
            WaitOutcome::Ready => Ok(true),
            WaitOutcome::TimedOut | WaitOutcome::Closed => Ok(false),
            WaitOutcome::Refused(r) => Err(errors::refused(py, &r.message, r.reason, &r.uri)),
        }
    }

    /// Returns the partial frames that are new, without waiting, from at most `limit` messages.
    ///
    /// Raises `ValueError` if the consumer was created without `progress=True`.
    ///
    ///     for part in consumer.poll_progress():
    ///         with part:
    ///             work(part.array)
    #[pyo3(signature = (limit = 64))]
    fn poll_progress(&self, py: Python<'_>, limit: usize) -> PyResult<Vec<Progress>> {
        self.check_reads_progress(py)?;
        let mut parts = Vec::new();
        py.detach(|| self.consumer.poll_progress(limit, &mut parts));
        Ok(parts.into_iter().map(|part| Progress::new(part, self.origin.clone(), self.fork_guard)).collect())
    }

    /// Waits up to `timeout` seconds for a message that `poll_progress` would read.
    ///
    /// Returns False on timeout and when the consumer is closed. Releases the GIL; Ctrl-C ends the wait.
    /// Raises `ValueError` if the consumer was created without `progress=True`.
    #[pyo3(signature = (timeout = None))]
    fn wait_progress(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.check_reads_progress(py)?;
        let waited =
            until(py, deadline(timeout)?, |left, since| self.consumer.wait_progress(left, self.idle, since))?;
        Ok(matches!(waited, WaitOutcome::Ready))
    }

    /// Returns received, span and drops by reason, and the counters of mappings, announces and progress.
    ///
    /// `tensorpool.Consumer.ledger` gives the first three as one object.
    fn counters(&self, py: Python<'_>) -> PyResult<ConsumerCounters> {
        errors::check_fork(py, self.fork_guard)?;
        ConsumerCounters::from_counters(py, self.consumer.counters())
    }

    /// Returns count, p50, p99 and maximum of the latency, since the beginning and over the last interval,
    /// in ns.
    fn latency_report(&self, py: Python<'_>) -> PyResult<LatencyReport> {
        errors::check_fork(py, self.fork_guard)?;
        let report = py.detach(|| self.consumer.counters().latency.report());
        LatencyReport::from_report(py, &report)
    }

    /// Returns the attributes of the latest metadata version received. None before the first.
    fn newest_metadata(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let newest = self.source_metadata(py)?.map(|k| k.newest(py)).transpose()?.flatten();
        Ok(newest.map(|s| s.mapping.clone_ref(py)))
    }

    /// Returns name and summary of the source. None while they are unknown.
    fn source(&self, py: Python<'_>) -> PyResult<Option<(String, String)>> {
        Ok(self.source_metadata(py)?.and_then(SourceMetadata::source).map(|s| (s.name, s.summary)))
    }

    /// Returns the latest blob of that type that is complete, or None.
    ///
    /// With `of`, an epoch and a metadata version: the latest at that version. With `exact`: only of that
    /// version.
    #[pyo3(signature = (blob_type, of = None, exact = false))]
    fn find_blob<'py>(
        &self,
        py: Python<'py>,
        blob_type: u32,
        of: Option<(u64, u32)>,
        exact: bool,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.source_metadata(py)?.and_then(|k| k.blob(py, blob_type, of, exact)))
    }

    /// Returns counters of the metadata stream and of the blobs of this source. None for a consumer that reads
    /// no metadata.
    fn metadata_counters(&self, py: Python<'_>) -> PyResult<Option<MetadataCounters>> {
        self.source_metadata(py)?.map(|k| k.counters(py)).transpose()
    }

    /// Sets what `Frame.to_device` of its frames calls. Raises `ValueError` if it was set before.
    fn set_device(&self, py: Python<'_>, device: Py<PyAny>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let set = self.origin.device.set(device);
        set.map_err(|_| pyo3::exceptions::PyValueError::new_err("this consumer has a device already"))
    }

    /// Unsubscribes, returns the lease and unmaps the regions. Ends every wait.
    ///
    /// Frames that were received stay readable. Any thread may call this, more than once.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

impl Consumer {
    fn wait_until(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<WaitOutcome> {
        until(py, deadline, |left, since| self.consumer.wait(left, self.idle, since))
    }

    fn take_batch(
        &self,
        py: Python<'_>,
        n: usize,
        at_least: usize,
        out: Option<&Bound<'_, PyAny>>,
        deadline: Option<Instant>,
    ) -> PyResult<Option<FrameBatch>> {
        let is_over = || deadline.is_some_and(|d| Instant::now() >= d);
        loop {
            let Some(layout) = py.detach(|| self.consumer.next_layout()) else {
                self.raise_refusal(py)?;
                if is_over() {
                    return Ok(None);
                }
                match self.wait_until(py, deadline)? {
                    WaitOutcome::Ready => py.check_signals()?,
                    WaitOutcome::TimedOut | WaitOutcome::Closed => return Ok(None),
                    WaitOutcome::Refused(r) => return Err(errors::refused(py, &r.message, r.reason, &r.uri)),
                }
                continue;
            };
            let mut target = BatchTarget::new(py, &self.origin, layout, n, at_least, out)?;
            loop {
                let end = target.take(py, &self.consumer);
                let is_done = end == BatchEnd::OtherLayout || target.has_enough(at_least) || is_over();
                if is_done {
                    break;
                }
                match self.wait_until(py, deadline)? {
                    WaitOutcome::Ready => py.check_signals()?,
                    WaitOutcome::TimedOut | WaitOutcome::Closed => break,
                    WaitOutcome::Refused(r) if target.is_empty() => {
                        return Err(errors::refused(py, &r.message, r.reason, &r.uri));
                    }
                    // The next call raises it.
                    WaitOutcome::Refused(r) => {
                        self.consumer.restore_refused(r);
                        break;
                    }
                }
            }
            if !target.is_empty() {
                let (stream_id, origin) = (self.consumer.stream_id(), self.origin.clone());
                return target.finish(py, stream_id, origin, self.fork_guard).map(Some);
            }
            // All frames were overwritten, or another thread took them.
            if is_over() || self.consumer.is_closed() {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    fn check_reads_progress(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        if self.consumer.reads_progress().0 {
            return Ok(());
        }
        Err(pyo3::exceptions::PyValueError::new_err(
            "this consumer did not ask for progress; use ctx.consumer(..., progress=True)",
        ))
    }
}

/// Returns every reason why a consumer drops frames.
#[pyfunction]
pub fn drop_reasons() -> Vec<records::DropReason> {
    DropReason::ALL.iter().map(|reason| (*reason).into()).collect()
}
