//! `StreamCommits`: slots that are published when a CUDA stream has done its work.
//!
//! After its copies the stream writes a flag, a word of memory that is registered with CUDA. A thread watches the
//! flags and publishes the frames. So the stream waits for nothing on the host, and the interpreter takes no part.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::producer as plane;
use tensorpool_dataplane::producer::FrameStamp;

use crate::errors;

/// Commits that can wait at the same time.
const MAX_FLAGS: usize = 4096;
/// CUDA registers whole pages.
const PAGE_BYTES: usize = 4096;
/// The value that a stream writes.
const WRITTEN: u32 = 1;
/// The thread ends when no commit waits for so long.
const LINGER: Duration = Duration::from_millis(20);
/// Pauses between two looks at the flags, and how long after the last commit each is used.
const SHORT_PAUSE: (Duration, Duration) = (Duration::from_micros(5), Duration::from_millis(2));
const LONG_PAUSE: Duration = Duration::from_micros(200);

/// Words that a device writes. They stay where they are.
struct Flags(*mut AtomicU32);

// SAFETY: the memory is owned, and is only accessed by atomic operations.
unsafe impl Send for Flags {}
// SAFETY: as above.
unsafe impl Sync for Flags {}

impl Flags {
    const LAYOUT: Layout = match Layout::from_size_align(MAX_FLAGS * size_of::<AtomicU32>(), PAGE_BYTES) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    fn new() -> Self {
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc_zeroed(Self::LAYOUT) };
        if memory.is_null() {
            handle_alloc_error(Self::LAYOUT);
        }
        Self(memory.cast())
    }

    fn at(&self, index: usize) -> &AtomicU32 {
        assert!(index < MAX_FLAGS);
        // SAFETY: it lies in the allocation, which is zeroed and lives as long as `self`.
        unsafe { &*self.0.add(index) }
    }

    fn address(&self) -> usize {
        self.0 as usize
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0.cast(), Self::LAYOUT) }
    }
}

/// A commit that waits for its stream.
pub struct PendingCommit {
    pub producer: Arc<plane::Producer>,
    pub claim: plane::Claim,
    pub stamp: FrameStamp,
    pub result: Arc<OnceLock<plane::OfferResult>>,
}

impl PendingCommit {
    fn run(self) {
        let offered = self.producer.commit_claim(&self.claim, self.stamp);
        let _ = self.result.set(offered);
    }
}

struct State {
    waiting: Vec<(usize, PendingCommit)>,
    free: Vec<usize>,
    /// Commits that the thread has taken from `waiting` and not run yet.
    running: usize,
    has_thread: bool,
}

struct Shared {
    flags: Flags,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_written(&self, index: usize) -> bool {
        self.flags.at(index).load(Ordering::Acquire) == WRITTEN
    }

    fn add(self: &Arc<Self>, commit: PendingCommit) -> std::io::Result<usize> {
        let state = self.state();
        let mut state =
            self.changed.wait_while(state, |s| s.free.is_empty()).unwrap_or_else(PoisonError::into_inner);
        if !state.has_thread {
            let shared = self.clone();
            let started = std::thread::Builder::new().name("tp-commits".into()).spawn(move || {
                // SAFETY: changes this thread only: its pauses would take 50 µs more otherwise.
                unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
                shared.watch();
            });
            if let Err(error) = started {
                commit.producer.abandon_claim(&commit.claim);
                return Err(error);
            }
            state.has_thread = true;
        }
        let index = state.free.pop().unwrap_or_default();
        self.flags.at(index).store(0, Ordering::Relaxed);
        state.waiting.push((index, commit));
        drop(state);
        self.changed.notify_all();
        Ok(index)
    }

    /// Publishes frames as their flags are written, until none waits.
    fn watch(&self) {
        let mut last_commit = Instant::now();
        loop {
            let mut state = self.state();
            if state.waiting.is_empty() {
                state = self
                    .changed
                    .wait_timeout_while(state, LINGER, |state| state.waiting.is_empty())
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
                if state.waiting.is_empty() {
                    state.has_thread = false;
                    return;
                }
                last_commit = Instant::now();
            }
            // In the order of the commits: descriptors follow the order of the claims.
            let ready: Vec<_> = state.waiting.extract_if(.., |(index, _)| self.is_written(*index)).collect();
            state.running = ready.len();
            drop(state);
            if ready.is_empty() {
                let (pause, until) = SHORT_PAUSE;
                std::thread::sleep(if last_commit.elapsed() < until { pause } else { LONG_PAUSE });
                continue;
            }
            for (index, commit) in ready {
                commit.run();
                let mut state = self.state();
                state.free.push(index);
                state.running -= 1;
            }
            self.changed.notify_all();
            last_commit = Instant::now();
        }
    }
}

/// Commits that wait for their streams, and the thread that makes them.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct StreamCommits {
    shared: Arc<Shared>,
    fork_guard: ForkGuard,
}

impl StreamCommits {
    /// Takes a commit over. It is made when its flag is written.
    pub fn add(&self, py: Python<'_>, commit: PendingCommit) -> PyResult<StreamCommit> {
        let index = py.detach(|| self.shared.add(commit))?;
        let address = std::ptr::from_ref(self.shared.flags.at(index)) as usize;
        Ok(StreamCommit { shared: self.shared.clone(), index, address })
    }
}

#[pymethods]
impl StreamCommits {
    #[new]
    fn new() -> Self {
        let state = State {
            waiting: Vec::new(),
            free: (0..MAX_FLAGS).rev().collect(),
            running: 0,
            has_thread: false,
        };
        let shared = Shared { flags: Flags::new(), state: Mutex::new(state), changed: Condvar::new() };
        Self { shared: Arc::new(shared), fork_guard: ForkGuard::current() }
    }

    /// Address of the flags, which must be registered with CUDA.
    #[getter]
    fn address(&self) -> usize {
        self.shared.flags.address()
    }

    /// Number of bytes of the flags.
    #[getter]
    fn nbytes(&self) -> usize {
        Flags::LAYOUT.size()
    }

    /// Waits until the frames whose flags are written are published. Call it after the streams have ended.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let is_due = |state: &State| {
            state.running > 0 || state.waiting.iter().any(|(index, _)| self.shared.is_written(*index))
        };
        py.detach(|| {
            while is_due(&self.shared.state()) {
                std::thread::sleep(SHORT_PAUSE.0);
            }
        });
        Ok(())
    }
}

/// A commit that a CUDA stream makes, by writing 1 to the word at `flag`.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct StreamCommit {
    shared: Arc<Shared>,
    index: usize,
    address: usize,
}

#[pymethods]
impl StreamCommit {
    /// Address of the word that the stream writes.
    #[getter]
    fn flag(&self) -> usize {
        self.address
    }

    /// Gives the slot up, if no stream will write the flag: no frame is published.
    fn abandon(&self, py: Python<'_>) {
        let commit = {
            let mut state = self.shared.state();
            let found = state.waiting.iter().position(|(index, _)| *index == self.index);
            found.map(|at| state.waiting.remove(at).1)
        };
        if let Some(commit) = commit {
            py.detach(|| commit.producer.abandon_claim(&commit.claim));
            self.shared.state().free.push(self.index);
            self.shared.changed.notify_all();
        }
    }
}
