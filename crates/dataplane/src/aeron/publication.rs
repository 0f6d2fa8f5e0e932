//! Publications: exclusive ones, filled in place, and shared ones for complete messages.

use std::ptr;
use std::sync::Arc;

use rusteron_client::bindings as c;

use super::client::DriverClient;
use super::counter::{self, LogEnd};

/// Why Aeron did not accept a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferError {
    /// The slowest tethered subscriber is behind. Try again, or drop the message.
    BackPressured,
    /// No subscriber at the moment.
    NotConnected,
    /// The handle is dead: the media driver is lost, or the position is exhausted.
    Closed,
}

fn position(rc: i64) -> Result<i64, OfferError> {
    if rc >= 0 {
        return Ok(rc);
    }
    Err(match rc as i32 {
        c::AERON_PUBLICATION_NOT_CONNECTED => OfferError::NotConnected,
        c::AERON_PUBLICATION_BACK_PRESSURED | c::AERON_PUBLICATION_ADMIN_ACTION => OfferError::BackPressured,
        _ => OfferError::Closed,
    })
}

/// Repeats while Aeron rotates its log.
#[inline]
fn through_rotation(mut attempt: impl FnMut() -> i64) -> i64 {
    for _ in 0..64 {
        let rc = attempt();
        if rc != i64::from(c::AERON_PUBLICATION_ADMIN_ACTION) {
            return rc;
        }
        std::hint::spin_loop();
    }
    i64::from(c::AERON_PUBLICATION_ADMIN_ACTION)
}

pub struct ExclusivePublication {
    pub(super) ptr: *mut c::aeron_exclusive_publication_t,
    pub(super) client: Arc<DriverClient>,
}

// SAFETY: used by one thread at a time, under the owner's lock.
unsafe impl Send for ExclusivePublication {}

