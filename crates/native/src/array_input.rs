//! The array to offer: any object with numbers, as memory that can be copied without the interpreter.

use std::ffi::CStr;

use numpy::{PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use pyo3::{ffi, intern};
use tensorpool_core::shm::copy::{self, Target};
use tensorpool_core::shm::tensor::{TensorSpec, item_size};
use tensorpool_core::wire::layout::*;

use crate::arrays::{dtype_name, from_numpy, parse_dtype, spec, too_many, unsupported};
use crate::errors;
use crate::extension::Extension;

/// The registry number of a struct-module format, as the buffer protocol gives it.
fn from_format(format: &str, itemsize: usize) -> Option<i16> {
    let code = format.strip_prefix(['@', '=', '<']).unwrap_or(format);
    Some(match (code, itemsize) {
        ("?", 1) => DTYPE_BOOLEAN,
        ("c" | "s" | "1s", 1) => DTYPE_BYTES,
        ("b", 1) => DTYPE_INT8,
        ("B", 1) => DTYPE_UINT8,
        ("h", 2) => DTYPE_INT16,
        ("H", 2) => DTYPE_UINT16,
        ("i" | "l" | "q" | "n", 4) => DTYPE_INT32,
        ("I" | "L" | "Q" | "N", 4) => DTYPE_UINT32,
        ("i" | "l" | "q" | "n", 8) => DTYPE_INT64,
        ("I" | "L" | "Q" | "N", 8) => DTYPE_UINT64,
        ("f", 4) => DTYPE_FLOAT32,
        ("d", 8) => DTYPE_FLOAT64,
        _ => return None,
    })
}

/// Holds an exported buffer until the copy is done.
struct ExportedBuffer(Box<ffi::Py_buffer>);

impl Drop for ExportedBuffer {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer, released once, with the interpreter attached.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// The memory of an offered object, which can be copied without the interpreter.
pub struct ArrayInput<'py> {
    data: *const u8,
    pub spec: TensorSpec,
    pub values_len: u64,
    /// Shape and byte strides where the memory is not contiguous in either order.
    strided: Option<([usize; MAX_DIMS], [isize; MAX_DIMS])>,
    _object: Bound<'py, PyAny>,
    _buffer: Option<ExportedBuffer>,
}

impl<'py> ArrayInput<'py> {
    /// From a numpy array directly, from anything else by the buffer protocol, then by DLPack. With an
    /// `extension`, also from arrays of that type, as its carrier.
    pub fn new(
        object: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        extension: Option<&Extension>,
    ) -> PyResult<Self> {
        let py = object.py();
        let dtype = dtype.filter(|d| !extension.is_some_and(|e| e.is_called(d)));
        let dtype_number = dtype.map(|d| parse_dtype(py, d)).transpose()?;
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            // A plain array in nearly all cases. Of its subclasses only masked arrays are more than their
            // data.
            if !object.get_type().is(py.get_type::<PyUntypedArray>()) && object.hasattr("mask")? {
                return Err(PyTypeError::new_err(
                    "a masked array would lose its mask; offer array.filled(...), or the mask as a stream of its own",
                ));
            }
            return Self::from_array(array, dtype_number, extension);
        }
        // SAFETY: only asks whether the type can export.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            return match Self::from_buffer(object, dtype_number) {
                Ok(input) => input.unambiguous(py, extension),
                // A numpy scalar, whose type has a numpy name but no buffer format.
                Err(_) if object.hasattr("dtype")? => {
                    let array = py.import("numpy")?.call_method1("asarray", (object,))?;
                    Self::from_array(array.cast::<PyUntypedArray>()?, dtype_number, extension)
                }
                Err(error) => Err(error),
            };
        }
        if object.hasattr("__dlpack__")? {
            let array = py.import("numpy")?.call_method1("from_dlpack", (object,))?;
            return Self::from_array(array.cast::<PyUntypedArray>()?, dtype_number, extension);
        }
        Err(PyTypeError::new_err(format!(
            "cannot take a tensor from {}: offer a numpy array, or anything with the buffer protocol or DLPack",
            object.get_type().name()?
        )))
    }

    fn from_array(
        array: &Bound<'py, PyUntypedArray>,
        dtype_number: Option<i16>,
        extension: Option<&Extension>,
    ) -> PyResult<Self> {
        let descr = array.dtype();
        // SAFETY: the array lives as long as the bound reference we keep.
        let data = unsafe { (*array.as_array_ptr()).fields.data.cast_const().cast() };
        if let Some(dtype) = from_numpy(&descr) {
            let (shape, strides) = (array.shape(), array.strides());
            let input = Self::build(array.as_any(), data, dtype, dtype_number, shape, strides, None)?;
            return input.unambiguous(array.py(), extension);
        }
        let carried = extension.filter(|e| e.is(&descr));
        let extension = carried.ok_or_else(|| unsupported(array.py(), &descr.to_string()))?;
        let n = array.ndim();
        if !extension.pair {
            let (shape, strides) = (array.shape(), array.strides());
            return Self::build(array.as_any(), data, extension.carrier, None, shape, strides, None);
        }
        if n >= MAX_DIMS {
            return Err(too_many(n + 1));
        }
        let (mut shape, mut strides) = ([2; MAX_DIMS], [8; MAX_DIMS]);
        shape[..n].copy_from_slice(array.shape());
        strides[..n].copy_from_slice(array.strides());
        // A scalar is one element, which is two of the carrier's.
        let (shape, strides) =
            if n == 0 { (&[1, 2][..], &[16, 8][..]) } else { (&shape[..=n], &strides[..=n]) };
        Self::build(array.as_any(), data, extension.carrier, None, shape, strides, None)
    }

    /// Refuses a dtype that readers would take for the carried one.
    fn unambiguous(self, py: Python<'_>, extension: Option<&Extension>) -> PyResult<Self> {
        match extension {
            Some(e) if e.carrier == self.spec.dtype => Err(mistakable(py, e)),
            _ => Ok(self),
        }
    }

    fn from_buffer(object: &Bound<'py, PyAny>, dtype_number: Option<i16>) -> PyResult<Self> {
        let py = object.py();
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: a fresh struct; on success it is released by Exported.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_RECORDS_RO) } != 0 {
            let error = PyErr::fetch(py);
            return Err(unsupported(py, &format!("of {}: {error}", object.get_type().name()?)));
        }
        let buffer = ExportedBuffer(view);
        let view = &buffer.0;
        let format = if view.format.is_null() {
            "B"
        } else {
            // SAFETY: a terminated string owned by the exporter while the buffer is held.
            unsafe { CStr::from_ptr(view.format) }.to_str().unwrap_or("?!")
        };
        let itemsize = usize::try_from(view.itemsize).unwrap_or(0);
        let dtype = from_format(format, itemsize).ok_or_else(|| unsupported(py, &format!("'{format}'")))?;
        let n = usize::try_from(view.ndim).unwrap_or(0);
        let (mut shape, mut strides) = ([0usize; MAX_DIMS], [0isize; MAX_DIMS]);
        if n > MAX_DIMS {
            return Err(too_many(n));
        }
        let mut step = view.itemsize;
        for i in (0..n).rev() {
            // RECORDS_RO asks for both, yet ctypes leaves the strides out: then they are C-ordered.
            // SAFETY: each that is there has ndim entries.
            unsafe {
                let dim = if view.shape.is_null() { view.len / view.itemsize } else { *view.shape.add(i) };
                shape[i] = usize::try_from(dim).unwrap_or(0);
                strides[i] = if view.strides.is_null() { step } else { *view.strides.add(i) };
                step = step.saturating_mul(dim);
            }
        }
        let data = view.buf.cast_const().cast();
        Self::build(object, data, dtype, dtype_number, &shape[..n], &strides[..n], Some(buffer))
    }

    fn build(
        object: &Bound<'py, PyAny>,
        data: *const u8,
        dtype: i16,
        dtype_number: Option<i16>,
        shape: &[usize],
        strides: &[isize],
        buffer: Option<ExportedBuffer>,
    ) -> PyResult<Self> {
        let item = item_size(dtype).unwrap_or(1) as isize;
        let dtype = match dtype_number {
            None => dtype,
            Some(w) if w == dtype => dtype,
            Some(w) if item_size(w) == Some(1) && item == 1 => w,
            Some(w) => {
                return Err(PyTypeError::new_err(format!(
                    "the data is {}, not {}; convert it before the offer",
                    dtype_name(dtype),
                    dtype_name(w)
                )));
            }
        };
        // A scalar is sent as one element.
        let (shape, strides) = if shape.is_empty() { (&[1usize][..], &[item][..]) } else { (shape, strides) };
        let is_row = contiguous(shape, strides, item, true);
        let is_column = !is_row && contiguous(shape, strides, item, false);
        let order = if is_column { MAJOR_ORDER_COLUMN } else { MAJOR_ORDER_ROW };
        let spec = spec(dtype, order, shape)?;
        let values_len = spec.values_len().ok_or_else(|| PyValueError::new_err("the tensor is too large"))?;
        let strided = (!is_row && !is_column).then(|| {
            let (mut s, mut t) = ([0; MAX_DIMS], [0; MAX_DIMS]);
            s[..shape.len()].copy_from_slice(shape);
            t[..shape.len()].copy_from_slice(strides);
            (s, t)
        });
        Ok(Self { data, spec, values_len, strided, _object: object.clone(), _buffer: buffer })
    }

    /// Keeps the padding between the rows: the frame is one copy of the memory that the array spans.
    pub fn keep_strides(&mut self) -> PyResult<()> {
        let Some((shape, strides)) = self.strided else { return Ok(()) };
        let n = usize::from(self.spec.ndims);
        let given: Vec<i64> = strides[..n].iter().map(|s| *s as i64).collect();
        let row = spec(self.spec.dtype, MAJOR_ORDER_ROW, &shape[..n])?.with_strides(&given);
        let column = || spec(self.spec.dtype, MAJOR_ORDER_COLUMN, &shape[..n]).ok()?.with_strides(&given);
        let (padded, extent, _) = row.or_else(column).ok_or_else(|| refused_strides(&given))?;
        (self.spec, self.values_len, self.strided) = (padded, extent, None);
        Ok(())
    }

    /// The items of the first axis, each as an input of its own. `is_pair`: the last axis holds the two numbers
    /// of one element.
    pub fn items(&self, is_pair: bool) -> PyResult<InputItems> {
        let n = usize::from(self.spec.ndims);
        let item = item_size(self.spec.dtype).unwrap_or(1) as isize;
        let (mut shape, mut strides) = ([1usize; MAX_DIMS], [item; MAX_DIMS]);
        match &self.strided {
            Some((given, steps)) => (shape, strides) = (*given, *steps),
            None => {
                let steps = self.spec.resolved_strides();
                let steps = steps.ok_or_else(|| PyValueError::new_err("the tensor is too large"))?;
                for i in 0..n {
                    (shape[i], strides[i]) = (self.spec.dims[i] as usize, steps[i] as isize);
                }
            }
        }
        let (count, step) = (shape[0], strides[0]);
        let mut rest: Vec<(usize, isize)> = (1..n).map(|i| (shape[i], strides[i])).collect();
        // A number alone is sent as one element, as by `offer`.
        if rest.is_empty() || (is_pair && rest.len() == 1) {
            rest.insert(0, (1, rest.first().map_or(item, |(size, stride)| *size as isize * stride)));
        }
        let (shape, strides): (Vec<_>, Vec<_>) = rest.into_iter().unzip();
        let build =
            |buffer| Self::build(&self._object, self.data, self.spec.dtype, None, &shape, &strides, buffer);
        let first = build(None)?;
        Ok(InputItems { first: first.memory(), spec: first.spec, values_len: first.values_len, count, step })
    }

    /// The memory that the copy needs, without the interpreter.
    pub fn memory(&self) -> InputMemory {
        InputMemory {
            data: self.data,
            len: self.values_len as usize,
            ndims: usize::from(self.spec.ndims),
            item: item_size(self.spec.dtype).unwrap_or(1) as usize,
            strided: self.strided,
        }
    }
}

