//! A producer on the conductor's thread: handles, announces, grants and its lease.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use tensorpool_core::consumer::announce_filter::{AnnounceFilter, Now};
use tensorpool_core::lease::attachment::AttachRefusal;
use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::producer::grants::StreamChange;
use tensorpool_core::producer::metadata_schedule::ProducerIdentity;
use tensorpool_core::producer::sequencer::Sequencer;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::region::Access;
use tensorpool_core::shm::region_lock::RegionLock;
use tensorpool_core::wire::announce::PoolAnnounce;
use tensorpool_core::wire::control::{ControlMessage, QosProducer};
use tensorpool_core::wire::driver::{AttachResponse, DriverMessage};

use super::grants::GrantSender;
use super::{Pending, Producer, State};
use crate::aeron::{AeronError, Client};
use crate::conductor::events::Event;
use crate::conductor::handle::Handle;
use crate::conductor::{Endpoint, Tick};
use crate::lease::{Lease, LeaseEvent};

/// The least time between two announces for new consumers, so at most ten a second. Some consumers remap and
/// send a hello at every announce, and hellos with ever new ids cost their sender nothing: an announce for
/// each of them would feed itself. One announce serves all consumers that came since the last one, and a
/// tenth of a second is little to wait for the first frame.
const MIN_ANNOUNCE_GAP_NS: u64 = 100_000_000;

impl State {
    /// Maps a new epoch. Its sequences start from the beginning.
    pub(super) fn map(&mut self, mapping: Arc<MappedEpoch>, lock: Option<RegionLock>) {
        self.sequencer = Sequencer::new(mapping.nslots);
        self.pending = vec![Pending::default(); mapping.nslots as usize];
        self.last_epoch = Some(mapping.epoch);
        self.mapping = Some(mapping);
        self.lock = lock;
        self.progress.schedule.clear();
    }
}

impl Producer {
    /// Maps the regions of a lease, and locks them so that the driver notices our death.
    fn map(&self, lease: &Lease, response: &AttachResponse, tick: &Tick<'_>) {
        let regions = response.regions(tick.now.monotonic_ns);
        let mapped = RegionLock::acquire(&response.header_uri, tick.bases)
            .map_err(|error| AttachRefusal::Regions(error.to_string()))
            .and_then(|lock| {
                let mapping = MappedEpoch::open(&regions, tick.bases, Access::Write)
                    .map_err(|error| AttachRefusal::Regions(error.to_string()))?;
                Ok((lock, Arc::new(mapping)))
            })
            .and_then(|(lock, mapping)| self.check_clock(&mapping, tick).map(|()| (lock, mapping)));
        match mapped {
            Ok((lock, mapping)) => {
                self.unmap();
                if self.config.prefault {
                    mapping.prefault_aside();
                }
                mapping.prepare_copies();
                self.state.lock_priority().map(mapping, Some(lock));
                // At once: they may have been made long before this lease.
                self.next_activity_ns.store(0, Ordering::Relaxed);
                lease.on_mapped(tick, response.epoch);
            }
            Err(refusal) => lease.release(tick, refusal),
        }
    }

    /// Returns the lease and unmaps its regions, so that the driver can take another layout. No lease is
    /// requested until `resume_lease`. False without a lease.
    pub fn suspend_lease(&self) -> bool {
        let Some(lease) = &self.lease else { return false };
        self.unmap();
        lease.suspend();
        true
    }

    /// Requests a lease again.
    pub fn resume_lease(&self) {
        if let Some(lease) = &self.lease {
            lease.resume(monotonic_ns());
        }
    }

    /// Driver and producer write the same superblocks, so their times must be of one clock. No message names
    /// the driver's before the announce, but its activity timestamp does. 0: it has delegated the refresh.
    fn check_clock(&self, mapping: &MappedEpoch, tick: &Tick<'_>) -> Result<(), AttachRefusal> {
        let activity_ns = mapping.activity_ns();
        let (own, drivers) = (self.config.clock, tick.now.clock_of(activity_ns));
        if activity_ns == 0 || drivers == own {
            return Ok(());
        }
        Err(AttachRefusal::Clock(format!(
            "the clock domain of the driver is {}, that of this program is {}",
            drivers.as_str(),
            own.as_str()
        )))
    }

    pub(super) fn grants(&self) -> MutexGuard<'_, GrantSender> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New per-consumer streams are requested in the next duty cycle.
    fn apply(&self, changes: Vec<StreamChange>) {
        if changes.is_empty() {
            return;
        }
        let mut state = self.state.lock_priority();
        changes.into_iter().for_each(|change| state.per_consumer.apply(change));
        self.connected.store(false, Ordering::Relaxed);
    }

