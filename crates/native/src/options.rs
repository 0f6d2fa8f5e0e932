//! Options of consumers, producers and leases, passed from Python as dicts.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensorpool_core::consumer::hello_state::{ConsumerRequest, StreamProposal};
use tensorpool_core::consumer::phase::Phase;
use tensorpool_core::lease::attachment::{LeaseOptions, Refusal};
use tensorpool_core::producer::grants::GrantPolicy;
use tensorpool_core::producer::progress_schedule::ProgressLimits;
use tensorpool_core::wire::driver::{Revision, Role, code_str};
use tensorpool_core::wire::hello::{Mode, ProgressHints};
use tensorpool_dataplane::consumer::ConsumerState;
use tensorpool_dataplane::lease::Lease;

/// A channel and a range of stream ids.
type Range = (String, u32, u32);

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ConsumerOptions {
    rate_limited: bool,
    max_rate_hz: u32,
    supports_progress: bool,
    progress_interval_us: Option<u32>,
    progress_bytes_delta: Option<u32>,
    progress_major_delta_units: Option<u32>,
    descriptor: Option<Range>,
    control: Option<Range>,
}

impl ConsumerOptions {
    pub fn request(self) -> ConsumerRequest {
        let proposal = |range: Option<Range>| {
            range.map(|(channel, first, last)| StreamProposal { channel, first, last })
        };
        ConsumerRequest {
            mode: if self.rate_limited { Mode::RateLimited } else { Mode::Stream },
            max_rate_hz: self.max_rate_hz,
            supports_progress: self.supports_progress,
            hints: ProgressHints {
                interval_us: self.progress_interval_us,
                bytes_delta: self.progress_bytes_delta,
                major_delta_units: self.progress_major_delta_units,
            },
            descriptor: proposal(self.descriptor),
            control: proposal(self.control),
        }
    }
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct GrantOptions {
    channels: Vec<String>,
    descriptor_ids: (u32, u32),
    control_ids: (u32, u32),
    stale_ns: u64,
    progress_interval_us: u32,
    progress_bytes: u32,
}

impl GrantOptions {
    pub fn progress_limits(&self) -> ProgressLimits {
        ProgressLimits { interval_us: self.progress_interval_us, bytes_delta: self.progress_bytes }
    }

    pub fn policy(self) -> GrantPolicy {
        GrantPolicy {
            channels: self.channels,
            descriptor_ids: self.descriptor_ids.0..=self.descriptor_ids.1,
            control_ids: self.control_ids.0..=self.control_ids.1,
            stale_ns: self.stale_ns,
        }
    }
}

pub fn consumer_state<'py>(py: Python<'py>, state: &ConsumerState) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("consumer_id", state.consumer_id)?;
    let mode = match state.mode {
        Mode::Stream => "stream",
        Mode::RateLimited => "rate_limited",
    };
    dict.set_item("mode", mode)?;
    let descriptors = state.descriptors.as_ref().map(|l| (l.channel.as_str(), l.stream_id));
    dict.set_item("descriptors", descriptors)?;
    dict.set_item("on_per_consumer", state.on_per_consumer)?;
    let control = state.control.as_ref().map(|l| (l.channel.as_str(), l.stream_id));
    dict.set_item("control", control)?;
    dict.set_item("phase", state.phase.map(Phase::as_str))?;
    dict.set_item("fallback_uri", state.fallback_uri.as_deref())?;
    dict.set_item("declined", state.declined)?;
    Ok(dict)
}

/// Options of a lease, as a dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct LeaseParameters {
    may_create: bool,
    require_hugepages: bool,
    revision: u8,
    keepalive_ns: u64,
    announce_period_ns: u64,
    attach_timeout_ns: u64,
    retry_ns: u64,
}

impl LeaseParameters {
    pub fn options(self, stream_id: u32, role: Role) -> PyResult<LeaseOptions> {
        let revision = match self.revision {
            1 => Revision::First,
            2 => Revision::Second,
            other => return Err(PyValueError::new_err(format!("attach revision {other}: use 1 or 2"))),
        };
        Ok(LeaseOptions {
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

/// The state of a lease. `code` and `message` say why there is none, and are None otherwise.
pub fn lease_status<'py>(py: Python<'py>, lease: Option<&Lease>) -> PyResult<Option<Bound<'py, PyDict>>> {
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
        Some(Refusal::Code(code, message)) => (Some(code_str(code)), Some(message)),
        Some(Refusal::Protocol(why)) => (Some("PROTOCOL"), Some(why)),
        Some(Refusal::Regions(why)) => (Some("REGIONS"), Some(why)),
        Some(Refusal::NoAnswer) => (Some("NO_ANSWER"), Some(String::new())),
    };
    dict.set_item("code", code)?;
    dict.set_item("message", message)?;
    Ok(Some(dict))
}
