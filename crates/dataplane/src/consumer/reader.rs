//! The reader of a consumer: it checks epoch, order and span of descriptors, and the rules of the slot
//! (wire §15.21). It never waits for a writer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tensorpool_core::consumer::announce_filter::AnnounceFilter;
use tensorpool_core::consumer::sequence_tracker::{SequenceStep, SequenceTracker};
use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::producer::rate_gate::RateGate;
use tensorpool_core::shm::epoch::{MappedEpoch, SlotRef};
use tensorpool_core::shm::slot::HeaderPattern;
use tensorpool_core::wire::descriptor::FrameDescriptor;

use super::counters::Counters;
use super::frame_ref::{FramePatterns, FrameRef};
use super::progress::ProgressReader;

/// A frame to deliver, and the mapping that keeps its memory alive.
#[derive(Clone)]
pub struct Frame {
    pub mapping: Arc<MappedEpoch>,
    pub slot_ref: SlotRef,
    pub publish_timestamp_ns: Option<u64>,
    pub trace_id: u64,
}

/// How far ahead frames are prefetched.
const ROWS_AHEAD: u64 = 8;

/// A frame of a batch, by which the next ones are recognised.
pub(crate) struct RowPattern {
    pub(crate) frame: Frame,
    pub(crate) header: HeaderPattern,
    pub(crate) extent_bytes: usize,
}

/// Frames of a poll that are not in the counters yet. An atomic addition for each frame would keep the processor
/// from reading the next one ahead of it.
#[derive(Debug, Default)]
struct Uncounted {
    span: u64,
    received: u64,
    /// Skipped by a reader that was lapped, which has no time for them.
    resync: u64,
}

/// Observes which sequences a reader does not deliver, in the order of the stream. `()` does nothing.
pub trait DropObserver {
    #[inline]
    fn on_drop(&mut self, _epoch: u64, _first_seq: u64, _count: u64, _reason: DropReason) {}
    /// A frame of another epoch than the mapped one.
    #[inline]
    fn on_other_epoch(&mut self, _epoch: u64, _seq: u64) {}
}

impl DropObserver for () {}

impl Counters {
    /// Records the latency of delivered frames. The clock is read once for all of them.
    #[inline]
    pub fn record_latency(&self, frames: &[Frame]) {
        if frames.is_empty() {
            return;
        }
        let now_ns = self.latency.now_ns();
        for frame in frames {
            self.latency.record(frame.publish_timestamp_ns, frame.slot_ref.info.timestamp_ns, now_ns);
        }
    }
}

/// Why the announced regions cannot be used. No frames come until a better announce.
#[derive(Clone, Debug)]
pub struct RegionRefusal {
    pub epoch: u64,
    pub reason: &'static str,
    pub uri: String,
    pub message: String,
}

/// Whether missing sequences were held back on purpose, because this consumer requested fewer frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateLimit {
    Off,
    /// On a per-consumer stream with a rate limit.
    On,
    /// The limit has just ended: until frames come without gaps, missing sequences were held back.
    Ending,
}

impl RateLimit {
    /// The config that counts now limits the rate, or does not.
    pub(crate) fn on_config(&mut self, is_limited: bool, on_per_consumer: bool) {
        *self = match *self {
            _ if is_limited => Self::On,
            Self::On if on_per_consumer => Self::Ending,
            Self::On | Self::Off => Self::Off,
            Self::Ending => Self::Ending,
        };
    }
}

/// Regions that were refused.
#[derive(Debug, Default)]
pub(crate) struct RefusalState {
    /// To be raised by the next poll without frames.
    pub(crate) refused: Option<RegionRefusal>,
    /// The last reported refusal, so that each is reported once.
    pub(crate) reported: Option<(u64, &'static str)>,
    /// The epoch whose regions were missing, and when that was first seen.
    pub(crate) missing: Option<(u64, u64)>,
}

/// A past epoch: the sequence up to which its ledger counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreviousEpoch {
    pub(crate) epoch: u64,
    pub(crate) next_seq: u64,
    pub(crate) nslots: u64,
    /// Sequences from here to `unread_end` were counted when the epoch ended. Their descriptors may still come.
    unread_from: u64,
    unread_end: u64,
}

/// Sequences that were published before their epoch ended, and not read until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnreadTail {
    epoch: u64,
    first_seq: u64,
    count: u64,
    reason: DropReason,
}

