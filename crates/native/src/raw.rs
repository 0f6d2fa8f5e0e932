//! `RawPublication` and `RawSubscription`: plain bytes over Aeron, the baseline of the bridge's benchmark.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::raw;

use crate::conductor::Conductor;
use crate::errors;

fn seconds(timeout: f64) -> Duration {
    Duration::try_from_secs_f64(timeout).unwrap_or_default()
}

/// Sends plain bytes over Aeron: the baseline of the bridge's benchmark.
///
/// Any thread may call the methods. All of them raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct RawPublication {
    publication: Arc<raw::RawPublication>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl RawPublication {
    /// Requests a publication of that channel and stream id.
    #[new]
    fn new(conductor: &Bound<'_, Conductor>, channel: String, stream_id: i32) -> PyResult<Self> {
        let publication = Arc::new(raw::RawPublication::new(channel, stream_id));
        let id = conductor.get().add(conductor.py(), publication.clone())?;
        Ok(Self { publication, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Sends `frame` `times` times, divided as the MTU allows. Returns False if that took longer than
    /// `timeout` seconds.
    #[pyo3(signature = (frame, times = 1, timeout = 10.0))]
    fn send(&self, py: Python<'_>, frame: &[u8], times: u64, timeout: f64) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publication.send(frame, times, seconds(timeout))))
    }

    /// Whether a subscription is connected.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publication.is_connected()))
    }

    /// Closes the publication.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

/// Receives and drops plain bytes over Aeron: the baseline of the bridge's benchmark.
///
/// Any thread may call the methods. They raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct RawSubscription {
    subscription: Arc<raw::RawSubscription>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl RawSubscription {
    /// Requests a subscription of that channel and stream id.
    #[new]
    fn new(conductor: &Bound<'_, Conductor>, channel: String, stream_id: i32) -> PyResult<Self> {
        let subscription = Arc::new(raw::RawSubscription::new(channel, stream_id));
        let id = conductor.get().add(conductor.py(), subscription.clone())?;
        Ok(Self { subscription, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Receives and drops `total` bytes. Returns False if that took longer than `timeout` seconds.
    #[pyo3(signature = (total, timeout = 10.0))]
    fn receive(&self, py: Python<'_>, total: u64, timeout: f64) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.subscription.receive(total, seconds(timeout))))
    }

    /// Bytes received so far.
    #[getter]
    fn received(&self) -> u64 {
        self.subscription.received()
    }

    /// Whether a publication is connected.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.subscription.is_connected()))
    }

    /// Closes the subscription.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}