/// Whether a tensor lies in the memory of a CUDA device, which the processor cannot read.
#[inline]
pub fn is_on_device(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if object.cast::<PyUntypedArray>().is_ok() { Ok(false) } else { is_device_tensor(object) }
}

#[cold]
fn is_device_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    const CUDA: i64 = 2;
    const CUDA_MANAGED: i64 = 13;
    // Torch has it as a plain attribute, and its `__dlpack_device__` takes microseconds.
    if let Some(is_cuda) = object.getattr_opt(intern!(object.py(), "is_cuda"))?
        && let Ok(is_cuda) = is_cuda.cast::<PyBool>()
    {
        return Ok(is_cuda.is_true());
    }
    if object.hasattr("__dlpack_device__")? {
        let (kind, _): (i64, Bound<'_, PyAny>) = object.call_method0("__dlpack_device__")?.extract()?;
        return Ok(kind == CUDA || kind == CUDA_MANAGED);
    }
    object.hasattr("__cuda_array_interface__")
}

#[cold]
pub fn mistakable(py: Python<'_>, extension: &Extension) -> PyErr {
    let (carrier, name) = (dtype_name(extension.carrier), extension.name());
    let message = format!(
        "this stream carries {name} as {carrier}, so a plain {carrier} array would be read as {name}; \
         send it on another stream"
    );
    errors::raise(py, "UnsupportedDtype", &message, |f| f.set_item("dtype", carrier))
}