/// The mapped epoch, its ledger, and which announces may replace it.
pub(crate) struct EpochState {
    pub(crate) mapping: Option<Arc<MappedEpoch>>,
    pub(crate) announce_filter: AnnounceFilter,
    pub(crate) tracker: SequenceTracker,
    /// The epoch that the tracker counts. Mapped again, it continues.
    pub(crate) tracked: Option<u64>,
    /// The first sequence of that epoch that was published after it was mapped. `None` for a fallback, whose
    /// ring is filled by its reader.
    pub(crate) entitled: Option<u64>,
    /// The newest sequence of that epoch when its regions were last unmapped.
    newest: Option<u64>,
    /// The size of that epoch's ring.
    pub(crate) nslots: u64,
    /// The epoch that was counted before.
    pub(crate) previous: Option<PreviousEpoch>,
    /// The epoch that the driver granted with the lease.
    pub(crate) granted_epoch: Option<u64>,
    /// Announces of lower epochs are ignored: their producer is gone.
    pub(crate) lowest_epoch: u64,
    /// The producer of the mapped epoch, once an announce has named it.
    pub(crate) producer_id: Option<u32>,
    /// A producer whose lease has ended. Its announces are ignored.
    pub(crate) gone_producer_id: Option<u32>,
}

impl EpochState {
    fn new(freshness_ns: u64, max_outstanding_seq_gap: u64) -> Self {
        Self {
            mapping: None,
            announce_filter: AnnounceFilter::new(freshness_ns),
            tracker: SequenceTracker::new(max_outstanding_seq_gap),
            tracked: None,
            entitled: None,
            newest: None,
            nslots: 0,
            previous: None,
            granted_epoch: None,
            lowest_epoch: 0,
            producer_id: None,
            gone_producer_id: None,
        }
    }

    /// A producer's lease has ended. True if the mapped epoch may be its, and has to be unmapped.
    ///
    /// Until an announce names the producer of a granted epoch, that may be another one: notices and grants of
    /// a driver may take two ways, and then come in another order. So the epoch is not ruled out. The announces
    /// of the producer that is gone are.
    pub(crate) fn on_producer_gone(&mut self, producer_id: u32) -> bool {
        let Some(epoch) = self.mapping.as_ref().map(|m| m.epoch) else { return false };
        match self.producer_id {
            // The announce of the later epoch came before the notice.
            Some(id) if id != producer_id => return false,
            Some(_) => self.lowest_epoch = self.lowest_epoch.max(epoch + 1),
            None => self.gone_producer_id = Some(producer_id),
        }
        true
    }

    /// Whether an announce is of an epoch that is over.
    pub(crate) fn is_over(&self, epoch: u64, producer_id: u32) -> bool {
        epoch < self.lowest_epoch || self.gone_producer_id == Some(producer_id)
    }
}

/// Which descriptors name a frame to deliver, and the ledger of all of them.
pub(crate) struct Reader {
    pub(crate) epoch: EpochState,
    pub(crate) rate_limit: RateLimit,
    /// The stream has just changed: descriptors of the previous one come again.
    pub(crate) overlaps: bool,
    /// Our image left since the last descriptor: the media driver rested this subscription.
    pub(crate) rested: bool,
    /// Partial frames, if the consumer requested progress.
    pub(crate) progress: Option<Box<ProgressReader>>,
    /// Holds frames back here, at a rate that cannot be requested of the producer.
    pub(crate) gate: Option<RateGate>,
    /// Holds frames back here while no per-consumer stream is read: the request was declined, a supervisor ordered
    /// a rate and the producer grants no stream, or frames come from a bridge.
    shared_gate: Option<RateGate>,
    /// A frame of the shared stream was admitted: the first one of a per-consumer stream may follow no sooner
    /// than the next one of the shared stream would. The producer knows nothing of it.
    is_changing_streams: bool,
    shared_rate_hz: u32,
    /// A per-consumer stream is read, so the producer keeps the rate.
    pub(crate) on_per_consumer: bool,
    /// Tails of epochs that the next poll passes to its observer.
    tails: Vec<UnreadTail>,
    uncounted: Uncounted,
}

impl Reader {
    pub(crate) fn new(freshness_ns: u64, max_outstanding_seq_gap: u64) -> Self {
        Self {
            epoch: EpochState::new(freshness_ns, max_outstanding_seq_gap),
            rate_limit: RateLimit::Off,
            overlaps: false,
            rested: false,
            progress: None,
            gate: None,
            shared_gate: None,
            is_changing_streams: false,
            shared_rate_hz: 0,
            on_per_consumer: false,
            tails: Vec::new(),
            uncounted: Uncounted::default(),
        }
    }

