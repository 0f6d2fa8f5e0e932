//! The connection to one media driver, and the requests for its handles.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rusteron_client::bindings as c;
use tensorpool_core::os::fork::ForkGuard;

use super::client_idle::ClientIdle;
use super::counter::Counter;
use super::images::{ImageWatch, on_image, on_image_gone};
use super::publication::{ExclusivePublication, Publication};
use super::request::Request;
use super::subscription::Subscription;
use super::{AeronError, c_string, checked, single_line};

/// The errors that Aeron reported on its own thread, newest last.
#[derive(Debug, Default)]
pub struct ErrorLog(Mutex<VecDeque<AeronError>>);

impl ErrorLog {
    pub fn take(&self) -> Vec<AeronError> {
        self.0.lock().map(|mut q| q.drain(..).collect()).unwrap_or_default()
    }
}

unsafe extern "C" fn on_error(clientd: *mut c_void, code: c_int, message: *const c_char) {
    // SAFETY: clientd is the sink that the client keeps until after its close.
    let log = unsafe { &*clientd.cast::<ErrorLog>() };
    // SAFETY: Aeron passes a terminated string.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    if let Ok(mut queue) = log.0.lock() {
        if queue.len() == 32 {
            queue.pop_front();
        }
        queue.push_back(AeronError { code, message: single_line(&text) });
    }
}

/// A connection to one media driver. Its handles keep it open.
pub struct DriverClient {
    ptr: *mut c::aeron_t,
    context: *mut c::aeron_context_t,
    errors: Arc<ErrorLog>,
    idle: Arc<ClientIdle>,
    /// Aeron calls back into these until the client is closed.
    watches: Mutex<Vec<Arc<ImageWatch>>>,
    lost: AtomicBool,
    fork_guard: ForkGuard,
}

// SAFETY: the C client is made to be used from several threads.
unsafe impl Send for DriverClient {}
// SAFETY: as above.
unsafe impl Sync for DriverClient {}

impl DriverClient {
    /// Connects to the media driver in `dir`. Waits `timeout_ms` at most for its heartbeat.
    pub fn connect(dir: &str, timeout_ms: u64) -> Result<Arc<Self>, AeronError> {
        let errors = Arc::new(ErrorLog::default());
        let dir = c_string(dir)?;
        let mut context = ptr::null_mut();
        let mut client = ptr::null_mut();
        // SAFETY: each call gets what the one before made; on failure what was made is closed.
        let idle = unsafe {
            checked(c::aeron_context_init(&raw mut context))?;
            let handle = (|| {
                checked(c::aeron_context_set_dir(context, dir.as_ptr()))?;
                let log = Arc::as_ptr(&errors).cast_mut().cast();
                checked(c::aeron_context_set_error_handler(context, Some(on_error), log))?;
                checked(c::aeron_context_set_driver_timeout_ms(context, timeout_ms))?;
                let idle = ClientIdle::install(context)?;
                checked(c::aeron_init(&raw mut client, context))?;
                checked(c::aeron_start(client))?;
                Ok(idle)
            })();
            handle.inspect_err(|_| {
                if !client.is_null() {
                    c::aeron_close(client);
                }
                c::aeron_context_close(context);
            })?
        };
        Ok(Arc::new(Self {
            ptr: client,
            context,
            errors,
            idle,
            watches: Mutex::default(),
            lost: AtomicBool::new(false),
            fork_guard: ForkGuard::current(),
        }))
    }

    /// The media driver is gone: every handle is dead, and is requested again from another one.
    pub fn set_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// True once the media driver is lost or has timed us out: every handle is dead.
    pub fn is_closed(&self) -> bool {
        // SAFETY: the client is open or closing, never freed while self lives.
        unsafe { c::aeron_is_closed(self.ptr) }
    }

    pub fn errors(&self) -> Vec<AeronError> {
        self.errors.take()
    }

    pub fn add_exclusive_publication(
        self: &Arc<Self>,
        channel: &str,
        stream_id: i32,
    ) -> Result<Pending<ExclusivePublication>, AeronError> {
        let channel = c_string(channel)?;
        let mut registration = ptr::null_mut();
        // SAFETY: the client is alive; Aeron copies the channel.
        checked(unsafe {
            c::aeron_async_add_exclusive_publication(
                &raw mut registration,
                self.ptr,
                channel.as_ptr(),
                stream_id,
            )
        })?;
        self.idle.expect_answer();
        let client = self.clone();
        let request = Request {
            client: self.clone(),
            registration,
            poll: c::aeron_async_add_exclusive_publication_poll,
            cancel: c::aeron_async_add_exclusive_publication_cancel,
        };
        Ok(Pending::new(request, move |ptr| ExclusivePublication { ptr, client: client.clone() }))
    }