    pub(super) fn producer_id(&self) -> u32 {
        let leased = self.lease.as_ref().and_then(|l| l.status().client_id);
        leased.or(self.config.announce.as_ref().map(|a| a.producer_id)).unwrap_or(0)
    }

    /// Producer id and epoch. `None` while it has no epoch.
    pub fn identity(&self) -> Option<ProducerIdentity> {
        let epoch = self.state.lock_priority().mapping.as_ref()?.epoch;
        Some(ProducerIdentity { producer_id: self.producer_id(), epoch })
    }

    /// The consumer may wait for an announce to map. A known one does not: it gets the periodic ones.
    fn announce_for_new_consumer(&self) {
        let earliest_ns = self.announced_ns.load(Ordering::Relaxed) + MIN_ANNOUNCE_GAP_NS;
        self.next_announce_ns.fetch_min(earliest_ns, Ordering::Relaxed);
    }

    /// Unmaps regions of which a file was truncated. With a lease the driver grants new ones; without, the
    /// stream has ended.
    fn on_regions_lost(&self, why: String, epoch: u64, tick: &Tick<'_>) {
        self.unmap();
        match &self.lease {
            Some(lease) => lease.on_regions_lost(tick, why),
            None => {
                self.has_lost_regions.store(true, Ordering::Relaxed);
                tick.events.push(Event {
                    kind: "regions_lost",
                    at_ns: tick.now.monotonic_ns,
                    stream_id: Some(self.config.stream_id),
                    epoch: Some(epoch),
                    detail: why,
                });
            }
        }
    }

    /// Unmaps the regions. Deferred frames are no longer published.
    fn unmap(&self) {
        let gone = {
            let mut state = self.state.lock_priority();
            let deferred = state.sequencer.close();
            state.progress.schedule.clear();
            self.counters.closed.fetch_add(deferred, Ordering::Relaxed);
            (state.mapping.take(), state.lock.take())
        };
        // Unmapping takes time, and must not happen under the lock.
        drop(gone);
    }
}