    /// Counts the frames since the last call. Before anything else of the span is counted, so that it adds up at any
    /// time, and at the end of a poll.
    #[inline]
    pub(crate) fn settle(&mut self, counters: &Counters) {
        let Uncounted { span, received, resync } = std::mem::take(&mut self.uncounted);
        if span > 0 {
            counters.span.fetch_add(span, Ordering::Relaxed);
        }
        if received > 0 {
            counters.received.fetch_add(received, Ordering::Relaxed);
        }
        if resync > 0 {
            counters.drops.add(DropReason::Resync, resync);
        }
    }

    /// Sets the rate while no per-consumer stream is read. 0: none. A rate that stays the same keeps its schedule.
    pub(crate) fn set_shared_rate(&mut self, hz: u32) {
        if self.shared_rate_hz != hz {
            self.shared_rate_hz = hz;
            self.shared_gate = RateGate::new(hz);
        }
    }

    /// The rate limit that this consumer keeps itself.
    #[inline]
    fn own_gate(&mut self) -> Option<&mut RateGate> {
        let is_in_force = !self.on_per_consumer || self.is_changing_streams;
        self.gate.as_mut().or(self.shared_gate.as_mut().filter(|_| is_in_force))
    }

    /// Whether the rate limit that this consumer keeps itself lets a frame pass.
    fn admits(&mut self, timestamp_ns: u64) -> bool {
        let Some(gate) = self.own_gate() else { return true };
        let admitted = gate.admits(timestamp_ns);
        if admitted {
            self.is_changing_streams = !self.on_per_consumer;
        }
        admitted
    }

    /// The mapped regions will not be mapped any more. `newest` is the last sequence in their ring.
    pub(crate) fn on_unmapped(&mut self, newest: u64) {
        let EpochState { mapping, tracked, tracker, entitled, newest: newest_mapped, .. } = &mut self.epoch;
        let Some(mapping) = mapping.as_ref().filter(|m| *tracked == Some(m.epoch)) else { return };
        *newest_mapped = Some(newest);
        if tracker.last_seq().is_none() {
            *entitled = entitled.map(|from| mapping.first_written(from, newest));
        }
    }

    /// Sequences of another epoch start from the beginning: at `entitled`, or at the first received.
    pub(crate) fn follow_epoch(
        &mut self,
        counters: &Counters,
        epoch: u64,
        nslots: u64,
        entitled: Option<u64>,
    ) {
        let before = self.epoch.tracked.replace(epoch);
        if before != Some(epoch) {
            self.epoch.previous = before.and_then(|before| self.end_epoch(counters, before));
            self.epoch.tracker.reset();
            self.epoch.entitled = entitled;
            self.epoch.newest = None;
            self.progress.iter_mut().for_each(|f| f.reset());
        }
        self.epoch.nslots = nslots;
    }

    /// The tracked epoch is over. What was published in it, and not read, is lost: no poll reads it any more.
    fn end_epoch(&mut self, counters: &Counters, epoch: u64) -> Option<PreviousEpoch> {
        let EpochState { tracker, entitled, newest, nslots, .. } = &self.epoch;
        let next_seq = tracker.last_seq().map(|last| last + 1).or(*entitled)?;
        let unread = newest.map_or(0, |newest| (newest + 1).saturating_sub(next_seq));
        let nslots = *nslots;
        if unread > 0 {
            let is_limited = self.rate_limit != RateLimit::Off || self.own_gate().is_some();
            let reason = if is_limited { DropReason::RateLimited } else { DropReason::Ended };
            counters.span.fetch_add(unread, Ordering::Relaxed);
            counters.drops.add(reason, unread);
            self.tails.push(UnreadTail { epoch, first_seq: next_seq, count: unread, reason });
        }
        let unread_end = next_seq + unread;
        Some(PreviousEpoch { epoch, next_seq: unread_end, nslots, unread_from: next_seq, unread_end })
    }

    /// Passes what was lost at the ends of epochs to an observer.
    #[inline]
    pub(crate) fn observe_tails(&mut self, observer: &mut impl DropObserver) {
        if !self.tails.is_empty() {
            for UnreadTail { epoch, first_seq, count, reason } in self.tails.drain(..) {
                observer.on_drop(epoch, first_seq, count, reason);
            }
        }
    }

