//! The few Aeron calls we need, each made safe by its type.
//!
//! Rules kept here: the error handler is always set (the default one ends the process); a handle is
//! used only under its owner's lock; handles go before the client, the client before its context;
//! nothing is closed in a forked child, where the client's thread does not exist.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rusteron_client::bindings as c;
use tensorpool_core::fork::Birth;
use tensorpool_core::time::monotonic_ns;

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

/// Aeron's words for what went wrong last on this thread, first line only.
fn last_error() -> AeronError {
    // SAFETY: both return thread-local state that is always there.
    unsafe {
        let text = CStr::from_ptr(c::aeron_errmsg()).to_string_lossy();
        let line = text
            .lines()
            .find(|l| !l.trim().is_empty())
            .unwrap_or("unknown error");
        AeronError {
            code: c::aeron_errcode(),
            message: line.trim().to_owned(),
        }
    }
}

fn checked(rc: c_int) -> Result<(), AeronError> {
    if rc < 0 { Err(last_error()) } else { Ok(()) }
}

fn c_string(text: &str) -> Result<CString, AeronError> {
    CString::new(text).map_err(|_| AeronError {
        code: 22,
        message: format!("{text:?} holds a NUL"),
    })
}

/// Aeron's own default directory for this user.
pub fn default_dir() -> String {
    let mut buffer = [0 as c_char; 4096];
    // SAFETY: the buffer is as long as we say and stays NUL-terminated.
    unsafe {
        c::aeron_default_path(buffer.as_mut_ptr(), buffer.len());
        CStr::from_ptr(buffer.as_ptr())
            .to_string_lossy()
            .into_owned()
    }
}

extern "C" fn log_nothing(_: *const c_char) {}

/// Whether a media driver gives signs of life in `dir`.
pub fn driver_is_active(dir: &str, timeout_ms: i64) -> bool {
    let Ok(dir) = c_string(dir) else { return false };
    // SAFETY: reads the directory's mark file; the log function keeps nothing.
    unsafe { c::aeron_is_driver_active(dir.as_ptr(), timeout_ms, Some(log_nothing)) }
}

/// The errors Aeron reported on its own thread, newest last.
#[derive(Debug, Default)]
pub struct ErrorSink(Mutex<VecDeque<AeronError>>);

impl ErrorSink {
    pub fn take(&self) -> Vec<AeronError> {
        self.0
            .lock()
            .map(|mut q| q.drain(..).collect())
            .unwrap_or_default()
    }
}

unsafe extern "C" fn on_error(clientd: *mut c_void, code: c_int, message: *const c_char) {
    // SAFETY: clientd is the sink that the client keeps until after its close.
    let sink = unsafe { &*clientd.cast::<ErrorSink>() };
    // SAFETY: Aeron passes a terminated string.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    if let Ok(mut queue) = sink.0.lock() {
        if queue.len() == 32 {
            queue.pop_front();
        }
        let line = text
            .lines()
            .find(|l| !l.trim().is_empty())
            .unwrap_or_default();
        queue.push_back(AeronError {
            code,
            message: line.trim().to_owned(),
        });
    }
}

/// When images of a subscription came and went. Written by Aeron's thread.
#[derive(Debug, Default)]
pub struct ImageWatch {
    joined: Mutex<Vec<(i32, u64)>>,
    departures: AtomicU64,
}

impl ImageWatch {
    /// When the image of `session_id` became available, on the monotonic clock.
    pub fn joined_ns(&self, session_id: i32) -> Option<u64> {
        let joined = self.joined.lock().ok()?;
        joined
            .iter()
            .find(|(s, _)| *s == session_id)
            .map(|(_, at)| *at)
    }

