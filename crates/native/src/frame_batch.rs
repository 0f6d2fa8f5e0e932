//! `FrameBatch`: many frames of one layout as one array, copied and checked without the interpreter.

use std::sync::Arc;

use numpy::{PyArray1, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PySlice;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::tensor::item_size;
use tensorpool_core::wire::layout::{MAX_DIMS, NULL_U64};
use tensorpool_dataplane::consumer as plane;
use tensorpool_dataplane::consumer::{BatchEnd, BatchLayout, BatchRows};

use crate::metadata::{MetadataView, Origin};
use crate::{arrays, errors};

/// Frames of one layout as one array: copies that no producer can change, and that were checked after the
/// copy.
///
///     batch = consumer.take(4096)
///     batch.array.mean(axis=0)          # of shape (frames, *shape of a frame)
///     batch.seqs, batch.timestamps_ns   # one number for each frame
///
/// All frames are of one epoch and one metadata version. Sequences ascend; those that are missing were dropped,
/// and the ledger of the consumer has the reason. Any thread may use a batch.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct FrameBatch {
    array: Py<PyAny>,
    seqs: Py<PyArray1<u64>>,
    timestamps_ns: Py<PyArray1<u64>>,
    publish_timestamps_ns: Option<Py<PyArray1<u64>>>,
    trace_ids: Option<Py<PyArray1<u64>>>,
    len: usize,
    stream_id: u32,
    epoch: u64,
    meta_version: u32,
    origin: Arc<Origin>,
    fork_guard: ForkGuard,
}

#[pymethods]
impl FrameBatch {
    /// The payloads: the first axis counts the frames. Writable; a part of `out` if that was given.
    #[getter]
    fn array(&self, py: Python<'_>) -> Py<PyAny> {
        self.array.clone_ref(py)
    }

    /// The sequence of each frame, as uint64.
    #[getter]
    fn seqs(&self, py: Python<'_>) -> Py<PyArray1<u64>> {
        self.seqs.clone_ref(py)
    }

    /// The timestamp of each frame in ns, as uint64: see `Frame.timestamp_ns`.
    #[getter]
    fn timestamps_ns(&self, py: Python<'_>) -> Py<PyArray1<u64>> {
        self.timestamps_ns.clone_ref(py)
    }

    /// When the descriptor of each frame was published, in ns, as uint64. None unless the producer publishes
    /// timestamps.
    #[getter]
    fn publish_timestamps_ns(&self, py: Python<'_>) -> Option<Py<PyArray1<u64>>> {
        self.publish_timestamps_ns.as_ref().map(|times| times.clone_ref(py))
    }

    /// The trace id of each frame, as uint64; 0 for a frame without one. None if no frame has one.
    #[getter]
    fn trace_ids(&self, py: Python<'_>) -> Option<Py<PyArray1<u64>>> {
        self.trace_ids.as_ref().map(|ids| ids.clone_ref(py))
    }

    /// The stream of the frames.
    #[getter]
    fn stream_id(&self) -> u32 {
        self.stream_id
    }

    /// The epoch of the frames.
    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The metadata version that applies to the frames. 0: none.
    #[getter]
    fn meta_version(&self) -> u32 {
        self.meta_version
    }

    /// The attributes of that metadata version. None while they are unknown, and where there are none.
    #[getter]
    fn meta(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        errors::check_fork(py, self.fork_guard)?;
        let view = self.origin.view(py, self.epoch, self.meta_version)?;
        Ok(view.map(|view| view.mapping.clone_ref(py)))
    }

    /// Number of frames.
    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let array = self.array.bind(py);
        let seqs = self.seqs.bind(py);
        Ok(format!(
            "<FrameBatch stream={} epoch={} frames={} seq={}..{} shape={} dtype={}>",
            self.stream_id,
            self.epoch,
            self.len,
            seqs.get_item(0)?,
            seqs.get_item(self.len - 1)?,
            array.getattr("shape")?.repr()?,
            array.getattr("dtype")?,
        ))
    }
}

/// The memory that a batch is taken into.
pub struct BatchTarget<'py> {
    layout: BatchLayout,
    rows: BatchRows,
    limit: usize,
    memory: usize,
    /// The array that owns the memory: `out`, or a private one of bytes.
    owner: Bound<'py, PyAny>,
    /// `out`, if its memory is not that of the frames: they are copied there at the end.
    copy_to: Option<Bound<'py, PyAny>>,
    is_out: bool,
    extended: Option<Arc<MetadataView>>,
}

