//! A request for a handle that the media driver has not answered yet.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rusteron_client::bindings as c;

use super::client::DriverClient;
use super::{AeronError, last_error};

/// Aeron's type of every pending registration.
type Registration = c::aeron_client_registering_resource_stct;

/// Dropping an unanswered request cancels it. Otherwise client and media driver would keep the resource for
/// as long as the client lives.
pub(super) struct Request<H> {
    pub(super) client: Arc<DriverClient>,
    pub(super) registration: *mut Registration,
    pub(super) poll: unsafe extern "C" fn(*mut *mut H, *mut Registration) -> c_int,
    pub(super) cancel: unsafe extern "C" fn(*mut c::aeron_t, *mut Registration) -> c_int,
}

impl<H> Request<H> {
    /// The handle, once it is ready.
    pub(super) fn poll(&mut self) -> Result<Option<*mut H>, AeronError> {
        if self.registration.is_null() {
            return Ok(None);
        }
        let mut handle = ptr::null_mut();
        // SAFETY: polled until it answers once, while the client lives.
        let rc = unsafe { (self.poll)(&raw mut handle, self.registration) };
        if rc == 0 {
            return Ok(None);
        }
        // A response frees the registration.
        self.registration = ptr::null_mut();
        if rc > 0 { Ok(Some(handle)) } else { Err(last_error()) }
    }
}

impl<H> Drop for Request<H> {
    fn drop(&mut self) {
        if !self.registration.is_null() && self.client.is_owner() {
            // SAFETY: unanswered, so not freed; the request keeps the client open.
            unsafe { (self.cancel)(self.client.raw(), self.registration) };
        }
    }
}
