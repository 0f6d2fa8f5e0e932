//! Dropped frames of which more chunks may arrive. Pure and bounded.
//!
//! A refused frame counts as refused once its last chunk has arrived: then its sender has counted it as sent.
//! If that chunk never arrives, the sender abandoned the frame and counted it itself, or the network lost it.

use std::collections::VecDeque;

use super::Loss;

/// Frames that are kept.
pub(super) const MAX_DROPPED: usize = 64;

struct DroppedFrame {
    seq: u64,
    /// The reason to count when its last chunk arrives, and when its first one arrived.
    pending: Option<(Loss, u64)>,
}

pub(super) struct DroppedFrames {
    all: VecDeque<DroppedFrame>,
    pending_count: usize,
}

impl DroppedFrames {
    pub fn new() -> Self {
        Self { all: VecDeque::with_capacity(MAX_DROPPED), pending_count: 0 }
    }

    pub fn has_pending(&self) -> bool {
        self.pending_count != 0
    }

    pub fn contains(&self, seq: u64) -> bool {
        self.all.iter().any(|dropped| dropped.seq == seq)
    }

    /// The latest frame whose last chunk may still arrive.
    pub fn latest_pending(&self) -> Option<u64> {
        self.all.iter().filter(|dropped| dropped.pending.is_some()).map(|dropped| dropped.seq).max()
    }

    /// Adds a dropped frame. Returns how many frames were evicted whose last chunk had not arrived.
    pub fn note(&mut self, seq: u64, pending: Option<(Loss, u64)>) -> u64 {
        let evicted = if self.all.len() == MAX_DROPPED { self.all.pop_front() } else { None };
        let expired = usize::from(evicted.is_some_and(|dropped| dropped.pending.is_some()));
        self.pending_count = self.pending_count - expired + usize::from(pending.is_some());
        self.all.push_back(DroppedFrame { seq, pending });
        expired as u64
    }

    /// Its last chunk has arrived: the reason to count, if it was not counted yet.
    pub fn take_pending(&mut self, seq: u64) -> Option<Loss> {
        let dropped = self.all.iter_mut().find(|dropped| dropped.seq == seq && dropped.pending.is_some())?;
        self.pending_count -= 1;
        dropped.pending.take().map(|(why, _)| why)
    }

    /// Stops waiting for the last chunk of frames whose sequence and time satisfy `is_over`. Returns how many
    /// there were.
    pub fn expire(&mut self, is_over: impl Fn(u64, u64) -> bool) -> u64 {
        if self.pending_count == 0 {
            return 0;
        }
        let before = self.pending_count;
        for dropped in &mut self.all {
            if dropped.pending.take_if(|(_, since_ns)| is_over(dropped.seq, *since_ns)).is_some() {
                self.pending_count -= 1;
            }
        }
        (before - self.pending_count) as u64
    }

    pub fn clear(&mut self) {
        self.all.clear();
        self.pending_count = 0;
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.len()
    }
}
