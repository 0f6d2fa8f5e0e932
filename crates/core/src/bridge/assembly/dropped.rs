//! Dropped frames of which more chunks may arrive. Pure and bounded.
//!
//! A refused frame counts as refused once its last chunk has arrived: then its sender has counted it as sent.
//! If that chunk never arrives, the sender abandoned the frame and counted it itself, or the network lost it.

use std::collections::VecDeque;

use super::Loss;

/// Frames that are kept.
pub(super) const MAX_DROPPED: usize = 64;

struct Dropped {
    seq: u64,
    /// The reason to count when its last chunk arrives, and when its first one arrived.
    owed: Option<(Loss, u64)>,
}

pub(super) struct DroppedFrames {
    all: VecDeque<Dropped>,
    owing: usize,
}

impl DroppedFrames {
    pub fn new() -> Self {
        Self { all: VecDeque::with_capacity(MAX_DROPPED), owing: 0 }
    }

    pub fn owes(&self) -> bool {
        self.owing != 0
    }

    pub fn contains(&self, seq: u64) -> bool {
        self.all.iter().any(|one| one.seq == seq)
    }

    /// The latest frame whose last chunk may still arrive.
    pub fn latest_owed(&self) -> Option<u64> {
        self.all.iter().filter(|one| one.owed.is_some()).map(|one| one.seq).max()
    }

    /// Adds a dropped frame. Returns how many frames were evicted whose last chunk had not arrived.
    pub fn note(&mut self, seq: u64, owed: Option<(Loss, u64)>) -> u64 {
        let forgotten = if self.all.len() == MAX_DROPPED { self.all.pop_front() } else { None };
        let given_up = usize::from(forgotten.is_some_and(|one| one.owed.is_some()));
        self.owing = self.owing - given_up + usize::from(owed.is_some());
        self.all.push_back(Dropped { seq, owed });
        given_up as u64
    }

    /// Its last chunk has arrived: the reason to count, if it was not counted yet.
    pub fn take_owed(&mut self, seq: u64) -> Option<Loss> {
        let one = self.all.iter_mut().find(|one| one.seq == seq && one.owed.is_some())?;
        self.owing -= 1;
        one.owed.take().map(|(why, _)| why)
    }

    /// Stops waiting for the last chunk of frames whose sequence and time satisfy `is_over`. Returns how many
    /// there were.
    pub fn give_up(&mut self, is_over: impl Fn(u64, u64) -> bool) -> u64 {
        if self.owing == 0 {
            return 0;
        }
        let before = self.owing;
        for one in &mut self.all {
            if one.owed.take_if(|(_, since_ns)| is_over(one.seq, *since_ns)).is_some() {
                self.owing -= 1;
            }
        }
        (before - self.owing) as u64
    }

    pub fn clear(&mut self) {
        self.all.clear();
        self.owing = 0;
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.len()
    }
}
