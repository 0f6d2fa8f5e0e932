//! Raw subscriptions: one call per fragment.

use std::ffi::c_void;
use std::sync::Arc;

use rusteron_client::bindings as c;

use super::client::DriverClient;
use super::images::{ImageWatch, on_closed};

// Flags in the header of a fragment. A message of one fragment has both.
const FIRST_FRAGMENT: u8 = 0x80;
const LAST_FRAGMENT: u8 = 0x40;

/// The header of a fragment.
#[derive(Clone, Copy)]
pub struct Header(pub(super) *mut c::aeron_header_t);

impl Header {
    fn frame(self) -> c::aeron_header_values_frame_t {
        // SAFETY: only handed out during the callback, in which the header lives; a zeroed struct is a
        // valid out-value.
        unsafe {
            let mut values: c::aeron_header_values_t = std::mem::zeroed();
            c::aeron_header_values(self.0, &raw mut values);
            values.frame
        }
    }

    pub fn session_id(self) -> i32 {
        self.frame().session_id
    }

    /// The position of the fragment's end in its session.
    pub fn position(self) -> i64 {
        // SAFETY: as in frame.
        unsafe { c::aeron_header_position(self.0) }
    }

    /// The MTU that the sender of the session uses. `None` for a message that came from no image.
    pub fn mtu(self) -> Option<u32> {
        // SAFETY: during a poll the context of a header is the image that it came from; a zeroed struct is a
        // valid out-value.
        unsafe {
            let image = c::aeron_header_context(self.0).cast::<c::aeron_image_t>();
            let mut constants: c::aeron_image_constants_t = std::mem::zeroed();
            if image.is_null() || c::aeron_image_constants(image, &raw mut constants) < 0 {
                return None;
            }
            u32::try_from(constants.mtu_length).ok()
        }
    }

    /// The session, and whether the fragment is the first and the last of its message.
    pub fn fragment(self) -> (i32, bool, bool) {
        let frame = self.frame();
        (frame.session_id, frame.flags & FIRST_FRAGMENT != 0, frame.flags & LAST_FRAGMENT != 0)
    }
}

pub struct Subscription {
    pub(super) ptr: *mut c::aeron_subscription_t,
    pub(super) watch: Arc<ImageWatch>,
    pub(super) client: Arc<DriverClient>,
}

// SAFETY: polled by one thread at a time, under the owner's lock.
unsafe impl Send for Subscription {}

unsafe extern "C-unwind" fn fragment<F: FnMut(&[u8], Header)>(
    clientd: *mut c_void,
    buffer: *const u8,
    length: usize,
    header: *mut c::aeron_header_t,
) {
    // SAFETY: clientd is the closure of the poll below us; the bytes live through the call.
    unsafe { (*clientd.cast::<F>())(std::slice::from_raw_parts(buffer, length), Header(header)) }
}

/// The closure of `poll_while`, and whether it has stopped the poll. Aeron ends the poll of one image, and
/// continues with the next: what that one has stays there.
struct PollWhile<'a, F> {
    f: &'a mut F,
    has_stopped: bool,
}

