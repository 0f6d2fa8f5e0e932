//! The recorder loop: one thread that copies the frames of any number of consumers into arenas and hands
//! those over. It waits neither for a producer nor for the disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tensorpool_core::os::time::{monotonic_ns, realtime_ns};
use tensorpool_core::recording::block_pool::BlockPool;
use tensorpool_core::recording::rows::{Arena, ArenaPool};
use tensorpool_core::recording::stream_buffer::{
    BACKLOG, BufferCounts, BufferLimits, DISK_FULL, StreamBuffer,
};

use crate::consumer::Consumer;
use crate::idle::{Idle, IdleStrategy};
use crate::priority_lock::PriorityLock;

/// How long the loop continues after it was stopped, while there are more frames.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// A recorded stream.
struct RecordedStream {
    consumer: Arc<Consumer>,
    buffer: StreamBuffer,
}

/// Counters of one recorded stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamStats {
    pub stream_id: u32,
    pub counts: BufferCounts,
}

struct Shared {
    streams: PriorityLock<Vec<RecordedStream>>,
    arena_pool: Arc<ArenaPool>,
    rows: usize,
    age_ns: AtomicU64,
    /// Arenas to hand over. Bounded by the number of blocks, plus one per stream.
    full: Mutex<VecDeque<Arena>>,
    has_full: Condvar,
    disk_is_full: AtomicBool,
    /// How many flushes were requested, and how many are done.
    flushes_requested: AtomicU64,
    flushes_done: AtomicU64,
    stop: AtomicBool,
}