    /// Checks epoch, order and span. True if the descriptor names the next frame to read.
    #[inline]
    pub(crate) fn is_next(
        &mut self,
        counters: &Counters,
        d: &FrameDescriptor,
        observer: &mut impl DropObserver,
    ) -> bool {
        // Unmapped within an epoch, its frames are still part of that epoch's span.
        let paused = match &self.epoch.mapping {
            None if self.epoch.tracked != Some(d.epoch) => {
                self.on_other_epoch(counters, d, DropReason::Unmapped, observer);
                return false;
            }
            None => true,
            Some(mapping) if d.epoch != mapping.epoch => {
                self.on_other_epoch(counters, d, DropReason::Epoch, observer);
                return false;
            }
            Some(_) => false,
        };
        if self.overlaps {
            if self.epoch.tracker.last_seq().is_some_and(|last| d.seq <= last) {
                return false;
            }
            self.overlaps = false;
        }
        if self.epoch.tracker.last_seq().is_none() && !self.joins_with(counters, d.seq) {
            return false;
        }
        if self.epoch.tracker.missing_before(d.seq) > self.epoch.nslots && !self.is_plausible(counters, d.seq)
        {
            return false;
        }
        if self.epoch.tracker.last_seq().is_some_and(|last| d.seq < last) && !self.has_gone_back_to(d.seq) {
            counters.drops.add(DropReason::Duplicate, 1);
            return false;
        }
        let rested = std::mem::take(&mut self.rested);
        let (missed, reason, behind) = match self.epoch.tracker.on_seq(d.seq, rested) {
            SequenceStep::Next { missed, reason } => (missed, reason, false),
            SequenceStep::Behind { missed, reason } => (missed, reason, true),
            SequenceStep::Duplicate => {
                counters.drops.add(DropReason::Duplicate, 1);
                return false;
            }
            SequenceStep::Regressed => {
                counters.drops.add(DropReason::Regressed, 1);
                self.epoch.mapping = None;
                self.epoch.tracked = None;
                self.epoch.tracker.reset();
                return false;
            }
        };
        let reason = match reason {
            DropReason::Gap | DropReason::Resync | DropReason::Joining
                if self.rate_limit != RateLimit::Off =>
            {
                DropReason::RateLimited
            }
            // An earlier frame was still in the ring. What follows it was published before this consumer
            // was mapped, perhaps while it had no consumer.
            DropReason::Gap | DropReason::Resync
                if self.epoch.entitled.is_some_and(|entitled| d.seq - missed < entitled) =>
            {
                DropReason::Joining
            }
            other => other,
        };
        if missed == 0 && self.rate_limit == RateLimit::Ending {
            self.rate_limit = RateLimit::Off;
        }
        self.uncounted.span += missed + 1;
        self.uncounted.resync += u64::from(behind && !paused);
        if missed > 0 || paused {
            self.settle(counters);
        }
        if missed > 0 {
            counters.drops.add(reason, missed);
            observer.on_drop(d.epoch, d.seq - missed, missed, reason);
        }
        if paused {
            counters.drops.add(DropReason::Paused, 1);
            observer.on_drop(d.epoch, d.seq, 1, DropReason::Paused);
        } else if behind {
            observer.on_drop(d.epoch, d.seq, 1, DropReason::Resync);
        }
        !behind && !paused
    }

    /// Whether the ledger of the epoch begins with this descriptor: at the sequence from which this consumer
    /// was entitled to frames, or at an earlier frame that it can still read.
    #[cold]
    fn joins_with(&mut self, counters: &Counters, seq: u64) -> bool {
        let Some(entitled) = self.epoch.entitled else { return true };
        let mapping = self.epoch.mapping.as_ref();
        if seq < entitled {
            let is_there = mapping.is_some_and(|m| m.is_unchanged(seq));
            if !is_there {
                counters.drops.add(DropReason::BeforeJoining, 1);
            }
            return is_there;
        }
        if seq - entitled > self.epoch.nslots && !self.is_plausible(counters, seq) {
            return false;
        }
        let first = mapping.map_or(entitled, |m| m.first_written(entitled, seq));
        self.epoch.tracker.expect(first);
        true
    }

    /// Whether a jump beyond the ring may move the ledger. Any process may publish any number, and the slot
    /// of a published frame has reached its sequence.
    #[cold]
    fn is_plausible(&self, counters: &Counters, seq: u64) -> bool {
        // Unmapped, the slot cannot be checked: the jump counts with the next frame after the regions are
        // mapped again.
        let (believable, reason) = match &self.epoch.mapping {
            Some(mapping) => (mapping.has_reached(seq), DropReason::Malformed),
            None => (false, DropReason::Unmapped),
        };
        if !believable {
            counters.drops.add(reason, 1);
        }
        believable
    }

