//! Element types and shapes as users write them, and payloads as numpy views.

use std::ffi::c_int;

use numpy::npyffi::{self, NPY_TYPES, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use tensorpool_core::shm::tensor::TensorSpec;
use tensorpool_core::wire::layout::*;

use crate::errors;

/// Every element type of the registry: its name here, its number, and its numpy type. BYTES and BIT have no
/// numpy type and are returned raw.
pub const DTYPES: [(&str, i16, NPY_TYPES); 13] = [
    ("uint8", DTYPE_UINT8, NPY_TYPES::NPY_UBYTE),
    ("int8", DTYPE_INT8, NPY_TYPES::NPY_BYTE),
    ("uint16", DTYPE_UINT16, NPY_TYPES::NPY_USHORT),
    ("int16", DTYPE_INT16, NPY_TYPES::NPY_SHORT),
    ("uint32", DTYPE_UINT32, NPY_TYPES::NPY_UINT),
    ("int32", DTYPE_INT32, NPY_TYPES::NPY_INT),
    ("uint64", DTYPE_UINT64, NPY_TYPES::NPY_ULONG),
    ("int64", DTYPE_INT64, NPY_TYPES::NPY_LONG),
    ("float32", DTYPE_FLOAT32, NPY_TYPES::NPY_FLOAT),
    ("float64", DTYPE_FLOAT64, NPY_TYPES::NPY_DOUBLE),
    ("bool", DTYPE_BOOLEAN, NPY_TYPES::NPY_BOOL),
    ("bytes", DTYPE_BYTES, NPY_TYPES::NPY_UBYTE),
    ("bit", DTYPE_BIT, NPY_TYPES::NPY_UBYTE),
];

pub fn dtype_name(dtype: i16) -> &'static str {
    DTYPES.iter().find(|(_, d, _)| *d == dtype).map_or("unknown", |(name, _, _)| name)
}

pub fn dtype_number(name: &str) -> Option<i16> {
    DTYPES.iter().find(|(n, _, _)| *n == name).map(|(_, number, _)| *number)
}

/// The type that an array shows: BYTES and BIT have no numpy type, and are shown as uint8.
pub fn shown_type(dtype: i16) -> i16 {
    match dtype {
        DTYPE_BYTES | DTYPE_BIT => DTYPE_UINT8,
        other => other,
    }
}

fn numpy_type(dtype: i16) -> NPY_TYPES {
    DTYPES.iter().find(|(_, d, _)| *d == dtype).map_or(NPY_TYPES::NPY_UBYTE, |(_, _, t)| *t)
}

#[cold]
pub fn unsupported(py: Python<'_>, what: &str) -> PyErr {
    let names: Vec<_> = DTYPES.iter().map(|(name, _, _)| *name).collect();
    let message = format!(
        "element type {what} has no place on the wire; supported are {} (native byte order). \
         Convert with array.astype(...), send the raw memory with array.view('uint8'), or let metadata tell what \
         it is: ctx.producer(..., metadata={{}})",
        names.join(", ")
    );
    errors::raise(py, "UnsupportedDtype", &message, |f| f.set_item("dtype", what))
}