unsafe extern "C-unwind" fn fragment_while<F: FnMut(&[u8], Header) -> bool>(
    clientd: *mut c_void,
    buffer: *const u8,
    length: usize,
    header: *mut c::aeron_header_t,
) -> c::aeron_controlled_fragment_handler_action_t {
    // SAFETY: clientd is the value of the poll below us; the bytes live through the call.
    let (poll, bytes) =
        unsafe { (&mut *clientd.cast::<PollWhile<'_, F>>(), std::slice::from_raw_parts(buffer, length)) };
    if poll.has_stopped {
        return c::aeron_controlled_fragment_handler_action_en::AERON_ACTION_ABORT;
    }
    poll.has_stopped = !(poll.f)(bytes, Header(header));
    if poll.has_stopped {
        c::aeron_controlled_fragment_handler_action_en::AERON_ACTION_BREAK
    } else {
        c::aeron_controlled_fragment_handler_action_en::AERON_ACTION_CONTINUE
    }
}

unsafe extern "C-unwind" fn peek(
    clientd: *mut c_void,
    _: *const u8,
    _: usize,
    _: *mut c::aeron_header_t,
) -> c::aeron_controlled_fragment_handler_action_t {
    // SAFETY: clientd is the flag of the call below us.
    unsafe { *clientd.cast::<bool>() = true };
    c::aeron_controlled_fragment_handler_action_en::AERON_ACTION_ABORT
}

/// The closure of `skip_while`, and how many fragments of each image it may skip.
struct SkipHandler<'a, F> {
    f: &'a mut F,
    limit: usize,
    images: usize,
}

unsafe extern "C" fn skip_in_image<F: FnMut(&[u8]) -> bool>(
    image: *mut c::aeron_image_t,
    clientd: *mut c_void,
) {
    // SAFETY: clientd is the value of the call below us; Aeron holds the image during this call.
    unsafe {
        let skip = &mut *clientd.cast::<SkipHandler<'_, F>>();
        skip.images += 1;
        let f = (&raw mut *skip.f).cast();
        c::aeron_image_controlled_poll(image, Some(skip_fragment::<F>), f, skip.limit);
    }
}

unsafe extern "C-unwind" fn skip_fragment<F: FnMut(&[u8]) -> bool>(
    clientd: *mut c_void,
    buffer: *const u8,
    length: usize,
    _: *mut c::aeron_header_t,
) -> c::aeron_controlled_fragment_handler_action_t {
    // SAFETY: clientd is the closure of the poll below us; the bytes live through the call.
    if unsafe { (*clientd.cast::<F>())(std::slice::from_raw_parts(buffer, length)) } {
        c::aeron_controlled_fragment_handler_action_en::AERON_ACTION_CONTINUE
    } else {
        c::aeron_controlled_fragment_handler_action_en::AERON_ACTION_ABORT
    }
}

impl Subscription {
    /// Passes up to `limit` raw fragments to `f`.
    #[inline]
    pub fn poll<F: FnMut(&[u8], Header)>(&mut self, limit: usize, mut f: F) -> usize {
        let clientd = (&raw mut f).cast::<c_void>();
        // SAFETY: alive under the owner's lock; the closure outlives the call.
        let rc = unsafe { c::aeron_subscription_poll(self.ptr, Some(fragment::<F>), clientd, limit) };
        usize::try_from(rc).unwrap_or(0)
    }

    /// Passes up to `limit` raw fragments to `f` until it returns false. That fragment is consumed too.
    #[inline]
    pub fn poll_while<F: FnMut(&[u8], Header) -> bool>(&mut self, limit: usize, mut f: F) -> usize {
        let mut poll = PollWhile { f: &mut f, has_stopped: false };
        let clientd = (&raw mut poll).cast::<c_void>();
        // SAFETY: as in poll.
        let rc = unsafe {
            c::aeron_subscription_controlled_poll(self.ptr, Some(fragment_while::<F>), clientd, limit)
        };
        usize::try_from(rc).unwrap_or(0)
    }

    /// Consumes up to `limit` fragments of each image, while `f` returns true. The first that it refuses stays,
    /// with all behind it. Returns how many images there are.
    pub fn skip_while<F: FnMut(&[u8]) -> bool>(&mut self, limit: usize, mut f: F) -> usize {
        let mut skip = SkipHandler { f: &mut f, limit, images: 0 };
        // SAFETY: as in poll; `skip` outlives the call.
        unsafe {
            c::aeron_subscription_for_each_image(
                self.ptr,
                Some(skip_in_image::<F>),
                (&raw mut skip).cast::<c_void>(),
            );
        }
        skip.images
    }

    /// Whether a fragment waits, without consuming it.
    pub fn has_fragment(&mut self) -> bool {
        let mut seen = false;
        // SAFETY: as in poll.
        unsafe {
            c::aeron_subscription_controlled_poll(self.ptr, Some(peek), (&raw mut seen).cast(), 1);
        }
        seen
    }

    pub fn images(&self) -> &ImageWatch {
        &self.watch
    }

    pub fn is_connected(&self) -> bool {
        // SAFETY: alive under the owner's lock.
        unsafe { c::aeron_subscription_is_connected(self.ptr) }
    }

    /// How far a session was read. `None` if there is no such image.
    pub fn position(&self, session_id: i32) -> Option<i64> {
        // SAFETY: alive under the owner's lock; an image that is found is held until it is released.
        unsafe {
            let image = c::aeron_subscription_image_by_session_id(self.ptr, session_id);
            if image.is_null() {
                return None;
            }
            let position = c::aeron_image_position(image);
            c::aeron_subscription_image_release(self.ptr, image);
            Some(position)
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.client.is_owner() {
            let clientd = Arc::as_ptr(&self.watch).cast_mut().cast();
            // SAFETY: the last use of the pointer; the client keeps the watch until the call comes.
            unsafe { c::aeron_subscription_close(self.ptr, Some(on_closed), clientd) };
            self.client.on_closed_handle();
        }
    }
}
