//! How the thread of an Aeron client waits: briefly while a media driver is about to answer, and long while nothing
//! happens.
//!
//! Aeron's own strategies know neither. They are variables of its library, found by their names: ours replaces the
//! one that never waits, which nothing here uses.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rusteron_client::bindings as c;

use super::{AeronError, checked};
use crate::idle::Pause;

/// The pause after a request: its answer comes within milliseconds.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause: a new image of another process waits so long at most.
const MAX_PAUSE: Duration = Duration::from_millis(32);
const NAME: &CStr = c"noop";

unsafe extern "C" {
    static mut aeron_idle_strategy_noop: c::aeron_idle_strategy_t;
}

/// The wait of one client's thread. It outlives the client.
pub(super) struct ClientIdle {
    thread: OnceLock<Thread>,
    has_request: AtomicBool,
    is_closing: AtomicBool,
}

thread_local! {
    /// Of the client whose thread this is.
    static PAUSE: RefCell<Option<Pause>> = const { RefCell::new(None) };
}

impl ClientIdle {
    /// Makes it the strategy of `context`, and keeps it while the context lives.
    ///
    /// # Safety
    /// The context is alive and has no client yet. The value returned is dropped after it.
    pub(super) unsafe fn install(context: *mut c::aeron_context_t) -> Result<Arc<Self>, AeronError> {
        static INSTALLED: Once = Once::new();
        // SAFETY: written once, before the strategy is loaded for the first time.
        INSTALLED.call_once(|| unsafe {
            aeron_idle_strategy_noop = c::aeron_idle_strategy_t { idle: Some(idle), init: Some(init) };
        });
        let waits = Arc::new(Self {
            thread: OnceLock::new(),
            has_request: AtomicBool::new(true),
            is_closing: AtomicBool::new(false),
        });
        let address = CString::new(format!("{}", Arc::as_ptr(&waits) as usize)).unwrap_or_default();
        // SAFETY: by the caller; Aeron copies the strings.
        unsafe {
            checked(c::aeron_context_set_idle_strategy_init_args(context, address.as_ptr()))?;
            checked(c::aeron_context_set_idle_strategy(context, NAME.as_ptr()))?;
        }
        Ok(waits)
    }

    /// Something was requested: the thread sends it now, and looks for the answer soon.
    pub(super) fn expect_answer(&self) {
        self.has_request.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// The client is about to be closed, which joins its thread.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn wait(&self) {
        self.thread.get_or_init(std::thread::current);
        let now = Instant::now();
        let has_request = self.has_request.swap(false, Ordering::Relaxed);
        let pause = PAUSE.with_borrow_mut(|pause| {
            let pause = pause.get_or_insert_with(|| Pause::new(MIN_PAUSE, MAX_PAUSE, now));
            pause.after_cycle(has_request, now)
        });
        // It may have been woken before it could see that it ends, and must not rest again.
        let pause = if self.is_closing.load(Ordering::Relaxed) { MIN_PAUSE } else { pause };
        std::thread::park_timeout(pause);
    }
}

/// The state of a strategy is memory that Aeron frees: the address of ours. Without one it never waits, as Aeron's
/// own.
unsafe extern "C" fn init(state: *mut *mut c_void, _: *const c_char, args: *const c_char) -> c_int {
    // SAFETY: Aeron passes a place for the state, and a terminated string or none.
    unsafe {
        let text = if args.is_null() { c"" } else { CStr::from_ptr(args) };
        let address: usize = text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let memory = libc::malloc(size_of::<usize>()).cast::<usize>();
        if memory.is_null() {
            return -1;
        }
        *memory = address;
        *state = memory.cast();
    }
    0
}

unsafe extern "C" fn idle(state: *mut c_void, work: c_int) {
    if work > 0 || state.is_null() {
        return;
    }
    // SAFETY: the state of `init`; the client keeps what it points to.
    if let Some(idle) = unsafe { (*state.cast::<*const ClientIdle>()).as_ref() } {
        idle.wait();
    }
}
