//! Assembly of messages of several fragments.

use std::ffi::c_void;
use std::ptr;

use rusteron_client::bindings as c;

use super::subscription::{Header, Subscription};
use super::{AeronError, checked};

type Delegate<'a> = &'a mut dyn FnMut(&[u8], Header);

/// Joins the fragments of messages.
pub struct Assembler {
    ptr: *mut c::aeron_fragment_assembler_t,
    /// The delegate of the running poll. Its address is passed to Aeron once.
    target: Box<Option<*mut c_void>>,
}

// SAFETY: used by one thread at a time, under the owner's lock.
unsafe impl Send for Assembler {}

unsafe extern "C-unwind" fn assembled(
    clientd: *mut c_void,
    buffer: *const u8,
    length: usize,
    header: *mut c::aeron_header_t,
) {
    // SAFETY: clientd is the assembler's target, set for the duration of a poll.
    unsafe {
        if let Some(delegate) = *clientd.cast::<Option<*mut c_void>>() {
            let delegate = &mut *delegate.cast::<Delegate<'_>>();
            delegate(std::slice::from_raw_parts(buffer, length), Header(header));
        }
    }
}

impl Assembler {
    pub fn new() -> Result<Self, AeronError> {
        let mut target: Box<Option<*mut c_void>> = Box::new(None);
        let mut ptr = ptr::null_mut();
        // SAFETY: the boxed target has a stable address and outlives the assembler.
        checked(unsafe {
            c::aeron_fragment_assembler_create(&raw mut ptr, Some(assembled), (&raw mut *target).cast())
        })?;
        Ok(Self { ptr, target })
    }

    /// Passes complete messages of up to `limit` fragments to `f`.
    pub fn poll(
        &mut self,
        subscription: &mut Subscription,
        limit: usize,
        f: impl FnMut(&[u8], Header),
    ) -> usize {
        self.poll_some(subscription, limit, |_, _| true, f)
    }

    /// As `poll`, but only fragments for which `is_wanted` is true are joined.
    pub fn poll_some(
        &mut self,
        subscription: &mut Subscription,
        limit: usize,
        mut is_wanted: impl FnMut(&[u8], Header) -> bool,
        mut f: impl FnMut(&[u8], Header),
    ) -> usize {
        let mut delegate: Delegate<'_> = &mut f;
        *self.target = Some((&raw mut delegate).cast());
        let assembler = self.ptr;
        let taken = subscription.poll(limit, |bytes, header| {
            if is_wanted(bytes, header) {
                // SAFETY: the assembler lives, and its handler takes the assembler itself as its data.
                unsafe {
                    c::aeron_fragment_assembler_handler(
                        assembler.cast(),
                        bytes.as_ptr(),
                        bytes.len(),
                        header.0,
                    );
                }
            }
        });
        *self.target = None;
        taken
    }
}

impl Drop for Assembler {
    fn drop(&mut self) {
        // SAFETY: made by create, deleted once; plain memory, so a forked child may do it too.
        unsafe { c::aeron_fragment_assembler_delete(self.ptr) };
    }
}
