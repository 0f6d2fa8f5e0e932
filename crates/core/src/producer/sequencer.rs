//! The order in which a producer publishes its sequences (wire §15.18). Pure.
//!
//! A claim takes the next slot, and with it the next sequence; offers may continue beside it. Readers treat a
//! sequence that goes backwards as a restart, so descriptors are published strictly in order: a frame
//! committed behind an open claim is deferred until that claim is settled. An abandoned claim returns its
//! sequence if it is still the newest; otherwise it leaves one hole, which is counted. Nothing wraps onto a
//! claimed slot: such a frame is refused.

use crate::wire::layout::MAX_U32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Claimed,
    Committed,
    Abandoned,
}

#[derive(Debug)]
pub struct Sequencer {
    states: Vec<State>,
    /// The next sequence to give out.
    next: u64,
    /// The oldest sequence that is not settled yet; equal to `next` when none is open.
    oldest: u64,
    /// The largest number of sequences that were open at once since `reset_watermark`.
    watermark: u64,
}

impl Sequencer {
    pub fn new(nslots: u32) -> Self {
        Self { states: vec![State::Free; nslots as usize], next: 0, oldest: 0, watermark: 0 }
    }

    fn slot(&mut self, seq: u64) -> &mut State {
        let mask = self.states.len() as u64 - 1;
        &mut self.states[(seq & mask) as usize]
    }

    /// The next sequence, or `None` if its slot is still claimed.
    #[inline]
    pub fn take(&mut self) -> Option<u64> {
        if self.next - self.oldest >= self.states.len() as u64 {
            return None;
        }
        let seq = self.next;
        *self.slot(seq) = State::Claimed;
        self.next += 1;
        self.watermark = self.watermark.max(self.next - self.oldest);
        Some(seq)
    }

    /// The slot of `seq` is complete.
    #[inline]
    pub fn commit(&mut self, seq: u64) {
        *self.slot(seq) = State::Committed;
    }

    /// Abandons the claim on `seq`. True if that left a hole in the sequence.
    pub fn abandon(&mut self, seq: u64) -> bool {
        if seq + 1 == self.next {
            *self.slot(seq) = State::Free;
            self.next = seq;
            return false;
        }
        *self.slot(seq) = State::Abandoned;
        true
    }

    /// Abandons the claim on `seq` that readers know of: its sequence is never given out again.
    pub fn leave_hole(&mut self, seq: u64) {
        *self.slot(seq) = State::Abandoned;
    }

    /// The nearest newer frame that is already committed, where claims are settled out of order.
    #[inline]
    pub fn next_committed(&self, seq: u64) -> Option<u64> {
        let mask = self.states.len() as u64 - 1;
        (seq + 1..self.next).find(|s| self.states[(s & mask) as usize] == State::Committed)
    }

    /// The next sequence whose descriptor may be published. Call until `None`.
    #[inline]
    pub fn release(&mut self) -> Option<u64> {
        while self.oldest < self.next {
            let seq = self.oldest;
            match *self.slot(seq) {
                State::Claimed | State::Free => return None,
                State::Committed => {
                    *self.slot(seq) = State::Free;
                    self.oldest += 1;
                    return Some(seq);
                }
                State::Abandoned => {
                    *self.slot(seq) = State::Free;
                    self.oldest += 1;
                }
            }
        }
        None
    }

    /// A frame with a given sequence is published: continue after it.
    pub fn jump_past(&mut self, seq: u64) {
        (self.oldest, self.next) = (seq + 1, seq + 1);
        self.watermark = self.watermark.max(1);
    }

    /// Closes the sequencer. Returns how many committed frames were still deferred.
    pub fn close(&mut self) -> u64 {
        let waiting = (self.oldest..self.next).filter(|seq| *self.slot(*seq) == State::Committed).count();
        self.oldest = self.next;
        waiting as u64
    }

    /// The largest number of slots claimed or deferred at once since `reset_watermark`. When it reaches the number
    /// of slots, frames are refused because their slot is claimed.
    pub fn watermark(&self) -> u32 {
        u32::try_from(self.watermark).unwrap_or(MAX_U32)
    }

    /// Starts a new period of the watermark with what is open now.
    pub fn reset_watermark(&mut self) {
        self.watermark = self.next - self.oldest;
    }

