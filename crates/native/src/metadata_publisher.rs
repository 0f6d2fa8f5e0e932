//! `MetadataPublisher`: publishes a producer's metadata periodically, on the conductor's
//! thread.

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::producer::metadata_schedule::Periods;
use tensorpool_dataplane::metadata::publisher as plane;

use crate::conductor::Conductor;
use crate::errors;
use crate::producer::Producer;

/// Publishes a producer's metadata periodically, on the conductor's thread.
///
/// Any thread may call the methods. All of them raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct MetadataPublisher {
    publisher: Arc<plane::MetadataPublisher>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl MetadataPublisher {
    /// Publishes attributes every `period_ns` and blobs every `blob_period_ns`; all of them after each new
    /// hello. Raises `ValueError` if a period is 0.
    #[new]
    #[pyo3(signature = (producer, channel, stream_id, *, period_ns, blob_period_ns))]
    fn new(
        producer: &Bound<'_, Producer>,
        channel: String,
        stream_id: i32,
        period_ns: u64,
        blob_period_ns: u64,
    ) -> PyResult<Self> {
        if period_ns == 0 || blob_period_ns == 0 {
            return Err(PyValueError::new_err("period_ns and blob_period_ns must be above 0"));
        }
        let py = producer.py();
        let (plane_producer, conductor) = producer.get().parts(py);
        let periods = Periods { attributes_ns: period_ns, blobs_ns: blob_period_ns };
        let publisher = Arc::new(plane::MetadataPublisher::new(channel, stream_id, plane_producer, periods));
        let id = conductor.get().add(py, publisher.clone())?;
        Ok(Self { publisher, conductor, id, fork_guard: ForkGuard::current() })
    }

    /// Publishes an encoded `DataSourceAnnounce`, whose producer and epoch are filled in, and a
    /// `DataSourceMeta`, at once and from then on in place of earlier ones.
    ///
    /// Raises `ValueError` if the first message is not a `DataSourceAnnounce`.
    fn publish(&self, py: Python<'_>, announce: Vec<u8>, meta: Vec<u8>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        if py.detach(|| self.publisher.put(announce, meta)) {
            return Ok(());
        }
        Err(PyValueError::new_err("the first message is no DataSourceAnnounce"))
    }

    /// Announces the producer without name and metadata, until there is some.
    fn publish_undescribed(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.publisher.put_undescribed());
        Ok(())
    }

    /// Replaces the blob of its type with a copy of `data`. It applies from the metadata version on.
    fn put_blob(&self, py: Python<'_>, blob_type: u32, version: u32, data: PyBuffer<u8>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let bytes = data.to_vec(py)?;
        py.detach(|| self.publisher.put_blob(blob_type, version, bytes));
        Ok(())
    }

    /// Removes a blob. Returns False if there was none.
    fn remove_blob(&self, py: Python<'_>, blob_type: u32) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publisher.take_blob(blob_type)))
    }

    /// Whether the publication exists.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publisher.is_ready()))
    }

    /// The longest message that the stream accepts. None while there is no publication.
    #[getter]
    fn max_message_length(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.publisher.max_message_length()))
    }

    /// Closes the publication.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}
