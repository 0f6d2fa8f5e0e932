//! Partial frames: the unit of a producer's progress, and what a consumer may read.

use std::borrow::Cow;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::filled::{self, ProgressUnit};
use tensorpool_core::shm::tensor::TensorSpec;
use tensorpool_core::wire::control::ProgressState;
use tensorpool_core::wire::layout::*;
use tensorpool_dataplane::consumer as plane;

use crate::metadata::{MetadataView, Origin};
use crate::slot_view::{SlotView, frame_overwritten};
use crate::{arrays, errors};

/// The spec with the unit of that name, the bytes of one unit, and the unit.
pub fn in_unit(spec: TensorSpec, unit_name: &str) -> PyResult<(TensorSpec, u32, ProgressUnit)> {
    let (unit, remedy) = match unit_name {
        "rows" => (ProgressUnit::Rows, "rows follow one another only in order \"C\""),
        "columns" => (
            ProgressUnit::Columns,
            "columns follow one another only in order \"F\", with 2 dimensions at most",
        ),
        "bytes" => (ProgressUnit::Bytes, "its rows are longer than 4 GiB"),
        other => {
            return Err(PyValueError::new_err(format!(
                "progress {other:?}: use \"rows\", \"columns\" or \"bytes\""
            )));
        }
    };
    let in_unit = spec.with_progress_unit(unit);
    let (spec, stride) =
        in_unit.ok_or_else(|| PyValueError::new_err(format!("progress {unit_name:?}: {remedy}")))?;
    Ok((spec, stride, unit))
}

/// The progress of a slot, in the unit it was claimed with.
pub struct SlotProgress {
    unit_bytes: u64,
    /// How many units there are, and how many of them are filled.
    units: u64,
    filled: u64,
    unit_name: &'static str,
}

impl SlotProgress {
    pub fn new(unit: ProgressUnit, stride: u32, spec: &TensorSpec, len: u64) -> Self {
        let dim = spec.dims[filled::outermost(spec.major_order, spec.ndims)] as u64;
        let (unit_bytes, units, unit_name) = match unit {
            ProgressUnit::Bytes => (1, len, "bytes"),
            ProgressUnit::Rows => (u64::from(stride), dim, "rows"),
            ProgressUnit::Columns => (u64::from(stride), dim, "columns"),
        };
        Self { unit_bytes, units, filled: 0, unit_name }
    }

    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// The filled bytes once `units` are filled.
    pub fn raise_to(&mut self, units: u64) -> PyResult<u64> {
        let Self { filled, unit_name, .. } = *self;
        if units > self.units {
            let message = format!("{units} {unit_name} are filled, and the slot has only {}", self.units);
            return Err(PyValueError::new_err(message));
        }
        if units < filled {
            let message =
                format!("{units} {unit_name} are filled, and before it were {filled}: report the total");
            return Err(PyValueError::new_err(message));
        }
        self.filled = units;
        Ok(units * self.unit_bytes)
    }
}

/// The filled part of a frame that its producer is still writing.
///
///     for part in consumer.progress():
///         with part:  # raises FrameOverwritten at the end if the slot was reused
///             work(part.array)
///
/// Nothing is copied. Check after the use, with `with part:` or `valid()`, that the slot still belongs to
/// the frame. Any thread may use it. In a forked child `array` and `valid` raise `ForkedError`.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Progress {
    part: plane::PartialFrame,
    origin: Arc<Origin>,
    fork_guard: ForkGuard,
}

impl Progress {
    pub fn new(part: plane::PartialFrame, origin: Arc<Origin>, fork_guard: ForkGuard) -> Self {
        Self { part, origin, fork_guard }
    }

    /// The version that declares another element type than the header.
    fn extended(&self, py: Python<'_>) -> PyResult<Option<Arc<MetadataView>>> {
        if !self.fork_guard.is_owner() {
            return Ok(None);
        }
        let info = &self.part.slot_ref.info;
        self.origin.extended(py, self.part.mapping.epoch, info.meta_version, &info.tensor)
    }

    /// The number of complete slices along `axis`, if those are contiguous.
    fn along(&self, axis: usize) -> Option<i32> {
        self.part.filled_slices.filter(|w| w.axis == axis).map(|w| w.count)
    }
}

/// A partial frame counts in no ledger.
impl SlotView for Progress {
    type Overwritten = ();

    fn fork_guard(&self) -> ForkGuard {
        self.fork_guard
    }

    fn first_overwritten(&self) -> Option<()> {
        (!self.part.mapping.still_belongs(self.part.slot_ref.seq)).then_some(())
    }

    fn overwritten_error(&self, py: Python<'_>, (): ()) -> PyErr {
        let (stream_id, seq) = (self.stream_id(), self.seq());
        let message = format!(
            "frame {seq} of stream {stream_id} was overwritten while a part of it was used; \
             work faster, copy first, or give the stream more slots"
        );
        frame_overwritten(py, stream_id, Some(self.epoch()), seq, &message)
    }
}

