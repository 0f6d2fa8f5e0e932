//! CRC32C of buffers, with which a recording detects damaged payloads.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use tensorpool_core::checksum;

/// Below this size the checksum takes less time than releasing the interpreter.
const DETACH_BYTES: usize = 16 * 1024;

/// The memory of an exported buffer, held until dropped.
pub struct PinnedBuffer(Box<ffi::Py_buffer>);

// SAFETY: its bytes are only ever read, and it is dropped where the interpreter is attached.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: a fresh struct; on success Drop releases it. SIMPLE: one contiguous run of bytes.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_SIMPLE) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self(view))
    }

    pub fn bytes(&self) -> &[u8] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps `len` bytes at `buf` readable while the view is held.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast_const().cast(), self.0.len as usize) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer, released once, with the interpreter attached.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// Returns the CRC32C (Castagnoli) of a contiguous buffer. `seed` is the result of the bytes before it.
#[pyfunction]
#[pyo3(signature = (buffer, seed = 0))]
pub fn crc32c(py: Python<'_>, buffer: &Bound<'_, PyAny>, seed: u32) -> PyResult<u32> {
    let pinned = PinnedBuffer::new(buffer)?;
    let bytes = pinned.bytes();
    if bytes.len() < DETACH_BYTES {
        return Ok(checksum::crc32c_append(seed, bytes));
    }
    Ok(py.detach(|| checksum::crc32c_append(seed, bytes)))
}

/// Returns the CRC32C of many ranges of one buffer.
///
/// Raises `ValueError` if a range ends outside the buffer, or if there are more offsets than lengths or
/// fewer.
#[pyfunction]
pub fn crc32c_each<'py>(
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    offsets: PyReadonlyArray1<'py, u64>,
    lengths: PyReadonlyArray1<'py, u64>,
) -> PyResult<Bound<'py, PyArray1<u32>>> {
    let pinned = PinnedBuffer::new(buffer)?;
    let bytes = pinned.bytes();
    let (offsets, lengths) = (offsets.as_slice()?, lengths.as_slice()?);
    if offsets.len() != lengths.len() {
        return Err(PyValueError::new_err("as many offsets as lengths are needed"));
    }
    let each: Option<Vec<u32>> = py.detach(|| {
        offsets
            .iter()
            .zip(lengths)
            .map(|(&offset, &length)| {
                let start = usize::try_from(offset).ok()?;
                let end = start.checked_add(usize::try_from(length).ok()?)?;
                bytes.get(start..end).map(checksum::crc32c)
            })
            .collect()
    });
    let each = each.ok_or_else(|| PyValueError::new_err("a run ends outside the buffer"))?;
    Ok(PyArray1::from_vec(py, each))
}
