//! A consumer's count of sequences: received, missing, and their sum (wire §15.4). Pure.
//!
//! The count of an epoch starts at the first sequence received, or at the first one that was published after
//! the consumer mapped the epoch. From then on `span = received + dropped by reason` holds at every moment:
//! each sequence counts once, and each missing sequence has one drop reason.

use crate::drop_reason::DropReason;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceStep {
    /// In order. The missing sequences before it (0 for none) are dropped for the given reason.
    Next {
        missed: u64,
        reason: DropReason,
    },
    /// In order, but older than the frame to resynchronise to.
    Behind {
        missed: u64,
        reason: DropReason,
    },
    Duplicate,
    /// The sequence went backwards: the regions must be remapped (wire §15.2).
    Regressed,
}

#[derive(Clone, Debug)]
pub struct SequenceTracker {
    first: Option<u64>,
    last: Option<u64>,
    /// Where the span begins, if that is before the first sequence received.
    expected: Option<u64>,
    resume_at: u64,
    max_gap: u64,
    span: u64,
}

impl SequenceTracker {
    pub fn new(max_gap: u64) -> Self {
        Self { first: None, last: None, expected: None, resume_at: 0, max_gap, span: 0 }
    }

    /// Starts again with the next sequence. The span so far stays counted.
    pub fn reset(&mut self) {
        self.first = None;
        self.last = None;
        self.expected = None;
        self.resume_at = 0;
    }

    /// The span begins at `seq`, although the first sequence received may be a later one.
    pub fn expect(&mut self, seq: u64) {
        self.expected = Some(seq);
    }

    /// Sequences from the first to the last received, over all mappings.
    pub fn span(&self) -> u64 {
        self.span
    }

    /// The first sequence of this mapping's span.
    pub fn first_seq(&self) -> Option<u64> {
        self.first
    }

    pub fn last_seq(&self) -> Option<u64> {
        self.last
    }

    /// How many sequences would be missing before `seq`.
    #[inline]
    pub fn missing_before(&self, seq: u64) -> u64 {
        self.last.map_or(0, |last| seq.saturating_sub(last).saturating_sub(1))
    }

    /// Counts the sequence of a descriptor. `rested`: the media driver rested the subscription since the last
    /// one.
    #[inline]
    pub fn on_seq(&mut self, seq: u64, rested: bool) -> SequenceStep {
        let missed = match self.last {
            None => {
                let missed = self.expected.map_or(0, |expected| seq.saturating_sub(expected));
                self.first = Some(seq - missed);
                missed
            }
            Some(last) if seq > last => seq - last - 1,
            Some(last) if seq == last => return SequenceStep::Duplicate,
            Some(_) => return SequenceStep::Regressed,
        };
        let is_first = self.last.replace(seq).is_none();
        self.span += missed + 1;
        let reason = if is_first {
            DropReason::Joining
        } else if rested {
            DropReason::Rested
        } else if missed > self.max_gap {
            DropReason::Resync
        } else {
            DropReason::Gap
        };
        if seq < self.resume_at {
            SequenceStep::Behind { missed, reason }
        } else {
            SequenceStep::Next { missed, reason }
        }
    }

