//! Counters in the media driver's counters file: ours for writing, all for reading.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rusteron_client::bindings as c;
use tensorpool_core::wire::layout::get_u32;

use super::client::DriverClient;
use super::{AeronError, c_string, checked};

/// The longest label Aeron keeps, in bytes.
pub const MAX_LABEL_BYTES: usize = 380;

/// The counter that says how far a subscription has read a session.
const SUBSCRIPTION_POSITION_TYPE_ID: i32 = c::AERON_COUNTER_SUBSCRIPTION_POSITION_TYPE_ID as i32;
// The key of such a counter: registration id, session id, stream id, channel.
const POSITION_KEY_SESSION_ID: usize = 8;
const POSITION_KEY_STREAM_ID: usize = 12;
const POSITION_KEY_LENGTH: usize = 16;

/// A counter of ours, as long as the client lives.
pub struct Counter {
    pub(super) ptr: *mut c::aeron_counter_t,
    pub(super) client: Arc<DriverClient>,
}

// SAFETY: used by one thread at a time, under the owner's lock.
unsafe impl Send for Counter {}

impl Counter {
    pub fn set(&self, value: i64) {
        // SAFETY: the handle is alive under the owner's lock, and the address is an aligned word of the
        // counters file, which stays mapped until the client is closed. Readers load it atomically.
        let word = unsafe { AtomicI64::from_ptr(c::aeron_counter_addr(self.ptr)) };
        // Pairs with the reader's volatile load; nothing else is published through it.
        word.store(value, Ordering::Release);
    }

    pub fn id(&self) -> i32 {
        let mut constants = c::aeron_counter_constants_t::default();
        // SAFETY: alive under the owner's lock; the struct is ours.
        unsafe { c::aeron_counter_constants(self.ptr, &raw mut constants) };
        constants.counter_id
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if self.client.is_owner() {
            // SAFETY: the last use of the pointer; the client's thread frees it.
            unsafe { c::aeron_counter_close(self.ptr, None, ptr::null_mut()) };
            self.client.on_closed_handle();
        }
    }
}

/// The entry of one counter in the counters file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterReading {
    pub id: i32,
    pub type_id: i32,
    pub value: i64,
    pub label: String,
    pub key: Vec<u8>,
}

unsafe extern "C" fn on_counter(
    value: i64,
    id: i32,
    type_id: i32,
    key: *const u8,
    key_length: usize,
    label: *const c_char,
    label_length: usize,
    clientd: *mut c_void,
) {
    // SAFETY: clientd is the list of the call below us; key and label lie in the mapped file, and a
    // length that would leave a counter's own record is cut.
    unsafe {
        let label = std::slice::from_raw_parts(label.cast::<u8>(), label_length.min(MAX_LABEL_BYTES));
        (*clientd.cast::<Vec<CounterReading>>()).push(CounterReading {
            id,
            type_id,
            value,
            label: String::from_utf8_lossy(label).into_owned(),
            key: std::slice::from_raw_parts(key, key_length).to_vec(),
        });
    }
}

/// The end of a session's log, to be compared with the positions of its subscriptions.
#[derive(Clone, Copy)]
pub(super) struct LogEnd {
    pub session_id: i32,
    pub stream_id: i32,
    pub position: i64,
}

/// What a scan of the counters looks for, and whether it found a subscription that is behind.
struct LagScan {
    end: LogEnd,
    is_found: bool,
}

unsafe extern "C" fn on_position(
    value: i64,
    _: i32,
    type_id: i32,
    key: *const u8,
    key_length: usize,
    _: *const c_char,
    _: usize,
    clientd: *mut c_void,
) {
    if type_id != SUBSCRIPTION_POSITION_TYPE_ID || key_length < POSITION_KEY_LENGTH {
        return;
    }
    // SAFETY: clientd is the value of the call below us; the key lies in the mapped file.
    let (behind, key) =
        unsafe { (&mut *clientd.cast::<LagScan>(), std::slice::from_raw_parts(key, POSITION_KEY_LENGTH)) };
    let session_id = get_u32(key, POSITION_KEY_SESSION_ID) as i32;
    let stream_id = get_u32(key, POSITION_KEY_STREAM_ID) as i32;
    let end = behind.end;
    behind.is_found |= (session_id, stream_id) == (end.session_id, end.stream_id) && value < end.position;
}

/// Whether all subscriptions of this media driver have read a session up to there. Those of other hosts have
/// no position here.
pub(super) fn is_read(client: &DriverClient, end: LogEnd) -> bool {
    let mut behind = LagScan { end, is_found: false };
    // SAFETY: the client is open, and its counters file is mapped as long as it is.
    unsafe {
        let reader = c::aeron_counters_reader(client.raw());
        c::aeron_counters_reader_foreach_counter(reader, Some(on_position), (&raw mut behind).cast());
    }
    !behind.is_found
}

/// Every counter of the media driver in `dir`, without becoming its client. Counters of a dead driver are
/// read too. A missing counters file is an error.
pub fn read_counters(dir: &str) -> Result<Vec<CounterReading>, AeronError> {
    let dir = c_string(dir)?;
    let mut cnc = ptr::null_mut();
    let mut found: Vec<CounterReading> = Vec::new();
    // SAFETY: the file is mapped read-only between init and close, and only read in between.
    unsafe {
        checked(c::aeron_cnc_init(&raw mut cnc, dir.as_ptr(), 0))?;
        let reader = c::aeron_cnc_counters_reader(cnc);
        c::aeron_counters_reader_foreach_counter(reader, Some(on_counter), (&raw mut found).cast());
        c::aeron_cnc_close(cnc);
    }
    Ok(found)
}
