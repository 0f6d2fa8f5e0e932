//! Batches: many frames of one layout, published one after the other. Each is a frame of its own, with the
//! outcome that `offer` would have given it.

use tensorpool_core::shm::copy::Target;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::tensor::TensorSpec;

use super::{FrameStamp, OfferResult, Outcome, Producer, State};

/// Frames and bytes that are written under one lock at most, so that the conductor can take it in between.
const FRAMES_PER_LOCK: usize = 256;
const BYTES_PER_LOCK: u64 = 4 << 20;
/// How far ahead of a batch its slots are prefetched.
const SLOTS_AHEAD: u64 = 8;

/// The outcomes of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfferedBatch {
    /// By the number of the outcome.
    pub counts: [u64; Outcome::ALL.len()],
    /// The first and the last sequence that its frames got.
    pub seqs: Option<(u64, u64)>,
    /// The first outcome of a frame that got no sequence, and the number of that frame within the batch.
    pub refused: Option<(Outcome, usize)>,
}

impl OfferedBatch {
    fn add(&mut self, index: usize, result: OfferResult) {
        self.counts[result.outcome as usize] += 1;
        match result.seq {
            Some(seq) => self.seqs = Some((self.seqs.map_or(seq, |(first, _)| first), seq)),
            None => self.refused = self.refused.or(Some((result.outcome, index))),
        }
    }

    pub const fn count(&self, outcome: Outcome) -> u64 {
        self.counts[outcome as usize]
    }
}

impl Producer {
    /// Writes `count` frames, the one of number i with `fill(i, slot)` and `stamp(i)`, and publishes each.
    /// `each` receives every result, and ends the batch if it returns false.
    pub fn offer_many(
        &self,
        spec: TensorSpec,
        values_len: u64,
        count: usize,
        stamp: impl Fn(usize) -> FrameStamp,
        fill: impl Fn(usize, &mut Target<'_>),
        mut each: impl FnMut(usize, OfferResult) -> bool,
    ) -> OfferedBatch {
        let by_bytes = (BYTES_PER_LOCK / values_len.max(1)).max(1);
        let per_lock = FRAMES_PER_LOCK.min(usize::try_from(by_bytes).unwrap_or(FRAMES_PER_LOCK));
        let mut batch = OfferedBatch::default();
        for first in (0..count).step_by(per_lock) {
            let mut state = self.lock();
            // All frames that are offered together have the time of the offer.
            let now_ns = self.config.clock.now_ns();
            let regions = state.mapping.clone().filter(|mapping| !mapping.is_lost());
            let regions = regions.and_then(|m| m.smallest_pool(values_len).map(|pool| (m, pool)));
            for index in first..count.min(first + per_lock) {
                let mut stamp = stamp(index);
                stamp.timestamp_ns.get_or_insert(now_ns);
                let fill = |target: &mut Target<'_>| fill(index, target);
                let result = match &regions {
                    Some((mapping, pool)) => {
                        self.write_next(&mut state, mapping, *pool, spec, values_len, stamp, fill)
                    }
                    None => self.fill_and_publish(&mut state, spec, values_len, stamp, fill),
                };
                batch.add(index, result);
                if !each(index, result) {
                    self.settle(&mut state);
                    return batch;
                }
            }
            self.settle(&mut state);
        }
        batch
    }

    /// As `fill_and_publish`, with the regions and the pool of the whole batch.
    #[inline]
    fn write_next(
        &self,
        state: &mut State,
        mapping: &MappedEpoch,
        pool: u16,
        spec: TensorSpec,
        values_len: u64,
        stamp: FrameStamp,
        fill: impl FnOnce(&mut Target<'_>),
    ) -> OfferResult {
        let seq = match self.take_seq(state) {
            Ok(seq) => seq,
            Err(outcome) => return OfferResult { outcome, seq: None, epoch: None },
        };
        mapping.prepare(seq + SLOTS_AHEAD, pool, values_len as usize);
        mapping.begin(seq);
        fill(&mut mapping.target(pool, seq, state.copy_thread.as_mut()));
        self.commit_uncounted(state, mapping, pool, seq, spec, values_len as u32, stamp)
    }
}
