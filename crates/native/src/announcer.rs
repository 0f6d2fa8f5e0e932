//! `StreamAnnouncer`: announces, activity timestamps and lock watches of a driver's
//! streams, on the conductor's thread.

use std::sync::Arc;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::containment::AllowedBases;
use tensorpool_core::shm::region_lock::RegionLockError;
use tensorpool_dataplane::announcer as plane;
use tensorpool_dataplane::announcer::AnnounceError;
use tensorpool_dataplane::conductor::Endpoint;

use crate::conductor::Conductor;
use crate::errors;
use crate::options::{AnnouncerOptions, EpochFiles};
use crate::records::{DamagedEpoch, DeadProducer};

/// Announces the streams of a driver, refreshes the activity timestamps of their regions, and watches the
/// locks of their producers.
///
/// The conductor's thread does this, so that a busy interpreter delays no announce. Any thread may call the
/// methods. All of them raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct StreamAnnouncer {
    announcer: Arc<plane::StreamAnnouncer>,
    bases: AllowedBases,
    lock_memory: bool,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

impl StreamAnnouncer {
    pub fn plane(&self) -> Arc<plane::StreamAnnouncer> {
        self.announcer.clone()
    }
}

#[pymethods]
impl StreamAnnouncer {
    /// Announces and refreshes activity timestamps every `period_ns`, until `stall_ns` pass without a
    /// `heartbeat`. Regions are mapped below `base_dirs`, and with `lock_memory` locked into memory.
    ///
    /// Raises `ValueError` if one of the times is 0.
    #[new]
    fn new(conductor: &Bound<'_, Conductor>, options: AnnouncerOptions) -> PyResult<Self> {
        let AnnouncerOptions { period_ns, stall_ns, base_dirs, lock_memory } = options;
        if period_ns == 0 || stall_ns == 0 {
            return Err(PyValueError::new_err("period_ns and stall_ns must be above 0"));
        }
        let announcer = Arc::new(plane::StreamAnnouncer::new(plane::Config {
            period_ns,
            stall_ns,
            clock: conductor.get().clock(),
        }));
        let id = conductor.get().add(conductor.py(), announcer.clone())?;
        Ok(Self {
            announcer,
            bases: AllowedBases::new(base_dirs)?,
            lock_memory,
            conductor: conductor.clone().unbind(),
            id,
            fork_guard: ForkGuard::current(),
        })
    }

    /// Announces the regions of a stream in place of earlier ones, and watches the lock of their producer.
    /// If this call fails, the stream is not announced.
    ///
    /// Raises `RegionRejected` if a region is invalid, `OSError` if its lock cannot be watched or its
    /// memory not be locked, `ClosedError` after `close`.
    fn announce(&self, py: Python<'_>, stream_id: u32, files: EpochFiles, producer_id: u32) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let announce = files.announce(stream_id, producer_id);
        let announced = py.detach(|| self.announcer.announce(&announce, &self.bases, self.lock_memory));
        announced.map_err(|error| match &error {
            AnnounceError::Closed => errors::plain(py, "ClosedError", &error.to_string()),
            AnnounceError::Region(refused) | AnnounceError::Watch(RegionLockError::Refused(refused)) => {
                errors::region(py, refused)
            }
            AnnounceError::Watch(RegionLockError::Io(io)) => {
                os_error(io, format!("stream {stream_id}: {error}"))
            }
            AnnounceError::Watch(RegionLockError::Held) => PyOSError::new_err(error.to_string()),
            AnnounceError::LockMemory(io) => os_error(
                io,
                format!("stream {stream_id}: {error}; raise the limit (ulimit -l) or do not lock memory"),
            ),
        })
    }

    /// Stops announcing a stream. Returns False if it was not announced.
    fn withdraw(&self, py: Python<'_>, stream_id: u32) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.announcer.withdraw(stream_id)))
    }

    /// Reports that the driver's duty cycle is running. Without it announces stop after `stall_ns`.
    fn heartbeat(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.announcer.heartbeat();
        Ok(())
    }

    /// Returns the producers whose lock was released since the last call.
    fn dead_producers(&self, py: Python<'_>) -> PyResult<Vec<DeadProducer>> {
        errors::check_fork(py, self.fork_guard)?;
        let dead = py.detach(|| self.announcer.dead_producers());
        Ok(dead.into_iter().map(|(stream_id, epoch)| DeadProducer { stream_id, epoch }).collect())
    }

    /// Returns the epochs whose regions were found truncated or overwritten since the last call. They are no
    /// longer announced.
    fn damaged(&self, py: Python<'_>) -> PyResult<Vec<DamagedEpoch>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.announcer.damaged()).into_iter().map(DamagedEpoch::from).collect())
    }

    /// Makes every stream's announce due at once.
    fn announce_all(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.announcer.announce_now());
        Ok(())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.announcer.len()))
    }

    /// Stops announcing every stream.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

/// An OSError with the errno of `io` and our message.
fn os_error(io: &std::io::Error, message: String) -> PyErr {
    PyOSError::new_err((io.raw_os_error(), message))
}
