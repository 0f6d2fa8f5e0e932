//! DLPack: capsules over memory that a Python object owns, and tensors that another library exports.
//!
//! The structs are those of DLPack 1.0, and those of the versions before it.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

const UNVERSIONED: &CStr = c"dltensor";
const UNVERSIONED_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";
const VERSION: DlVersion = DlVersion { major: 1, minor: 0 };
const FLAG_READ_ONLY: u64 = 1;
const FLAG_IS_COPIED: u64 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct DlVersion {
    major: u32,
    minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDataType {
    code: u8,
    bits: u8,
    vector_width: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

impl DlTensor {
    fn point_at(&mut self, shape: &mut [i64], strides: &mut [i64]) {
        self.shape = shape.as_mut_ptr();
        self.strides = strides.as_mut_ptr();
    }
}

#[repr(C)]
struct ManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

#[repr(C)]
struct ManagedTensorVersioned {
    version: DlVersion,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensorVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// What an exported tensor points to. The importer's deleter ends it.
struct ExportedTensor<T> {
    managed: T,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Keeps the memory.
    #[allow(dead_code)]
    owner: Py<PyAny>,
}

/// The importer may call this on any thread, without the interpreter.
///
/// # Safety
/// `managed` is the first field of an `ExportedTensor<T>` that was boxed, and this is the only call for it.
unsafe fn end_export<T>(context: *mut c_void) {
    // SAFETY: by the caller.
    let export = unsafe { Box::from_raw(context.cast::<ExportedTensor<T>>()) };
    // After the interpreter's end there is nothing to release: the process gives the memory back.
    if Python::try_attach(|_| ()).is_none() {
        std::mem::forget(export);
        return;
    }
    Python::attach(|_| drop(export));
}

unsafe extern "C" fn delete_unversioned(managed: *mut ManagedTensor) {
    // SAFETY: the importer passes what `capsule` made, once.
    unsafe { end_export::<ManagedTensor>((*managed).context) };
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedTensorVersioned) {
    // SAFETY: the importer passes what `capsule` made, once.
    unsafe { end_export::<ManagedTensorVersioned>((*managed).context) };
}

/// A capsule that no library imported still owns its tensor: an importer renames it.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with a capsule of `capsule`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) != 0 {
            delete_unversioned(ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// Boxes an export, and lets `fill` point its struct at the box's own shape and strides.
fn export<'py, T>(
    py: Python<'py>,
    export: ExportedTensor<T>,
    name: &'static CStr,
    fill: impl FnOnce(&mut ExportedTensor<T>, *mut c_void),
) -> PyResult<Bound<'py, PyAny>> {
    let raw = Box::into_raw(Box::new(export));
    // SAFETY: just boxed, and this is the only reference.
    fill(unsafe { &mut *raw }, raw.cast());
    // SAFETY: `managed` is inside the box, which lives until its deleter runs.
    let managed = unsafe { &raw mut (*raw).managed };
    // SAFETY: a pointer that is not null, and a static name.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), name.as_ptr(), Some(drop_capsule)) };
    if capsule.is_null() {
        // SAFETY: the capsule does not exist, so this is the only owner.
        drop(unsafe { Box::from_raw(raw) });
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a new reference.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) })
}

/// Returns a DLPack capsule over `address`, which stays valid as long as `owner` lives.
///
/// `strides` count elements. `code` and `bits` are those of DLPack's data types. `versioned` is for importers
/// that support DLPack 1.0; the others can be given neither `read_only` nor `copied`.
#[pyfunction]
#[pyo3(signature = (owner, address, shape, strides, *, code, bits, device_type, device_id, read_only = false, copied = false, versioned = true))]
pub fn dlpack_capsule<'py>(
    py: Python<'py>,
    owner: Py<PyAny>,
    address: usize,
    shape: Vec<i64>,
    strides: Vec<i64>,
    code: u8,
    bits: u8,
    device_type: i32,
    device_id: i32,
    read_only: bool,
    copied: bool,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    if shape.len() != strides.len() {
        return Err(PyTypeError::new_err("shape and strides have different lengths"));
    }
    if read_only && !versioned {
        return Err(PyBufferError::new_err(
            "read-only memory needs an importer that supports DLPack 1.0; export a copy",
        ));
    }
    let tensor = DlTensor {
        data: address as *mut c_void,
        device: DlDevice { device_type, device_id },
        ndim: shape.len() as i32,
        dtype: DlDataType { code, bits, vector_width: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    if versioned {
        let flags = if read_only { FLAG_READ_ONLY } else { 0 } | if copied { FLAG_IS_COPIED } else { 0 };
        let context = std::ptr::null_mut();
        let managed = ManagedTensorVersioned {
            version: VERSION,
            context,
            deleter: Some(delete_versioned),
            flags,
            tensor,
        };
        return export(py, ExportedTensor { managed, shape, strides, owner }, VERSIONED, |e, raw| {
            e.managed.context = raw;
            e.managed.tensor.point_at(&mut e.shape, &mut e.strides);
        });
    }
    let managed = ManagedTensor { tensor, context: std::ptr::null_mut(), deleter: Some(delete_unversioned) };
    export(py, ExportedTensor { managed, shape, strides, owner }, UNVERSIONED, |e, raw| {
        e.managed.context = raw;
        e.managed.tensor.point_at(&mut e.shape, &mut e.strides);
    })
}

enum ImportedTensor {
    ManagedTensor(NonNull<ManagedTensor>),
    ManagedTensorVersioned(NonNull<ManagedTensorVersioned>),
}

/// A tensor that another library exported by DLPack. It is released when this object is dropped.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct DlpackTensor {
    imported: ImportedTensor,
    /// Address of the first element.
    #[pyo3(get)]
    address: usize,
    /// The shape.
    #[pyo3(get)]
    shape: Vec<i64>,
    /// Strides in elements.
    #[pyo3(get)]
    strides: Vec<i64>,
    /// DLPack's code of the element type.
    #[pyo3(get)]
    code: u8,
    /// Bits of an element.
    #[pyo3(get)]
    bits: u8,
    /// DLPack's number of the kind of device.
    #[pyo3(get)]
    device_type: i32,
    /// The number of the device.
    #[pyo3(get)]
    device_id: i32,
}

