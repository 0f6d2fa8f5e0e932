//! An embedded media driver: Aeron's C media driver inside this process.
//!
//! The settings differ from Aeron's defaults where a shared machine needs it: subscriptions that stop polling
//! are rested quickly, a killed client is noticed within seconds, idle threads sleep, the directory is
//! private, and every file has its memory from the start, so that a full filesystem ends no process. `AERON_*` variables of the environment still apply to all other settings.

use std::ffi::{CString, c_int};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusteron_media_driver::bindings as c;
use tensorpool_core::os::file_lock::{self, FileLock, LockError};
use tensorpool_core::os::fork::ForkGuard;

use crate::aeron::single_line;

const MS: u64 = 1_000_000;
/// Bytes of the values of counters: 8,192 counters of 128 bytes, the least that Aeron accepts. Their labels take
/// four times as much. Aeron's default takes 40 MiB for both.
const COUNTERS_LENGTH: usize = 1 << 20;
/// Bytes of the media driver's notices to its clients, with Aeron's trailer. A client that more than this passes by,
/// while it is paused or gets no processor time, is closed by Aeron and loses its leases: four times Aeron's default
/// (docs/explanation/aeron-notices-flaw.md).
const NOTICES_LENGTH: usize = (4 << 20) + NOTICES_TRAILER_LENGTH;
/// The trailer of Aeron's broadcast buffers: two cache lines.
const NOTICES_TRAILER_LENGTH: usize = 128;
/// Bytes of the report of lost UDP packets.
const LOSS_REPORT_LENGTH: usize = 128 << 10;
/// Terms of UDP publications and images, where their channel sets none. Aeron's default takes 48 MiB each.
const UDP_TERM_LENGTH: usize = 4 << 20;
/// The time after which a media driver that has begun to start is taken to be dead.
const MAX_START: Duration = Duration::from_secs(1);
const START_POLL: Duration = Duration::from_millis(10);
/// The idle strategy of a media driver that serves IPC only.
const REST: &str = "rest";
/// Pauses of a resting media driver: while commands or limits of publications keep it busy, when nothing came for a
/// moment, and for a second. A publication of 1 MiB terms may write 5,000 descriptors before it needs a new limit.
const ACTIVE_PAUSE: Duration = Duration::from_millis(1);
/// The first pause after limits moved; each further one is twice as long. A batch may write 20,000 descriptors in a
/// millisecond, twice what the default term has room for.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const IDLE_PAUSE: Duration = Duration::from_millis(5);
const LONG_PAUSE: Duration = Duration::from_millis(10);
const ACTIVE_FOR: Duration = Duration::from_millis(20);
/// After a single command, which usually is a client's sign of life.
const ALERT_FOR: Duration = Duration::from_millis(4);
const BUSY_FOR: Duration = Duration::from_secs(1);
/// The driver reads the clock a little later than we do.
const TIMER_SLACK: Duration = Duration::from_micros(20);

#[derive(Clone, Debug)]
pub struct Settings {
    pub dir: String,
    /// Locked while the driver runs, so that two processes do not embed one in the same directory.
    pub lock_path: PathBuf,
    pub dir_mode: u32,
    /// `false`: one thread for all. `true`: conductor, sender and receiver have one each.
    pub dedicated_threads: bool,
    /// Idle strategy of the driver's threads: `rest`, or one of Aeron's (`backoff`, `spin`, `yield`, …).
    pub idle_strategy: String,
    pub ipc_term_length: u64,
    pub timer_interval_ns: u64,
    pub client_liveness_timeout_ns: u64,
    pub publication_unblock_timeout_ns: u64,
    /// Whether it opens UDP channels. Only where it has a process of its own: see `refuse_udp`.
    pub udp: bool,
    /// Age of the heartbeat at which a driver found in the directory counts as dead.
    pub driver_timeout_ms: u64,
}

impl Settings {
    pub fn new(dir: String, lock_path: PathBuf) -> Self {
        Self {
            dir,
            lock_path,
            dir_mode: 0o700,
            dedicated_threads: false,
            idle_strategy: "backoff".into(),
            ipc_term_length: 1 << 20,
            timer_interval_ns: 2 * MS,
            udp: false,
            // A client that was killed inside an offer blocks the shared control log for the unblock timeout,
            // which Aeron wants above the liveness timeout. Both are of the order of a lease (3 s), and the
            // unblock timeout is below the attach timeout (5 s): no attach fails because of a block.
            client_liveness_timeout_ns: 3_000 * MS,
            publication_unblock_timeout_ns: 3_500 * MS,
            driver_timeout_ms: 5_000,
        }
    }