impl<'py> BatchTarget<'py> {
    pub fn new(
        py: Python<'py>,
        origin: &Origin,
        layout: BatchLayout,
        n: usize,
        at_least: usize,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let extended = origin.extended(py, layout.epoch, layout.meta_version, &layout.tensor)?;
        // A ring has no more frames that are whole. More are taken only where the caller waits for them.
        let mut limit = n.min(at_least.max(layout.nslots as usize)).min(i32::MAX as usize);
        let mut direct = None;
        if let Some(out) = out {
            let out = check_out(out, &layout, extended.as_deref())?;
            limit = n.min(out.len());
            // SAFETY: the array lives as long as the reference that is kept.
            let data = unsafe { (*out.as_array_ptr()).fields.data as usize };
            let item = item_size(layout.tensor.dtype).unwrap_or(1) as usize;
            let is_direct = extended.is_none() && layout.is_contiguous() && out.is_c_contiguous();
            direct = (is_direct && data.is_multiple_of(item)).then_some(data);
        }
        let too_large = || PyValueError::new_err("a batch of that many frames is too large; take fewer");
        let (owner, memory) = match (out, direct) {
            (Some(out), Some(data)) => (out.clone(), data),
            _ => {
                let bytes = limit.checked_mul(layout.row_bytes).ok_or_else(too_large)?;
                arrays::private(py, bytes)?
            }
        };
        let mut rows = BatchRows::default();
        rows.reserve(limit);
        Ok(Self {
            layout,
            rows,
            limit,
            memory,
            owner,
            copy_to: out.filter(|_| direct.is_none()).cloned(),
            is_out: direct.is_some(),
            extended,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn has_enough(&self, at_least: usize) -> bool {
        self.rows.len() >= at_least.min(self.limit)
    }

    /// Takes the frames that wait, without the interpreter.
    pub fn take(&mut self, py: Python<'_>, consumer: &plane::Consumer) -> BatchEnd {
        let Self { layout, rows, limit, memory, .. } = self;
        let (layout, limit, memory) = (&*layout, *limit, *memory);
        // SAFETY: `new` made, or checked, room for `limit` rows; `owner` keeps it.
        py.detach(|| unsafe { consumer.take_into(layout, rows, memory as *mut u8, limit) })
    }

    /// The batch of what was taken.
    pub fn finish(
        self,
        py: Python<'py>,
        stream_id: u32,
        origin: Arc<Origin>,
        fork_guard: ForkGuard,
    ) -> PyResult<FrameBatch> {
        let Self { layout, rows, memory, owner, copy_to, is_out, extended, .. } = self;
        let len = rows.len();
        let part = |array: &Bound<'py, PyAny>| array.get_item(PySlice::new(py, 0, len as isize, 1));
        let array = if is_out {
            part(&owner)?
        } else {
            let tensor = &layout.tensor;
            let n = usize::from(tensor.ndims);
            let (mut shape, mut strides) = ([0i32; MAX_DIMS + 1], [0i64; MAX_DIMS + 1]);
            (shape[0], strides[0]) = (len as i32, layout.row_bytes as i64);
            shape[1..=n].copy_from_slice(tensor.shape());
            strides[1..=n].copy_from_slice(&tensor.strides[..n]);
            let (shape, strides, data) = (&shape[..=n], &strides[..=n], memory as *mut u8);
            // SAFETY: the private memory has that many rows, and each spans the extent of the tensor.
            let array = unsafe { arrays::view(data, tensor.dtype, shape, strides, true, owner) }?;
            match extended.as_ref().and_then(|view| view.extension.as_ref()) {
                Some(extension) => extension.view(&array)?,
                None => array,
            }
        };
        let array = match &copy_to {
            Some(out) => {
                let target = part(out)?;
                py.import("numpy")?.call_method1("copyto", (&target, array))?;
                target
            }
            None => array,
        };
        let optional = |values: Vec<u64>, absent: u64| {
            values.iter().any(|v| *v != absent).then(|| PyArray1::from_vec(py, values).unbind())
        };
        Ok(FrameBatch {
            array: array.unbind(),
            seqs: PyArray1::from_vec(py, rows.seqs).unbind(),
            timestamps_ns: PyArray1::from_vec(py, rows.timestamps_ns).unbind(),
            publish_timestamps_ns: optional(rows.publish_timestamps_ns, NULL_U64),
            trace_ids: optional(rows.trace_ids, 0),
            len,
            stream_id,
            epoch: layout.epoch,
            meta_version: layout.meta_version,
            origin,
            fork_guard,
        })
    }
}

/// Refuses an `out` that cannot hold the next frame.
fn check_out<'a, 'py>(
    out: &'a Bound<'py, PyAny>,
    layout: &BatchLayout,
    extended: Option<&MetadataView>,
) -> PyResult<&'a Bound<'py, PyUntypedArray>> {
    let array = out
        .cast::<PyUntypedArray>()
        .map_err(|_| PyTypeError::new_err("out is no numpy array; use numpy.empty((n, *shape), dtype)"))?;
    let extension = extended.and_then(|view| view.extension.as_ref());
    let shape = layout.tensor.shape();
    let shape = if extension.is_some_and(|e| e.pair) { &shape[..shape.len() - 1] } else { shape };
    let expected: Vec<usize> = shape.iter().map(|size| *size as usize).collect();
    let fits_type = match extension {
        Some(extension) => extension.is(&array.dtype()),
        None => arrays::from_numpy(&array.dtype())
            .is_some_and(|given| arrays::shown_type(given) == arrays::shown_type(layout.tensor.dtype)),
    };
    if array.ndim() == 0 || array.shape()[1..] != expected[..] || !fits_type || array.len() == 0 {
        let name = match extension {
            Some(extension) => extension.name().to_owned(),
            None => arrays::dtype_name(arrays::shown_type(layout.tensor.dtype)).to_owned(),
        };
        return Err(PyValueError::new_err(format!(
            "out has shape {} and type {}, but the next frame has shape {expected:?} and type {name}; use \
             numpy.empty((n, *shape), dtype), or leave out away. The frame stays",
            out.getattr("shape")?.repr()?,
            array.dtype(),
        )));
    }
    if !out.getattr("flags")?.getattr("writeable")?.extract::<bool>()? {
        return Err(PyValueError::new_err("out is read-only"));
    }
    Ok(array)
}