    /// Whether the writer itself has gone back to `seq`: its slot holds it, where it held a later sequence. A
    /// descriptor alone is no reason to remap, because any process may publish one, again and again.
    #[cold]
    fn has_gone_back_to(&self, seq: u64) -> bool {
        let last = self.epoch.tracker.last_seq().unwrap_or(0);
        seq.saturating_add(self.epoch.nslots) <= last
            && self.epoch.mapping.as_ref().is_none_or(|mapping| mapping.holds(seq))
    }

    /// A descriptor of an epoch that is not mapped. Of the epoch before, the ledger moves by no more than its
    /// ring: its regions may be gone, so that nothing else bounds a forged number.
    #[cold]
    fn on_other_epoch(
        &mut self,
        counters: &Counters,
        d: &FrameDescriptor,
        reason: DropReason,
        observer: &mut impl DropObserver,
    ) {
        if let Some(previous) = self.epoch.previous.as_mut().filter(|p| p.epoch == d.epoch) {
            if d.seq > previous.next_seq.saturating_add(previous.nslots) {
                return counters.drops.add(DropReason::Malformed, 1);
            }
            if (previous.unread_from..previous.unread_end).contains(&d.seq) {
                // It was counted when its epoch ended.
                return;
            }
            previous.next_seq = previous.next_seq.max(d.seq + 1);
        }
        counters.drops.add(reason, 1);
        observer.on_other_epoch(d.epoch, d.seq);
    }