#[cold]
pub fn refused_strides(strides: &[i64]) -> PyErr {
    PyValueError::new_err(format!(
        "strides {strides:?}: give one for each dimension, in bytes, each a multiple of the element size and at \
         least as long as what lies inside it; consumers read no others"
    ))
}

fn contiguous(shape: &[usize], strides: &[isize], item: isize, row: bool) -> bool {
    if shape.contains(&0) {
        return row;
    }
    let mut expected = item;
    for step in 0..shape.len() {
        let i = if row { shape.len() - 1 - step } else { step };
        if shape[i] != 1 && strides[i] != expected {
            return false;
        }
        expected *= shape[i] as isize;
    }
    true
}

/// The items of an input's first axis, of one layout. The input keeps their memory alive.
pub struct InputItems {
    first: InputMemory,
    pub spec: TensorSpec,
    pub values_len: u64,
    pub count: usize,
    step: isize,
}

impl InputItems {
    /// Copies the item of a number to `dst`, contiguously.
    ///
    /// # Safety
    /// As for `InputMemory::copy_to`, and `index` is below `count`.
    #[inline]
    pub unsafe fn copy_to(&self, index: usize, target: &mut Target<'_>) {
        // SAFETY: item `index` lies this many steps behind the first, inside the source.
        unsafe {
            let data = self.first.data.offset(index as isize * self.step);
            InputMemory { data, ..self.first }.copy_to(target);
        }
    }
}

