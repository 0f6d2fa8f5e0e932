//! The mapping guard: when a mapped file is truncated, its stream ends and the process continues.
//!
//! The kernel sends SIGBUS to a thread that touches a page beyond the end of a mapped file, or a page for
//! which there is no memory. The handler of this module looks the address up among the registered mappings,
//! marks that mapping as lost, and replaces all of it by private zero pages. The interrupted access is
//! repeated and reads zeros; users of the mapping check the mark afterwards. Every other SIGBUS goes to the
//! handler that was installed before, such as Python's faulthandler, or ends the process as always.
//!
//! The handler takes no lock and allocates nothing. That is sound for these reasons:
//!
//! - A mapping is registered after `mmap` and forgotten before `munmap`, so a registered range is never
//!   memory of another owner.
//! - The thread that faults uses the mapping, so its entry stays as it is until the handler returns. Other
//!   entries may change meanwhile. They cannot match: their ranges and the faulting one do not overlap at any
//!   time after the fault.
//! - Entries are never freed, only used again.
//!
//! An earlier handler may leave by `siglongjmp`, as programs do that probe files, instead of returning. Nothing of
//! this module has to be undone then: it holds no lock while that handler runs, and the next fault starts again at
//! the latest earlier handler. Only a SIGBUS that such a handler's thread sends to itself later, with `raise`, from
//! deeper in the same stack, is taken for one that the handler raised: it goes to the handler before it.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use crate::os::fork;

/// Whether any mapping of a group was lost. The regions of an epoch share one.
#[derive(Clone, Debug, Default)]
pub struct LostMark(Arc<AtomicBool>);

impl LostMark {
    /// A reader calls this after it has used the memory: false means that no zero page was in what it read.
    #[inline]
    pub fn is_set(&self) -> bool {
        // Pairs with the store of the handler, which comes before the zero pages. The thread that faulted,
        // and one that read a zero page, both see it.
        self.0.load(Ordering::Acquire)
    }

    /// Marks the group by hand.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// One registered mapping. All atomics: the handler reads them at any time.
struct Entry {
    /// 0 while the entry is free.
    start: AtomicUsize,
    len: AtomicUsize,
    is_writable: AtomicBool,
    mark: AtomicPtr<AtomicBool>,
    /// The offset of the lost page, plus one. 0: nothing was lost.
    lost_at: AtomicUsize,
}

impl Entry {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            is_writable: AtomicBool::new(false),
            mark: AtomicPtr::new(std::ptr::null_mut()),
            lost_at: AtomicUsize::new(0),
        }
    }

    /// The range, if the entry is in use and did not change during the call.
    fn range(&self) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Acquire);
        (start != 0 && self.start.load(Ordering::Acquire) == start).then_some((start, len))
    }
}

const CHUNK: usize = 128;

struct EntryBlock {
    entries: [Entry; CHUNK],
    next: AtomicPtr<EntryBlock>,
}

impl EntryBlock {
    const fn new() -> Self {
        Self { entries: [const { Entry::free() }; CHUNK], next: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

static FIRST: EntryBlock = EntryBlock::new();

/// What only registering threads use, while they keep forks away.
struct Registrar {
    free: UnsafeCell<Vec<&'static Entry>>,
    started: AtomicBool,
}

// SAFETY: `free` is touched only inside `fork::without_fork`, which lets in one thread at a time.
unsafe impl Sync for Registrar {}

static REGISTRAR: Registrar =
    Registrar { free: UnsafeCell::new(Vec::new()), started: AtomicBool::new(false) };

/// A mapping that survives the loss of its file. Dropped before the memory is unmapped.
#[derive(Debug)]
pub struct MappingGuard {
    entry: &'static Entry,
    /// Keeps alive what the entry points to.
    _mark: LostMark,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("range", &self.range()).finish_non_exhaustive()
    }
}

impl MappingGuard {
    /// Guards the mapping of `len` bytes at `addr`.
    pub fn new(addr: *const u8, len: usize, is_writable: bool, mark: LostMark) -> Self {
        ensure_installed();
        let entry = fork::without_fork(take_entry);
        entry.len.store(len, Ordering::Release);
        entry.is_writable.store(is_writable, Ordering::Release);
        entry.mark.store(Arc::as_ptr(&mark.0).cast_mut(), Ordering::Release);
        entry.lost_at.store(0, Ordering::Release);
        // Last: from here on the handler may use the entry.
        entry.start.store(addr as usize, Ordering::Release);
        Self { entry, _mark: mark }
    }

    /// The offset of the page that could not be read or written, once there was one.
    pub fn lost_at(&self) -> Option<usize> {
        self.entry.lost_at.load(Ordering::Acquire).checked_sub(1)
    }
}

impl Drop for MappingGuard {
    fn drop(&mut self) {
        self.entry.start.store(0, Ordering::Release);
        let entry = self.entry;
        // SAFETY: `without_fork` lets in one thread at a time.
        fork::without_fork(|| unsafe { &mut *REGISTRAR.free.get() }.push(entry));
    }
}

/// A free entry. Inside `without_fork`.
fn take_entry() -> &'static Entry {
    // SAFETY: `without_fork` lets in one thread at a time.
    let free = unsafe { &mut *REGISTRAR.free.get() };
    if let Some(entry) = free.pop() {
        return entry;
    }
    let chunk: &'static EntryBlock = if REGISTRAR.started.swap(true, Ordering::Relaxed) {
        let chunk: &'static EntryBlock = Box::leak(Box::new(EntryBlock::new()));
        // The new chunk becomes the second one: no other thread writes this pointer.
        chunk.next.store(FIRST.next.load(Ordering::Relaxed), Ordering::Relaxed);
        FIRST.next.store(std::ptr::from_ref(chunk).cast_mut(), Ordering::Release);
        chunk
    } else {
        &FIRST
    };
    free.extend(chunk.entries[1..].iter());
    &chunk.entries[0]
}

