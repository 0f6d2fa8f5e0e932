//! A lease as Python sees it: the terms on which it is asked for, and how it stands.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensorpool_core::lease::attachment::{Refusal, Terms};
use tensorpool_core::wire::driver::{Revision, Role, code_word};
use tensorpool_dataplane::lease::Lease;

/// Handed over as a dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct LeaseTerms {
    may_create: bool,
    require_hugepages: bool,
    revision: u8,
    keepalive_ns: u64,
    announce_period_ns: u64,
    attach_timeout_ns: u64,
    retry_ns: u64,
}

impl LeaseTerms {
    pub fn terms(self, stream_id: u32, role: Role) -> PyResult<Terms> {
        let revision = match self.revision {
            1 => Revision::First,
            2 => Revision::Second,
            other => return Err(PyValueError::new_err(format!("attach revision {other}: use 1 or 2"))),
        };
        Ok(Terms {
            stream_id,
            role,
            revision,
            may_create: self.may_create,
            require_hugepages: self.require_hugepages,
            keepalive_ns: self.keepalive_ns,
            announce_period_ns: self.announce_period_ns,
            attach_timeout_ns: self.attach_timeout_ns,
            retry_ns: self.retry_ns,
        })
    }
}

/// `code` and `message` say why there is no lease; both are None while there is nothing to complain about.
pub fn status<'py>(py: Python<'py>, lease: Option<&Lease>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(lease) = lease else { return Ok(None) };
    let status = py.detach(|| lease.status());
    let dict = PyDict::new(py);
    dict.set_item("lease_id", status.lease_id)?;
    dict.set_item("client_id", status.client_id)?;
    dict.set_item("granted", status.granted)?;
    dict.set_item("refused", status.refused)?;
    dict.set_item("ended", status.ended)?;
    let (code, message) = match status.refusal {
        None => (None, None),
        Some(Refusal::Code(code, message)) => (Some(code_word(code)), Some(message)),
        Some(Refusal::Protocol(why)) => (Some("PROTOCOL"), Some(why)),
        Some(Refusal::Regions(why)) => (Some("REGIONS"), Some(why)),
        Some(Refusal::NoAnswer) => (Some("NO_ANSWER"), Some(String::new())),
    };
    dict.set_item("code", code)?;
    dict.set_item("message", message)?;
    Ok(Some(dict))
}
