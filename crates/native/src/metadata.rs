//! What consumers know of their sources: `MetadataEar`, and the part of it that a consumer's frames ask.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tensorpool_core::consumer::metadata_cache::{MetadataVersion, Source};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::tensor::Tensor;
use tensorpool_dataplane::consumer::Counters;
use tensorpool_dataplane::metadata::listener as plane;

use crate::conductor::Conductor;
use crate::errors;
use crate::extension::{Extension, Given};

/// Versions whose Python form is kept; frames in flight have a few at most.
const KEPT: usize = 8;
/// How long the first look at an epoch's frames waits for what is said of them.
const FIRST_WORDS: Duration = Duration::from_millis(100);

#[pyclass(frozen, module = "tensorpool._native")]
pub struct MetadataEar {
    ear: Arc<plane::MetadataListener>,
    describe: Py<PyAny>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl MetadataEar {
    /// `describe(attributes, version, timestamp_ns)` gives the mapping that frames show, and how their element
    /// type is carried, if it is: `(carrier, dtype, pair)`.
    #[new]
    fn new(
        conductor: &Bound<'_, Conductor>,
        channel: &str,
        stream_id: i32,
        describe: Py<PyAny>,
    ) -> PyResult<Self> {
        let ear = Arc::new(plane::MetadataListener::new(channel, stream_id));
        let id = conductor.get().add(conductor.py(), ear.clone())?;
        Ok(Self {
            ear,
            describe,
            conductor: conductor.clone().unbind(),
            id,
            fork_guard: ForkGuard::current(),
        })
    }

    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.ear.is_ready()))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

/// One version in its Python form.
pub struct Shown {
    described: Arc<MetadataVersion>,
    pub mapping: Py<PyAny>,
    pub extension: Option<Extension>,
}

/// The metadata of one stream, as its consumer's frames see it.
pub struct Known {
    ear: Arc<plane::MetadataListener>,
    stream_id: u32,
    describe: Py<PyAny>,
    shown: Mutex<Vec<Arc<Shown>>>,
    /// The epoch whose first words were waited for.
    awaited: AtomicU64,
    fork_guard: ForkGuard,
}

impl Known {
    pub fn new(ear: &Bound<'_, MetadataEar>, stream_id: u32) -> Self {
        let this = ear.get();
        this.ear.subscribe(stream_id);
        let (ear, describe) = (this.ear.clone(), this.describe.clone_ref(ear.py()));
        Self {
            ear,
            stream_id,
            describe,
            shown: Mutex::default(),
            awaited: AtomicU64::new(0),
            fork_guard: this.fork_guard,
        }
    }

    fn shown(&self) -> MutexGuard<'_, Vec<Arc<Shown>>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What holds for frames of `epoch` that carry `version`.
    pub fn at(&self, py: Python<'_>, epoch: u64, version: u32) -> PyResult<Option<Arc<Shown>>> {
        let is_it = |s: &&Arc<Shown>| s.described.version == version && s.described.epoch == Some(epoch);
        if let Some(shown) = self.shown().iter().find(is_it) {
            return Ok(Some(shown.clone()));
        }
        let found =
            self.ear.at(self.stream_id, epoch, version).or_else(|| self.await_first(py, epoch, version));
        self.show(py, found)
    }

    /// Frames and words come on two streams, and Aeron connects them one after the other: who looks at the
    /// first frame of an epoch gives the words a moment. Once only, for there may be none.
    #[cold]
    fn await_first(&self, py: Python<'_>, epoch: u64, version: u32) -> Option<Arc<MetadataVersion>> {
        if self.awaited.swap(epoch, Ordering::Relaxed) == epoch {
            return None;
        }
        py.detach(|| {
            let deadline = Instant::now() + FIRST_WORDS;
            while Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
                if let found @ Some(_) = self.ear.at(self.stream_id, epoch, version) {
                    return found;
                }
            }
            None
        })
    }

    pub fn newest(&self, py: Python<'_>) -> PyResult<Option<Arc<Shown>>> {
        self.show(py, py.detach(|| self.ear.newest(self.stream_id)))
    }

    fn show(&self, py: Python<'_>, described: Option<Arc<MetadataVersion>>) -> PyResult<Option<Arc<Shown>>> {
        let Some(described) = described else { return Ok(None) };
        if let Some(shown) = self.shown().iter().find(|s| Arc::ptr_eq(&s.described, &described)) {
            return Ok(Some(shown.clone()));
        }
        let attributes: Vec<_> = described
            .attributes
            .iter()
            .map(|a| (a.key.as_str(), a.format.as_str(), PyBytes::new(py, &a.value)))
            .collect();
        let answer = self.describe.call1(py, (attributes, described.version, described.timestamp_ns))?;
        let (mapping, extension): (Py<PyAny>, Option<Given<'_>>) = answer.extract(py)?;
        let extension = extension.map(Extension::new).transpose()?;
        let made = Arc::new(Shown { described, mapping, extension });
        let dropped = {
            let mut shown = self.shown();
            shown.push(made.clone());
            if shown.len() > KEPT { Some(shown.remove(0)) } else { None }
        };
        drop(dropped);
        Ok(Some(made))
    }

    pub fn source(&self) -> Option<Source> {
        self.ear.source(self.stream_id)
    }

    pub fn blob<'py>(
        &self,
        py: Python<'py>,
        blob_type: u32,
        of: Option<(u64, u32)>,
        exact: bool,
    ) -> Option<Bound<'py, PyBytes>> {
        let blob = py.detach(|| self.ear.blob(self.stream_id, blob_type, of))?;
        let fits = !exact || of.is_none_or(|(_, version)| blob.version == version);
        fits.then(|| PyBytes::new(py, &blob.bytes))
    }

    pub fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (whole, discarded) = self.ear.blob_counts(self.stream_id);
        let of_all = self.ear.counters();
        let dict = PyDict::new(py);
        dict.set_item("heard", of_all.received.load(Ordering::Relaxed))?;
        dict.set_item("foreign", of_all.foreign.load(Ordering::Relaxed))?;
        dict.set_item("malformed", of_all.malformed.load(Ordering::Relaxed))?;
        dict.set_item("blobs", whole)?;
        dict.set_item("blobs_discarded", PyDict::from_sequence(&discarded.into_pyobject(py)?)?)?;
        Ok(dict)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that is not there.
        if self.fork_guard.is_owner() {
            self.ear.unsubscribe(self.stream_id);
        }
    }
}

/// Where a consumer's frames come from; one for all of them.
pub struct Origin {
    pub counters: Arc<Counters>,
    pub metadata: Option<Known>,
}

impl Origin {
    /// What is known of frames of that epoch and version. Version 0 is none.
    #[inline]
    pub fn shown(&self, py: Python<'_>, epoch: u64, version: u32) -> PyResult<Option<Arc<Shown>>> {
        match &self.metadata {
            Some(known) if version != 0 => known.at(py, epoch, version),
            _ => Ok(None),
        }
    }

    /// The version, where it says that the tensor's elements are others than its header has it.
    pub fn extended(
        &self,
        py: Python<'_>,
        epoch: u64,
        version: u32,
        tensor: &Tensor,
    ) -> PyResult<Option<Arc<Shown>>> {
        let applies = |s: &Arc<Shown>| s.extension.as_ref().is_some_and(|e| e.applies_to(tensor));
        Ok(self.shown(py, epoch, version)?.filter(applies))
    }
}
