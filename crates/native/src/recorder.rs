//! `Recorder`: the loop that copies frames into arenas; `Arena`: rows, gaps and payloads on their way to
//! disk.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::recording::rows::{self, Row};
use tensorpool_core::wire::layout::DTYPE_UINT8;
use tensorpool_dataplane::recorder as plane;

use crate::consumer::Consumer;
use crate::records::{RecordedGap, RecorderReason};
use crate::stats::{RecordedCounts, RecorderBuffer};
use crate::wait::bounded;
use crate::{arrays, errors};

/// The largest chunk of a recorder's memory, and the largest number of rows of an arena.
const MAX_CHUNK_BYTES: usize = 1 << 30;
const MAX_ROWS: usize = 1 << 20;

/// Reads consumers and copies their frames into arenas, on a thread of its own.
///
/// Any thread may call the methods. All of them raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Recorder {
    recorder: Arc<plane::Recorder>,
    fork_guard: ForkGuard,
}

#[pymethods]
impl Recorder {
    /// Starts the thread with `buffer_bytes` of memory for payloads, in chunks of `chunk_bytes`. An arena
    /// is handed over once it has `rows` rows, or after `age_ns`.
    ///
    /// Raises `ValueError` for sizes of 0 or above the limits, and for an unknown idle strategy.
    #[new]
    #[pyo3(signature = (*, buffer_bytes, chunk_bytes, rows, age_ns, idle))]
    fn new(
        py: Python<'_>,
        buffer_bytes: usize,
        chunk_bytes: usize,
        rows: usize,
        age_ns: u64,
        idle: &str,
    ) -> PyResult<Self> {
        let idle = idle.parse().map_err(PyValueError::new_err)?;
        let is_valid = buffer_bytes > 0
            && (1..=MAX_CHUNK_BYTES).contains(&chunk_bytes)
            && (1..=MAX_ROWS).contains(&rows);
        if !is_valid {
            return Err(PyValueError::new_err("a recorder needs memory: chunks of up to 1 GiB, and rows"));
        }
        let recorder = py.detach(|| plane::Recorder::start(buffer_bytes, chunk_bytes, rows, age_ns, idle))?;
        Ok(Self { recorder: Arc::new(recorder), fork_guard: ForkGuard::current() })
    }

    /// Records `consumer` from now on. No other code may poll it. `resume`: the epoch and last sequence
    /// that are recorded already.
    #[pyo3(signature = (consumer, resume = None))]
    fn add(
        &self,
        py: Python<'_>,
        consumer: &Bound<'_, Consumer>,
        resume: Option<(u64, u64)>,
    ) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let plane = consumer.get().plane();
        py.detach(|| self.recorder.add(plane, resume));
        Ok(())
    }

    /// Stops reading a stream. Its recorded frames can still be taken.
    fn remove(&self, py: Python<'_>, stream_id: u32) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.recorder.remove(stream_id));
        Ok(())
    }

    /// Returns the next arena. None if there was none within `timeout` seconds.
    fn take(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<Arena>> {
        errors::check_fork(py, self.fork_guard)?;
        let taken = py.detach(|| self.recorder.take(bounded(timeout)));
        Ok(taken.map(|arena| Arena { arena }))
    }

    /// Hands over everything recorded so far. Returns False if that took longer than `timeout` seconds.
    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.recorder.flush(bounded(timeout))))
    }

    /// Sets the age after which an arena is handed over although it is not full.
    fn set_age_ns(&self, py: Python<'_>, age_ns: u64) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.recorder.set_age_ns(age_ns));
        Ok(())
    }

    /// Sets the reason of frames that find no room in the buffer: the full disk, or else the backlog.
    fn set_disk_is_full(&self, py: Python<'_>, is_full: bool) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.recorder.set_disk_is_full(is_full);
        Ok(())
    }

    /// Returns the buffer in use and in total, and for each stream rows, bytes, lost sequences and strays.
    fn buffer(&self, py: Python<'_>) -> PyResult<RecorderBuffer> {
        errors::check_fork(py, self.fork_guard)?;
        let ((used_bytes, total_bytes), stats, waiting) =
            py.detach(|| (self.recorder.buffer(), self.recorder.stats(), self.recorder.waiting()));
        let streams = PyDict::new(py);
        for stream in stats {
            let counts = stream.counts;
            let counts = RecordedCounts {
                rows: counts.rows,
                bytes: counts.bytes,
                lost: counts.lost,
                strays: counts.strays,
            };
            streams.set_item(stream.stream_id, Py::new(py, counts)?)?;
        }
        Ok(RecorderBuffer { used_bytes, total_bytes, waiting, streams: streams.unbind() })
    }

    /// Ends the thread. Recorded frames can still be taken.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.recorder.close());
        Ok(())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.fork_guard.is_owner() {
            return self.recorder.forget();
        }
        // Dropped without a close: the loop ends within one duty cycle, and needs no interpreter for that.
        self.recorder.close();
    }
}

/// Rows, gaps and payloads of one stream on their way to disk.
///
/// Its memory is reused once the last array over it is dropped.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Arena {
    arena: rows::Arena,
}

#[pymethods]
impl Arena {
    /// The stream of the frames.
    #[getter]
    fn stream_id(&self) -> u32 {
        self.arena.stream_id
    }

    /// The epoch of the frames.
    #[getter]
    fn epoch(&self) -> u64 {
        self.arena.epoch
    }

    fn __len__(&self) -> usize {
        self.arena.rows.len()
    }

    /// The bytes of all rows, in order: see `tensorpool.recorder.arena_rows.ROW`.
    #[getter]
    fn rows<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let rows = &slf.get().arena.rows;
        bytes(slf, rows.as_ptr().cast_mut().cast(), size_of::<Row>() * rows.len())
    }

    /// The bytes of all payloads, padded.
    #[getter]
    fn payload<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let arena = &slf.get().arena;
        match &arena.run {
            Some(run) => bytes(slf, run.at(0), arena.filled_bytes),
            None => bytes(slf, std::ptr::NonNull::dangling().as_ptr(), 0),
        }
    }

    /// The sequences that were not recorded, in order.
    #[getter]
    fn gaps(&self) -> Vec<RecordedGap> {
        self.arena.gaps.iter().map(|gap| (*gap).into()).collect()
    }
}

/// A read-only view of the arena's own memory.
fn bytes<'py>(arena: &Bound<'py, Arena>, at: *mut u8, len: usize) -> PyResult<Bound<'py, PyAny>> {
    let len = i32::try_from(len).map_err(|_| PyValueError::new_err("an arena is less than 2 GiB"))?;
    // SAFETY: the memory belongs to the arena, which is the array's base, and is written no more.
    unsafe { arrays::view(at, DTYPE_UINT8, &[len], &[1], false, arena.clone().into_any()) }
}

/// Returns the reasons why a recorder loses frames.
#[pyfunction]
pub fn recorder_reasons() -> Vec<RecorderReason> {
    RecorderReason::all()
}
