//! A second thread that copies large frames, for machines where one core does not use the memory's bandwidth.
//!
//! The frame is cut into pieces, and both threads take one after the other. So a thread that wakes up late only
//! copies fewer of them: the caller waits at most for the piece that the other one has begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::os::fork::ForkGuard;
use crate::shm::copy;

const PIECE_BYTES: usize = 256 << 10;
/// Looks at the other thread's work before the caller lets other threads run.
const SPINS: u32 = 2_000;
const PAUSE: Duration = Duration::from_micros(20);

/// One job at a time. Its fields are atomics because a thread that woke up late may read them while the next job
/// is being written; it then takes no piece, because the job's number has changed.
#[derive(Default)]
struct Job {
    dst: AtomicUsize,
    src: AtomicUsize,
    len: AtomicUsize,
    is_beyond_cache: AtomicBool,
    /// Number of the job in the upper half, pieces that neither thread has taken in the lower.
    left: AtomicU64,
    /// Pieces that the second thread has copied.
    copied: AtomicU32,
    is_ended: AtomicBool,
}

impl Job {
    /// Takes a piece and copies it. False if none is left.
    ///
    /// # Safety
    /// While pieces are left, the memory of the job is valid, and the caller of `copy` waits for `copied`.
    unsafe fn copy_piece(&self) -> bool {
        loop {
            // Acquire: pairs with the store that begins a job, so the fields are those of this job or a later one.
            let left = self.left.load(Ordering::Acquire);
            let Some(piece) = (left as u32).checked_sub(1) else { return false };
            let (dst, src) = (self.dst.load(Ordering::Relaxed), self.src.load(Ordering::Relaxed));
            let (len, is_beyond_cache) =
                (self.len.load(Ordering::Relaxed), self.is_beyond_cache.load(Ordering::Relaxed));
            // Release keeps the loads above before it. The fields change only while no piece is left, so if the word
            // is unchanged, they are those of its job.
            if self.left.compare_exchange(left, left - 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            let offset = piece as usize * PIECE_BYTES;
            // Pairs with the fence of a reader's second check. That of `seqlock::begin` orders the stores of its own
            // thread only.
            fence(Ordering::Release);
            // SAFETY: by the caller; the piece lies inside the frame, and the other thread has not taken it.
            unsafe {
                copy::large(
                    (dst as *mut u8).add(offset),
                    (src as *const u8).add(offset),
                    PIECE_BYTES.min(len - offset),
                    is_beyond_cache,
                );
            }
            return true;
        }
    }
}

/// A thread that helps to copy. Ends when it is dropped.
pub struct CopyThread {
    job: Arc<Job>,
    thread: Option<JoinHandle<()>>,
    fork_guard: ForkGuard,
}

impl CopyThread {
    pub fn start() -> std::io::Result<Self> {
        let job = Arc::new(Job::default());
        let shared = job.clone();
        let run = move || {
            // Acquire: pairs with the store of `drop`.
            while !shared.is_ended.load(Ordering::Acquire) {
                // SAFETY: `copy` returns only when every piece was counted.
                while unsafe { shared.copy_piece() } {
                    // Release: the caller's commit comes after the bytes of this piece.
                    shared.copied.fetch_add(1, Ordering::Release);
                }
                std::thread::park();
            }
        };
        let thread = std::thread::Builder::new().name("tp-copy".into()).spawn(run)?;
        Ok(Self { job, thread: Some(thread), fork_guard: ForkGuard::current() })
    }

    /// Copies `len` bytes with both threads, and returns when all of them are there.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
    pub unsafe fn copy(&mut self, dst: *mut u8, src: *const u8, len: usize, is_beyond_cache: bool) {
        let job = &self.job;
        let pieces = len.div_ceil(PIECE_BYTES) as u32;
        job.dst.store(dst as usize, Ordering::Relaxed);
        job.src.store(src as usize, Ordering::Relaxed);
        job.len.store(len, Ordering::Relaxed);
        job.is_beyond_cache.store(is_beyond_cache, Ordering::Relaxed);
        job.copied.store(0, Ordering::Relaxed);
        // No piece is left, so the other thread does not write this word.
        let number = (job.left.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        // Release: pairs with the load of `copy_piece`. The slot was begun before.
        job.left.store(number << 32 | u64::from(pieces), Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        let mut own = 0;
        // SAFETY: by the caller; below we wait for the pieces of the other thread.
        while unsafe { job.copy_piece() } {
            own += 1;
        }
        let mut spins = 0u32;
        // Acquire: pairs with the count of the other thread, so its bytes come before what follows.
        while job.copied.load(Ordering::Acquire) != pieces - own {
            spins = spins.saturating_add(1);
            // The other thread lost its core. It may need this one.
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::sleep(PAUSE) }
        }
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.fork_guard.is_owner() {
            // A forked child has no such thread.
            std::mem::forget(thread);
            return;
        }
        self.job.is_ended.store(true, Ordering::Release);
        thread.thread().unpark();
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_copied_by_two_threads_are_whole() {
        let mut thread = CopyThread::start().unwrap();
        let mut dst = vec![0u8; 3 << 20];
        for round in 0..200usize {
            let len = (1 << 20) + round * 9_973;
            let src: Vec<u8> = (0..len).map(|i| (i / 5 + round) as u8).collect();
            // SAFETY: both vectors hold `len` bytes.
            unsafe { thread.copy(dst.as_mut_ptr(), src.as_ptr(), len, round % 2 == 0) };
            assert!(dst[..len] == src, "round {round}");
        }
    }

    #[test]
    fn thread_that_gets_no_piece_ends_all_the_same() {
        let mut thread = CopyThread::start().unwrap();
        let (src, mut dst) = (vec![7u8; 100], vec![0u8; 100]);
        // SAFETY: both vectors hold 100 bytes.
        unsafe { thread.copy(dst.as_mut_ptr(), src.as_ptr(), 100, false) };
        assert_eq!(dst, src);
        drop(CopyThread::start().unwrap());
    }
}