    /// Whether its thread is ours. Datagrams do not wait for a thread that rests.
    fn rests(&self) -> bool {
        self.idle_strategy == REST && !self.udp
    }
}

#[derive(Debug)]
pub enum LaunchError {
    /// Another process embeds a driver here. The text is what its lock file says.
    Held(String),
    Aeron(String),
    /// The directory contains a file that no media driver made. Starting there would delete it.
    Occupied(PathBuf),
    Io(std::io::Error),
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(who) => write!(f, "a media driver is already embedded there by {who}"),
            Self::Aeron(text) => write!(f, "{text}"),
            Self::Occupied(path) => {
                write!(f, "{} is no file of a media driver, and would be deleted", path.display())
            }
            Self::Io(e) => write!(f, "{e}"),
        }
    }
}

impl From<LockError> for LaunchError {
    fn from(e: LockError) -> Self {
        match e {
            LockError::Held(who) => Self::Held(who),
            LockError::Io(e) => Self::Io(e),
        }
    }
}

pub struct MediaDriver {
    dir: String,
    driver: *mut c::aeron_driver_t,
    context: *mut c::aeron_driver_context_t,
    resting: Option<RestingThread>,
    _lock: FileLock,
    fork_guard: ForkGuard,
}

// SAFETY: started and closed by one owner at a time; the driver's own threads are its business.
unsafe impl Send for MediaDriver {}
// SAFETY: nothing is mutated through a shared reference.
unsafe impl Sync for MediaDriver {}

fn last_error() -> LaunchError {
    // SAFETY: returns a thread-local string.
    let text = unsafe { std::ffi::CStr::from_ptr(c::aeron_errmsg()) }.to_string_lossy();
    LaunchError::Aeron(single_line(&text))
}

fn checked(rc: c_int) -> Result<(), LaunchError> {
    if rc < 0 { Err(last_error()) } else { Ok(()) }
}

/// Aeron clears the directory at start and at the end, whatever is in it. So only a directory that is empty,
/// or contains nothing but media driver files, is accepted.
fn check_is_ours(dir: &Path) -> Result<(), LaunchError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(LaunchError::Io(e)),
    };
    for entry in entries {
        let entry = entry.map_err(LaunchError::Io)?;
        let name = entry.file_name();
        if !["cnc.dat", "loss-report.dat", "publications", "images"].iter().any(|n| name == *n) {
            return Err(LaunchError::Occupied(entry.path()));
        }
    }
    Ok(())
}

/// The text in the lock file that names the embedding process.
fn holder(pid: u32) -> String {
    format!("process {pid}")
}

/// The process that made the driver files in `dir`, if there are any.
fn cnc_pid(dir: &str) -> Option<u32> {
    use rusteron_client::bindings as client;
    let dir = CString::new(dir).ok()?;
    let mut cnc = ptr::null_mut();
    // SAFETY: maps the mark file, reads it, unmaps it; a zeroed struct is a valid out-value.
    unsafe {
        if client::aeron_cnc_init(&raw mut cnc, dir.as_ptr(), 0) < 0 {
            return None;
        }
        let mut constants: client::aeron_cnc_constants_t = std::mem::zeroed();
        client::aeron_cnc_constants(cnc, &raw mut constants);
        client::aeron_cnc_close(cnc);
        u32::try_from(constants.pid).ok()
    }
}

/// Whether the driver files in `dir` are of a dead process: its lock is free and names the maker of the
/// files. The heartbeat in them may still be fresh.
pub fn is_left_over(dir: &str, lock_path: &Path) -> bool {
    let named = std::fs::read_to_string(lock_path).unwrap_or_default();
    cnc_pid(dir).is_some_and(|pid| named == holder(pid)) && file_lock::is_free(lock_path)
}