// --- the handler

/// Handlers that were installed before ours, the latest first. Never freed: the handler may be reading it.
struct EarlierHandler {
    action: libc::sigaction,
    before: *const EarlierHandler,
}

static EARLIER: AtomicPtr<EarlierHandler> = AtomicPtr::new(std::ptr::null_mut());
/// The thread that is inside an earlier handler, that handler, and where on the stack it was called. It may raise
/// the signal again. All of it is stale if the handler left by `siglongjmp`.
static CHAINING: AtomicI32 = AtomicI32::new(0);
static CALLED: AtomicPtr<EarlierHandler> = AtomicPtr::new(std::ptr::null_mut());
static CALLED_AT: AtomicUsize = AtomicUsize::new(0);

fn current_action() -> libc::sigaction {
    // SAFETY: a zeroed struct is valid, and the call fills it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut action);
        action
    }
}

/// Installs the handler, also again after another part of the program has replaced it. What was installed
/// becomes the next in line.
pub fn ensure_installed() {
    if current_action().sa_sigaction != on_bus_error as *const () as usize {
        fork::without_fork(install);
    }
}

/// Inside `without_fork`.
fn install() {
    let current = current_action();
    let ours = on_bus_error as *const () as usize;
    if current.sa_sigaction == ours {
        return;
    }
    let latest = EARLIER.load(Ordering::Acquire);
    // SAFETY: never freed.
    let is_known = unsafe { latest.as_ref() }.is_some_and(|e| e.action.sa_sigaction == current.sa_sigaction);
    if !is_known {
        let earlier = Box::leak(Box::new(EarlierHandler { action: current, before: latest }));
        EARLIER.store(earlier, Ordering::Release);
    }
    // SAFETY: the handler lives as long as the program. ONSTACK: the thread may have no stack left. NODEFER:
    // an earlier handler may raise the signal again to end the process, and must not wait for us.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ours;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `info`. A positive code is a fault, so it has an address.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    if !address.is_some_and(replace_mapping) {
        call_earlier(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Replaces the registered mapping around `address` by zero pages. False: there is none.
fn replace_mapping(address: usize) -> bool {
    let mut chunk: *const EntryBlock = &raw const FIRST;
    // SAFETY: chunks are never freed.
    while let Some(at) = unsafe { chunk.as_ref() } {
        for entry in &at.entries {
            if let Some((start, len)) = entry.range()
                && (start..start + len).contains(&address)
            {
                return replace(entry, start, len, address - start);
            }
        }
        chunk = at.next.load(Ordering::Acquire);
    }
    false
}

fn replace(entry: &Entry, start: usize, len: usize, offset: usize) -> bool {
    entry.lost_at.store(offset + 1, Ordering::Release);
    // SAFETY: the faulting thread uses the mapping, so its guard and the mark live. The mark comes before the
    // zero pages.
    unsafe { &*entry.mark.load(Ordering::Acquire) }.store(true, Ordering::SeqCst);
    let access = if entry.is_writable.load(Ordering::Acquire) {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    };
    // All of it: one signal is enough, and pages of any size are replaced as a whole.
    // SAFETY: exactly a mapping of ours. Two threads may do this at once: both map zeros.
    let mapped = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            len,
            access,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

/// Calls the handler that was installed before ours. One that raises the signal again gets the one before it.
fn call_earlier(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: asks for a number.
    let thread = unsafe { libc::gettid() };
    // A fault inside the handler cannot be distinguished from one after a `siglongjmp` out of it. It gets the same
    // handler, and one that faults each time runs out of stack, which ends the process.
    // SAFETY: the kernel passes a valid `info`.
    let is_raised = unsafe { (*info).si_code } <= 0;
    let at = std::ptr::from_ref(&thread) as usize;
    // The stack grows down: what the handler raises arrives below it.
    let is_nested =
        is_raised && CHAINING.load(Ordering::Acquire) == thread && at < CALLED_AT.load(Ordering::Acquire);
    let mut next: *const EarlierHandler = EARLIER.load(Ordering::Acquire);
    if is_nested {
        // SAFETY: never freed.
        next = unsafe { CALLED.load(Ordering::Acquire).as_ref() }.map_or(std::ptr::null(), |e| e.before);
    }
    // SAFETY: never freed.
    let Some(earlier) = (unsafe { next.as_ref() }) else { return end_process() };
    match earlier.action.sa_sigaction {
        libc::SIG_DFL => end_process(),
        // A fault that is ignored would repeat for ever.
        // SAFETY: the kernel passes a valid `info`.
        libc::SIG_IGN if unsafe { (*info).si_code } <= 0 => {}
        libc::SIG_IGN => end_process(),
        handler => {
            CALLED.store(next.cast_mut(), Ordering::Release);
            CALLED_AT.store(at, Ordering::Release);
            CHAINING.store(thread, Ordering::Release);
            // SAFETY: what another part of the program had installed, with the signature that its flags say.
            unsafe {
                if earlier.action.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                    handler(signal);
                }
            }
            CHAINING.store(0, Ordering::Release);
        }
    }
}

/// What the signal does without any handler.
fn end_process() {
    // SAFETY: both calls are allowed in a handler.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

#[cfg(test)]
mod tests;