    /// How many images went away so far.
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

unsafe extern "C" fn on_image(
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
}

unsafe extern "C" fn on_image_gone(
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

/// A connection to a media driver.
pub struct Client {
    ptr: *mut c::aeron_t,
    context: *mut c::aeron_context_t,
    errors: Arc<ErrorSink>,
    /// Aeron calls back into these until the client is closed.
    watches: Mutex<Vec<Arc<ImageWatch>>>,
    birth: Birth,
}

// SAFETY: the C client is made to be used from several threads.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Connects to the media driver in `dir`; waits `timeout_ms` at most for signs of life.
    pub fn connect(dir: &str, timeout_ms: u64) -> Result<Self, AeronError> {
        let errors = Arc::new(ErrorSink::default());
        let dir = c_string(dir)?;
        let mut context = ptr::null_mut();
        let mut client = ptr::null_mut();
        // SAFETY: each call gets what the one before made; on failure what was made is closed.
        unsafe {
            checked(c::aeron_context_init(&raw mut context))?;
            let made = (|| {
                checked(c::aeron_context_set_dir(context, dir.as_ptr()))?;
                let sink = Arc::as_ptr(&errors).cast_mut().cast();
                checked(c::aeron_context_set_error_handler(
                    context,
                    Some(on_error),
                    sink,
                ))?;
                checked(c::aeron_context_set_driver_timeout_ms(context, timeout_ms))?;
                checked(c::aeron_context_set_idle_sleep_duration_ns(
                    context, 4_000_000,
                ))?;
                checked(c::aeron_init(&raw mut client, context))?;
                checked(c::aeron_start(client))
            })();
            if let Err(error) = made {
                if !client.is_null() {
                    c::aeron_close(client);
                }
                c::aeron_context_close(context);
                return Err(error);
            }
        }
        Ok(Self {
            ptr: client,
            context,
            errors,
            watches: Mutex::default(),
            birth: Birth::here(),
        })
    }

    /// True once the media driver is gone or has dropped us: every handle is dead.
    pub fn is_closed(&self) -> bool {
        // SAFETY: the client is open or closing, never freed while self lives.
        unsafe { c::aeron_is_closed(self.ptr) }
    }

    pub fn errors(&self) -> Vec<AeronError> {
        self.errors.take()
    }

    pub fn add_exclusive_publication(
        &self,
        channel: &str,
        stream_id: i32,
    ) -> Result<Pending<ExclusivePublication>, AeronError> {
        let channel = c_string(channel)?;
        let mut pending = ptr::null_mut();
        // SAFETY: the client is alive; Aeron copies the channel.
        checked(unsafe {
            c::aeron_async_add_exclusive_publication(
                &raw mut pending,
                self.ptr,
                channel.as_ptr(),
                stream_id,
            )
        })?;
        let birth = self.birth;
        Ok(Pending::new(move || {
            let mut made = ptr::null_mut();
            // SAFETY: polled until it answers once, while the client lives.
            let rc =
                unsafe { c::aeron_async_add_exclusive_publication_poll(&raw mut made, pending) };
            answer(rc, || ExclusivePublication { ptr: made, birth })
        }))
    }

    pub fn add_publication(
        &self,
        channel: &str,
        stream_id: i32,
    ) -> Result<Pending<Publication>, AeronError> {
        let channel = c_string(channel)?;
        let mut pending = ptr::null_mut();
        // SAFETY: as above.
        checked(unsafe {
            c::aeron_async_add_publication(&raw mut pending, self.ptr, channel.as_ptr(), stream_id)
        })?;
        let birth = self.birth;
        Ok(Pending::new(move || {
            let mut made = ptr::null_mut();
            // SAFETY: as above.
            let rc = unsafe { c::aeron_async_add_publication_poll(&raw mut made, pending) };
            answer(rc, || Publication { ptr: made, birth })
        }))
    }

    pub fn add_subscription(
        &self,
        channel: &str,
        stream_id: i32,
    ) -> Result<Pending<Subscription>, AeronError> {
        let channel = c_string(channel)?;
        let watch = Arc::new(ImageWatch::default());
        if let Ok(mut all) = self.watches.lock() {
            all.push(watch.clone());
        }
        let clientd: *mut c_void = Arc::as_ptr(&watch).cast_mut().cast();
        let mut pending = ptr::null_mut();
        // SAFETY: as above; the watch outlives the client's thread.
        checked(unsafe {
            c::aeron_async_add_subscription(
                &raw mut pending,
                self.ptr,
                channel.as_ptr(),
                stream_id,
                Some(on_image),
                clientd,
                Some(on_image_gone),
                clientd,
            )
        })?;
        let birth = self.birth;
        Ok(Pending::new(move || {
            let mut made = ptr::null_mut();
            // SAFETY: as above.
            let rc = unsafe { c::aeron_async_add_subscription_poll(&raw mut made, pending) };
            let watch = watch.clone();
            answer(rc, || Subscription {
                ptr: made,
                watch,
                birth,
            })
        }))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.birth.is_here() {
            // SAFETY: the owners of all handles have let go of them; the conductor saw to it.
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

fn answer<T>(rc: c_int, make: impl FnOnce() -> T) -> Result<Option<T>, AeronError> {
    match rc {
        0 => Ok(None),
        rc if rc > 0 => Ok(Some(make())),
        _ => Err(last_error()),
    }
}

type Poller<T> = Box<dyn FnMut() -> Result<Option<T>, AeronError> + Send>;

/// A handle that the media driver has been asked for. Poll until it answers; drop to forget it.
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
    fn new(poll: impl FnMut() -> Result<Option<T>, AeronError> + 'static) -> Self {
        let mut poll = AssertSend(poll);
        Self(Box::new(move || poll.get()()))
    }

    pub fn poll(&mut self) -> Result<Option<T>, AeronError> {
        (self.0)()
    }
}

/// Why Aeron did not take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// The slowest tethered subscriber is behind. Try again, or drop.
    BackPressured,
    /// No subscriber at the moment; they come and go.
    NotConnected,
    /// The handle is dead: the media driver is gone, or the position has run out.
    Closed,
}

fn position(rc: i64) -> Result<i64, NotTaken> {
    if rc >= 0 {
        return Ok(rc);
    }
    Err(match rc as i32 {
        c::AERON_PUBLICATION_NOT_CONNECTED => NotTaken::NotConnected,
        c::AERON_PUBLICATION_BACK_PRESSURED | c::AERON_PUBLICATION_ADMIN_ACTION => {
            NotTaken::BackPressured
        }
        _ => NotTaken::Closed,
    })
}

/// Repeats through the short moments in which Aeron rotates its log.
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
    ptr: *mut c::aeron_exclusive_publication_t,
    birth: Birth,
}

// SAFETY: used by one thread at a time, under the owner's lock.
unsafe impl Send for ExclusivePublication {}

impl ExclusivePublication {
    /// Claims `len` bytes in the log, lets `fill` write them, and commits.
    #[inline]
    pub fn claim(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<i64, NotTaken> {
        let mut claim = c::aeron_buffer_claim_t {
            frame_header: ptr::null_mut(),
            data: ptr::null_mut(),
            length: 0,
        };
        let rc = through_rotation(|| {
            // SAFETY: the handle is alive under the owner's lock.
            unsafe { c::aeron_exclusive_publication_try_claim(self.ptr, len, &raw mut claim) }
        });
        let at = position(rc)?;
        // SAFETY: a successful claim points at `len` writable bytes, ours until the commit.
        unsafe {
            fill(std::slice::from_raw_parts_mut(claim.data, len));
            c::aeron_buffer_claim_commit(&raw mut claim);
        }
        Ok(at)
    }

    pub fn is_connected(&self) -> bool {
        // SAFETY: alive under the owner's lock.
        unsafe { c::aeron_exclusive_publication_is_connected(self.ptr) }
    }
}

impl Drop for ExclusivePublication {
    fn drop(&mut self) {
        if self.birth.is_here() {
            // SAFETY: the last use of the pointer; the client's thread frees it.
            unsafe { c::aeron_exclusive_publication_close(self.ptr, None, ptr::null_mut()) };
        }
    }
}

pub struct Publication {
    ptr: *mut c::aeron_publication_t,
    birth: Birth,
}

// SAFETY: a shared publication may be used from any thread.
unsafe impl Send for Publication {}

impl Publication {
    /// Sends a message of any size the channel allows, in fragments if need be.
    pub fn offer(&self, message: &[u8]) -> Result<i64, NotTaken> {
        position(through_rotation(|| {
            // SAFETY: alive under the owner's lock; Aeron copies the bytes.
            unsafe {
                c::aeron_publication_offer(
                    self.ptr,
                    message.as_ptr(),
                    message.len(),
                    None,
                    ptr::null_mut(),
                )
            }
        }))
    }

