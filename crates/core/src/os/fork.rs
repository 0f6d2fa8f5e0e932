//! The fork guard: what must not survive in a forked child, namely mappings, locks and handles of threads
//! that do not exist there.
//!
//! A child made by `fork` shares the parent's mappings and open-file-description locks but has none of its
//! threads. Right after the fork, in the child, every registered mapping is replaced by private zero pages,
//! so that a view reads zeros instead of the parent's memory and cannot write into it. Every registered lock
//! descriptor is closed, and the generation is incremented, by which every handle knows that it belongs to
//! another process.

use std::cell::UnsafeCell;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static INSTALL: Once = Once::new();
static REGISTRY: Registry =
    Registry { held: AtomicBool::new(false), entries: UnsafeCell::new(Entries::NONE) };

/// A spin lock of our own: `fork` acquires it in the parent and releases it in both processes, which a mutex
/// of the standard library does not allow.
struct Registry {
    held: AtomicBool,
    entries: UnsafeCell<Entries>,
}

struct Entries {
    mappings: Vec<(usize, usize)>,
    descriptors: Vec<i32>,
}

impl Entries {
    const NONE: Self = Self { mappings: Vec::new(), descriptors: Vec::new() };
}

// SAFETY: the things are touched only while `held`.
unsafe impl Sync for Registry {}

/// A number that differs in every forked child. A handle stores the one it was created in.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// The process that created a handle.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard(u64);

impl ForkGuard {
    pub fn current() -> Self {
        install();
        Self(generation())
    }

    /// True in the process that created the handle, false in its forked children.
    #[inline]
    pub fn is_owner(self) -> bool {
        self.0 == generation()
    }
}

fn acquire() {
    while REGISTRY.held.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

fn release() {
    REGISTRY.held.store(false, Ordering::Release);
}

/// Releases the registry, also after a panic.
struct ReleaseGuard;

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        release();
    }
}

/// Runs `f` on the registry under the lock that `fork` also acquires.
fn with_registry<T>(f: impl FnOnce(&mut Entries) -> T) -> T {
    install();
    acquire();
    let _released = ReleaseGuard;
    // SAFETY: the lock is held.
    f(unsafe { &mut *REGISTRY.entries.get() })
}

/// Runs `f` while no fork can happen, and while no other thread is inside. `f` does not call into this module.
pub(crate) fn without_fork<T>(f: impl FnOnce() -> T) -> T {
    with_registry(|_| f())
}

pub fn register_mapping(addr: *const u8, len: usize) {
    with_registry(|t| t.mappings.push((addr as usize, len)));
}

pub fn forget_mapping(addr: *const u8) {
    with_registry(|t| t.mappings.retain(|(a, _)| *a != addr as usize));
}

/// A file that forked children do not have, so that its lock does not live on in them.
#[derive(Debug)]
pub struct ForkGuardedFile {
    file: ManuallyDrop<File>,
    fork_guard: ForkGuard,
}

impl ForkGuardedFile {
    /// Opens with `open` while no fork can happen: no child gets the descriptor before it is registered.
    pub fn open<E>(open: impl FnOnce() -> Result<File, E>) -> Result<Self, E> {
        let fork_guard = ForkGuard::current();
        let file = with_registry(|t| open().inspect(|f| t.descriptors.push(f.as_raw_fd())))?;
        Ok(Self { file: ManuallyDrop::new(file), fork_guard })
    }

    /// True in the process that opened the file. In a forked child there is no file behind it.
    pub fn is_owner(&self) -> bool {
        self.fork_guard.is_owner()
    }
}

impl Deref for ForkGuardedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for ForkGuardedFile {
    fn drop(&mut self) {
        // In a child the fork handler closed the descriptor already. Its number may belong to another file by
        // now.
        if self.is_owner() {
            let fd = self.file.as_raw_fd();
            with_registry(|t| {
                t.descriptors.retain(|x| *x != fd);
                // SAFETY: dropped here and nowhere else. Under the registry's lock, or a child that is
                // forked between the two would keep it.
                unsafe { ManuallyDrop::drop(&mut self.file) };
            });
        }
    }
}

fn install() {
    INSTALL.call_once(|| {
        // SAFETY: the handlers are plain functions that live as long as the program.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}

extern "C" fn prepare() {
    acquire();
}

extern "C" fn parent() {
    release();
}

/// Only what is allowed between fork and exec: system calls and plain memory.
extern "C" fn child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: single-threaded here, and `prepare` took the lock, so the registry is whole. Each mapping
    // is still registered, thus still mapped; MAP_FIXED replaces exactly it.
    unsafe {
        let entries = &mut *REGISTRY.entries.get();
        for (addr, len) in &entries.mappings {
            libc::mmap(
                *addr as *mut libc::c_void,
                *len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            );
        }
        for fd in &entries.descriptors {
            libc::close(*fd);
        }
        entries.descriptors.clear();
    }
    release();
}