#[pymethods]
impl Progress {
    /// The stream of the frame.
    #[getter]
    fn stream_id(&self) -> u32 {
        self.part.mapping.stream_id
    }

    /// The epoch of the frame.
    #[getter]
    fn epoch(&self) -> u64 {
        self.part.mapping.epoch
    }

    /// The number of the frame within its epoch.
    #[getter]
    fn seq(&self) -> u64 {
        self.part.slot_ref.seq
    }

    /// The state of the frame: "started", "progress", "complete", or "unknown".
    #[getter]
    fn state(&self) -> &'static str {
        match self.part.state {
            ProgressState::Unknown => "unknown",
            ProgressState::Started => "started",
            ProgressState::Progress => "progress",
            ProgressState::Complete => "complete",
        }
    }

    /// Bytes of the payload that are written, from its start.
    #[getter]
    fn bytes_filled(&self) -> u64 {
        self.part.filled
    }

    /// Bytes of the complete frame.
    #[getter]
    fn nbytes(&self) -> u32 {
        self.part.slot_ref.info.values_len_bytes
    }

    /// The shape of the complete frame.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let shape = self.part.slot_ref.info.tensor.shape();
        let extended = self.extended(py)?;
        let is_pair = extended.as_ref().and_then(|s| s.extension.as_ref()).is_some_and(|e| e.pair);
        PyTuple::new(py, if is_pair { &shape[..shape.len() - 1] } else { shape })
    }

    /// The name of the element type.
    #[getter]
    fn element_type(&self, py: Python<'_>) -> PyResult<Cow<'static, str>> {
        let extended = self.extended(py)?;
        Ok(match extended.as_ref().and_then(|s| s.extension.as_ref()) {
            Some(extension) => extension.name().to_owned().into(),
            None => arrays::dtype_name(self.part.slot_ref.info.tensor.dtype).into(),
        })
    }

    /// Complete rows that may be read. None for a frame that is not written row by row.
    #[getter]
    fn rows(&self) -> Option<i32> {
        let is_row_major = self.part.slot_ref.info.tensor.major_order == MAJOR_ORDER_ROW;
        self.along(0).filter(|_| is_row_major)
    }

    /// Complete columns that may be read. None for a frame that is not written column by column.
    #[getter]
    fn columns(&self) -> Option<i32> {
        let tensor = &self.part.slot_ref.info.tensor;
        self.along(1).filter(|_| tensor.ndims == 2 && tensor.major_order == MAJOR_ORDER_COLUMN)
    }

    /// The complete rows (or columns) so far as a read-only numpy array, without a copy.
    ///
    /// Check `valid()` after the use, or use `with part:`.
    #[getter]
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        errors::check_fork(slf.py(), this.fork_guard)?;
        let part = &this.part;
        let tensor = &part.slot_ref.info.tensor;
        let n = usize::from(tensor.ndims);
        let mut shape = tensor.dims;
        match part.filled_slices {
            Some(filled_slices) => shape[filled_slices.axis] = filled_slices.count,
            // It is unknown which part is filled.
            None => shape[filled::outermost(tensor.major_order, tensor.ndims)] = 0,
        }
        let data = part.mapping.payload(part.slot_ref.pool, part.slot_ref.seq);
        // SAFETY: the header's rules held the extent of the whole against the payload, and the payload against
        // the pool; this object is the base, and it holds the mapping.
        let array = unsafe {
            arrays::view(data, tensor.dtype, &shape[..n], &tensor.strides[..n], false, slf.clone().into_any())
        }?;
        match this.extended(slf.py())?.as_ref().and_then(|s| s.extension.as_ref()) {
            Some(extension) => extension.view(&array),
            None => Ok(array),
        }
    }

    /// Returns whether the slot still belongs to this frame, so that everything read so far was of this
    /// frame.
    fn valid(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_valid(py)
    }

    /// Returns the partial frame.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        errors::check_fork(slf.py(), slf.get().fork_guard)?;
        Ok(slf.clone())
    }

    /// Raises `FrameOverwritten` if the producer reused the slot, unless another exception leaves the
    /// block.
    #[pyo3(signature = (exc_type, exc, traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: Option<&Bound<'_, PyAny>>,
        exc: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let _ = (exc, traceback);
        self.end_block(py, exc_type.is_some())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "<Progress stream={} epoch={} seq={} shape={} dtype={} {} bytes={}/{}>",
            self.stream_id(),
            self.epoch(),
            self.seq(),
            self.shape(py)?.repr()?,
            self.element_type(py)?,
            self.state(),
            self.part.filled,
            self.nbytes()
        ))
    }
}
