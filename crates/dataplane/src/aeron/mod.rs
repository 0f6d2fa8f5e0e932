//! Safe wrappers of the few Aeron calls that we need.
//!
//! Rules: the error handler is always set (the default one ends the process); a handle is used only under its
//! owner's lock and keeps its client open; a client is dropped before its context; nothing is closed in a
//! forked child, where the client's thread does not exist. No UDP channel is opened at the media driver of the
//! host's memory (`network`).

mod assembler;
pub mod channels;
mod client;
mod client_idle;
mod counter;
pub mod fragment_filter;
mod images;
mod message_sender;
mod network;
mod on_demand_publication;
mod publication;
mod request;
mod subscription;

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;

use rusteron_client::bindings as c;

pub use assembler::Assembler;
pub use client::{DriverClient, Pending};
pub use counter::{Counter, CounterReading, MAX_LABEL_BYTES, read_counters};
pub use images::ImageWatch;
pub use message_sender::MessageSender;
pub use network::{Client, Network};
pub use on_demand_publication::CongestionBypass;
pub use publication::{ExclusivePublication, OfferError, Publication};
pub use subscription::{Header, Subscription};

/// A handle of a media driver.
pub trait DriverHandle {
    /// Whether its media driver is gone.
    fn is_lost(&self) -> bool;
}

macro_rules! driver_handles {
    ($($handle:ty),+) => {
        $(impl DriverHandle for $handle {
            fn is_lost(&self) -> bool {
                self.client.is_lost()
            }
        })+
    };
}
driver_handles!(ExclusivePublication, Publication, Subscription, Counter);

#[derive(Clone, Debug)]
pub struct AeronError {
    pub code: i32,
    pub message: String,
}

impl fmt::Display for AeronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (Aeron error {})", self.message, self.code)
    }
}

impl std::error::Error for AeronError {}

impl AeronError {
    /// The command queue of the media driver, or its filesystem, is full for the moment: repeat the request.
    pub fn is_temporary(&self) -> bool {
        matches!(self.code, -1003 | -1004) || self.is_out_of_space()
    }

    /// Whether the media driver has no space for a log buffer: it checks before it allocates, and another
    /// program may take the space in between.
    pub fn is_out_of_space(&self) -> bool {
        self.code == -12 || self.message.contains("No space left on device")
    }
}

/// An Aeron error on one line: its kind, then the innermost detail. Locations in Aeron's source are dropped,
/// because they do not help users. For a refused request the media driver's own error is given.
pub(crate) fn single_line(text: &str) -> String {
    let mut kind = None;
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let detail = line.split_once("] ").map(|(_, detail)| detail.trim()).unwrap_or_default();
        if line.starts_with('(') {
            kind = Some(line);
        } else if !detail.is_empty() && !detail.ends_with(" registration error") {
            return kind.map_or_else(|| detail.to_owned(), |kind| format!("{kind}: {detail}"));
        }
    }
    kind.map_or_else(|| text.lines().next().unwrap_or("unknown error").to_owned(), str::to_owned)
}

/// Aeron's last error on this thread.
fn last_error() -> AeronError {
    // SAFETY: both return thread-local state that is always there.
    unsafe {
        let text = CStr::from_ptr(c::aeron_errmsg()).to_string_lossy();
        AeronError { code: c::aeron_errcode(), message: single_line(&text) }
    }
}

fn checked(rc: c_int) -> Result<(), AeronError> {
    if rc < 0 { Err(last_error()) } else { Ok(()) }
}

fn c_string(text: &str) -> Result<CString, AeronError> {
    CString::new(text).map_err(|_| AeronError { code: 22, message: format!("{text:?} holds a NUL") })
}

/// The version of Aeron that is linked in, as `1.54.0`.
pub fn version() -> String {
    // SAFETY: three calls without arguments that return constants.
    let (major, minor, patch) =
        unsafe { (c::aeron_version_major(), c::aeron_version_minor(), c::aeron_version_patch()) };
    format!("{major}.{minor}.{patch}")
}

/// Aeron's default directory for this user.
pub fn default_dir() -> String {
    let mut buffer = [0 as c_char; 4096];
    // SAFETY: the buffer is as long as we say and stays NUL-terminated.
    unsafe {
        c::aeron_default_path(buffer.as_mut_ptr(), buffer.len());
        CStr::from_ptr(buffer.as_ptr()).to_string_lossy().into_owned()
    }
}

extern "C" fn log_nothing(_: *const c_char) {}

/// Whether a media driver in `dir` has a fresh heartbeat.
pub fn driver_is_active(dir: &str, timeout_ms: i64) -> bool {
    let Ok(dir) = c_string(dir) else { return false };
    // SAFETY: reads the directory's mark file; the log function keeps nothing.
    unsafe { c::aeron_is_driver_active(dir.as_ptr(), timeout_ms, Some(log_nothing)) }
}

#[cfg(test)]
mod tests {
    use super::single_line;

    #[test]
    fn error_is_one_line_with_its_detail() {
        let text = "(22) Invalid argument\n[aeron_uri_parse, aeron_uri.c:99] bad channel: x\n[f, g.c:1] \n";
        assert_eq!(single_line(text), "(22) Invalid argument: bad channel: x");
        assert_eq!(single_line("(-1) plain\n"), "(-1) plain");
        let refused =
            "(-11) generic\n[a, b.c:1] async_add_publication registration error\n(22) Invalid\n[f, g:1] why";
        assert_eq!(single_line(refused), "(22) Invalid: why");
        assert_eq!(single_line("plain"), "plain");
        assert_eq!(single_line(""), "unknown error");
    }
}
