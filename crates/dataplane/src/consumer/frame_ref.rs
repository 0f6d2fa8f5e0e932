//! Frames that a join holds back: each is small, because frames of one layout share what they have in common,
//! and is recognised by its header without decoding it.

use std::sync::Arc;

use tensorpool_core::shm::epoch::{MappedEpoch, SlotRef};
use tensorpool_core::shm::slot::{HeaderPattern, SlotInfo};
use tensorpool_core::wire::descriptor::FrameDescriptor;

use super::reader::Frame;

/// Layouts of a stream that are remembered. A stream with more of them allocates at each change.
const MAX_PATTERNS: usize = 4;

/// What the frames of one layout have in common.
struct FramePattern {
    mapping: Arc<MappedEpoch>,
    /// Sequence and timestamp are those of the frame that it was made from.
    slot_ref: SlotRef,
    /// `None` if the slot was reused before its header was read.
    header: Option<HeaderPattern>,
}

impl FramePattern {
    fn from_frame(frame: Frame) -> Self {
        let Frame { mapping, slot_ref, .. } = frame;
        let header = mapping.header_bytes(slot_ref.seq);
        let header = mapping.is_unchanged(slot_ref.seq).then(|| HeaderPattern::new(&header));
        Self { mapping, slot_ref, header }
    }

    fn is_of(&self, frame: &Frame) -> bool {
        let (ours, theirs) = (&self.slot_ref, &frame.slot_ref);
        Arc::ptr_eq(&self.mapping, &frame.mapping)
            && ours.pool == theirs.pool
            && ours.info == SlotInfo { timestamp_ns: ours.info.timestamp_ns, ..theirs.info }
    }
}

/// A frame without what it shares with others of its layout.
#[derive(Clone)]
pub struct FrameRef {
    pattern: Arc<FramePattern>,
    pub seq: u64,
    pub timestamp_ns: u64,
    pub publish_timestamp_ns: Option<u64>,
    pub trace_id: u64,
}

impl FrameRef {
    pub fn epoch(&self) -> u64 {
        self.pattern.mapping.epoch
    }

    /// Whether the slot still holds the frame.
    #[inline]
    pub fn is_unchanged(&self) -> bool {
        self.pattern.mapping.is_unchanged(self.seq)
    }

    /// Whether this is the frame `count` after `first`, so many slots behind it and of the same layout.
    #[inline]
    pub fn follows(&self, first: &Self, count: usize) -> bool {
        let mapping = &first.pattern.mapping;
        // Patterns of one layout are one, unless there were too many of them.
        Arc::ptr_eq(&self.pattern, &first.pattern)
            && self.seq == first.seq + count as u64
            && mapping.index(self.seq) as usize == mapping.index(first.seq) as usize + count
    }

    pub fn to_frame(&self) -> Frame {
        let SlotRef { pool, info, .. } = self.pattern.slot_ref;
        Frame {
            mapping: self.pattern.mapping.clone(),
            slot_ref: SlotRef {
                seq: self.seq,
                pool,
                info: SlotInfo { timestamp_ns: self.timestamp_ns, ..info },
            },
            publish_timestamp_ns: self.publish_timestamp_ns,
            trace_id: self.trace_id,
        }
    }
}

/// The layouts of a stream's frames, the last one first.
#[derive(Default)]
pub struct FramePatterns(Vec<Arc<FramePattern>>);

impl FramePatterns {
    /// The frame of a descriptor, if it is like the one before it. `None`: only `locate` knows.
    #[inline]
    pub(super) fn next_like(&self, mapping: &Arc<MappedEpoch>, d: &FrameDescriptor) -> Option<FrameRef> {
        let last =
            self.0.first().filter(|last| Arc::ptr_eq(mapping, &last.mapping) && d.epoch == mapping.epoch)?;
        let timestamp_ns = mapping.locate_like(&last.slot_ref, last.header.as_ref()?, d.seq)?;
        Some(FrameRef {
            pattern: last.clone(),
            seq: d.seq,
            timestamp_ns,
            publish_timestamp_ns: d.timestamp_ns,
            trace_id: d.trace_id,
        })
    }

