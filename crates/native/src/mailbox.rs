//! `Mailbox`: the events for one receiver, kept by the conductor while the interpreter is busy.

use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::wire::event::TagFilter;
use tensorpool_dataplane::mailbox as plane;

use crate::conductor::Conductor;
use crate::errors;
use crate::stats::MailboxCounters;
use crate::wait::{bounded, in_slices};

/// Queue of the service events for one receiver. The conductor's thread fills it while the interpreter is
/// busy.
///
/// Any thread may call the methods. They raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Mailbox {
    mailbox: Arc<plane::Mailbox>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

impl Mailbox {
    pub fn plane(&self) -> Arc<plane::Mailbox> {
        self.mailbox.clone()
    }
}

#[pymethods]
impl Mailbox {
    /// Keeps events whose tag is one of `tags`, or all events if there are none. A tag that ends in `*` is
    /// a prefix. With `correlation_high` only events whose correlation id has that upper half.
    #[new]
    #[pyo3(signature = (conductor, channel, stream_id, tags, correlation_high = None))]
    fn new(
        conductor: &Bound<'_, Conductor>,
        channel: String,
        stream_id: i32,
        tags: Vec<String>,
        correlation_high: Option<u32>,
    ) -> PyResult<Self> {
        let filter = TagFilter::new(tags).answers_to(correlation_high);
        let mailbox = Arc::new(plane::Mailbox::new(channel, stream_id, filter));
        let id = conductor.get().add(conductor.py(), mailbox.clone())?;
        Ok(Self { mailbox, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Removes and returns up to `limit` messages, oldest first. Waits up to `timeout` seconds for the
    /// first. Releases the GIL; Ctrl-C ends the wait.
    #[pyo3(signature = (limit = 64, timeout = 0.0))]
    fn take<'py>(&self, py: Python<'py>, limit: usize, timeout: f64) -> PyResult<Bound<'py, PyList>> {
        errors::check_fork(py, self.fork_guard)?;
        let deadline = Instant::now() + bounded(timeout);
        let messages = in_slices(py, Some(deadline), |slice| {
            let messages = self.mailbox.take(limit, slice);
            (!messages.is_empty() || self.mailbox.is_closed()).then_some(messages)
        })?;
        PyList::new(py, messages.unwrap_or_default().iter().map(|m| PyBytes::new(py, m)))
    }

    /// Waits up to `timeout` seconds, at most one, for a message, and leaves it in the queue. Returns
    /// whether there is one.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.mailbox.wait(bounded(timeout.min(1.0)))))
    }

    /// Returns how many messages were kept, were for others, were unreadable, or were dropped because the
    /// queue was full.
    fn counters(&self) -> MailboxCounters {
        self.mailbox.counters().into()
    }

    /// Whether the subscription exists.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.mailbox.is_ready()))
    }

    /// Whether a publication is connected.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.mailbox.is_connected()))
    }

    /// Whether the mailbox was closed. True in a forked child.
    #[getter]
    fn closed(&self) -> bool {
        !self.fork_guard.is_owner() || self.mailbox.is_closed()
    }

    /// Closes the subscription and ends every wait.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}
