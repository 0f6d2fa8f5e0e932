//! Metadata of sources: `MetadataListener`, and the view of it that a consumer's
//! frames use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensorpool_core::consumer::metadata_cache::{AnnouncedSource, MetadataVersion};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::tensor::Tensor;
use tensorpool_dataplane::consumer::Counters;
use tensorpool_dataplane::metadata::listener as plane;

use crate::conductor::Conductor;
use crate::errors;
use crate::extension::{Extension, ExtensionArguments};
use crate::stats::MetadataCounters;

/// Versions whose Python form is kept. Frames in flight have a few at most.
const MAX_VIEWS: usize = 8;
/// How long the first frame of an epoch waits for its metadata.
const FIRST_METADATA_WAIT: Duration = Duration::from_millis(100);

/// Receives the metadata of the sources whose consumers it is given to, on the conductor's thread.
///
/// Any thread may call the methods. All of them raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct MetadataListener {
    listener: Arc<plane::MetadataListener>,
    describe: Py<PyAny>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl MetadataListener {
    /// Subscribes to the metadata stream.
    ///
    /// `describe(attributes, version, timestamp_ns)` returns the mapping that frames show, and how their
    /// element type is carried, if it is: `(carrier, dtype, pair)`.
    #[new]
    fn new(
        conductor: &Bound<'_, Conductor>,
        channel: &str,
        stream_id: i32,
        describe: Py<PyAny>,
    ) -> PyResult<Self> {
        let listener = Arc::new(plane::MetadataListener::new(channel, stream_id));
        let id = conductor.get().add(conductor.py(), listener.clone())?;
        Ok(Self {
            listener,
            describe,
            conductor: conductor.clone().unbind(),
            id,
            fork_guard: ForkGuard::current(),
        })
    }

    /// Whether the subscription exists.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.listener.is_ready()))
    }

    /// Closes the subscription. Metadata received so far stays available to frames.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

/// One version in its Python form.
pub struct MetadataView {
    metadata_version: Arc<MetadataVersion>,
    pub mapping: Py<PyAny>,
    pub extension: Option<Extension>,
}

/// The metadata of one stream, for its consumer's frames.
pub struct SourceMetadata {
    listener: Arc<plane::MetadataListener>,
    stream_id: u32,
    describe: Py<PyAny>,
    views: Mutex<Vec<Arc<MetadataView>>>,
    /// The epoch whose first metadata was waited for.
    awaited: AtomicU64,
    fork_guard: ForkGuard,
}

impl SourceMetadata {
    pub fn new(listener: &Bound<'_, MetadataListener>, stream_id: u32) -> Self {
        let this = listener.get();
        this.listener.subscribe(stream_id);
        let (listener, describe) = (this.listener.clone(), this.describe.clone_ref(listener.py()));
        Self {
            listener,
            stream_id,
            describe,
            views: Mutex::default(),
            awaited: AtomicU64::new(0),
            fork_guard: this.fork_guard,
        }
    }

    fn views(&self) -> MutexGuard<'_, Vec<Arc<MetadataView>>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version that applies to frames of `epoch` with metadata version `version`.
    pub fn at(&self, py: Python<'_>, epoch: u64, version: u32) -> PyResult<Option<Arc<MetadataView>>> {
        let is_match = |s: &&Arc<MetadataView>| {
            s.metadata_version.version == version && s.metadata_version.epoch == Some(epoch)
        };
        if let Some(views) = self.views().iter().find(is_match) {
            return Ok(Some(views.clone()));
        }
        let metadata_version =
            self.listener.at(self.stream_id, epoch, version).or_else(|| self.await_first(py, epoch, version));
        self.to_view(py, metadata_version)
    }