/// The bytes of an input, which its creator keeps alive.
#[derive(Clone, Copy)]
pub struct InputMemory {
    data: *const u8,
    len: usize,
    ndims: usize,
    item: usize,
    strided: Option<([usize; MAX_DIMS], [isize; MAX_DIMS])>,
}

// SAFETY: plain memory, read by the one thread that copies while the source is held.
unsafe impl Send for InputMemory {}
// SAFETY: as above.
unsafe impl Sync for InputMemory {}

impl InputMemory {
    /// Copies all elements to the target, contiguously.
    ///
    /// # Safety
    /// The target is writable for the source's `values_len`, and aligned for its elements; the source is still
    /// held.
    #[inline]
    pub unsafe fn copy_to(&self, target: &mut Target<'_>) {
        match &self.strided {
            // SAFETY: one run of `len` bytes on both sides.
            None => unsafe { target.write(self.data, self.len) },
            // SAFETY: passed on.
            Some((shape, strides)) => unsafe {
                self.gather(target.at(), &shape[..self.ndims], &strides[..self.ndims])
            },
        }
    }

    /// Row-major gather: rows that are one run are copied whole, others element by element.
    ///
    /// # Safety
    /// As for `copy_to`, with the address of the target.
    unsafe fn gather(&self, mut dst: *mut u8, shape: &[usize], strides: &[isize]) {
        let last = shape.len() - 1;
        let (inner, step) = (shape[last], strides[last]);
        let mut index = [0usize; MAX_DIMS];
        loop {
            let at: isize = (0..last).map(|i| index[i] as isize * strides[i]).sum();
            // SAFETY: `at` addresses an existing row of the source, and `dst` stays inside the slot, which is
            // aligned for every element, because each of them is written exactly once.
            unsafe {
                let row = self.data.offset(at);
                if step == self.item as isize {
                    copy::to_shared(dst, row, inner * self.item);
                    dst = dst.add(inner * self.item);
                } else {
                    for i in 0..inner {
                        copy_item(dst, row.offset(i as isize * step), self.item);
                        dst = dst.add(self.item);
                    }
                }
            }
            let mut axis = last;
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
    }
}

/// # Safety
/// Both sides hold `item` bytes, `item` is 1, 2, 4 or 8, and `dst` is a multiple of it.
#[inline]
unsafe fn copy_item(dst: *mut u8, src: *const u8, item: usize) {
    // SAFETY: by the caller; the source may lie anywhere.
    unsafe {
        match item {
            1 => dst.write_volatile(*src),
            2 => dst.cast::<u16>().write_volatile(src.cast::<u16>().read_unaligned()),
            4 => dst.cast::<u32>().write_volatile(src.cast::<u32>().read_unaligned()),
            _ => dst.cast::<u64>().write_volatile(src.cast::<u64>().read_unaligned()),
        }
    }
}

/// Copies `source` into `target`, both contiguous, with the routine that fills slots of a ring of `ring_bytes`:
/// the plain copy that benchmarks compare with.
#[pyfunction]
#[pyo3(signature = (target, source, *, ring_bytes = 0))]
pub fn copy_bytes(
    py: Python<'_>,
    target: &Bound<'_, PyAny>,
    source: &Bound<'_, PyAny>,
    ring_bytes: usize,
) -> PyResult<()> {
    let from = ArrayInput::new(source, None, None)?;
    if from.strided.is_some() {
        return Err(PyValueError::new_err("the source is not one run of bytes"));
    }
    let mut view = Box::new(ffi::Py_buffer::new());
    // SAFETY: a fresh struct; on success it is released by Exported.
    if unsafe {
        ffi::PyObject_GetBuffer(target.as_ptr(), &raw mut *view, ffi::PyBUF_SIMPLE | ffi::PyBUF_WRITABLE)
    } != 0
    {
        return Err(PyErr::fetch(py));
    }
    let to = ExportedBuffer(view);
    if (to.0.len as u64) < from.values_len {
        return Err(PyValueError::new_err("the target is smaller than the source"));
    }
    let (memory, dst) = (from.memory(), to.0.buf as usize);
    // SAFETY: both buffers are held, and the target is large enough; one run of bytes needs no alignment.
    py.detach(|| unsafe {
        memory.copy_to(&mut Target::new(dst as *mut u8, copy::is_beyond_cache(ring_bytes), None));
    });
    Ok(())
}

/// Whether an object has no dimensions.
pub fn is_scalar(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match object.getattr_opt("ndim")? {
        Some(ndim) => Ok(ndim.extract::<usize>()? == 0),
        None => Ok(false),
    }
}

/// Times of the source as users give them: any integers, one for each of `count` frames.
pub fn timestamps(given: &Bound<'_, PyAny>, count: usize) -> PyResult<Vec<u64>> {
    let py = given.py();
    let array = py.import("numpy")?.call_method1("asarray", (given,))?;
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    if shape != [count] || (count > 0 && kind != "i" && kind != "u") {
        return Err(PyValueError::new_err(format!(
            "timestamps_ns of shape {shape:?} and type {}: give {count} whole numbers, one for each frame",
            array.getattr("dtype")?
        )));
    }
    let array = array.call_method1("astype", ("int64",))?;
    let times = array.cast_into::<numpy::PyArray1<i64>>()?.to_vec()?;
    times.into_iter().map(u64::try_from).collect::<Result<_, _>>().map_err(|_| {
        PyValueError::new_err("timestamps_ns: a time is negative, or beyond 2^63; give nanoseconds")
    })
}
