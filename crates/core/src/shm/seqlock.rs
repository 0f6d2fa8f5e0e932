//! The seqlock of a header slot (wire §8.3), which ensures that no reader accepts a torn frame.
//!
//! The algorithm is generic over a trait that supplies the commit word and the fences. In production the word
//! is in mapped memory. In `tests/loom.rs` it is loom's, and a copy of the model without a fence is shown to
//! fail. Payload and header are raced by design: they are accessed only through relaxed atomics or opaque
//! (assembly) copies, so the fences order them.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// `(seq << 1)`: a writer is writing `seq`.
#[inline]
pub const fn in_progress(seq: u64) -> u64 {
    seq << 1
}

/// `(seq << 1) | 1`: `seq` is complete.
#[inline]
pub const fn committed(seq: u64) -> u64 {
    (seq << 1) | 1
}

/// The commit word of one slot and the fences around it.
pub trait CommitWord {
    fn load_acquire(&self) -> u64;
    fn load_relaxed(&self) -> u64;
    fn store_release(&self, value: u64);
    fn fence_release(&self);
    fn fence_acquire(&self);
}

impl CommitWord for AtomicU64 {
    /// Pairs with the committing `store_release` of [`commit`].
    #[inline]
    fn load_acquire(&self) -> u64 {
        self.load(Ordering::Acquire)
    }
    #[inline]
    fn load_relaxed(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
    #[inline]
    fn store_release(&self, value: u64) {
        self.store(value, Ordering::Release);
    }
    #[inline]
    fn fence_release(&self) {
        fence(Ordering::Release);
    }
    #[inline]
    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }
}

/// Opens the slot for `seq`. Until [`commit`], readers of this slot drop what they read.
///
/// The fence pairs with [`unchanged`]: a reader that saw a byte written after it also sees this word, or a
/// later one, in the second check.
#[inline]
pub fn begin<W: CommitWord + ?Sized>(word: &W, seq: u64) {
    word.store_release(in_progress(seq));
    word.fence_release();
}

/// Closes the slot: everything written since [`begin`] is visible to a reader of this word.
#[inline]
pub fn commit<W: CommitWord + ?Sized>(word: &W, seq: u64) {
    word.store_release(committed(seq));
}

/// Why the first check of the commit word refuses the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRefusal {
    /// The writer is still writing this sequence.
    NotCommitted,
    /// The slot already belongs to a later sequence.
    Overwritten,
    /// The slot still holds an earlier sequence.
    Stale,
}

/// The first check: whether the slot is committed for exactly `seq`.
#[inline]
pub fn check<W: CommitWord + ?Sized>(word: &W, seq: u64) -> Result<(), ReadRefusal> {
    let value = word.load_acquire();
    if value == committed(seq) {
        return Ok(());
    }
    let there = value >> 1;
    Err(if there > seq {
        ReadRefusal::Overwritten
    } else if there < seq {
        ReadRefusal::Stale
    } else {
        ReadRefusal::NotCommitted
    })
}

/// The second check, after the bytes were used: whether the slot is unchanged.
#[inline]
pub fn unchanged<W: CommitWord + ?Sized>(word: &W, seq: u64) -> bool {
    word.fence_acquire();
    word.load_relaxed() == committed(seq)
}

/// Whether the slot belongs to `seq`, complete or still being written.
#[inline]
pub fn belongs<W: CommitWord + ?Sized>(word: &W, seq: u64) -> bool {
    word.load_acquire() >> 1 == seq
}

/// The second check of a slot that may still be written: whether no other frame was begun in it.
#[inline]
pub fn still_belongs<W: CommitWord + ?Sized>(word: &W, seq: u64) -> bool {
    word.fence_acquire();
    word.load_relaxed() >> 1 == seq
}

/// A read between both checks. `read` may see torn bytes; its result is returned only if it did not.
#[inline]
pub fn read<W: CommitWord + ?Sized, T>(
    word: &W,
    seq: u64,
    read: impl FnOnce() -> T,
) -> Result<T, ReadRefusal> {
    check(word, seq)?;
    let value = read();
    if unchanged(word, seq) { Ok(value) } else { Err(ReadRefusal::Overwritten) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::layout::MAX_SEQ;

    /// requirement: wire-15.21-1, wire-15.21-4
    #[test]
    fn slot_in_progress_is_refused_without_waiting() {
        let word = AtomicU64::new(0);
        begin(&word, 7);
        assert_eq!(check(&word, 7), Err(ReadRefusal::NotCommitted));
        commit(&word, 7);
        assert_eq!(check(&word, 7), Ok(()));
    }

    /// requirement: wire-15.3-1, wire-15.21-3, wire-8.2-7, wire-8.2-16, wire-8.2-17
    #[test]
    fn other_sequence_in_the_slot_is_stale_or_overwritten() {
        let word = AtomicU64::new(committed(8));
        assert_eq!(check(&word, 16), Err(ReadRefusal::Stale));
        assert_eq!(check(&word, 0), Err(ReadRefusal::Overwritten));
        begin(&word, 16);
        assert_eq!(check(&word, 8), Err(ReadRefusal::Overwritten));
    }

    /// requirement: wire-8.3-4
    #[test]
    fn commit_word_change_during_a_read_is_detected() {
        let word = AtomicU64::new(committed(3));
        assert_eq!(read(&word, 3, || 42), Ok(42));
        assert_eq!(read(&word, 3, || begin(&word, 11)), Err(ReadRefusal::Overwritten));
    }

    /// requirement: wire-10.2.2-6
    #[test]
    fn slot_belongs_to_its_frame_until_the_next_lap() {
        let word = AtomicU64::new(0);
        begin(&word, 7);
        assert!(belongs(&word, 7) && still_belongs(&word, 7) && !unchanged(&word, 7));
        commit(&word, 7);
        assert!(belongs(&word, 7) && still_belongs(&word, 7));
        begin(&word, 15);
        assert!(!belongs(&word, 7) && !still_belongs(&word, 7));
    }

    #[test]
    fn commit_word_is_sequence_and_flag() {
        assert_eq!(in_progress(5), 10);
        assert_eq!(committed(5), 11);
        assert_eq!(committed(MAX_SEQ), u64::MAX);
    }
}
