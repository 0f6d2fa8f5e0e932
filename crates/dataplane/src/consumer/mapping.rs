//! Mapping and unmapping of regions by a consumer (wire §15.21). On the conductor's thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tensorpool_core::consumer::announce_filter::IgnoreReason;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::region::{Access, one_line};
use tensorpool_core::wire::announce::PoolAnnounce;

use super::{Consumer, RegionRefusal};
use crate::conductor::Tick;

impl Consumer {
    /// The producer's lease has ended: its epoch is over, and only a later one is mapped (driver §4.9).
    pub(super) fn on_producer_gone(&self, producer_id: u32, tick: &Tick<'_>) {
        {
            let mut state = self.state.lock_priority();
            if !state.reader.epoch.on_producer_gone(producer_id) {
                return;
            }
        }
        self.unmap(tick, "the producer's lease has ended");
    }

    /// Maps announced or granted regions in place of those that are mapped. Any client may announce any
    /// regions, so they are opened and checked first. The mapped regions stay in use if the new ones are
    /// refused or stale.
    pub(super) fn map(&self, announce: &PoolAnnounce, producer_id: Option<u32>, tick: &Tick<'_>) {
        let epoch = announce.epoch;
        let mapping = match MappedEpoch::open(announce, tick.bases, Access::Read) {
            Ok(mapping) => mapping,
            Err(e) => {
                self.keep_mapped(tick);
                let (reason, message) = (e.reason(), e.to_string());
                let refused = RegionRefusal { epoch, reason, uri: one_line(&e.uri), message };
                return self.refuse(refused, announce.timestamp_ns, tick);
            }
        };
        let is_fresh = {
            let filter = &self.state.lock_priority().reader.epoch.announce_filter;
            filter.is_active(mapping.activity_ns(), tick.now)
        };
        if !is_fresh {
            self.keep_mapped(tick);
            self.counters.ignored(IgnoreReason::Stale).fetch_add(1, Ordering::Relaxed);
            return;
        }
        // A lease does not name the clock of its regions: their activity shows it until the first announce.
        let of_activity = tick.now.clock_of(mapping.activity_ns()).domain();
        let clock_domain = if producer_id.is_none() { of_activity } else { announce.clock_domain };
        self.counters.latency.follow_clock(clock_domain);
        // One step: frames of the old epoch are dropped by their epoch from here on.
        let mapping = Arc::new(mapping);
        let old = self.remap(Some(mapping.clone()));
        self.state.lock_priority().reader.epoch.producer_id = producer_id;
        self.control().report_soon();
        let now_ns = tick.now.monotonic_ns;
        if let Some(old) = old {
            self.event(tick.events, now_ns, "unmapped", old.epoch, "a new epoch was announced".to_owned());
        }
        self.event(tick.events, now_ns, "mapped", epoch, String::new());
        // Last: descriptors that come meanwhile find the regions mapped, and wait for a page at most.
        mapping.prefault_aside();
    }

    /// The announced regions are not used: the mapped ones stay, unless they were given another epoch.
    fn keep_mapped(&self, tick: &Tick<'_>) {
        let is_reassigned = {
            let mut state = self.state.lock_priority();
            let mapped = state.reader.epoch.mapping.as_ref().map(|m| (m.epoch, m.is_reassigned()));
            state.reader.epoch.announce_filter.on_refused(mapped.map(|(epoch, _)| epoch));
            mapped.is_some_and(|(_, is_reassigned)| is_reassigned)
        };
        if is_reassigned {
            self.unmap(tick, "the regions were given another epoch");
        }
    }
}