    /// The sequence of the next frame.
    pub fn next_seq(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_sequence_is_not_reused() {
        let mut sequencer = Sequencer::new(4);
        let known = sequencer.take().unwrap();
        sequencer.leave_hole(known);
        assert_eq!(sequencer.release(), None);
        assert_eq!(sequencer.take(), Some(known + 1));
        sequencer.commit(known + 1);
        assert_eq!(sequencer.release(), Some(known + 1));
    }

    #[test]
    fn watermark_is_the_most_open_slots_of_a_period() {
        let mut sequencer = Sequencer::new(4);
        assert_eq!(sequencer.watermark(), 0);
        let taken: Vec<u64> = (0..3).map(|_| sequencer.take().unwrap()).collect();
        for seq in &taken[..2] {
            sequencer.commit(*seq);
        }
        while sequencer.release().is_some() {}
        assert_eq!(sequencer.watermark(), 3);
        sequencer.reset_watermark();
        assert_eq!(sequencer.watermark(), 1, "the open claim counts for the next period too");
        sequencer.commit(taken[2]);
        assert_eq!(sequencer.release(), Some(2));
        sequencer.reset_watermark();
        assert_eq!(sequencer.watermark(), 0);
        sequencer.jump_past(9);
        assert_eq!(sequencer.watermark(), 1);
    }

    #[test]
    fn offer_behind_a_claim_is_deferred() {
        let mut sequencer = Sequencer::new(4);
        let claim = sequencer.take().unwrap();
        let offer = sequencer.take().unwrap();
        sequencer.commit(offer);
        assert_eq!(sequencer.release(), None);
        sequencer.commit(claim);
        assert_eq!(sequencer.release(), Some(claim));
        assert_eq!(sequencer.release(), Some(offer));
        assert_eq!(sequencer.release(), None);
    }

    /// requirement: wire-15.7-2
    #[test]
    fn next_committed_is_found_across_a_wrap() {
        let mut sequencer = Sequencer::new(4);
        for _ in 0..3 {
            let seq = sequencer.take().unwrap();
            sequencer.commit(seq);
        }
        while sequencer.release().is_some() {}
        let claims: Vec<u64> = (0..4).map(|_| sequencer.take().unwrap()).collect();
        assert_eq!(claims.iter().map(|s| sequencer.next_committed(*s)).collect::<Vec<_>>(), [None; 4]);
        sequencer.commit(6);
        sequencer.commit(5);
        assert_eq!([3, 4, 5, 6].map(|s| sequencer.next_committed(s)), [Some(5), Some(5), Some(6), None]);
    }

    #[test]
    fn nothing_wraps_onto_a_claimed_slot() {
        let mut sequencer = Sequencer::new(4);
        let claim = sequencer.take().unwrap();
        for _ in 0..3 {
            let seq = sequencer.take().unwrap();
            sequencer.commit(seq);
        }
        assert_eq!(sequencer.take(), None);
        sequencer.commit(claim);
        while sequencer.release().is_some() {}
        assert_eq!(sequencer.take(), Some(4));
    }

    #[test]
    fn abandoned_claim_leaves_a_hole_unless_newest() {
        let mut sequencer = Sequencer::new(4);
        let a = sequencer.take().unwrap();
        assert!(!sequencer.abandon(a));
        assert_eq!(sequencer.next_seq(), 0);
        let a = sequencer.take().unwrap();
        let b = sequencer.take().unwrap();
        assert!(sequencer.abandon(a));
        sequencer.commit(b);
        assert_eq!(sequencer.release(), Some(b));
    }

    #[test]
    fn deferred_frames_at_close_are_counted() {
        let mut sequencer = Sequencer::new(4);
        let _claim = sequencer.take().unwrap();
        for _ in 0..2 {
            let seq = sequencer.take().unwrap();
            sequencer.commit(seq);
        }
        assert_eq!(sequencer.close(), 2);
        assert_eq!(sequencer.close(), 0);
    }

    proptest! {
        #[test]
        fn sequences_are_released_in_order_once(ops in proptest::collection::vec(0u8..5, 0..300)) {
            let mut sequencer = Sequencer::new(8);
            let mut open = Vec::new();
            let (mut taken, mut out, mut holes, mut given_back) = (0u64, Vec::new(), 0u64, 0u64);
            for op in ops {
                match op {
                    0 => if let Some(seq) = sequencer.take() { taken += 1; sequencer.commit(seq); },
                    1 => if let Some(seq) = sequencer.take() { taken += 1; open.push(seq); },
                    2 if !open.is_empty() => sequencer.commit(open.remove(0)),
                    3 => if let Some(seq) = open.pop() { sequencer.commit(seq) },
                    4 => if let Some(seq) = open.pop() {
                        if sequencer.abandon(seq) { holes += 1 } else { given_back += 1 }
                    },
                    _ => {}
                }
                while let Some(seq) = sequencer.release() { out.push(seq); }
            }
            for seq in open { sequencer.commit(seq); }
            while let Some(seq) = sequencer.release() { out.push(seq); }
            prop_assert!(out.is_sorted_by(|a, b| a < b));
            prop_assert_eq!(out.len() as u64, taken - holes - given_back);
            prop_assert_eq!(sequencer.next_seq(), taken - given_back);
        }
    }
}