impl ExclusivePublication {
    /// Claims `len` bytes in the log, lets `fill` write them, and commits.
    #[inline]
    pub fn claim(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<i64, OfferError> {
        self.claim_if(len, |bytes| {
            fill(bytes);
            true
        })
        .map(|(at, _)| at)
    }

    /// As `claim`, but `fill` returns whether to send what it wrote. If not, readers skip it.
    #[inline]
    pub fn claim_if(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<(i64, bool), OfferError> {
        let mut claim =
            c::aeron_buffer_claim_t { frame_header: ptr::null_mut(), data: ptr::null_mut(), length: 0 };
        let rc = through_rotation(|| {
            // SAFETY: the handle is alive under the owner's lock.
            unsafe { c::aeron_exclusive_publication_try_claim(self.ptr, len, &raw mut claim) }
        });
        let at = position(rc)?;
        // SAFETY: a successful claim points at `len` writable bytes, ours until the commit.
        unsafe {
            let is_sent = fill(std::slice::from_raw_parts_mut(claim.data, len));
            if is_sent {
                c::aeron_buffer_claim_commit(&raw mut claim);
            } else {
                c::aeron_buffer_claim_abort(&raw mut claim);
            }
            Ok((at, is_sent))
        }
    }

    /// Sends a message of any size that the channel allows, in fragments if needed.
    pub fn offer(&mut self, message: &[u8]) -> Result<i64, OfferError> {
        position(through_rotation(|| {
            // SAFETY: alive under the owner's lock; Aeron copies the bytes.
            unsafe {
                c::aeron_exclusive_publication_offer(
                    self.ptr,
                    message.as_ptr(),
                    message.len(),
                    None,
                    ptr::null_mut(),
                )
            }
        }))
    }

    fn constants(&self) -> c::aeron_publication_constants_t {
        // SAFETY: a zeroed struct is a valid out-value.
        unsafe {
            let mut constants: c::aeron_publication_constants_t = std::mem::zeroed();
            c::aeron_exclusive_publication_constants(self.ptr, &raw mut constants);
            constants
        }
    }

    /// The longest claim: what the channel's MTU leaves for a message.
    pub fn max_payload_length(&self) -> usize {
        self.constants().max_payload_length
    }

    pub fn session_id(&self) -> i32 {
        self.constants().session_id
    }

    /// The position of the next claim. `None` once closed.
    pub fn position(&self) -> Option<i64> {
        // SAFETY: alive under the owner's lock.
        let at = unsafe { c::aeron_exclusive_publication_position(self.ptr) };
        (at >= 0).then_some(at)
    }

    pub fn is_connected(&self) -> bool {
        // SAFETY: alive under the owner's lock.
        unsafe { c::aeron_exclusive_publication_is_connected(self.ptr) }
    }

    /// The longest message that `offer` accepts on this channel.
    pub fn max_message_length(&self) -> usize {
        self.constants().max_message_length
    }

    /// Whether all subscriptions on this host have read everything. True once closed.
    pub fn is_read(&self) -> bool {
        let Some(position) = self.position() else { return true };
        let constants = self.constants();
        let end = LogEnd { session_id: constants.session_id, stream_id: constants.stream_id, position };
        counter::is_read(&self.client, end)
    }

    /// Whether the subscribers leave room for a claim.
    #[inline]
    pub fn has_room(&self) -> bool {
        // SAFETY: alive under the owner's lock.
        unsafe {
            c::aeron_exclusive_publication_position(self.ptr)
                < c::aeron_exclusive_publication_position_limit(self.ptr)
        }
    }
}

impl Drop for ExclusivePublication {
    fn drop(&mut self) {
        if self.client.is_owner() {
            // SAFETY: the last use of the pointer; the client's thread frees it.
            unsafe { c::aeron_exclusive_publication_close(self.ptr, None, ptr::null_mut()) };
            self.client.on_closed_handle();
        }
    }
}

pub struct Publication {
    pub(super) ptr: *mut c::aeron_publication_t,
    pub(super) client: Arc<DriverClient>,
}

// SAFETY: a shared publication may be used from any thread.
unsafe impl Send for Publication {}

impl Publication {
    /// Sends a message of any size that the channel allows, in fragments if needed.
    pub fn offer(&self, message: &[u8]) -> Result<i64, OfferError> {
        position(through_rotation(|| {
            // SAFETY: alive under the owner's lock; Aeron copies the bytes.
            unsafe {
                c::aeron_publication_offer(self.ptr, message.as_ptr(), message.len(), None, ptr::null_mut())
            }
        }))
    }

    pub fn is_connected(&self) -> bool {
        // SAFETY: alive under the owner's lock.
        unsafe { c::aeron_publication_is_connected(self.ptr) }
    }

    /// Whether the subscribers leave room for a message.
    pub fn has_room(&self) -> bool {
        // SAFETY: alive under the owner's lock.
        unsafe { c::aeron_publication_position(self.ptr) < c::aeron_publication_position_limit(self.ptr) }
    }

    /// The end of the log, with what all its publishers have claimed. `None` once closed.
    pub fn position(&self) -> Option<i64> {
        // SAFETY: alive under the owner's lock.
        let at = unsafe { c::aeron_publication_position(self.ptr) };
        (at >= 0).then_some(at)
    }

    pub fn session_id(&self) -> i32 {
        // SAFETY: alive under the owner's lock.
        unsafe { c::aeron_publication_session_id(self.ptr) }
    }

    /// Whether all subscriptions on this host have read the log up to `position`.
    pub fn is_read_to(&self, position: i64) -> bool {
        // SAFETY: alive under the owner's lock.
        let stream_id = unsafe { c::aeron_publication_stream_id(self.ptr) };
        counter::is_read(&self.client, LogEnd { session_id: self.session_id(), stream_id, position })
    }

    /// The longest message that `offer` accepts on this channel.
    pub fn max_message_length(&self) -> usize {
        // SAFETY: a zeroed struct is a valid out-value.
        unsafe {
            let mut constants: c::aeron_publication_constants_t = std::mem::zeroed();
            c::aeron_publication_constants(self.ptr, &raw mut constants);
            constants.max_message_length
        }
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        if self.client.is_owner() {
            // SAFETY: the last use of the pointer.
            unsafe { c::aeron_publication_close(self.ptr, None, ptr::null_mut()) };
            self.client.on_closed_handle();
        }
    }
}
