//! Element types without a number in the registry, carried by one that has one (attribute
//! `tensorpool.dtype`).

use std::sync::atomic::{AtomicI16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PyString};
use tensorpool_core::shm::tensor::Tensor;

use crate::arrays;

/// An extension from Python: the carrier's name, the numpy type, and whether each element takes two.
pub type ExtensionArguments<'py> = (String, Bound<'py, PyArrayDescr>, bool);

pub struct Extension {
    dtype: Py<PyArrayDescr>,
    name: String,
    pub carrier: i16,
    /// Each element is two of the carrier's, along a last axis of size 2.
    pub pair: bool,
}

impl Extension {
    pub fn new(given: ExtensionArguments<'_>) -> PyResult<Self> {
        let (carrier, dtype, pair) = given;
        let carrier = arrays::dtype_number(&carrier)
            .ok_or_else(|| PyValueError::new_err(format!("carrier {carrier:?} is not in the registry")))?;
        let name = dtype.getattr(intern!(dtype.py(), "name"))?.extract()?;
        Ok(Self { dtype: dtype.unbind(), name, carrier, pair })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.dtype.bind(py).clone().into_any()
    }

    pub fn is(&self, descr: &Bound<'_, PyArrayDescr>) -> bool {
        descr.is_equiv_to(self.dtype.bind(descr.py()))
    }

    /// Whether `dtype`, as users write it, means this type.
    pub fn is_called(&self, dtype: &Bound<'_, PyAny>) -> bool {
        match dtype.cast::<PyString>() {
            Ok(name) if name.to_string_lossy() == self.name => true,
            _ => PyArrayDescr::new(dtype.py(), dtype).is_ok_and(|descr| self.is(&descr)),
        }
    }

    /// Whether a tensor has the layout of a carried one.
    pub fn applies_to(&self, tensor: &Tensor) -> bool {
        let n = usize::from(tensor.ndims);
        let is_pair = || n > 1 && tensor.dims[n - 1] == 2 && tensor.strides[n - 1] == 8;
        tensor.dtype == self.carrier && (!self.pair || is_pair())
    }

    /// A view of the carrier's array with the extension's type.
    pub fn view<'py>(&self, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = array.py();
        let seen = array.call_method1(intern!(py, "view"), (self.dtype.bind(py),))?;
        if self.pair { seen.get_item((PyEllipsis::get(py), 0)) } else { Ok(seen) }
    }
}

/// The metadata version of a producer's frames, and the type that it declares.
#[derive(Default)]
pub struct DeclaredExtension {
    version: AtomicU32,
    /// The carrier's number. 0 without an extension, so that one load shows that there is nothing to do.
    carrier: AtomicI16,
    extension: Mutex<Option<(Arc<Extension>, u32)>>,
}

impl DeclaredExtension {
    pub fn set(&self, version: u32, extension: Option<Extension>) {
        let carrier = extension.as_ref().map_or(0, |e| e.carrier);
        let extension = extension.map(|e| (Arc::new(e), version));
        *self.extension.lock().unwrap_or_else(PoisonError::into_inner) = extension;
        self.carrier.store(carrier, Ordering::Relaxed);
        // Pairs with `now`: a thread that sees the version sees the carrier, so no plain frame is sent under
        // a version that would change its meaning.
        self.version.store(version, Ordering::Release);
    }

    #[inline]
    pub fn now(&self) -> (u32, Option<Arc<Extension>>) {
        let version = self.version.load(Ordering::Acquire);
        if self.carrier.load(Ordering::Relaxed) == 0 {
            return (version, None);
        }
        match &*self.extension.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((extension, version)) => (*version, Some(extension.clone())),
            None => (version, None),
        }
    }
}
