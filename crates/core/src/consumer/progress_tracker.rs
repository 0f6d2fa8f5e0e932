//! Validation of FrameProgress at a consumer (wire §10.2.2). Pure: messages and slot headers go in, verdicts
//! come out. Progress never makes a frame available: only a descriptor does.

use std::collections::BTreeMap;

use crate::drop_reason::DropReason;
use crate::shm::epoch::SlotRef;
use crate::shm::tensor::Tensor;
use crate::wire::control::ProgressState;

/// More frames than a producer writes at once. The oldest is evicted first.
const MAX_FRAMES: usize = 64;

/// The fields that must not change while a frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOutline {
    pub pool: u16,
    pub values_len_bytes: u32,
    pub tensor: Tensor,
}

impl From<&SlotRef> for FrameOutline {
    fn from(located: &SlotRef) -> Self {
        let info = &located.info;
        Self { pool: located.pool, values_len_bytes: info.values_len_bytes, tensor: info.tensor }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressVerdict {
    /// Accepted: this much of the frame may be read.
    New,
    /// Nothing new, or progress of a frame that was rejected before.
    Repeated,
    /// The slot does not belong to the frame: no longer, or not yet.
    Late,
    /// State or bytes went backwards: the frame is dropped, even when its descriptor comes.
    Backwards,
    /// More bytes than the payload has, an invalid or changed header, or an unknown state: no further
    /// progress of this frame is accepted. Its descriptor is validated separately.
    Invalid,
}

#[derive(Debug)]
struct TrackedFrame {
    state: u8,
    filled: u64,
    /// `None`: progress of the frame was rejected.
    outline: Option<FrameOutline>,
    is_dropped: bool,
}

#[derive(Debug, Default)]
pub struct ProgressTracker {
    frames: BTreeMap<u64, TrackedFrame>,
    /// Frames below this were evicted: their progress is not accepted.
    floor: u64,
}

fn rank(state: ProgressState) -> Option<u8> {
    match state {
        ProgressState::Unknown => None,
        ProgressState::Started => Some(0),
        ProgressState::Progress => Some(1),
        ProgressState::Complete => Some(2),
    }
}

impl ProgressTracker {
    /// A new epoch: its sequences start from the beginning.
    pub fn reset(&mut self) {
        self.frames.clear();
        self.floor = 0;
    }

    /// Whether the progress of `seq` went backwards, so that the frame must not be used.
    pub fn is_dropped(&self, seq: u64) -> bool {
        self.frames.get(&seq).is_some_and(|f| f.is_dropped)
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// `slot` is the current header of the frame's slot. A frame may be first seen in the middle: messages
    /// may be lost, and a late consumer misses the start.
    pub fn on_progress(
        &mut self,
        seq: u64,
        state: ProgressState,
        filled: u64,
        slot: Result<FrameOutline, DropReason>,
    ) -> ProgressVerdict {
        if seq < self.floor {
            return ProgressVerdict::Repeated;
        }
        // Only frames in the ring are tracked: made-up sequences evict nothing.
        if let Err(DropReason::Late | DropReason::Stale) = slot {
            return ProgressVerdict::Late;
        }
        let Some(rank) = rank(state) else { return ProgressVerdict::Invalid };
        let is_fitting = slot.is_ok_and(|outline| filled <= u64::from(outline.values_len_bytes));
        let outline = slot.ok().filter(|_| is_fitting);
        let Some(frame) = self.frames.get_mut(&seq) else {
            self.frames.insert(seq, TrackedFrame { state: rank, filled, outline, is_dropped: false });
            if self.frames.len() > MAX_FRAMES
                && let Some((oldest, _)) = self.frames.pop_first()
            {
                self.floor = oldest + 1;
            }
            return if is_fitting { ProgressVerdict::New } else { ProgressVerdict::Invalid };
        };
        if frame.is_dropped {
            return ProgressVerdict::Repeated;
        }
        if rank < frame.state || filled < frame.filled {
            (frame.is_dropped, frame.outline) = (true, None);
            return ProgressVerdict::Backwards;
        }
        let is_repeated = (rank, filled) == (frame.state, frame.filled);
        (frame.state, frame.filled) = (rank, filled);
        match frame.outline {
            None => ProgressVerdict::Repeated,
            before if before != outline => {
                frame.outline = None;
                ProgressVerdict::Invalid
            }
            _ if is_repeated => ProgressVerdict::Repeated,
            _ => ProgressVerdict::New,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::progress_schedule::{ProgressLimits, ProgressPace, ProgressSchedule};
    use crate::wire::hello::ProgressHints;
    use crate::wire::layout::*;
    use ProgressState::{Complete, Progress, Started, Unknown};
    use proptest::prelude::*;

    const LEN: u32 = 4096;

    fn outline(unit: u8) -> FrameOutline {
        let tensor = Tensor {
            dtype: DTYPE_UINT8,
            major_order: MAJOR_ORDER_ROW,
            ndims: 1,
            dims: [4096, 0, 0, 0, 0, 0, 0, 0],
            strides: [1, 0, 0, 0, 0, 0, 0, 0],
            progress_unit: unit,
        };
        FrameOutline { pool: 0, values_len_bytes: LEN, tensor }
    }

    fn updates(
        tracker: &mut ProgressTracker,
        seq: u64,
        pairs: &[(ProgressState, u64)],
    ) -> Vec<ProgressVerdict> {
        pairs
            .iter()
            .map(|(state, filled)| tracker.on_progress(seq, *state, *filled, Ok(outline(0))))
            .collect()
    }

    #[test]
    fn frame_starts_progresses_and_completes() {
        let mut tracker = ProgressTracker::default();
        let pairs = [(Started, 0), (Progress, 10), (Progress, 4096), (Complete, 4096)];
        assert_eq!(updates(&mut tracker, 3, &pairs), [ProgressVerdict::New; 4]);
        assert!(!tracker.is_dropped(3));
    }

    #[test]
    fn lost_and_repeated_updates_are_harmless() {
        let mut tracker = ProgressTracker::default();
        assert_eq!(updates(&mut tracker, 1, &[(Progress, 10), (Complete, 20)]), [ProgressVerdict::New; 2]);
        let twice = updates(&mut tracker, 2, &[(Started, 0), (Started, 0), (Progress, 5), (Progress, 5)]);
        assert_eq!(
            twice,
            [
                ProgressVerdict::New,
                ProgressVerdict::Repeated,
                ProgressVerdict::New,
                ProgressVerdict::Repeated
            ]
        );
    }

    /// requirement: wire-10.2.2-5
    #[test]
    fn progress_that_goes_backwards_drops_the_frame() {
        for pairs in [
            [(Started, 0), (Progress, 10), (Progress, 9)],
            [(Started, 0), (Progress, 10), (Started, 10)],
            [(Progress, 10), (Complete, 10), (Progress, 20)],
        ] {
            let mut tracker = ProgressTracker::default();
            assert_eq!(updates(&mut tracker, 1, &pairs)[2], ProgressVerdict::Backwards, "{pairs:?}");
            assert!(tracker.is_dropped(1));
            assert_eq!(updates(&mut tracker, 1, &[(Complete, 4096)]), [ProgressVerdict::Repeated]);
            assert_eq!(updates(&mut tracker, 2, &[(Started, 0)]), [ProgressVerdict::New], "others go on");
        }
    }

    /// requirement: wire-10.2.2-4
    #[test]
    fn progress_beyond_the_payload_is_invalid() {
        let mut tracker = ProgressTracker::default();
        let pairs = [(Started, 0), (Progress, 4097), (Complete, 4097)];
        assert_eq!(
            updates(&mut tracker, 1, &pairs),
            [ProgressVerdict::New, ProgressVerdict::Invalid, ProgressVerdict::Repeated]
        );
        assert_eq!(updates(&mut tracker, 2, &[(Started, 4097)]), [ProgressVerdict::Invalid]);
        assert!(!tracker.is_dropped(1), "its descriptor is validated separately");
    }

    /// requirement: wire-10.2.2-3
    #[test]
    fn invalid_or_changed_header_is_rejected() {
        let mut tracker = ProgressTracker::default();
        assert_eq!(tracker.on_progress(1, Started, 0, Err(DropReason::Progress)), ProgressVerdict::Invalid);
        assert_eq!(tracker.on_progress(1, Progress, 9, Ok(outline(0))), ProgressVerdict::Repeated);
        assert_eq!(tracker.on_progress(2, Started, 0, Ok(outline(PROGRESS_UNIT_ROWS))), ProgressVerdict::New);
        assert_eq!(
            tracker.on_progress(2, Progress, 9, Ok(outline(PROGRESS_UNIT_NONE))),
            ProgressVerdict::Invalid
        );
        assert_eq!(
            tracker.on_progress(2, Progress, 10, Ok(outline(PROGRESS_UNIT_ROWS))),
            ProgressVerdict::Repeated
        );
        assert_eq!(tracker.on_progress(3, Unknown, 0, Ok(outline(0))), ProgressVerdict::Invalid);
    }

    /// requirement: wire-8.2-7, wire-10.2.2-1
    #[test]
    fn slot_of_another_frame_is_late() {
        let mut tracker = ProgressTracker::default();
        for slot in [DropReason::Late, DropReason::Stale] {
            assert_eq!(tracker.on_progress(u64::MAX, Progress, 9, Err(slot)), ProgressVerdict::Late);
        }
        assert!(tracker.is_empty(), "nothing is remembered of it");
    }

    #[test]
    fn evicted_frame_is_not_accepted_again() {
        let mut tracker = ProgressTracker::default();
        for seq in 0..=MAX_FRAMES as u64 {
            assert_eq!(updates(&mut tracker, seq, &[(Started, 100)]), [ProgressVerdict::New]);
        }
        assert_eq!(updates(&mut tracker, 0, &[(Progress, 1)]), [ProgressVerdict::Repeated]);
        tracker.reset();
        assert_eq!(updates(&mut tracker, 0, &[(Progress, 1)]), [ProgressVerdict::New]);
    }

    fn anything() -> impl Strategy<Value = (u64, ProgressState, u64, u8)> {
        let state = prop_oneof![Just(Unknown), Just(Started), Just(Progress), Just(Complete)];
        (0u64..200, state, 0u64..6000, 0u8..20)
    }

    proptest! {
        /// For any input: accepted progress only rises, fits the payload, and takes bounded memory.
        #[test]
        fn accepted_progress_only_rises(inputs in proptest::collection::vec(anything(), 0..400)) {
            let mut tracker = ProgressTracker::default();
            let mut believed = BTreeMap::new();
            for (seq, state, filled, slot) in inputs {
                let slot = match slot {
                    0 => Err(DropReason::Late),
                    1 => Err(DropReason::Strides),
                    2 => Ok(outline(PROGRESS_UNIT_ROWS)),
                    _ => Ok(outline(0)),
                };
                let was_dropped = tracker.is_dropped(seq);
                if tracker.on_progress(seq, state, filled, slot) == ProgressVerdict::New {
                    prop_assert!(!was_dropped && slot.is_ok() && filled <= u64::from(LEN));
                    let before = believed.insert(seq, (rank(state), filled));
                    prop_assert!(before.is_none_or(|(r, f)| (r, f) <= (rank(state), filled) && f <= filled));
                }
                prop_assert!(tracker.len() <= MAX_FRAMES);
            }
        }

        /// Progress of our own producers is never rejected, whichever messages are lost.
        #[test]
        fn tracker_accepts_the_schedule_of_a_producer(
            steps in proptest::collection::vec((0u64..900_000, 0u64..900, any::<bool>()), 1..100),
        ) {
            let mut progress_schedule = ProgressSchedule::default();
            let floors = ProgressLimits { interval_us: 100, bytes_delta: 64 };
            progress_schedule.set_pace(Some(ProgressPace::from_hints(ProgressHints::default(), floors)));
            let mut tracker = ProgressTracker::default();
            let (mut now_ns, mut seq) = (0, 0);
            let mut filled = progress_schedule.begin(seq, 1);
            for (pause, by, is_lost) in steps {
                now_ns += pause;
                filled.raise((filled.get() + by).min(u64::from(LEN)));
                let mut pairs = Vec::new();
                while let Some(update) = progress_schedule.next(now_ns) {
                    pairs.push(update);
                }
                if filled.get() == u64::from(LEN) {
                    pairs.extend(progress_schedule.complete(seq, u64::from(LEN)));
                    seq += 1;
                    filled = progress_schedule.begin(seq, 1);
                }
                for update in pairs.into_iter().filter(|_| !is_lost) {
                    let verdict = tracker.on_progress(update.seq, update.state, update.filled, Ok(outline(0)));
                    prop_assert_eq!(verdict, ProgressVerdict::New);
                }
            }
        }
    }
}