    pub fn is_connected(&self) -> bool {
        // SAFETY: alive under the owner's lock.
        unsafe { c::aeron_publication_is_connected(self.ptr) }
    }

    /// The largest message `offer` takes on this channel.
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
        if self.birth.is_here() {
            // SAFETY: the last use of the pointer.
            unsafe { c::aeron_publication_close(self.ptr, None, ptr::null_mut()) };
        }
    }
}

/// The session a fragment came by.
#[derive(Clone, Copy)]
pub struct Header(*mut c::aeron_header_t);

impl Header {
    pub fn session_id(self) -> i32 {
        // SAFETY: only handed out during the callback, in which the header lives.
        unsafe {
            let mut values: c::aeron_header_values_t = std::mem::zeroed();
            c::aeron_header_values(self.0, &raw mut values);
            values.frame.session_id
        }
    }
}

pub struct Subscription {
    ptr: *mut c::aeron_subscription_t,
    watch: Arc<ImageWatch>,
    birth: Birth,
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

unsafe extern "C-unwind" fn look_and_leave(
    clientd: *mut c_void,
    _: *const u8,
    _: usize,
    _: *mut c::aeron_header_t,
) -> c::aeron_controlled_fragment_handler_action_t {
    // SAFETY: clientd is the flag of the call below us.
    unsafe { *clientd.cast::<bool>() = true };
    c::aeron_controlled_fragment_handler_action_en::AERON_ACTION_ABORT
}

impl Subscription {
    /// Hands up to `limit` raw fragments to `f`.
    #[inline]
    pub fn poll<F: FnMut(&[u8], Header)>(&mut self, limit: usize, mut f: F) -> usize {
        let clientd = (&raw mut f).cast::<c_void>();
        // SAFETY: alive under the owner's lock; the closure outlives the call.
        let rc =
            unsafe { c::aeron_subscription_poll(self.ptr, Some(fragment::<F>), clientd, limit) };
        usize::try_from(rc).unwrap_or(0)
    }