impl Endpoint for Producer {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        if self.connected.load(Ordering::Relaxed) {
            return Ok(());
        }
        let config = &self.config;
        let mut refused = Vec::new();
        let mut state = self.state.lock_priority();
        state.publication.advance(|| {
            client.add_exclusive_publication(&config.descriptor_channel, config.descriptor_stream_id)
        })?;
        let has_per_consumer = state.per_consumer.advance(client, &mut refused);
        let progress = state.progress.advance(client, config);
        let has_publication = state.publication.get().is_some();
        drop(state);
        for stream in refused {
            let changes = self.grants().on_refused(stream, monotonic_ns());
            self.apply(changes);
        }
        self.has_publication.store(has_publication, Ordering::Relaxed);
        self.connected.store(has_publication && has_per_consumer && progress?, Ordering::Relaxed);
        Ok(())
    }

    fn disconnect(&self) {
        self.connected.store(false, Ordering::Relaxed);
        self.has_publication.store(false, Ordering::Relaxed);
        let mut state = self.state.lock_priority();
        state.publication = Handle::None;
        state.per_consumer.disconnect();
        state.progress.disconnect();
    }

    /// A per-consumer stream on a UDP channel: `connect` requests the lost handle again.
    fn on_network_lost(&self) {
        self.connected.store(false, Ordering::Relaxed);
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.unmap();
        let mut state = self.state.lock_priority();
        state.publication = Handle::None;
        state.per_consumer.clear();
        state.progress.disconnect();
    }

    fn on_media_driver_lost(&self, tick: &Tick<'_>) {
        if self.lease.as_ref().is_some_and(|l| l.on_media_driver_lost(tick)) {
            self.unmap();
        }
    }

    fn uses_control_streams(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    fn dedicated_control_stream(&self) -> Option<i32> {
        self.config.dedicated_control_stream
    }

    fn dedicated_qos_stream(&self) -> Option<i32> {
        self.config.dedicated_qos_stream
    }

    fn receives_announces(&self) -> bool {
        self.lease.is_some()
    }

    fn on_announce(&self, announce: &PoolAnnounce, join_ns: u64, tick: &Tick<'_>) {
        let Some(lease) = &self.lease else { return };
        // An old announce that Aeron replays is not activity.
        if announce.stream_id == self.config.stream_id
            && lease.is_of_driver(announce)
            && AnnounceFilter::new(3 * self.config.announce_period_ns).is_recent(announce, join_ns, tick.now)
            // Any client may announce a later epoch: it ends the lease only if its regions are there.
            && (!lease.ends_with(announce.epoch)
                || MappedEpoch::open(announce, tick.bases, Access::Read).is_ok())
            && lease.on_announce(announce.epoch, tick)
        {
            self.unmap();
        }
    }

    fn on_driver_message(&self, message: &DriverMessage, tick: &Tick<'_>) {
        let changes = self.grants().on_driver_message(message);
        self.apply(changes);
        let Some(lease) = &self.lease else { return };
        match lease.on_driver_message(message, tick) {
            LeaseEvent::Granted(response) => self.map(lease, response, tick),
            LeaseEvent::Ended => self.unmap(),
            LeaseEvent::ProducerGone(_) | LeaseEvent::Nothing => {}
        }
    }

    fn on_control_image(&self, tick: &Tick<'_>) {
        if let Some(lease) = &self.lease {
            lease.on_control_image(tick);
        }
    }

    fn on_control_message(&self, message: &ControlMessage, tick: &Tick<'_>) {
        let (is_first_hello, changes) = {
            let mut grants = self.grants();
            let is_first_hello = grants.is_first_hello(message);
            (is_first_hello, grants.on_control_message(message, tick.now.monotonic_ns))
        };
        if is_first_hello {
            self.announce_for_new_consumer();
        }
        if matches!(message, ControlMessage::Hello(hello) if hello.stream_id == self.config.stream_id) {
            self.next_progress_count_ns.store(0, Ordering::Relaxed);
        }
        self.apply(changes);
    }

    fn send_qos(&self, tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) {
        let now_ns = tick.now.monotonic_ns;
        if now_ns < self.next_qos_ns.load(Ordering::Relaxed) {
            return;
        }
        let (epoch, next_seq, watermark) = {
            let state = self.state.lock_priority();
            let Some(mapping) = &state.mapping else { return };
            (mapping.epoch, state.sequencer.next_seq(), state.sequencer.watermark())
        };
        // `currentSeq` is required and has no null value: before the first frame there is nothing to report.
        let Some(current_seq) = next_seq.checked_sub(1) else { return };
        let qos = QosProducer {
            stream_id: self.config.stream_id,
            producer_id: self.producer_id(),
            epoch,
            current_seq,
            watermark: Some(watermark),
        };
        if send(&qos.encode()) {
            self.state.lock_priority().sequencer.reset_watermark();
            self.next_qos_ns.store(now_ns + self.config.qos_period_ns, Ordering::Relaxed);
        }
    }

    fn send_lease(&self, tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) {
        // Request the lease only after the descriptor publication exists: frames written before could not be
        // published.
        if self.has_publication.load(Ordering::Relaxed)
            && self.lease.as_ref().is_some_and(|l| l.work(tick, send))
        {
            self.unmap();
        }
    }

    fn send_control(&self, _tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) {
        self.grants().send(send);
    }

    fn detach_message(&self) -> Option<Vec<u8>> {
        self.lease.as_ref()?.detach_request()
    }

    /// The producer refreshes the activity timestamps of its regions, with a lease too: a driver may delegate
    /// that to it (driver §3), and no message says whether it does. A driver that refreshes them as well
    /// has the same clock: `check_clock` refused any other.
    fn do_work(&self, tick: &Tick<'_>) {
        let now_ns = tick.now.monotonic_ns;
        let changes = self.grants().on_tick(now_ns);
        self.apply(changes);
        self.update_progress_pace(now_ns);
        if now_ns < self.next_activity_ns.load(Ordering::Relaxed) {
            return;
        }
        self.next_activity_ns.store(now_ns + self.config.announce_period_ns, Ordering::Relaxed);
        let Some(mapping) = self.state.lock_priority().mapping.clone() else { return };
        if !mapping.probe() {
            mapping.refresh_activity(tick.now.time_ns(self.config.clock));
        }
        if let Some(why) = mapping.lost_reason() {
            self.on_regions_lost(why, mapping.epoch, tick);
        }
    }

    fn sends_announces(&self) -> bool {
        self.config.announce.is_some()
            && !self.closed.load(Ordering::Relaxed)
            && !self.has_lost_regions.load(Ordering::Relaxed)
    }

    fn announce_now(&self) {
        self.next_announce_ns.store(0, Ordering::Relaxed);
    }

    fn send_announces(&self, now: Now, send: &mut dyn FnMut(&[u8]) -> bool) {
        let Some(announce) = &self.config.announce else { return };
        if now.monotonic_ns < self.next_announce_ns.load(Ordering::Relaxed) {
            return;
        }
        if send(&PoolAnnounce { timestamp_ns: now.time_ns(self.config.clock), ..announce.clone() }.encode()) {
            self.announced_ns.store(now.monotonic_ns, Ordering::Relaxed);
            self.next_announce_ns.store(now.monotonic_ns + self.config.announce_period_ns, Ordering::Relaxed);
        }
    }
}
