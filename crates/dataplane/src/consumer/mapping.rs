//! Mapping and unmapping of regions by a consumer (wire §15.21). On the conductor's thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tensorpool_core::consumer::announce_filter::IgnoreReason;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::region::Access;
use tensorpool_core::wire::announce::PoolAnnounce;

use super::{Consumer, RegionRefusal};
use crate::conductor::Tick;

impl Consumer {
    /// The producer's lease has ended: its epoch is over, and only a later one is mapped (driver §4.9).
    pub(super) fn on_producer_gone(&self, producer_id: u32, tick: &Tick<'_>) {
        {
            let mut state = self.state.lock_priority();
            let Some(epoch) = state.mapping.as_ref().map(|m| m.epoch) else { return };
            // The announce may have come before the notice: then the later epoch is mapped already.
            if state.producer_id.is_some_and(|id| id != producer_id) {
                return;
            }
            state.lowest_epoch = state.lowest_epoch.max(epoch + 1);
        }
        self.unmap(tick, "the producer's lease has ended");
    }

    pub(super) fn map(&self, announce: &PoolAnnounce, producer_id: Option<u32>, tick: &Tick<'_>) {
        // Unmap first: no frame of the old epoch is accepted while the new one is opened.
        self.unmap(tick, "a new epoch was announced");
        let epoch = announce.epoch;
        let mapping = match MappedEpoch::open(announce, tick.bases, Access::Read) {
            Ok(mapping) => mapping,
            Err(e) => {
                let refused =
                    RegionRefusal { epoch, reason: e.reason(), uri: e.uri.clone(), message: e.to_string() };
                return self.refuse(refused, announce.timestamp_ns, tick);
            }
        };
        if !self.state.lock_priority().announce_filter.is_fresh(mapping.activity_ns(), tick.now.monotonic_ns)
        {
            self.counters.ignored(IgnoreReason::Stale).fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.counters.latency.follow_clock(announce.clock_domain);
        self.remap(Some(Arc::new(mapping)));
        self.state.lock_priority().producer_id = producer_id;
        self.control().report_soon();
        self.event(tick.events, tick.now.monotonic_ns, "mapped", epoch, String::new());
    }
}
