//! The seqlock under loom: every interleaving and every reordering the memory model allows.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p tensorpool-core --test loom`. The same
//! model without one of its fences must fail: that is what shows the model can see a torn frame.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use tensorpool_core::shm::seqlock::{self, CommitWord};

/// Which part of the protocol is left out.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Nothing,
    WriterFence,
    ReaderFence,
    CommitRelease,
    SecondCheck,
}

struct Word {
    value: AtomicU64,
    broken: Broken,
}

impl CommitWord for Word {
    fn load_acquire(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }
    fn load_relaxed(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
    fn store_release(&self, value: u64) {
        let order = if self.broken == Broken::CommitRelease { Ordering::Relaxed } else { Ordering::Release };
        self.value.store(value, order);
    }
    fn fence_release(&self) {
        if self.broken != Broken::WriterFence {
            fence(Ordering::Release);
        }
    }
    fn fence_acquire(&self) {
        if self.broken != Broken::ReaderFence {
            fence(Ordering::Acquire);
        }
    }
}

struct Slot {
    word: Word,
    payload: [AtomicU64; 2],
}

/// One writer laps a one-slot ring while a reader reads the frame of a descriptor.
fn model(broken: Broken) {
    loom::model(move || {
        let slot = Arc::new(Slot {
            word: Word { value: AtomicU64::new(seqlock::in_progress(0)), broken },
            payload: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let writer = {
            let slot = slot.clone();
            thread::spawn(move || {
                for seq in 1..=2u64 {
                    seqlock::begin(&slot.word, seq);
                    for part in &slot.payload {
                        part.store(seq, Ordering::Relaxed);
                    }
                    seqlock::commit(&slot.word, seq);
                }
            })
        };
        let read_slot = || (slot.payload[0].load(Ordering::Relaxed), slot.payload[1].load(Ordering::Relaxed));
        let seen = if broken == Broken::SecondCheck {
            seqlock::check(&slot.word, 1).map(|()| read_slot())
        } else {
            seqlock::read(&slot.word, 1, read_slot)
        };
        if let Ok(frame) = seen {
            assert_eq!(frame, (1, 1), "torn");
        }
        writer.join().unwrap();
    });
}

/// A second thread writes the other half of the frame 2, as `shm::copy_thread` does, while a reader reads the frame
/// 1 that it overwrites, or the frame 2 itself.
fn model_of_two_writers(seq: u64, has_fence: bool, counts_with: Ordering) {
    loom::model(move || {
        let slot = Arc::new(Slot {
            word: Word { value: AtomicU64::new(seqlock::committed(1)), broken: Broken::Nothing },
            payload: [AtomicU64::new(1), AtomicU64::new(1)],
        });
        let (job, copied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let helper = {
            let (slot, job, copied) = (slot.clone(), job.clone(), copied.clone());
            thread::spawn(move || {
                if job.load(Ordering::Acquire) == 2 {
                    if has_fence {
                        fence(Ordering::Release);
                    }
                    slot.payload[1].store(2, Ordering::Relaxed);
                    copied.store(1, counts_with);
                }
            })
        };
        let writer = {
            let slot = slot.clone();
            thread::spawn(move || {
                seqlock::begin(&slot.word, 2);
                job.store(2, Ordering::Release);
                slot.payload[0].store(2, Ordering::Relaxed);
                // Instead of the wait: where the helper is not done, there is no commit.
                if copied.load(Ordering::Acquire) == 1 {
                    seqlock::commit(&slot.word, 2);
                }
            })
        };
        let read_slot = || (slot.payload[0].load(Ordering::Relaxed), slot.payload[1].load(Ordering::Relaxed));
        if let Ok(frame) = seqlock::read(&slot.word, seq, read_slot) {
            assert_eq!(frame, (seq, seq), "torn");
        }
        writer.join().unwrap();
        helper.join().unwrap();
    });
}

fn sees_a_torn_frame(broken: Broken) -> bool {
    is_torn(move || model(broken))
}

fn is_torn(model: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    let panic = std::panic::catch_unwind(model).err();
    // Only the model's own panic counts: any other is a fault of the test.
    panic.and_then(|p| p.downcast::<String>().ok()).is_some_and(|text| text.contains("torn"))
}

/// requirement: wire-8.3-3, wire-8.3-4, wire-8.2-8
#[test]
fn no_accepted_frame_is_torn() {
    model(Broken::Nothing);
}

#[test]
fn without_the_writers_fence_a_torn_frame_is_accepted() {
    assert!(sees_a_torn_frame(Broken::WriterFence));
}

#[test]
fn without_the_readers_fence_a_torn_frame_is_accepted() {
    assert!(sees_a_torn_frame(Broken::ReaderFence));
}

#[test]
fn without_release_on_the_commit_a_torn_frame_is_accepted() {
    assert!(sees_a_torn_frame(Broken::CommitRelease));
}

#[test]
fn without_the_second_check_a_torn_frame_is_accepted() {
    assert!(sees_a_torn_frame(Broken::SecondCheck));
}

#[test]
fn no_frame_of_two_writers_is_torn() {
    model_of_two_writers(1, true, Ordering::Release);
    model_of_two_writers(2, true, Ordering::Release);
}

#[test]
fn without_the_second_writers_fence_a_torn_frame_is_accepted() {
    assert!(is_torn(|| model_of_two_writers(1, false, Ordering::Release)));
}

#[test]
fn without_release_on_the_count_of_pieces_a_torn_frame_is_accepted() {
    assert!(is_torn(|| model_of_two_writers(2, false, Ordering::Relaxed)));
}