pub struct Recorder {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Allocates all memory, and starts the loop.
    pub fn start(
        buffer_bytes: usize,
        block_bytes: usize,
        rows: usize,
        age_ns: u64,
        strategy: IdleStrategy,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            streams: PriorityLock::new(Vec::new()),
            arena_pool: ArenaPool::new(BlockPool::new(buffer_bytes, block_bytes)?),
            rows,
            age_ns: AtomicU64::new(age_ns),
            full: Mutex::default(),
            has_full: Condvar::new(),
            disk_is_full: AtomicBool::new(false),
            flushes_requested: AtomicU64::new(0),
            flushes_done: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let worker = shared.clone();
        let thread =
            std::thread::Builder::new().name("tp-recorder".to_owned()).spawn(move || worker.run(strategy))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// From here on only the loop reads the consumer.
    pub fn add(&self, consumer: Arc<Consumer>, resume: Option<(u64, u64)>) {
        let shared = &self.shared;
        let limits = BufferLimits { rows: shared.rows, age_ns: shared.age_ns.load(Ordering::Relaxed) };
        let buffer = StreamBuffer::new(consumer.stream_id(), shared.arena_pool.clone(), limits, resume);
        shared.streams.lock_priority().push(RecordedStream { consumer, buffer });
    }

    /// Stops reading a stream. Its recorded frames are handed over.
    pub fn remove(&self, stream_id: u32) {
        let mut streams = self.shared.streams.lock_priority();
        streams.retain_mut(|stream| {
            if stream.consumer.stream_id() != stream_id {
                return true;
            }
            self.shared.hand_over(&mut stream.buffer, true);
            false
        });
    }

    /// The next arena. `None` if there was none in time.
    pub fn take(&self, timeout: Duration) -> Option<Arena> {
        let deadline = Instant::now() + timeout;
        let mut full = self.shared.full();
        loop {
            if let Some(arena) = full.pop_front() {
                return Some(arena);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            full = match self.shared.has_full.wait_timeout(full, left) {
                Ok((full, _)) => full,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Hands over everything recorded so far. False if that took longer than `timeout`.
    pub fn flush(&self, timeout: Duration) -> bool {
        let number = self.shared.flushes_requested.fetch_add(1, Ordering::AcqRel) + 1;
        let deadline = Instant::now() + timeout;
        while self.shared.flushes_done.load(Ordering::Acquire) < number {
            if self.shared.stop.load(Ordering::Relaxed) || Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Age at which an arena is handed over. 0: only when it is full.
    pub fn set_age_ns(&self, age_ns: u64) {
        self.shared.age_ns.store(age_ns, Ordering::Relaxed);
        self.shared.streams.lock_priority().iter_mut().for_each(|stream| stream.buffer.set_age_ns(age_ns));
    }

    /// Sets whether frames without room are lost to a full disk or to a backlog.
    pub fn set_disk_is_full(&self, is_full: bool) {
        self.shared.disk_is_full.store(is_full, Ordering::Relaxed);
    }

    pub fn stats(&self) -> Vec<StreamStats> {
        let of = |stream: &RecordedStream| StreamStats {
            stream_id: stream.buffer.stream_id(),
            counts: stream.buffer.counts,
        };
        self.shared.streams.lock_priority().iter().map(of).collect()
    }

    /// Bytes of memory in use, and in total.
    pub fn buffer(&self) -> (usize, usize) {
        (self.shared.arena_pool.blocks.used_bytes(), self.shared.arena_pool.blocks.total_bytes())
    }

    /// Arenas that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.shared.full().len()
    }

    /// Ends the loop. Recorded frames are handed over, and can still be taken.
    pub fn close(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// In a forked child there is no thread to join.
    pub fn forget(&self) {
        if let Ok(mut thread) = self.thread.try_lock() {
            std::mem::forget(thread.take());
        }
    }
}

impl Shared {
    fn full(&self) -> MutexGuard<'_, VecDeque<Arena>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, strategy: IdleStrategy) {
        let mut idle = Idle::new(strategy);
        let mut last_by: Option<Instant> = None;
        loop {
            if last_by.is_none() && self.stop.load(Ordering::Relaxed) {
                last_by = Some(Instant::now() + DRAIN_TIMEOUT);
            }
            let taken = self.poll_streams(last_by.is_some());
            if let Some(end) = last_by {
                // Frames published before the end belong to the recording. A producer that never pauses would
                // keep the loop running forever.
                if taken == 0 || Instant::now() >= end {
                    return;
                }
                continue;
            }
            if taken > 0 {
                idle = Idle::new(strategy);
            } else {
                idle.idle();
            }
        }
    }

    /// Polls every stream once.
    fn poll_streams(&self, is_last: bool) -> usize {
        let flushes_requested = self.flushes_requested.load(Ordering::Acquire);
        // All memory is in use and no arena waits to be written: then streams that hardly use their arena
        // must hand it over.
        let is_short = self.arena_pool.blocks.used_bytes() == self.arena_pool.blocks.total_bytes();
        let everything = is_last
            || flushes_requested != self.flushes_done.load(Ordering::Relaxed)
            || (is_short && self.full().is_empty());
        let reason = if self.disk_is_full.load(Ordering::Relaxed) { DISK_FULL } else { BACKLOG };
        let (now_ns, wall_ns) = (monotonic_ns(), realtime_ns() as i64);
        let mut taken = 0;
        let mut streams = self.streams.lock();
        for stream in streams.iter_mut() {
            stream.buffer.set_time(now_ns, wall_ns);
            stream.buffer.backlog_reason = reason;
            taken += stream.consumer.record_into(&mut stream.buffer);
            self.hand_over(&mut stream.buffer, everything);
        }
        drop(streams);
        self.flushes_done.store(flushes_requested, Ordering::Release);
        taken
    }

    fn hand_over(&self, buffer: &mut StreamBuffer, everything: bool) {
        if !everything && !buffer.is_due() {
            return;
        }
        let mut full = self.full();
        // Arenas of gaps only can wait while the writer is behind: they do not grow.
        let before = full.len();
        buffer.take_full(everything, before == 0, &mut *full);
        if full.len() > before {
            self.has_full.notify_one();
        }
    }
}
