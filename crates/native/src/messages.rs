//! `Publication` and `Subscription`: complete messages, for what happens per second rather than per frame.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::aeron::NotTaken;
use tensorpool_dataplane::messages as plane;

use crate::conductor::Conductor;
use crate::errors;

#[pyclass(frozen, module = "tensorpool._native")]
pub struct Publication {
    publication: Arc<plane::MessagePublication>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl Publication {
    #[new]
    fn new(conductor: &Bound<'_, Conductor>, channel: String, stream_id: i32) -> PyResult<Self> {
        let publication = Arc::new(plane::MessagePublication::new(channel, stream_id));
        let id = conductor.get().add(conductor.py(), publication.clone())?;
        Ok(Self { publication, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Offers a message. Returns "sent", "back_pressured", "not_connected" or "closed".
    fn offer(&self, py: Python<'_>, message: &[u8]) -> PyResult<&'static str> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(match py.detach(|| self.publication.offer(message)) {
            Ok(_) => "sent",
            Err(NotTaken::BackPressured) => "back_pressured",
            Err(NotTaken::NotConnected) => "not_connected",
            Err(NotTaken::Closed) => "closed",
        })
    }

    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publication.is_connected()))
    }

    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publication.is_ready()))
    }

    #[getter]
    fn max_message_length(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publication.max_message_length()))
    }

    /// Why the media driver refused the channel, if it did.
    #[getter]
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.publication.failure().map(|e| e.to_string()))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

#[pyclass(frozen, module = "tensorpool._native")]
pub struct Subscription {
    subscription: Arc<plane::MessageSubscription>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl Subscription {
    #[new]
    fn new(conductor: &Bound<'_, Conductor>, channel: String, stream_id: i32) -> PyResult<Self> {
        let subscription = Arc::new(plane::MessageSubscription::new(channel, stream_id));
        let id = conductor.get().add(conductor.py(), subscription.clone())?;
        Ok(Self { subscription, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Complete messages, of any number of fragments.
    #[pyo3(signature = (limit = 64))]
    fn poll<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyList>> {
        errors::check_fork(py, self.fork_guard)?;
        let mut messages: Vec<Vec<u8>> = Vec::new();
        py.detach(|| self.subscription.poll(limit, |bytes| messages.push(bytes.to_vec())));
        PyList::new(py, messages.iter().map(|m| PyBytes::new(py, m)))
    }

    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.subscription.is_connected()))
    }

    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.subscription.is_ready()))
    }

    /// Why the media driver refused the channel, if it did.
    #[getter]
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.subscription.failure().map(|e| e.to_string()))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}