    /// Frames and metadata come on two streams, and Aeron connects them one after the other. So the first
    /// frame of an epoch waits briefly for its metadata. Once only, because there may be none.
    #[cold]
    fn await_first(&self, py: Python<'_>, epoch: u64, version: u32) -> Option<Arc<MetadataVersion>> {
        if self.awaited.swap(epoch, Ordering::Relaxed) == epoch {
            return None;
        }
        py.detach(|| {
            let deadline = Instant::now() + FIRST_METADATA_WAIT;
            while Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
                if let metadata_version @ Some(_) = self.listener.at(self.stream_id, epoch, version) {
                    return metadata_version;
                }
            }
            None
        })
    }

    pub fn newest(&self, py: Python<'_>) -> PyResult<Option<Arc<MetadataView>>> {
        self.to_view(py, py.detach(|| self.listener.newest(self.stream_id)))
    }

    fn to_view(
        &self,
        py: Python<'_>,
        metadata_version: Option<Arc<MetadataVersion>>,
    ) -> PyResult<Option<Arc<MetadataView>>> {
        let Some(metadata_version) = metadata_version else { return Ok(None) };
        if let Some(views) = self.views().iter().find(|s| Arc::ptr_eq(&s.metadata_version, &metadata_version))
        {
            return Ok(Some(views.clone()));
        }
        let attributes: Vec<_> = metadata_version
            .attributes
            .iter()
            .map(|a| (a.key.as_str(), a.format.as_str(), PyBytes::new(py, &a.value)))
            .collect();
        let answer =
            self.describe.call1(py, (attributes, metadata_version.version, metadata_version.timestamp_ns))?;
        let (mapping, extension): (Py<PyAny>, Option<ExtensionArguments<'_>>) = answer.extract(py)?;
        let extension = extension.map(Extension::new).transpose()?;
        let view = Arc::new(MetadataView { metadata_version, mapping, extension });
        let dropped = {
            let mut views = self.views();
            views.push(view.clone());
            if views.len() > MAX_VIEWS { Some(views.remove(0)) } else { None }
        };
        drop(dropped);
        Ok(Some(view))
    }

    pub fn source(&self) -> Option<AnnouncedSource> {
        self.listener.source(self.stream_id)
    }

    pub fn blob<'py>(
        &self,
        py: Python<'py>,
        blob_type: u32,
        of: Option<(u64, u32)>,
        exact: bool,
    ) -> Option<Bound<'py, PyBytes>> {
        let blob = py.detach(|| self.listener.blob(self.stream_id, blob_type, of))?;
        let fits = !exact || of.is_none_or(|(_, version)| blob.version == version);
        fits.then(|| PyBytes::new(py, &blob.bytes))
    }

    pub fn counters(&self, py: Python<'_>) -> PyResult<MetadataCounters> {
        let (blobs, discarded) = self.listener.blob_counts(self.stream_id);
        let of_all = self.listener.counters();
        let messages = [&of_all.received, &of_all.foreign, &of_all.malformed];
        MetadataCounters::new(py, messages, blobs, discarded)
    }
}

impl Drop for SourceMetadata {
    fn drop(&mut self) {
        // In a forked child a thread that does not exist may hold the lock.
        if self.fork_guard.is_owner() {
            self.listener.unsubscribe(self.stream_id);
        }
    }
}

/// The origin of a consumer's frames, shared by all of them.
pub struct Origin {
    pub counters: Arc<Counters>,
    pub metadata: Option<SourceMetadata>,
    /// Copies frames to a GPU; set once, for a consumer with `device=`.
    pub device: OnceLock<Py<PyAny>>,
}

impl Origin {
    /// The metadata of frames of that epoch and version. Version 0 is none.
    #[inline]
    pub fn view(&self, py: Python<'_>, epoch: u64, version: u32) -> PyResult<Option<Arc<MetadataView>>> {
        match &self.metadata {
            Some(known) if version != 0 => known.at(py, epoch, version),
            _ => Ok(None),
        }
    }

    /// The version, if it declares another element type than the tensor's header.
    pub fn extended(
        &self,
        py: Python<'_>,
        epoch: u64,
        version: u32,
        tensor: &Tensor,
    ) -> PyResult<Option<Arc<MetadataView>>> {
        let applies = |s: &Arc<MetadataView>| s.extension.as_ref().is_some_and(|e| e.applies_to(tensor));
        Ok(self.view(py, epoch, version)?.filter(applies))
    }
}