/// The age of a mark file that its media driver has not finished. `None` if it is finished, or there is none.
///
/// Aeron waits for such a file for the whole driver timeout. A driver that was killed while it started never
/// finishes it.
fn unfinished_age(dir: &str) -> Option<Duration> {
    let mut file = File::open(Path::new(dir).join("cnc.dat")).ok()?;
    let mut version = [0; 4];
    let is_finished = file.read_exact(&mut version).is_ok() && version != [0; 4];
    let modified = file.metadata().and_then(|m| m.modified()).ok()?;
    // A time in the future is a changed clock: then the file counts as new.
    (!is_finished).then(|| modified.elapsed().unwrap_or_default())
}

/// Whether a media driver in `dir` has begun to start, and is not done.
pub fn is_unfinished(dir: &str) -> bool {
    unfinished_age(dir).is_some()
}

/// Waits as long as a media driver may take to start. True if what it left is still unfinished.
fn is_abandoned(dir: &str) -> bool {
    while let Some(age) = unfinished_age(dir) {
        if age >= MAX_START {
            return true;
        }
        std::thread::sleep(START_POLL);
    }
    false
}

/// The identity of the driver files in `dir`, which the next driver replaces. `None` while there are none.
fn files_in(dir: &str) -> Option<(u64, u64)> {
    Path::new(dir).join("cnc.dat").metadata().ok().map(|m| (m.dev(), m.ino()))
}

/// Watches a media driver in another process by its files, and by the lock that is released when it dies. Its
/// heartbeat would take seconds to age.
pub struct MediaDriverWatch {
    dir: String,
    files: Option<(u64, u64)>,
    /// The lock and its text. `None` where the driver holds no known lock.
    lock: Option<(PathBuf, String)>,
}

impl MediaDriverWatch {
    /// Created before a client connects, so that a driver that starts in between is recognised as another
    /// one.
    pub fn new(dir: &str, lock_path: &Path) -> Self {
        let files = files_in(dir);
        let named = std::fs::read_to_string(lock_path).unwrap_or_default();
        let is_makers =
            cnc_pid(dir).is_some_and(|pid| named == holder(pid)) && !file_lock::is_free(lock_path);
        let lock = is_makers.then(|| (lock_path.to_path_buf(), named));
        Self { dir: dir.to_owned(), files, lock }
    }

    pub fn is_dead(&self) -> bool {
        // That files were removed proves nothing: a process that has them open continues to use them.
        let are_replaced = files_in(&self.dir).is_some_and(|now| Some(now) != self.files);
        are_replaced
            || self.lock.as_ref().is_some_and(|(path, named)| {
                // Another text: another process has already started the next driver.
                file_lock::is_free(path) || std::fs::read_to_string(path).map_or(true, |now| now != *named)
            })
    }
}

impl MediaDriver {
    /// Starts a driver in `settings.dir`. Files of a dead driver are removed first.
    pub fn launch(settings: &Settings) -> Result<Self, LaunchError> {
        if let Some(parent) = settings.lock_path.parent() {
            std::fs::create_dir_all(parent).map_err(LaunchError::Io)?;
        }
        check_is_ours(Path::new(&settings.dir))?;
        // Aeron would make missing parents as private as the directory itself.
        if let Some(parent) = Path::new(&settings.dir).parent() {
            std::fs::create_dir_all(parent).map_err(LaunchError::Io)?;
        }
        let before = std::fs::read_to_string(&settings.lock_path).unwrap_or_default();
        let lock = FileLock::acquire(&settings.lock_path, &holder(std::process::id()))?;
        // Its lock is free, so the process that embedded the driver found here is dead: do not wait for the
        // heartbeat to age.
        // Only then is the file mapped: Aeron would wait for an unfinished one.
        let is_left_over =
            is_abandoned(&settings.dir) || cnc_pid(&settings.dir).is_some_and(|pid| before == holder(pid));
        let mut context = ptr::null_mut();
        let mut driver = ptr::null_mut();
        // SAFETY: each call gets what the one before made; on failure what was made is closed.
        unsafe {
            checked(c::aeron_driver_context_init(&raw mut context))?;
            let made = configure(context, settings, is_left_over).and_then(|()| {
                checked(c::aeron_driver_init(&raw mut driver, context))?;
                // Aeron makes the directory for this user alone (cmake/aeron-patches.cmake). Only a wider mode
                // is set afterwards: a user who enters while the mode is too wide continues to read.
                let mode = std::fs::Permissions::from_mode(settings.dir_mode);
                std::fs::set_permissions(Path::new(&settings.dir), mode).map_err(LaunchError::Io)?;
                checked(c::aeron_driver_start(driver, settings.rests()))
            });
            if let Err(error) = made {
                if !driver.is_null() {
                    c::aeron_driver_close(driver);
                }
                c::aeron_driver_context_close(context);
                return Err(error);
            }
        }
        let mut launched = Self {
            dir: settings.dir.clone(),
            driver,
            context,
            resting: None,
            _lock: lock,
            fork_guard: ForkGuard::current(),
        };
        if settings.rests() {
            let interval = Duration::from_nanos(settings.timer_interval_ns);
            launched.resting = Some(RestingThread::start(driver, interval).map_err(LaunchError::Io)?);
        }
        Ok(launched)
    }