    /// Shares what the frame has in common with earlier ones.
    pub(super) fn frame_ref(&mut self, frame: Frame) -> FrameRef {
        let (publish_timestamp_ns, trace_id) = (frame.publish_timestamp_ns, frame.trace_id);
        let (seq, timestamp_ns) = (frame.slot_ref.seq, frame.slot_ref.info.timestamp_ns);
        let known = self.0.iter().position(|pattern| pattern.header.is_some() && pattern.is_of(&frame));
        match known {
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                // An earlier epoch does not come again.
                self.0.retain(|pattern| Arc::ptr_eq(&pattern.mapping, &frame.mapping));
                self.0.truncate(MAX_PATTERNS - 1);
                self.0.insert(0, Arc::new(FramePattern::from_frame(frame)));
            }
        }
        FrameRef { pattern: self.0[0].clone(), seq, timestamp_ns, publish_timestamp_ns, trace_id }
    }

    /// Forgets all, and so keeps no regions mapped.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use tensorpool_core::shm::create::PoolSpec;
    use tensorpool_core::shm::slot::SlotFields;
    use tensorpool_core::shm::tensor::TensorSpec;
    use tensorpool_core::wire::layout::{DTYPE_UINT8, MAJOR_ORDER_ROW};

    use super::*;

    const NSLOTS: u64 = 8;

    fn mapping() -> Arc<MappedEpoch> {
        let pools = [PoolSpec { pool_id: 1, stride_bytes: 64 }];
        Arc::new(MappedEpoch::anonymous(1, 7, NSLOTS as u32, &pools, 1 << 20).unwrap())
    }

    /// Writes a vector of `len` bytes, captured at the time `100 * seq`.
    fn write(mapping: &MappedEpoch, seq: u64, len: usize) {
        mapping.begin(seq);
        let fields = SlotFields {
            values_len_bytes: len as u32,
            payload_slot: mapping.index(seq),
            pool_id: 1,
            timestamp_ns: 100 * seq,
            meta_version: 0,
            tensor: TensorSpec::new(DTYPE_UINT8, MAJOR_ORDER_ROW, &[len]).unwrap(),
        };
        mapping.commit(seq, &fields);
    }

    fn descriptor(seq: u64) -> FrameDescriptor {
        FrameDescriptor {
            stream_id: 1,
            epoch: 7,
            seq,
            timestamp_ns: Some(seq),
            meta_version: None,
            trace_id: 3 * seq,
        }
    }

    fn located(mapping: &Arc<MappedEpoch>, patterns: &mut FramePatterns, seq: u64) -> FrameRef {
        let slot_ref = mapping.locate(seq).unwrap();
        let d = descriptor(seq);
        let mapping = mapping.clone();
        let (publish_timestamp_ns, trace_id) = (d.timestamp_ns, d.trace_id);
        patterns.frame_ref(Frame { mapping, slot_ref, publish_timestamp_ns, trace_id })
    }

    #[test]
    fn frame_like_the_last_one_is_recognised_with_its_own_facts() {
        let (mapping, mut patterns) = (mapping(), FramePatterns::default());
        write(&mapping, 0, 4);
        write(&mapping, 1, 4);
        assert!(patterns.next_like(&mapping, &descriptor(0)).is_none(), "nothing is known yet");
        let first = located(&mapping, &mut patterns, 0);
        let second = patterns.next_like(&mapping, &descriptor(1)).unwrap();
        assert!(second.follows(&first, 1) && !second.follows(&first, 2));
        let (frame, located) = (second.to_frame(), mapping.locate(1).unwrap());
        assert_eq!((frame.slot_ref.seq, frame.slot_ref.pool), (1, located.pool));
        assert_eq!(frame.slot_ref.info, located.info);
        assert_eq!((frame.publish_timestamp_ns, frame.trace_id), (Some(1), 3));
    }

    #[test]
    fn frame_of_another_layout_or_slot_content_is_not_recognised() {
        let (mapping, mut patterns) = (mapping(), FramePatterns::default());
        write(&mapping, 0, 4);
        write(&mapping, 1, 5);
        let first = located(&mapping, &mut patterns, 0);
        assert!(patterns.next_like(&mapping, &descriptor(1)).is_none(), "of another shape");
        assert!(!located(&mapping, &mut patterns, 1).follows(&first, 1));
        assert!(patterns.next_like(&mapping, &descriptor(2)).is_none(), "not written yet");
        write(&mapping, NSLOTS + 1, 5);
        assert!(patterns.next_like(&mapping, &descriptor(1)).is_none(), "overwritten");
        assert!(first.is_unchanged());
    }

    #[test]
    fn layouts_that_alternate_are_remembered_and_an_earlier_epoch_is_forgotten() {
        let (mapping, mut patterns) = (mapping(), FramePatterns::default());
        for seq in 0..8 {
            write(&mapping, seq, 4 + seq as usize % 2);
        }
        let refs: Vec<_> = (0..8).map(|seq| located(&mapping, &mut patterns, seq)).collect();
        assert_eq!(patterns.0.len(), 2);
        assert!(refs.iter().skip(2).zip(&refs).all(|(later, first)| later.follows(first, 2)));
        let later = self::mapping();
        write(&later, 0, 4);
        located(&later, &mut patterns, 0);
        assert_eq!(patterns.0.len(), 1);
        drop(refs);
        assert_eq!(Arc::strong_count(&mapping), 1, "nothing keeps it mapped");
    }

    #[test]
    fn run_ends_with_its_ring() {
        let (mapping, mut patterns) = (mapping(), FramePatterns::default());
        write(&mapping, NSLOTS - 1, 4);
        let last = located(&mapping, &mut patterns, NSLOTS - 1);
        write(&mapping, NSLOTS, 4);
        assert!(!located(&mapping, &mut patterns, NSLOTS).follows(&last, 1));
    }
}
