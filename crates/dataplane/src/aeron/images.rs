//! Join and departure of the images of a subscription.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rusteron_client::bindings as c;
use tensorpool_core::os::time::monotonic_ns;

/// When images of a subscription joined and left. Written by Aeron's thread.
#[derive(Debug, Default)]
pub struct ImageWatch {
    joined: Mutex<Vec<(i32, u64)>>,
    arrivals: AtomicU64,
    departures: AtomicU64,
    closed: AtomicBool,
}

impl ImageWatch {
    /// When the image of `session_id` became available, on the monotonic clock.
    pub fn joined_ns(&self, session_id: i32) -> Option<u64> {
        let joined = self.joined.lock().ok()?;
        joined.iter().find(|(s, _)| *s == session_id).map(|(_, at)| *at)
    }

    /// Aeron has closed the subscription, and will not call back again.
    pub(super) fn is_closed(&self) -> bool {
        // Pairs with on_closed: every call before it is over.
        self.closed.load(Ordering::Acquire)
    }

    /// How many images joined so far.
    pub fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Relaxed)
    }

    /// How many images left so far.
    #[inline]
    pub fn departures(&self) -> u64 {
        self.departures.load(Ordering::Relaxed)
    }
}

fn session_of(image: *mut c::aeron_image_t) -> i32 {
    // SAFETY: the image is alive during its own callback; a zeroed struct is a valid out-value.
    unsafe {
        let mut constants: c::aeron_image_constants_t = std::mem::zeroed();
        c::aeron_image_constants(image, &raw mut constants);
        constants.session_id
    }
}

pub(super) unsafe extern "C" fn on_image(
    clientd: *mut c_void,
    _: *mut c::aeron_subscription_t,
    image: *mut c::aeron_image_t,
) {
    // SAFETY: the client keeps the watch until after its close.
    let watch = unsafe { &*clientd.cast::<ImageWatch>() };
    let session = session_of(image);
    if let Ok(mut joined) = watch.joined.lock() {
        joined.retain(|(s, _)| *s != session);
        joined.push((session, monotonic_ns()));
    }
    watch.arrivals.fetch_add(1, Ordering::Relaxed);
}

pub(super) unsafe extern "C" fn on_image_gone(
    clientd: *mut c_void,
    _: *mut c::aeron_subscription_t,
    image: *mut c::aeron_image_t,
) {
    // SAFETY: as in on_image.
    let watch = unsafe { &*clientd.cast::<ImageWatch>() };
    let session = session_of(image);
    if let Ok(mut joined) = watch.joined.lock() {
        joined.retain(|(s, _)| *s != session);
    }
    watch.departures.fetch_add(1, Ordering::Relaxed);
}

/// The last callback of a subscription: the watch may be dropped.
pub(super) unsafe extern "C" fn on_closed(clientd: *mut c_void) {
    // SAFETY: as in on_image.
    let watch = unsafe { &*clientd.cast::<ImageWatch>() };
    watch.closed.store(true, Ordering::Release);
}