// SAFETY: the deleter may be called on any thread, and all else are plain values.
unsafe impl Send for DlpackTensor {}
// SAFETY: as above; nothing changes after it is made.
unsafe impl Sync for DlpackTensor {}

#[pymethods]
impl DlpackTensor {
    /// Takes the tensor over from a capsule that `__dlpack__` returned.
    ///
    /// Raises `TypeError` for any other object and `BufferError` for a tensor that has no plain elements.
    #[new]
    fn new(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = capsule.py();
        let object = capsule.as_ptr();
        // SAFETY: PyCapsule_IsValid takes any object; the pointer is that of the struct that the name says.
        let (imported, used) = unsafe {
            if ffi::PyCapsule_IsValid(object, VERSIONED.as_ptr()) != 0 {
                let managed =
                    ffi::PyCapsule_GetPointer(object, VERSIONED.as_ptr()).cast::<ManagedTensorVersioned>();
                if (*managed).version.major != VERSION.major {
                    return Err(PyBufferError::new_err("a later major version of DLPack"));
                }
                (NonNull::new(managed).map(ImportedTensor::ManagedTensorVersioned), VERSIONED_USED)
            } else if ffi::PyCapsule_IsValid(object, UNVERSIONED.as_ptr()) != 0 {
                let managed = ffi::PyCapsule_GetPointer(object, UNVERSIONED.as_ptr()).cast();
                (NonNull::new(managed).map(ImportedTensor::ManagedTensor), UNVERSIONED_USED)
            } else {
                (None, UNVERSIONED_USED)
            }
        };
        let imported = imported.ok_or_else(|| PyTypeError::new_err("not a capsule of DLPack"))?;
        // SAFETY: the exporter keeps the struct until its deleter is called.
        let tensor = unsafe {
            match &imported {
                ImportedTensor::ManagedTensorVersioned(managed) => &managed.as_ref().tensor,
                ImportedTensor::ManagedTensor(managed) => &managed.as_ref().tensor,
            }
        };
        if tensor.dtype.vector_width != 1 || tensor.dtype.bits < 8 {
            return Err(PyBufferError::new_err("a tensor of vectors, or of elements smaller than a byte"));
        }
        let n = usize::try_from(tensor.ndim).unwrap_or(0);
        // Both have `ndim` entries; strides may be missing, which means C order.
        let shape = match n {
            0 => vec![],
            // SAFETY: the exporter keeps `ndim` entries.
            _ => unsafe { std::slice::from_raw_parts(tensor.shape, n) }.to_vec(),
        };
        let strides = if tensor.strides.is_null() || n == 0 {
            let mut strides = vec![1; n];
            for i in (1..n).rev() {
                strides[i - 1] = strides[i] * shape[i];
            }
            strides
        } else {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(tensor.strides, n) }.to_vec()
        };
        let found = (
            tensor.data as usize + tensor.byte_offset as usize,
            tensor.dtype.code,
            tensor.dtype.bits,
            tensor.device,
        );
        // SAFETY: the new name is static. From here on the deleter is this object's to call.
        if unsafe { ffi::PyCapsule_SetName(object, used.as_ptr()) } != 0 {
            return Err(PyErr::fetch(py));
        }
        let (address, code, bits, device) = found;
        let DlDevice { device_type, device_id } = device;
        Ok(Self { imported, address, shape, strides, code, bits, device_type, device_id })
    }
}

impl Drop for DlpackTensor {
    fn drop(&mut self) {
        // SAFETY: taken over once, and this is its end.
        unsafe {
            match self.imported {
                ImportedTensor::ManagedTensorVersioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                ImportedTensor::ManagedTensor(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}
