//! `Slot`: a claimed slot, written in place and then committed or abandoned.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::tensor::TensorSpec;
use tensorpool_core::wire::layout::*;
use tensorpool_dataplane::producer as plane;
use tensorpool_dataplane::producer::FrameStamp;

use crate::arrays;
use crate::errors;
use crate::extension::Extension;
use crate::offer_result::OfferResult;
use crate::progress::Meter;

/// Keeps a mapping alive for arrays over its memory.
#[pyclass(frozen, module = "tensorpool._native")]
struct Pin(#[allow(dead_code)] Arc<MappedEpoch>);

struct SlotState {
    claim: Option<plane::Claim>,
    stamp: FrameStamp,
    /// Its progress, if it was claimed with progress.
    meter: Option<Meter>,
    array: Option<Py<PyAny>>,
    result: Option<plane::OfferResult>,
}

/// A claimed slot: a context manager that commits, or abandons on an exception.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Slot {
    producer: Arc<plane::Producer>,
    spec: TensorSpec,
    extension: Option<Arc<Extension>>,
    state: Mutex<SlotState>,
    fork_guard: ForkGuard,
}

impl Slot {
    pub fn new(
        producer: Arc<plane::Producer>,
        claim: plane::Claim,
        spec: TensorSpec,
        stamp: FrameStamp,
        meter: Option<Meter>,
        extension: Option<Arc<Extension>>,
        fork_guard: ForkGuard,
    ) -> Self {
        let state = Mutex::new(SlotState { claim: Some(claim), stamp, meter, array: None, result: None });
        Self { producer, spec, extension, state, fork_guard }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn raise(&self, py: Python<'_>, to: impl FnOnce(u64) -> u64) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let mut state = self.state();
        let SlotState { claim, meter, .. } = &mut *state;
        let claim = claim.as_ref().ok_or_else(|| ended(py))?;
        let meter = meter.as_mut().ok_or_else(|| {
            PyValueError::new_err("this slot was claimed without progress; use claim(..., progress=\"rows\")")
        })?;
        let bytes = meter.raise_to(to(meter.filled()))?;
        self.producer.advance(claim, bytes);
        Ok(())
    }

    /// Takes the claim, and makes the array that was given out read-only.
    fn end(&self, py: Python<'_>) -> PyResult<Option<plane::Claim>> {
        errors::check_fork(py, self.fork_guard)?;
        let (claim, array) = {
            let mut state = self.state();
            (state.claim.take(), state.array.take())
        };
        if let Some(array) = array {
            array.bind(py).call_method1("setflags", (false,))?;
        }
        Ok(claim)
    }
}

#[pymethods]
impl Slot {
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        errors::check_fork(py, self.fork_guard)?;
        if let Some(array) = &self.state().array {
            return Ok(array.bind(py).clone());
        }
        let (data, mapping) = {
            let state = self.state();
            let claim = state.claim.as_ref().ok_or_else(|| ended(py))?;
            (claim.payload(), claim.mapping().clone())
        };
        let n = usize::from(self.spec.ndims);
        let pin = Bound::new(py, Pin(mapping))?.into_any();
        let strides = contiguous_strides(&self.spec);
        // SAFETY: the claim's slot holds the contiguous tensor, and the pin holds the mapping.
        let array =
            unsafe { arrays::view(data, self.spec.dtype, &self.spec.dims[..n], &strides[..n], true, pin)? };
        let array = match &self.extension {
            Some(extension) => extension.view(&array)?,
            None => array,
        };
        self.state().array = Some(array.clone().unbind());
        Ok(array)
    }

    #[getter]
    fn seq(&self, py: Python<'_>) -> PyResult<u64> {
        errors::check_fork(py, self.fork_guard)?;
        self.state().claim.as_ref().map(|c| c.seq).ok_or_else(|| ended(py))
    }

    /// The outcome of the frame. None while the slot is open, or after it was abandoned.
    #[getter]
    fn result(&self, py: Python<'_>) -> PyResult<Option<OfferResult>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.state().result.map(OfferResult::new))
    }

    /// `count` more rows, columns or bytes are written. Sends progress, at most at the pace of the consumers.
    #[pyo3(signature = (count = 1))]
    fn advance(&self, py: Python<'_>, count: u64) -> PyResult<()> {
        self.raise(py, |filled| filled.saturating_add(count))
    }

    /// As `advance` with the total from the start, as a DMA engine reports it.
    fn advance_to(&self, py: Python<'_>, total: u64) -> PyResult<()> {
        self.raise(py, |_| total)
    }

    /// How many rows, columns or bytes are written.
    #[getter]
    fn filled(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.state().meter.as_ref().map(Meter::filled))
    }

    fn set_timestamp_ns(&self, py: Python<'_>, value: u64) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.state().stamp.timestamp_ns = Some(value);
        Ok(())
    }

    fn commit(&self, py: Python<'_>) -> PyResult<OfferResult> {
        let claim = self.end(py)?.ok_or_else(|| ended(py))?;
        let stamp = self.state().stamp;
        let offered = py.detach(|| self.producer.commit_claim(&claim, stamp));
        self.state().result = Some(offered);
        Ok(OfferResult::new(offered))
    }

    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(claim) = self.end(py)? {
            py.detach(|| self.producer.abandon_claim(&claim));
        }
        Ok(())
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        errors::check_fork(slf.py(), slf.get().fork_guard)?;
        Ok(slf.clone())
    }

    #[pyo3(signature = (exc_type, exc, traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: Option<&Bound<'_, PyAny>>,
        exc: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let _ = (exc, traceback);
        // An exception that leaves the block is not replaced, in a forked child either.
        if exc_type.is_some() && !self.fork_guard.is_owner() {
            return Ok(false);
        }
        let is_open = self.state().claim.is_some();
        if exc_type.is_some() {
            self.abandon(py)?;
        } else if is_open {
            self.commit(py)?;
        }
        Ok(false)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.fork_guard.is_owner()
            && let Ok(state) = self.state.get_mut()
            && let Some(claim) = state.claim.take()
        {
            self.producer.abandon_claim(&claim);
        }
    }
}

#[cold]
fn ended(py: Python<'_>) -> PyErr {
    errors::plain(py, "ClosedError", "this slot was committed or abandoned already; claim another one")
}

fn contiguous_strides(spec: &TensorSpec) -> [i64; MAX_DIMS] {
    let n = usize::from(spec.ndims);
    let mut strides = [0; MAX_DIMS];
    let mut step = i64::from(tensorpool_core::shm::tensor::item_size(spec.dtype).unwrap_or(1));
    for i in 0..n {
        let axis = if spec.major_order == MAJOR_ORDER_ROW { n - 1 - i } else { i };
        strides[axis] = step;
        step *= i64::from(spec.dims[axis].max(1));
    }
    strides
}