    pub fn add_publication(
        self: &Arc<Self>,
        channel: &str,
        stream_id: i32,
    ) -> Result<Pending<Publication>, AeronError> {
        let channel = c_string(channel)?;
        let mut registration = ptr::null_mut();
        // SAFETY: as above.
        checked(unsafe {
            c::aeron_async_add_publication(&raw mut registration, self.ptr, channel.as_ptr(), stream_id)
        })?;
        self.idle.expect_answer();
        let client = self.clone();
        let request = Request {
            client: self.clone(),
            registration,
            poll: c::aeron_async_add_publication_poll,
            cancel: c::aeron_async_add_publication_cancel,
        };
        Ok(Pending::new(request, move |ptr| Publication { ptr, client: client.clone() }))
    }

    pub fn add_subscription(
        self: &Arc<Self>,
        channel: &str,
        stream_id: i32,
    ) -> Result<Pending<Subscription>, AeronError> {
        let channel = c_string(channel)?;
        let watch = Arc::new(ImageWatch::default());
        if let Ok(mut all) = self.watches.lock() {
            all.retain(|watch| !watch.is_closed());
            all.push(watch.clone());
        }
        let clientd: *mut c_void = Arc::as_ptr(&watch).cast_mut().cast();
        let mut registration = ptr::null_mut();
        // SAFETY: as above; the watch is kept until Aeron is done with the subscription.
        checked(unsafe {
            c::aeron_async_add_subscription(
                &raw mut registration,
                self.ptr,
                channel.as_ptr(),
                stream_id,
                Some(on_image),
                clientd,
                Some(on_image_gone),
                clientd,
            )
        })?;
        self.idle.expect_answer();
        let client = self.clone();
        let request = Request {
            client: self.clone(),
            registration,
            poll: c::aeron_async_add_subscription_poll,
            cancel: c::aeron_async_add_subscription_cancel,
        };
        Ok(Pending::new(request, move |ptr| Subscription {
            ptr,
            watch: watch.clone(),
            client: client.clone(),
        }))
    }

    pub fn add_counter(self: &Arc<Self>, type_id: i32, label: &str) -> Result<Pending<Counter>, AeronError> {
        let mut registration = ptr::null_mut();
        // SAFETY: the client is alive; Aeron copies as many bytes of the label as we say.
        checked(unsafe {
            c::aeron_async_add_counter(
                &raw mut registration,
                self.ptr,
                type_id,
                ptr::null(),
                0,
                label.as_ptr().cast(),
                label.len(),
            )
        })?;
        self.idle.expect_answer();
        let client = self.clone();
        let request = Request {
            client: self.clone(),
            registration,
            poll: c::aeron_async_add_counter_poll,
            cancel: c::aeron_async_add_counter_cancel,
        };
        Ok(Pending::new(request, move |ptr| Counter { ptr, client: client.clone() }))
    }
}

impl DriverClient {
    pub(super) fn raw(&self) -> *mut c::aeron_t {
        self.ptr
    }

    /// A handle was closed: the client's thread hands that on.
    pub(super) fn on_closed_handle(&self) {
        self.idle.expect_answer();
    }

    /// Whether this is the process that connected. In a forked child no handle is closed.
    pub(super) fn is_owner(&self) -> bool {
        self.fork_guard.is_owner()
    }
}

impl Drop for DriverClient {
    fn drop(&mut self) {
        if self.fork_guard.is_owner() {
            self.idle.close();
            // SAFETY: every handle keeps the client, so there are none.
            unsafe {
                c::aeron_close(self.ptr);
                c::aeron_context_close(self.context);
            }
        } else {
            std::mem::forget(std::mem::take(&mut self.watches));
            std::mem::forget(self.errors.clone());
        }
    }
}

type Poller<T> = Box<dyn FnMut() -> Result<Option<T>, AeronError> + Send>;

/// A handle that was requested from the media driver. Poll until it is ready; drop to cancel.
pub struct Pending<T>(Poller<T>);

struct AssertSend<F>(F);
// SAFETY: the raw pointers inside are only used while the client lives, from one thread at a time.
unsafe impl<F> Send for AssertSend<F> {}

impl<F> AssertSend<F> {
    fn get(&mut self) -> &mut F {
        &mut self.0
    }
}

impl<T: 'static> Pending<T> {
    /// A handle that `poll` requests by itself.
    pub(super) fn from_poller(poll: impl FnMut() -> Result<Option<T>, AeronError> + Send + 'static) -> Self {
        Self(Box::new(poll))
    }

    fn new<H: 'static>(mut request: Request<H>, handle: impl Fn(*mut H) -> T + 'static) -> Self {
        let mut poll = AssertSend(move || Ok(request.poll()?.map(&handle)));
        Self(Box::new(move || poll.get()()))
    }

    pub fn poll(&mut self) -> Result<Option<T>, AeronError> {
        (self.0)()
    }
}