    /// Checks the rules of the slot. The frame counts as received from here on.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        counters: &Counters,
        d: &FrameDescriptor,
        observer: &mut impl DropObserver,
    ) -> Option<Frame> {
        self.settle(counters);
        let Some(mapping) = self.epoch.mapping.as_ref().filter(|m| m.epoch == d.epoch && !m.is_lost()) else {
            // Unmapped, remapped or lost since the descriptor: the sequence is in the span, so it must be
            // counted.
            counters.drops.add(DropReason::Late, 1);
            observer.on_drop(d.epoch, d.seq, 1, DropReason::Late);
            return None;
        };
        // Its progress went backwards: the frame must not be used (wire §10.2.2).
        if self.progress.as_ref().is_some_and(|f| f.progress_tracker.is_dropped(d.seq)) {
            counters.drops.add(DropReason::Progress, 1);
            observer.on_drop(d.epoch, d.seq, 1, DropReason::Progress);
            return None;
        }
        match mapping.locate(d.seq) {
            Ok(slot_ref) => {
                let mapping = mapping.clone();
                if !self.admits(d.timestamp_ns.unwrap_or(slot_ref.info.timestamp_ns)) {
                    counters.drops.add(DropReason::RateLimited, 1);
                    observer.on_drop(d.epoch, d.seq, 1, DropReason::RateLimited);
                    return None;
                }
                counters.received.fetch_add(1, Ordering::Relaxed);
                Some(Frame { mapping, slot_ref, publish_timestamp_ns: d.timestamp_ns, trace_id: d.trace_id })
            }
            Err(reason) => {
                counters.drops.add(reason, 1);
                observer.on_drop(d.epoch, d.seq, 1, reason);
                if reason == DropReason::Late {
                    self.on_overwritten(d.seq);
                }
                None
            }
        }
    }

    /// As `accept`, for a frame that is held back. One that is like the frame before it costs less.
    #[inline]
    pub(crate) fn accept_ref(
        &mut self,
        counters: &Counters,
        d: &FrameDescriptor,
        patterns: &mut FramePatterns,
    ) -> Option<FrameRef> {
        let is_plain = self.progress.is_none() && self.gate.is_none() && self.shared_gate.is_none();
        if let Some(mapping) = self.epoch.mapping.as_ref().filter(|_| is_plain) {
            mapping.prefetch_header(d.seq + ROWS_AHEAD);
            if let Some(frame) = patterns.next_like(mapping, d) {
                self.uncounted.received += 1;
                return Some(frame);
            }
        }
        self.accept(counters, d, &mut ()).map(|frame| patterns.frame_ref(frame))
    }

    /// As `accept`, for a frame that is copied to a row of a batch and is like the one before it: gives its
    /// timestamp. `None`: only `accept` knows.
    ///
    /// # Safety
    /// As for `MappedEpoch::copy_out_like`.
    #[inline]
    pub(crate) unsafe fn accept_row(
        &mut self,
        d: &FrameDescriptor,
        like: &RowPattern,
        row: *mut u8,
    ) -> Option<u64> {
        let mapping = self.epoch.mapping.as_ref().filter(|m| Arc::ptr_eq(m, &like.frame.mapping))?;
        if self.progress.is_some() || self.gate.is_some() || self.shared_gate.is_some() {
            return None;
        }
        mapping.prefetch_row(d.seq + ROWS_AHEAD, like.frame.slot_ref.pool);
        // SAFETY: by the caller.
        let timestamp_ns = unsafe {
            mapping.copy_out_like(&like.frame.slot_ref, &like.header, d.seq, row, like.extent_bytes)
        }?;
        self.uncounted.received += 1;
        Some(timestamp_ns)
    }

    /// The slot of `seq` holds a later frame: skips ahead to slots that are not about to be overwritten.
    pub(crate) fn on_overwritten(&mut self, seq: u64) {
        if let Some(mapping) = &self.epoch.mapping
            && let Some(newest) = mapping.overwritten_by(seq)
        {
            self.epoch.tracker.on_overwritten(seq, newest, u64::from(mapping.nslots));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tensorpool_core::shm::create::PoolSpec;
    use tensorpool_core::shm::slot::SlotFields;
    use tensorpool_core::shm::tensor::TensorSpec;
    use tensorpool_core::wire::layout::{DTYPE_UINT8, MAJOR_ORDER_ROW};

    use super::*;

    const NSLOTS: u64 = 8;

    /// A small generator of pseudo-random numbers: a seed repeats a run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    fn write(mapping: &MappedEpoch, seq: u64) {
        mapping.begin(seq);
        let fields = SlotFields {
            values_len_bytes: 1,
            payload_slot: mapping.index(seq),
            pool_id: 1,
            timestamp_ns: 0,
            meta_version: 0,
            tensor: TensorSpec::new(DTYPE_UINT8, MAJOR_ORDER_ROW, &[1]).unwrap(),
        };
        mapping.commit(seq, &fields);
    }

    fn descriptor(epoch: u64, seq: u64) -> FrameDescriptor {
        FrameDescriptor { stream_id: 1, epoch, seq, timestamp_ns: None, meta_version: None, trace_id: 0 }
    }

    /// The sequences that a recorder would have as gaps.
    #[derive(Default)]
    struct Gaps(Vec<u64>);

    impl DropObserver for Gaps {
        fn on_drop(&mut self, _epoch: u64, first_seq: u64, count: u64, _reason: DropReason) {
            self.0.extend(first_seq..first_seq + count);
        }
    }

    /// Random events: frames are published, their descriptors are lost, delayed or read again from another
    /// stream, commit words and descriptors are forged. Every sequence from the first one is delivered or
    /// lost, once.
    #[test]
    fn every_sequence_is_delivered_or_lost_once() {
        for seed in 1..=500 {
            let mut random = Random(seed * 0x9e37_79b9_7f4a_7c15);
            let pools = [PoolSpec { pool_id: 1, stride_bytes: 64 }];
            let mapping = MappedEpoch::anonymous(1, 7, NSLOTS as u32, &pools, 1 << 20).unwrap();
            let mapping = Arc::new(mapping);
            let before = random.below(20);
            (0..before).for_each(|seq| write(&mapping, seq));
            let mut reader = Reader::new(1_000, 256);
            let entitled = mapping.newest_committed().map_or(0, |seq| seq + 1);
            reader.follow_epoch(&Counters::default(), 7, NSLOTS, Some(entitled));
            reader.epoch.mapping = Some(mapping.clone());
            let (counters, mut gaps, mut delivered) = (Counters::default(), Gaps::default(), Vec::new());
            let mut waiting: VecDeque<u64> = (random.below(before + 1)..before).collect();
            let mut next = before;
            for _ in 0..200 {
                match random.below(12) {
                    0..=4 => {
                        write(&mapping, next);
                        // Some descriptors never come.
                        if random.below(8) > 0 {
                            waiting.push_back(next);
                        }
                        next += 1;
                    }
                    5 => {
                        // The stream changes: what was read before comes again.
                        reader.overlaps = true;
                        let last = reader.epoch.tracker.last_seq().unwrap_or(0);
                        (last.saturating_sub(3)..last).rev().for_each(|seq| waiting.push_front(seq));
                    }
                    6 => {
                        // A forged descriptor, far beyond the ring.
                        let forged = descriptor(7, next + 2 * NSLOTS + random.below(1 << 60));
                        assert!(!reader.is_next(&counters, &forged, &mut gaps), "seed {seed}");
                        // One that was read already.
                        if let Some(last) = reader.epoch.tracker.last_seq() {
                            let forged = descriptor(7, last.saturating_sub(random.below(NSLOTS)));
                            assert!(!reader.is_next(&counters, &forged, &mut gaps), "seed {seed}");
                            assert!(reader.epoch.mapping.is_some(), "seed {seed}: one descriptor blinds");
                        }
                    }
                    7 if random.below(4) == 0 => {
                        // A stray write to one commit word.
                        let word = mapping.commit_word(random.below(NSLOTS));
                        word.store(random.below(u64::MAX), Ordering::Relaxed);
                    }
                    _ => {
                        let Some(seq) = waiting.pop_front() else { continue };
                        let d = descriptor(7, seq);
                        if reader.is_next(&counters, &d, &mut gaps)
                            && let Some(frame) = reader.accept(&counters, &d, &mut gaps)
                        {
                            delivered.push(frame.slot_ref.seq);
                        }
                    }
                }
                let received = counters.received.load(Ordering::Relaxed);
                let span = counters.span.load(Ordering::Relaxed);
                assert_eq!(span, received + counters.drops.in_span(), "seed {seed}");
            }
            let tracker = &reader.epoch.tracker;
            let Some((first, last)) = tracker.first_seq().zip(tracker.last_seq()) else { continue };
            assert!(last < next, "seed {seed}: a forged number moved the account");
            let mut all: Vec<u64> = delivered.iter().chain(&gaps.0).copied().collect();
            all.sort_unstable();
            assert_eq!(all, (first..=last).collect::<Vec<_>>(), "seed {seed}");
        }
    }

    /// requirement: wire-15.4-1
    #[test]
    fn frames_that_were_not_read_before_their_epoch_ended_are_lost() {
        let pools = [PoolSpec { pool_id: 1, stride_bytes: 64 }];
        let (counters, mut gaps) = (Counters::default(), Gaps::default());
        let mut reader = Reader::new(1_000, 256);
        // The last is a mirror of another host's ring, which begins anywhere.
        for (epoch, begin, received, expected) in
            [(7, 0, 0, 5), (8, 0, 3, 2), (9, 0, 5, 0), (10, 1 << 30, 0, 5)]
        {
            let mapping = MappedEpoch::anonymous(1, epoch, NSLOTS as u32, &pools, 1 << 20).unwrap();
            reader.follow_epoch(&counters, epoch, NSLOTS, Some(0));
            reader.epoch.mapping = Some(Arc::new(mapping));
            let mapping = reader.epoch.mapping.clone().unwrap();
            (begin..begin + 5).for_each(|seq| write(&mapping, seq));
            for seq in begin..begin + received {
                assert!(reader.is_next(&counters, &descriptor(epoch, seq), &mut gaps));
                assert!(reader.accept(&counters, &descriptor(epoch, seq), &mut gaps).is_some());
            }
            let (ended, span) =
                (counters.drops.get(DropReason::Ended), counters.span.load(Ordering::Relaxed));
            reader.on_unmapped(mapping.newest_committed().unwrap());
            reader.epoch.mapping = None;
            reader.follow_epoch(&counters, epoch + 100, NSLOTS, Some(0));
            assert_eq!(counters.drops.get(DropReason::Ended) - ended, expected, "epoch {epoch}");
            assert_eq!(counters.span.load(Ordering::Relaxed) - span, expected);
            // A descriptor that comes after its epoch is not counted again.
            let outside = counters.drops.get(DropReason::Unmapped);
            (begin + received..begin + 5).for_each(|seq| {
                assert!(!reader.is_next(&counters, &descriptor(epoch, seq), &mut gaps));
            });
            assert_eq!(counters.drops.get(DropReason::Unmapped), outside);
            reader.observe_tails(&mut gaps);
            assert_eq!(gaps.0, (begin + received..begin + 5).collect::<Vec<_>>());
            gaps.0.clear();
        }
        let received = counters.received.load(Ordering::Relaxed);
        assert_eq!(counters.span.load(Ordering::Relaxed), received + counters.drops.in_span());
    }

    #[test]
    fn sequences_from_before_the_mapping_are_missed_by_joining() {
        let pools = [PoolSpec { pool_id: 1, stride_bytes: 64 }];
        let mapping = Arc::new(MappedEpoch::anonymous(1, 7, NSLOTS as u32, &pools, 1 << 20).unwrap());
        (0..4).for_each(|seq| write(&mapping, seq));
        let (counters, mut gaps, mut reader) =
            (Counters::default(), Gaps::default(), Reader::new(1_000, 256));
        reader.follow_epoch(&counters, 7, NSLOTS, Some(4));
        reader.epoch.mapping = Some(mapping.clone());
        // Aeron had kept the descriptor of 1; 2 and 3 had no consumer. 5 is lost on the way.
        assert!(reader.is_next(&counters, &descriptor(7, 1), &mut gaps));
        (4..7).for_each(|seq| write(&mapping, seq));
        assert!(reader.is_next(&counters, &descriptor(7, 4), &mut gaps));
        assert!(reader.is_next(&counters, &descriptor(7, 6), &mut gaps));
        assert_eq!(counters.drops.get(DropReason::Joining), 2);
        assert_eq!(counters.drops.get(DropReason::Gap), 1);
        assert_eq!(gaps.0, [2, 3, 5]);
    }

    #[test]
    fn early_descriptor_charges_no_frames_from_before_the_mapping() {
        const RING: u64 = 1024;
        let pools = [PoolSpec { pool_id: 1, stride_bytes: 64 }];
        let mapping = Arc::new(MappedEpoch::anonymous(1, 7, RING as u32, &pools, 1 << 20).unwrap());
        (0..757).for_each(|seq| write(&mapping, seq));
        let (counters, mut gaps, mut reader) =
            (Counters::default(), Gaps::default(), Reader::new(1_000, 256));
        reader.follow_epoch(&counters, 7, RING, Some(757));
        reader.epoch.mapping = Some(mapping.clone());
        write(&mapping, 757);
        assert!(reader.is_next(&counters, &descriptor(7, 1), &mut gaps));
        assert!(reader.is_next(&counters, &descriptor(7, 757), &mut gaps));
        assert_eq!(counters.drops.get(DropReason::Joining), 755);
        assert_eq!(counters.drops.get(DropReason::Resync), 0);
    }

    #[test]
    fn first_frame_of_a_per_consumer_stream_keeps_the_distance_to_the_one_before() {
        const MS: u64 = 1_000_000;
        let mut reader = Reader::new(1_000, 256);
        reader.set_shared_rate(5);
        assert!(reader.admits(0));
        assert!(!reader.admits(33 * MS));
        reader.on_per_consumer = true;
        // The producer begins to count with its first frame.
        assert!(!reader.admits(66 * MS));
        assert!(reader.admits(266 * MS));
        assert!(reader.admits(280 * MS), "from here on the rate is the producer's");
        reader.on_per_consumer = false;
        assert!(!reader.admits(290 * MS));
    }

    #[test]
    fn late_notice_of_an_earlier_producer_does_not_rule_out_the_granted_epoch() {
        let pools = [PoolSpec { pool_id: 1, stride_bytes: 64 }];
        let mapping = MappedEpoch::anonymous(1, 7, NSLOTS as u32, &pools, 1 << 20).unwrap();
        let mut epoch = EpochState::new(1_000, 256);
        assert!(!epoch.on_producer_gone(5), "nothing is mapped");
        let mapping = Arc::new(mapping);
        // Granted, and not announced yet: the notice may be about the producer of an earlier epoch.
        epoch.mapping = Some(mapping.clone());
        assert!(epoch.on_producer_gone(5));
        assert!(epoch.is_over(7, 5) && epoch.is_over(8, 5));
        assert!(!epoch.is_over(7, 6), "the epoch has another producer, and is mapped again");
        epoch.producer_id = Some(6);
        assert!(!epoch.on_producer_gone(5), "announced by another producer");
        assert!(epoch.on_producer_gone(6));
        assert!(epoch.is_over(7, 6) && !epoch.is_over(8, 6));
    }

    #[test]
    fn ending_rate_limit_lasts_until_frames_come_without_gaps() {
        let mut limit = RateLimit::Off;
        limit.on_config(true, true);
        assert_eq!(limit, RateLimit::On);
        limit.on_config(false, true);
        assert_eq!(limit, RateLimit::Ending);
        limit.on_config(false, false);
        assert_eq!(limit, RateLimit::Ending, "the stream changes, and the gap is still the limit's");
        limit = RateLimit::On;
        limit.on_config(false, false);
        assert_eq!(limit, RateLimit::Off);
    }
}