    /// Whether a fragment waits, without taking it.
    pub fn has_fragment(&mut self) -> bool {
        let mut seen = false;
        // SAFETY: as in poll.
        unsafe {
            c::aeron_subscription_controlled_poll(
                self.ptr,
                Some(look_and_leave),
                (&raw mut seen).cast(),
                1,
            );
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
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.birth.is_here() {
            // SAFETY: the last use of the pointer.
            unsafe { c::aeron_subscription_close(self.ptr, None, ptr::null_mut()) };
        }
    }
}

type Delegate<'a> = &'a mut dyn FnMut(&[u8], Header);

/// Puts messages of several fragments together again.
pub struct Assembler {
    ptr: *mut c::aeron_fragment_assembler_t,
    /// Where the delegate of the running poll is found; its address is given to Aeron once.
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

unsafe extern "C-unwind" fn assemble(
    clientd: *mut c_void,
    buffer: *const u8,
    length: usize,
    header: *mut c::aeron_header_t,
) {
    // SAFETY: passed on as Aeron gave it.
    unsafe { c::aeron_fragment_assembler_handler(clientd, buffer, length, header) }
}

impl Assembler {
    pub fn new() -> Result<Self, AeronError> {
        let mut target: Box<Option<*mut c_void>> = Box::new(None);
        let mut ptr = ptr::null_mut();
        // SAFETY: the boxed target has a stable address and outlives the assembler.
        checked(unsafe {
            c::aeron_fragment_assembler_create(
                &raw mut ptr,
                Some(assembled),
                (&raw mut *target).cast(),
            )
        })?;
        Ok(Self { ptr, target })
    }

    /// Hands up to `limit` fragments' worth of whole messages to `f`.
    pub fn poll(
        &mut self,
        subscription: &mut Subscription,
        limit: usize,
        mut f: impl FnMut(&[u8], Header),
    ) -> usize {
        let mut delegate: Delegate<'_> = &mut f;
        *self.target = Some((&raw mut delegate).cast());
        // SAFETY: the assembler's handler takes the assembler itself as its data.
        let rc = unsafe {
            c::aeron_subscription_poll(subscription.ptr, Some(assemble), self.ptr.cast(), limit)
        };
        *self.target = None;
        usize::try_from(rc).unwrap_or(0)
    }
}

impl Drop for Assembler {
    fn drop(&mut self) {
        // SAFETY: made by create, deleted once; plain memory, so a forked child may do it too.
        unsafe { c::aeron_fragment_assembler_delete(self.ptr) };
    }
}