/// The registry number of a dtype as users write it (`"uint16"`, `np.uint16`, `np.dtype("uint16")`).
pub fn parse_dtype(py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<i16> {
    if let Ok(name) = dtype.extract::<&str>()
        && let Some(number) = dtype_number(name)
    {
        return Ok(number);
    }
    let descr = py.import("numpy")?.getattr("dtype")?.call1((dtype,))?;
    let descr = descr.cast_into::<numpy::PyArrayDescr>()?;
    from_numpy(&descr).ok_or_else(|| unsupported(py, &descr.to_string()))
}

pub fn from_numpy(descr: &Bound<'_, numpy::PyArrayDescr>) -> Option<i16> {
    if descr.byteorder() == b'>' {
        return None;
    }
    Some(match (descr.num(), descr.itemsize()) {
        (0, _) => DTYPE_BOOLEAN,
        (1, _) => DTYPE_INT8,
        (2, _) => DTYPE_UINT8,
        (3, _) => DTYPE_INT16,
        (4, _) => DTYPE_UINT16,
        (5 | 7 | 9, 4) => DTYPE_INT32,
        (6 | 8 | 10, 4) => DTYPE_UINT32,
        (5 | 7 | 9, 8) => DTYPE_INT64,
        (6 | 8 | 10, 8) => DTYPE_UINT64,
        (11, _) => DTYPE_FLOAT32,
        (12, _) => DTYPE_FLOAT64,
        (18 | 20, 1) => DTYPE_BYTES,
        _ => return None,
    })
}

#[cold]
pub fn too_many(n: usize) -> PyErr {
    PyValueError::new_err(format!("{n} dimensions; a tensor has 1 to 8: reshape it"))
}

/// A shape as users write it, on the stack: the number of dimensions, and each. `()` is one element.
pub fn parse_shape(shape: &Bound<'_, PyAny>) -> PyResult<(usize, [usize; MAX_DIMS])> {
    let (mut n, mut dims) = (0, [1; MAX_DIMS]);
    let wrong = |what: &Bound<'_, PyAny>| {
        PyValueError::new_err(format!("shape {what}: use whole numbers from 0 on, as in (480, 640)"))
    };
    // A plain number is a shape of one dimension, as for numpy.
    if !shape.hasattr("__iter__")? {
        dims[0] = shape.extract().map_err(|_| wrong(shape))?;
        return Ok((1, dims));
    }
    for dim in shape.try_iter()? {
        *dims.get_mut(n).ok_or_else(|| too_many(n + 1))? = dim?.extract().map_err(|_| wrong(shape))?;
        n += 1;
    }
    Ok((n.max(1), dims))
}

pub fn spec(dtype: i16, order: i16, shape: &[usize]) -> PyResult<TensorSpec> {
    if shape.len() > MAX_DIMS {
        return Err(too_many(shape.len()));
    }
    TensorSpec::new(dtype, order, shape)
        .ok_or_else(|| PyValueError::new_err("a dimension is larger than 2147483647, or the shape is empty"))
}

/// A numpy array over existing memory; `base` keeps the memory alive.
///
/// # Safety
/// `data` stays valid for the whole extent of shape and strides as long as `base` lives.
pub unsafe fn view<'py>(
    data: *mut u8,
    dtype: i16,
    shape: &[i32],
    strides: &[i64],
    writable: bool,
    base: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = base.py();
    // A batch has one dimension more than its frames.
    let (mut dims, mut steps) = ([0 as npy_intp; MAX_DIMS + 1], [0 as npy_intp; MAX_DIMS + 1]);
    for i in 0..shape.len() {
        dims[i] = shape[i] as npy_intp;
        steps[i] = strides[i] as npy_intp;
    }
    let flags: c_int = if writable { npyffi::NPY_ARRAY_WRITEABLE } else { 0 };
    // SAFETY: NewFromDescr takes over the descriptor and copies dims and strides; SetBaseObject
    // takes over the base, also on failure.
    unsafe {
        let class = PyUntypedArray::type_object_raw(py);
        let descr = PY_ARRAY_API.PyArray_DescrFromType(py, numpy_type(dtype) as c_int);
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            class,
            descr,
            shape.len() as c_int,
            dims.as_mut_ptr(),
            steps.as_mut_ptr(),
            data.cast(),
            flags,
            std::ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), base.into_ptr()) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}

/// New private memory: a byte array, and its address.
pub fn private(py: Python<'_>, len: usize) -> PyResult<(Bound<'_, PyAny>, usize)> {
    let array = py.import("numpy")?.call_method1("empty", (len, "u1"))?;
    // SAFETY: numpy has just made the array, and the caller keeps it as long as it uses the address.
    let data = unsafe { (*array.cast::<PyUntypedArray>()?.as_array_ptr()).fields.data as usize };
    Ok((array, data))
}