    /// The slot of `seq` already holds `newest`: the writer lapped the reader. The slots right after `seq`
    /// are overwritten next, so a reader that continued with the next frame would lose nearly all. It resumes
    /// in the middle of the ring instead, or, too far behind, at the newest frame. The caller has checked
    /// `newest` ([`MappedEpoch::overwritten_by`](crate::shm::epoch::MappedEpoch::overwritten_by)).
    #[inline]
    pub fn on_overwritten(&mut self, seq: u64, newest: u64, nslots: u64) {
        let resume_at = if newest.saturating_sub(seq) > self.max_gap {
            newest
        } else {
            newest.saturating_sub(nslots / 2)
        };
        self.resume_at = self.resume_at.max(resume_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// requirement: wire-15.4-1
    #[test]
    fn jump_counts_as_a_gap() {
        let mut t = SequenceTracker::new(256);
        assert_eq!(t.on_seq(10, false), SequenceStep::Next { missed: 0, reason: DropReason::Joining });
        assert_eq!(t.on_seq(14, false), SequenceStep::Next { missed: 3, reason: DropReason::Gap });
        assert_eq!(t.on_seq(20, true), SequenceStep::Next { missed: 5, reason: DropReason::Rested });
        assert_eq!(t.span(), 11);
    }

    /// requirement: wire-15.4-2
    #[test]
    fn far_behind_resyncs_to_the_newest() {
        let mut t = SequenceTracker::new(256);
        t.on_seq(0, false);
        assert_eq!(t.on_seq(300, false), SequenceStep::Next { missed: 299, reason: DropReason::Resync });
        t.on_overwritten(300, 300 + 257, 8);
        assert_eq!(t.on_seq(301, false), SequenceStep::Behind { missed: 0, reason: DropReason::Gap });
        assert_eq!(t.on_seq(557, false), SequenceStep::Next { missed: 255, reason: DropReason::Gap });
    }

    #[test]
    fn lapped_reader_resumes_in_the_middle_of_the_ring() {
        let mut t = SequenceTracker::new(256);
        t.on_seq(10, false);
        t.on_overwritten(10, 18, 8);
        assert_eq!(t.on_seq(13, false), SequenceStep::Behind { missed: 2, reason: DropReason::Gap });
        assert_eq!(t.on_seq(14, false), SequenceStep::Next { missed: 0, reason: DropReason::Gap });
        t.on_overwritten(14, 14, 1);
        assert!(matches!(t.on_seq(15, false), SequenceStep::Next { .. }), "an older target does not count");
    }

    #[test]
    fn regression_differs_from_duplicate() {
        let mut t = SequenceTracker::new(256);
        t.on_seq(5, false);
        assert_eq!(t.on_seq(5, false), SequenceStep::Duplicate);
        assert_eq!(t.on_seq(4, false), SequenceStep::Regressed);
        t.reset();
        assert_eq!(t.on_seq(0, false), SequenceStep::Next { missed: 0, reason: DropReason::Joining });
        assert_eq!(t.span(), 2);
    }

    /// requirement: wire-15.4-1
    #[test]
    fn span_begins_with_the_first_expected_sequence() {
        let mut t = SequenceTracker::new(256);
        t.expect(7);
        assert_eq!(t.on_seq(10, true), SequenceStep::Next { missed: 3, reason: DropReason::Joining });
        assert_eq!((t.first_seq(), t.last_seq(), t.span()), (Some(7), Some(10), 4));
        assert_eq!(t.on_seq(12, false), SequenceStep::Next { missed: 1, reason: DropReason::Gap });
        t.reset();
        t.expect(7);
        assert!(matches!(t.on_seq(5, false), SequenceStep::Next { missed: 0, .. }));
        assert_eq!((t.first_seq(), t.span()), (Some(5), 7));
    }

    proptest! {
        #[test]
        fn ledger_adds_up_for_any_sequence(
            expected in proptest::option::of(0u64..2_000),
            events in proptest::collection::vec((0u64..2_000, any::<bool>(), 0u64..3_000, any::<bool>()), 0..200),
        ) {
            let mut t = SequenceTracker::new(256);
            expected.into_iter().for_each(|seq| t.expect(seq));
            let (mut received, mut dropped) = (0, 0);
            for (seq, rested, newest, late) in events {
                match t.on_seq(seq, rested) {
                    SequenceStep::Next { missed, .. } => {
                        dropped += missed;
                        if late {
                            dropped += 1;
                            t.on_overwritten(seq, newest, 8);
                        } else {
                            received += 1;
                        }
                    }
                    SequenceStep::Behind { missed, .. } => dropped += missed + 1,
                    SequenceStep::Duplicate => {}
                    SequenceStep::Regressed => t.reset(),
                }
                prop_assert_eq!(t.span(), received + dropped);
            }
        }
    }
}