    pub fn dir(&self) -> &str {
        &self.dir
    }
}

/// The thread of a media driver that rests: it serves IPC only, where a message passes from one client to another
/// without it. What waits for it are commands, the limits of publications, and timeouts.
struct RestingThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

struct DriverPointer(*mut c::aeron_driver_t);

// SAFETY: used by the one thread that runs the driver, which ends before the driver is closed.
unsafe impl Send for DriverPointer {}

impl RestingThread {
    fn start(driver: *mut c::aeron_driver_t, timer_interval: Duration) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (driver, stops) = (DriverPointer(driver), stop.clone());
        let run = move || {
            let driver = driver;
            let mut rest = DriverPause::new(timer_interval, Instant::now());
            // Acquire: pairs with the store of `end`.
            while !stops.load(Ordering::Acquire) {
                let began = Instant::now();
                // SAFETY: the driver is closed only after this thread was joined.
                let work = unsafe { c::aeron_driver_main_do_work(driver.0) };
                if let Some(pause) = rest.after_cycle(work, began) {
                    std::thread::park_timeout(pause);
                }
            }
        };
        let thread = std::thread::Builder::new().name("tp-media-driver".into()).spawn(run)?;
        Ok(Self { stop, thread })
    }

    fn end(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

/// How long a media driver pauses after a duty cycle. Pure.
struct DriverPause {
    timer_interval: Duration,
    timer_due: Instant,
    active_until: Instant,
    active_pause: Duration,
    /// When more than a single command came.
    busy_at: Instant,
}

impl DriverPause {
    fn new(timer_interval: Duration, now: Instant) -> Self {
        Self {
            timer_interval,
            timer_due: now,
            active_until: now + ACTIVE_FOR,
            active_pause: ACTIVE_PAUSE,
            busy_at: now,
        }
    }

    /// The pause after a duty cycle that began at `began` and did this much work. `None`: none.
    fn after_cycle(&mut self, work: c_int, began: Instant) -> Option<Duration> {
        // Its timer counts as work, and is due in every cycle after a long rest.
        let mut timer_work = 0;
        if began + TIMER_SLACK >= self.timer_due {
            self.timer_due = began + self.timer_interval;
            timer_work = 1;
        }
        if work > timer_work {
            let is_busy = began < self.active_until;
            if is_busy {
                self.busy_at = began;
            }
            self.active_pause = if is_busy { FIRST_PAUSE } else { ACTIVE_PAUSE };
            self.active_until = began + if is_busy { ACTIVE_FOR } else { ALERT_FOR };
            return None;
        }
        Some(match began {
            now if now < self.active_until => {
                let pause = self.active_pause;
                self.active_pause = ACTIVE_PAUSE.min(2 * pause);
                pause
            }
            now if now < self.busy_at + BUSY_FOR => IDLE_PAUSE,
            _ => LONG_PAUSE,
        })
    }
}

/// Refuses a UDP channel. A datagram reaches the code of the process that opens it, and a fault in that code
/// ends the process: an embedded media driver shares it with an SHM driver or a user's program.
unsafe extern "C" fn refuse_udp(
    _: *mut c::aeron_udp_channel_transport_t,
    _: *mut c::sockaddr_storage,
    _: *mut c::sockaddr_storage,
    _: *mut c::sockaddr_storage,
    _: *mut c::aeron_udp_channel_transport_params_t,
    _: *mut c::aeron_driver_context_t,
    _: c::aeron_udp_channel_transport_affinity_t,
) -> c_int {
    let text =
        c"this media driver serves aeron:ipc only, because it shares a process with other parts: open UDP \
                 channels at one in a process of its own (tensorpool media-driver)";
    // SAFETY: all strings are terminated, and the format takes one of them.
    unsafe {
        c::aeron_err_set(
            libc::EINVAL,
            c"refuse_udp".as_ptr(),
            c"media_driver.rs".as_ptr(),
            0,
            c"%s".as_ptr(),
            text.as_ptr(),
        );
    }
    -1
}

/// Aeron's transport without a way to open a socket. One for the process: media drivers keep its address.
///
/// # Safety
/// `context` is alive.
unsafe fn ipc_only(
    context: *mut c::aeron_driver_context_t,
) -> *mut c::aeron_udp_channel_transport_bindings_t {
    static BINDINGS: OnceLock<usize> = OnceLock::new();
    *BINDINGS.get_or_init(|| {
        // SAFETY: Aeron returns its static table of functions, which is copied.
        let mut bindings = unsafe { *c::aeron_driver_context_get_udp_channel_transport_bindings(context) };
        bindings.init_func = Some(refuse_udp);
        Box::leak(Box::new(bindings)) as *mut _ as usize
    }) as *mut _
}

/// # Safety
/// `context` is fresh from `aeron_driver_context_init`.
unsafe fn configure(
    context: *mut c::aeron_driver_context_t,
    s: &Settings,
    delete_on_start: bool,
) -> Result<(), LaunchError> {
    let text = |t: &str| CString::new(t).map_err(|_| LaunchError::Aeron(format!("{t:?} holds a NUL")));
    let dir = text(&s.dir)?;
    let idle = text(if s.idle_strategy == REST { "backoff" } else { &s.idle_strategy })?;
    let mode = if s.dedicated_threads {
        c::aeron_threading_mode_enum::AERON_THREADING_MODE_DEDICATED
    } else {
        c::aeron_threading_mode_enum::AERON_THREADING_MODE_SHARED
    };
    // SAFETY: the context is alive; Aeron copies the strings.
    unsafe {
        checked(c::aeron_driver_context_set_dir(context, dir.as_ptr()))?;
        checked(c::aeron_driver_context_set_dir_warn_if_exists(context, false))?;
        checked(c::aeron_driver_context_set_dir_delete_on_start(context, delete_on_start))?;
        checked(c::aeron_driver_context_set_dir_delete_on_shutdown(context, true))?;
        checked(c::aeron_driver_context_set_driver_timeout_ms(context, s.driver_timeout_ms))?;
        checked(c::aeron_driver_context_set_threading_mode(context, mode))?;
        if !s.udp {
            checked(c::aeron_driver_context_set_udp_channel_transport_bindings(context, ipc_only(context)))?;
        }
        checked(c::aeron_driver_context_set_shared_idle_strategy(context, idle.as_ptr()))?;
        checked(c::aeron_driver_context_set_conductor_idle_strategy(context, idle.as_ptr()))?;
        checked(c::aeron_driver_context_set_sender_idle_strategy(context, idle.as_ptr()))?;
        checked(c::aeron_driver_context_set_receiver_idle_strategy(context, idle.as_ptr()))?;
        // In a sparse file a page is taken at its first use. On a full filesystem that is a SIGBUS, here or in a
        // client.
        checked(c::aeron_driver_context_set_term_buffer_sparse_file(context, false))?;
        checked(c::aeron_driver_context_set_perform_storage_checks(context, true))?;
        set_lengths(context)?;
        checked(c::aeron_driver_context_set_ipc_term_buffer_length(context, s.ipc_term_length as usize))?;
        checked(c::aeron_driver_context_set_timer_interval_ns(context, s.timer_interval_ns))?;
        // A subscription holds publications back only if its channel says so: a foreign program that subscribes
        // to the control stream and does not poll must not keep others from writing to it.
        checked(c::aeron_driver_context_set_tether_subscriptions(context, false))?;
        checked(c::aeron_driver_context_set_untethered_window_limit_timeout_ns(context, 10 * MS))?;
        checked(c::aeron_driver_context_set_untethered_linger_timeout_ns(context, 10 * MS))?;
        checked(c::aeron_driver_context_set_untethered_resting_timeout_ns(context, 1_000 * MS))?;
        checked(c::aeron_driver_context_set_client_liveness_timeout_ns(
            context,
            s.client_liveness_timeout_ns,
        ))?;
        checked(c::aeron_driver_context_set_publication_unblock_timeout_ns(
            context,
            s.publication_unblock_timeout_ns,
        ))
    }
}

/// Sets lengths that are shorter than Aeron's, unless the environment has them.
///
/// # Safety
/// As for `configure`.
unsafe fn set_lengths(context: *mut c::aeron_driver_context_t) -> Result<(), LaunchError> {
    let is_free = |variable: &str| std::env::var_os(variable).is_none();
    // SAFETY: the context is alive.
    unsafe {
        if is_free("AERON_COUNTERS_BUFFER_LENGTH") {
            checked(c::aeron_driver_context_set_counters_buffer_length(context, COUNTERS_LENGTH))?;
        }
        if is_free("AERON_CLIENTS_BUFFER_LENGTH") {
            checked(c::aeron_driver_context_set_to_clients_buffer_length(context, NOTICES_LENGTH))?;
        }
        if is_free("AERON_LOSS_REPORT_BUFFER_LENGTH") {
            checked(c::aeron_driver_context_set_loss_report_buffer_length(context, LOSS_REPORT_LENGTH))?;
        }
        if is_free("AERON_TERM_BUFFER_LENGTH") {
            checked(c::aeron_driver_context_set_term_buffer_length(context, UDP_TERM_LENGTH))?;
        }
    }
    Ok(())
}

impl Drop for MediaDriver {
    fn drop(&mut self) {
        if !self.fork_guard.is_owner() {
            // There is no thread to join.
            std::mem::forget(self.resting.take());
        } else {
            if let Some(resting) = self.resting.take() {
                resting.end();
            }
            // SAFETY: started by launch, closed once; joins the driver's threads.
            unsafe {
                c::aeron_driver_close(self.driver);
                c::aeron_driver_context_close(self.context);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_driver_rests_longer_when_only_its_timer_works() {
        let start = Instant::now();
        let interval = Duration::from_millis(2);
        let mut rest = DriverPause::new(interval, start);
        assert_eq!(rest.after_cycle(1, start), Some(ACTIVE_PAUSE), "the timer alone is no work");
        assert_eq!(rest.after_cycle(1, start + ACTIVE_PAUSE), None, "the timer was not due: a command came");
        let idle = start + ACTIVE_PAUSE + ACTIVE_FOR;
        assert_eq!(rest.after_cycle(1, idle), Some(IDLE_PAUSE));
        assert_eq!(rest.after_cycle(0, idle + interval / 2), Some(IDLE_PAUSE));
        assert_eq!(rest.after_cycle(2, idle + IDLE_PAUSE), None, "the timer and a command");
        assert_eq!(rest.after_cycle(1, idle + IDLE_PAUSE + interval), Some(ACTIVE_PAUSE));
    }

    #[test]
    fn media_driver_rests_on_between_single_commands() {
        let start = Instant::now();
        let mut rest = DriverPause::new(Duration::from_millis(2), start);
        let later = start + 2 * BUSY_FOR;
        assert_eq!(rest.after_cycle(1, later), Some(LONG_PAUSE), "the timer alone");
        let command = later + LONG_PAUSE;
        assert_eq!(rest.after_cycle(2, command), None);
        assert_eq!(rest.after_cycle(0, command), Some(ACTIVE_PAUSE), "more may come");
        assert_eq!(rest.after_cycle(1, command + ALERT_FOR), Some(LONG_PAUSE), "it was a sign of life");
        let command = command + LONG_PAUSE;
        assert_eq!(rest.after_cycle(2, command), None);
        assert_eq!(rest.after_cycle(1, command + ACTIVE_PAUSE), None, "another one");
        let quick: Vec<_> = (0..4).map(|_| rest.after_cycle(0, command + ACTIVE_PAUSE)).collect();
        let expected = [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, ACTIVE_PAUSE].map(Some);
        assert_eq!(quick, expected, "limits move quickly");
        let after = command + ACTIVE_PAUSE + ACTIVE_FOR;
        assert_eq!(rest.after_cycle(1, after - ACTIVE_PAUSE), Some(ACTIVE_PAUSE));
        assert_eq!(rest.after_cycle(0, after), Some(IDLE_PAUSE));
        assert_eq!(rest.after_cycle(1, after + BUSY_FOR), Some(LONG_PAUSE));
    }
}
