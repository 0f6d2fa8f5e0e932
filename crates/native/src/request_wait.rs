//! `RequestWait`: how the agent of a driver waits, without the interpreter.

use std::sync::Arc;

use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::request_wait as plane;

use crate::announcer::StreamAnnouncer;
use crate::errors;
use crate::mailbox::Mailbox;
use crate::messages::Subscription;
use crate::wait::bounded;

/// A wait for the requests of clients, the commands of a service, and the reports of an announcer. It leaves
/// them where they are.
///
/// Any thread may call the methods. They raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct RequestWait {
    wait: Arc<plane::RequestWait>,
    fork_guard: ForkGuard,
}

#[pymethods]
impl RequestWait {
    /// Watches these three, which stay the caller's to read and to close.
    #[new]
    fn new(requests: &Subscription, commands: &Mailbox, announcer: &StreamAnnouncer) -> Self {
        let wait = plane::RequestWait::new(requests.plane(), commands.plane(), announcer.plane());
        Self { wait: Arc::new(wait), fork_guard: ForkGuard::current() }
    }

    /// Waits up to `timeout` seconds, at most one, until there is something to do. Returns whether there is.
    /// What comes is found within 20 ms. Releases the GIL.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.wait.wait(bounded(timeout.min(1.0)))))
    }

    /// Ends the present wait and every later one.
    fn interrupt(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.wait.interrupt();
        Ok(())
    }
}
