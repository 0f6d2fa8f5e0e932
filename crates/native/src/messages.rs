//! `Publication` and `Subscription`: complete messages, for what happens per second rather than per frame.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::aeron::OfferError;
use tensorpool_dataplane::messages as plane;

use crate::conductor::Conductor;
use crate::errors;
use crate::records::ImageMessage;

/// Publishes complete messages of any length to one Aeron stream, for what happens per second rather than
/// per frame.
///
/// Any thread may call the methods. All of them raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Publication {
    publication: Arc<plane::MessagePublication>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl Publication {
    /// Requests a publication of that channel and stream id.
    #[new]
    fn new(conductor: &Bound<'_, Conductor>, channel: String, stream_id: i32) -> PyResult<Self> {
        let publication = Arc::new(plane::MessagePublication::new(channel, stream_id));
        let id = conductor.get().add(conductor.py(), publication.clone())?;
        Ok(Self { publication, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Offers a message, without waiting. Returns "sent", "back_pressured", "not_connected" or "closed".
    fn offer(&self, py: Python<'_>, message: &[u8]) -> PyResult<&'static str> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(match py.detach(|| self.publication.offer(message)) {
            Ok(_) => "sent",
            Err(OfferError::BackPressured) => "back_pressured",
            Err(OfferError::NotConnected) => "not_connected",
            Err(OfferError::Closed) => "closed",
        })
    }

    /// Whether a subscription is connected.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publication.is_connected()))
    }

    /// Whether the publication exists.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publication.is_ready()))
    }

    /// Whether the subscriptions leave room for a message. None while there is no publication.
    #[getter]
    fn has_room(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publication.has_room()))
    }

    /// The longest message that the stream accepts. None while there is no publication.
    #[getter]
    fn max_message_length(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publication.max_message_length()))
    }

    /// Why the media driver refused the channel. None if it did not.
    #[getter]
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.publication.failure().map(|e| e.to_string()))
    }

    /// Closes the publication.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

/// Receives the complete messages of one Aeron stream, for what happens per second rather than per frame.
///
/// Any thread may call the methods. All of them raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Subscription {
    subscription: Arc<plane::MessageSubscription>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

impl Subscription {
    pub fn plane(&self) -> Arc<plane::MessageSubscription> {
        self.subscription.clone()
    }
}

#[pymethods]
impl Subscription {
    /// Requests a subscription of that channel and stream id.
    #[new]
    fn new(conductor: &Bound<'_, Conductor>, channel: String, stream_id: i32) -> PyResult<Self> {
        let subscription = Arc::new(plane::MessageSubscription::new(channel, stream_id));
        let id = conductor.get().add(conductor.py(), subscription.clone())?;
        Ok(Self { subscription, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Returns the complete messages, of any number of fragments, that are ready. Reads at most `limit`
    /// fragments and does not wait.
    #[pyo3(signature = (limit = 64))]
    fn poll<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyList>> {
        errors::check_fork(py, self.fork_guard)?;
        let mut messages: Vec<Vec<u8>> = Vec::new();
        py.detach(|| self.subscription.poll(limit, |bytes| messages.push(bytes.to_vec())));
        PyList::new(py, messages.iter().map(|m| PyBytes::new(py, m)))
    }

    /// As `poll`, and returns the image of each message with it.
    #[pyo3(signature = (limit = 64))]
    fn poll_images(&self, py: Python<'_>, limit: usize) -> PyResult<Vec<ImageMessage>> {
        errors::check_fork(py, self.fork_guard)?;
        let mut messages: Vec<(Vec<u8>, i32)> = Vec::new();
        py.detach(|| {
            self.subscription.poll_images(limit, |bytes, session| messages.push((bytes.to_vec(), session)))
        });
        Ok(messages
            .into_iter()
            .map(|(message, session_id)| ImageMessage {
                message: PyBytes::new(py, &message).unbind(),
                session_id,
            })
            .collect())
    }

    /// Whether a publication is connected.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.subscription.is_connected()))
    }

    /// Whether the subscription exists.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.subscription.is_ready()))
    }

    /// Returns the bytes between what was read and the end of that publication's log: messages, and claims
    /// that are not committed. None while the two are not connected.
    fn lag_bytes(&self, py: Python<'_>, publication: &Publication) -> PyResult<Option<u64>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.subscription.lag_bytes(&publication.publication)))
    }

    /// Why the media driver refused the channel. None if it did not.
    #[getter]
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.subscription.failure().map(|e| e.to_string()))
    }

    /// Closes the subscription.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}
