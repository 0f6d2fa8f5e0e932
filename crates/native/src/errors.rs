//! Conversion of Rust errors to the classes of `tensorpool.errors`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::create::CreateError;
use tensorpool_core::shm::region::RegionError;

/// Builds an error of `tensorpool.errors` by name, with its fields as keywords.
pub fn raise(
    py: Python<'_>,
    class: &str,
    message: &str,
    fields: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let class = py.import("tensorpool.errors")?.getattr(class)?.cast_into::<PyType>()?;
        let kwargs = PyDict::new(py);
        fields(&kwargs)?;
        Ok(PyErr::from_value(class.call((message,), Some(&kwargs))?))
    };
    make().unwrap_or_else(|e| e)
}

pub fn plain(py: Python<'_>, class: &str, message: &str) -> PyErr {
    raise(py, class, message, |_| Ok(()))
}

/// Refuses the use of a handle in a forked child, before any lock of a thread that does not exist there is
/// touched.
#[inline]
pub fn check_fork(py: Python<'_>, fork_guard: ForkGuard) -> PyResult<()> {
    if fork_guard.is_owner() { Ok(()) } else { Err(forked(py)) }
}

#[cold]
fn forked(py: Python<'_>) -> PyErr {
    plain(
        py,
        "ForkedError",
        "this handle belongs to the parent process; open a new context in the child, or start children with 'spawn'",
    )
}

pub fn region(py: Python<'_>, error: &RegionError) -> PyErr {
    refused(py, &error.to_string(), error.reason(), &error.uri)
}

pub fn refused(py: Python<'_>, message: &str, reason: &str, uri: &str) -> PyErr {
    raise(py, "RegionRejected", message, |f| {
        f.set_item("reason", reason)?;
        f.set_item("uri", uri)
    })
}

pub fn create(py: Python<'_>, error: &CreateError) -> PyErr {
    let reason = match error {
        CreateError::Invalid(_) => "invalid",
        CreateError::ForeignOwner { .. } => "foreign_owner",
        CreateError::NotHugepages(_) => "not_hugepages",
        CreateError::NoHugepages { .. } => "no_hugepages",
        CreateError::NoSpace { .. } => "no_space",
        CreateError::Exists(_) => "exists",
        CreateError::Held(_) => "held",
        CreateError::Io { .. } => "io",
    };
    raise(py, "RegionCreateError", &error.to_string(), |f| f.set_item("reason", reason))
}
