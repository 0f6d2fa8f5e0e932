//! A consumer on the conductor's thread: handles, announces, control messages and its lease.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use tensorpool_core::consumer::announce_filter::{AnnounceAction, CurrentMapping, IgnoreReason};
use tensorpool_core::consumer::hello_state;
use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::lease::attachment::AttachRefusal;
use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::region::one_line;
use tensorpool_core::wire::announce::PoolAnnounce;
use tensorpool_core::wire::control::{ControlMessage, QosConsumer};
use tensorpool_core::wire::driver::DriverMessage;

use super::control::ConsumerControl;
use super::source::StreamMove;
use super::state::SkippedDescriptors;
use super::{Consumer, RegionRefusal};
use crate::aeron::{AeronError, Client};
use crate::conductor::events::{Event, Events};
use crate::conductor::{Endpoint, Tick};
use crate::lease::LeaseEvent;

/// Descriptors of one image that are skipped in one duty cycle: more than come in the meantime.
const MAX_SKIPPED: usize = 8192;
/// The pause after a look at all images, by the square of their number. A process may have as many consumers
/// as there are producers; the looks of all of them take about a fiftieth of a core at most.
const SKIP_PAUSE_NS: u64 = 1_500;

impl Consumer {
    /// Skips descriptors of other streams for a consumer that is not polled.
    ///
    /// All producers publish on one stream, so a consumer has images of producers that it does not read. While
    /// it is not polled it would hold back each of them until the media driver rests it, and they would lose
    /// frames of their own consumers.
    fn skip_other_streams(&self, tick: &Tick<'_>) {
        let now_ns = tick.now.monotonic_ns;
        if now_ns < self.next_skip_ns.load(Ordering::Relaxed) {
            return;
        }
        // A thread that holds the lock is polling.
        let Some(mut state) = self.state.try_lock() else { return };
        if self.polls_before_skip.swap(state.polls, Ordering::Relaxed) != state.polls {
            return;
        }
        let SkippedDescriptors { images, descriptors } =
            state.skip_other_streams(self.config.stream_id, MAX_SKIPPED);
        if descriptors > 0 {
            // More will come, and would fill the log.
            tick.is_active.set(true);
        }
        let images = images as u64;
        self.next_skip_ns.store(now_ns + images * images * SKIP_PAUSE_NS, Ordering::Relaxed);
    }

    pub(super) fn event(
        &self,
        events: &Events,
        tick_ns: u64,
        kind: &'static str,
        epoch: u64,
        detail: String,
    ) {
        let stream_id = Some(self.config.stream_id);
        events.push(Event { kind, at_ns: tick_ns, stream_id, epoch: Some(epoch), detail });
    }

    /// Replaces the mapping. Frames in flight of the old one are dropped by their epoch.
    pub(super) fn remap(&self, mapping: Option<Arc<MappedEpoch>>) -> Option<Arc<MappedEpoch>> {
        // What is published from here on is this consumer's. Read before the lock is taken: a large ring
        // takes a while.
        let entitled = mapping.as_ref().map(|m| m.newest_committed().map_or(0, |newest| newest + 1));
        // What the epoch before holds, perhaps for the last time. Regions that were given to another epoch meanwhile
        // hold its frames.
        let ending = self.mapping().and_then(|m| m.newest_committed().filter(|_| !m.is_reassigned()));
        let mut state = self.state.lock_priority();
        if let Some(newest) = ending {
            state.reader.on_unmapped(newest);
        }
        if let Some(fresh) = &mapping {
            // While a fallback is in use, its epoch is the one that is counted.
            if state.source.fallback.is_none() {
                let counters = &self.counters;
                state.reader.follow_epoch(counters, fresh.epoch, u64::from(fresh.nslots), entitled);
            }
            (state.refusal.refused, state.refusal.reported) = (None, None);
            self.counters.mapped.fetch_add(1, Ordering::Relaxed);
        }
        let is_mapped = mapping.is_some();
        let old = std::mem::replace(&mut state.reader.epoch.mapping, mapping);
        drop(state);
        self.control().on_regions(is_mapped);
        // The producer of a new epoch has granted nothing yet.
        let changes = match self.consumer_id().filter(|_| is_mapped) {
            Some(id) => self.control().begin(id),
            None => self.control().end(),
        };
        self.apply_changes(changes);
        old
    }

    pub(super) fn control(&self) -> MutexGuard<'_, ConsumerControl> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client id of the lease, or without a driver an id of our own.
    pub(crate) fn consumer_id(&self) -> Option<u32> {
        match &self.lease {
            Some(lease) => lease.status().client_id,
            None => Some(self.own_id.load(Ordering::Relaxed)),
        }
    }

    /// Starts the consumer's own fallback once it has had no regions for as long as a region stays fresh. A
    /// consumer that a config can send to a fallback sends hellos meanwhile.
    fn check_unmapped(&self, now_ns: u64) {
        let config = &self.config;
        if config.fallback.uri.is_none() && !config.sends_hello_unmapped {
            return;
        }
        if self.state.lock_priority().reader.epoch.mapping.is_some() {
            return self.unmapped_since_ns.store(0, Ordering::Relaxed);
        }
        let since_ns = match self.unmapped_since_ns.load(Ordering::Relaxed) {
            0 => now_ns,
            since_ns => since_ns,
        };
        self.unmapped_since_ns.store(since_ns, Ordering::Relaxed);
        if now_ns - since_ns >= config.freshness_ns {
            self.control().on_absent();
        }
        if config.sends_hello_unmapped
            && !self.control().sends_hellos()
            && let Some(id) = self.consumer_id()
        {
            let changes = self.control().begin(id);
            self.apply_changes(changes);
        }
    }

    /// Applies the changes of a config: which streams are read from here on.
    fn apply_changes(&self, changes: Vec<hello_state::ConfigChange>) {
        self.apply_progress_changes(&changes);
        for change in changes {
            if let hello_state::ConfigChange::Descriptors(address) = change {
                self.state.lock_priority().on_descriptors(address);
                self.connected.store(false, Ordering::Relaxed);
            }
        }
        let (limited, local_hz) = {
            let control = self.control();
            (control.is_limited(), control.local_hz())
        };
        let mut state = self.state.lock_priority();
        state.reader.set_shared_rate(local_hz);
        let on_per_consumer = state.source.on_per_consumer();
        state.reader.rate_limit.on_config(limited && on_per_consumer, on_per_consumer);
    }

    /// Another consumer reports under our id. One of the two has to change it, and we do.
    fn on_id_collision(&self, tick: &Tick<'_>) {
        let epoch = self.mapping().map_or(0, |m| m.epoch);
        self.event(tick.events, tick.now.monotonic_ns, "id_collision", epoch, String::new());
        match &self.lease {
            Some(lease) => {
                lease.release(tick, AttachRefusal::Regions("another consumer has the same id".to_owned()));
                self.unmap(tick, "another consumer has the same id");
            }
            None => {
                let fresh = crate::lease::random_id();
                self.own_id.store(fresh, Ordering::Relaxed);
                let changes = self.control().begin(fresh);
                self.apply_changes(changes);
            }
        }
    }

    /// `announced_ns`: when the owner announced these regions.
    pub(super) fn refuse(&self, refused: RegionRefusal, announced_ns: u64, tick: &Tick<'_>) {
        let mut state = self.state.lock_priority();
        // An owner that has just left is no fault, nor is a driver that has assigned the regions to a
        // producer under a later epoch. An owner that keeps announcing missing regions is a fault.
        let may_be_gone = refused.reason == "missing" || (refused.reason == "epoch" && self.lease.is_some());
        // The mapped regions stay in use: any client may have sent this announce. Between two epochs it ends
        // nothing either; a consumer that never had regions would wait in silence.
        let is_mapped = state.reader.epoch.mapping.is_some();
        let was_mapped = self.counters.mapped.load(Ordering::Relaxed) > 0;
        // With a lease, the driver decides the epoch. Any other announce may be an untrusted client's.
        let is_required = self.lease.is_none() || state.reader.epoch.granted_epoch == Some(refused.epoch);
        let is_gone = may_be_gone
            && match state.refusal.missing {
                Some((epoch, since_ns)) if epoch == refused.epoch => announced_ns <= since_ns,
                _ => {
                    // Not the time of the duty cycle: an announce sent since it began is as old as this
                    // check.
                    state.refusal.missing = Some((refused.epoch, monotonic_ns()));
                    true
                }
            };
        if is_gone {
            return;
        }
        let key = Some((refused.epoch, refused.reason));
        let has_fallback = !is_mapped && {
            let mut control = self.control();
            control.on_refused();
            control.fallback_uri().is_some()
        };
        if state.refusal.reported != key {
            state.refusal.reported = key;
            self.event(tick.events, tick.now.monotonic_ns, "refused", refused.epoch, refused.message.clone());
            // A consumer with regions or a fallback gets the event only, and continues.
            if !was_mapped && is_required && !has_fallback {
                state.refusal.refused = Some(refused);
                self.has_refused.store(true, Ordering::Relaxed);
            }
        }
        // Last: a reader that sees the count (an acquiring load) then finds the refusal.
        self.counters.refused.fetch_add(1, Ordering::Release);
    }

    pub(super) fn unmap(&self, tick: &Tick<'_>, why: &str) {
        if let Some(old) = self.remap(None) {
            self.event(tick.events, tick.now.monotonic_ns, "unmapped", old.epoch, why.to_owned());
        }
    }
}

impl Endpoint for Consumer {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        self.connect_fallback(client);
        if self.connected.load(Ordering::Relaxed) || !self.config.supports_shm {
            return Ok(());
        }
        let config = &self.config;
        let limited = self.control().is_limited();
        let mut state = self.state.lock_priority();
        // Untethered: a consumer that stops polling must not delay the producer. It is rested instead.
        state.source.subscribe(client, &config.descriptor_channel, config.descriptor_stream_id)?;
        let progress_ready = state.reader.progress.as_mut().map_or(Ok(true), |f| f.advance(client))?;
        let moved = state.source.move_to_granted(client, limited)?;
        if let StreamMove::Moved(switch) = moved {
            state.reader.overlaps |= switch.overlaps();
            state.reader.rate_limit.on_config(limited, true);
        }
        let is_settled = moved != StreamMove::Connecting && progress_ready;
        let has_source = state.source.is_ready();
        self.has_subscription.store(has_source, Ordering::Relaxed);
        self.connected.store(has_source && is_settled, Ordering::Relaxed);
        drop(state);
        self.apply_changes(Vec::new());
        Ok(())
    }

    fn disconnect(&self) {
        self.connected.store(false, Ordering::Relaxed);
        self.has_subscription.store(false, Ordering::Relaxed);
        self.disconnect_fallback();
        {
            let mut state = self.state.lock_priority();
            let switch = state.source.on_disconnected();
            state.reader.overlaps |= switch.overlaps();
            state.reader.progress.iter_mut().for_each(|f| f.disconnect());
        }
        // The grants were lost with the media driver: they are requested again.
        let changes = self.control().restart();
        self.apply_changes(changes);
    }

    /// A fallback, or a per-consumer stream on a UDP channel: `connect` requests the lost handles again.
    fn on_network_lost(&self) {
        self.lose_fallback_network();
        self.connected.store(false, Ordering::Relaxed);
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.close_fallback();
        let mut state = self.state.lock_priority();
        state.source.close();
        state.reader.progress.iter_mut().for_each(|f| f.disconnect());
        state.reader.epoch.mapping = None;
        // It was never delivered, and its region is unmapped here.
        if state.held.take().is_some() {
            self.counters.received_to_late();
        }
    }

    /// Unmaps regions whose activity timestamp is stale: their writer is dead (wire §7.1).
    fn do_work(&self, tick: &Tick<'_>) {
        self.update_fallback(tick);
        let now_ns = tick.now.monotonic_ns;
        self.skip_other_streams(tick);
        if now_ns >= self.next_interval_ns.load(Ordering::Relaxed) {
            self.next_interval_ns.store(now_ns + self.config.hello_period_ns, Ordering::Relaxed);
            self.counters.latency.close_interval();
        }
        if now_ns < self.next_check_ns.load(Ordering::Relaxed) {
            return;
        }
        // Often enough to notice soon, rarely enough not to delay the polling thread.
        self.next_check_ns.store(now_ns + self.config.freshness_ns / 16, Ordering::Relaxed);
        self.check_unmapped(now_ns);
        let (stale, owner_changed) = {
            let mut state = self.state.lock_priority();
            let Some(mapping) = &state.reader.epoch.mapping else { return };
            mapping.probe();
            if let Some(why) = mapping.lost_reason() {
                drop(state);
                return self.unmap(tick, &why);
            }
            let (epoch, owner_changed) = (mapping.epoch, mapping.owner_changed());
            let stale = !state.reader.epoch.announce_filter.is_active(mapping.activity_ns(), tick.now);
            if owner_changed {
                state.reader.epoch.lowest_epoch = state.reader.epoch.lowest_epoch.max(epoch + 1);
            }
            (stale, owner_changed)
        };
        if owner_changed {
            self.unmap(tick, "the regions have another owner than before");
        } else if stale {
            self.unmap(tick, "the producer's activity timestamp is stale");
        }
    }

    fn on_media_driver_lost(&self, tick: &Tick<'_>) {
        if self.lease.as_ref().is_some_and(|l| l.on_media_driver_lost(tick)) {
            self.unmap(tick, "the media driver is gone");
        }
    }

    fn uses_control_streams(&self) -> bool {
        !self.is_closed()
    }

    fn dedicated_control_stream(&self) -> Option<i32> {
        self.config.dedicated_control_stream
    }

    fn dedicated_qos_stream(&self) -> Option<i32> {
        self.config.dedicated_qos_stream
    }

    fn on_control_message(&self, message: &ControlMessage, tick: &Tick<'_>) {
        if let ControlMessage::Progress(progress) = message {
            return self.on_progress_message(progress);
        }
        let (changes, collides) = self.control().on_control_message(message);
        if collides {
            return self.on_id_collision(tick);
        }
        for change in &changes {
            let (kind, detail) = match change {
                hello_state::ConfigChange::Declined => {
                    ("declined", "the producer grants no per-consumer stream".to_owned())
                }
                hello_state::ConfigChange::Fallback(uri) => ("fallback", one_line(uri)),
                hello_state::ConfigChange::RefusedFallback(why) => ("fallback_unsupported", one_line(why)),
                hello_state::ConfigChange::Shm => ("fallback_ended", String::new()),
                _ => continue,
            };
            let epoch = self.mapping().map_or(0, |m| m.epoch);
            self.event(tick.events, tick.now.monotonic_ns, kind, epoch, detail);
        }
        if matches!(message, ControlMessage::Config(_)) {
            if !changes.is_empty() {
                // Other streams are connected next.
                tick.is_active.set(true);
            }
            self.apply_changes(changes);
        }
    }

    fn send_qos(&self, tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) {
        let now_ns = tick.now.monotonic_ns;
        if !self.control().is_report_due(now_ns) {
            return;
        }
        let (epoch, last_seq, on_per_consumer) = {
            let state = self.state.lock_priority();
            let Some(mapping) = &state.reader.epoch.mapping else { return };
            (mapping.epoch, state.reader.epoch.tracker.last_seq(), state.source.on_per_consumer())
        };
        let drops = |reasons: &[DropReason]| reasons.iter().map(|r| self.counters.drops.get(*r)).sum();
        let mut control = self.control();
        let consumer_state = control.state(true, on_per_consumer);
        let qos = QosConsumer {
            stream_id: self.config.stream_id,
            consumer_id: consumer_state.consumer_id.unwrap_or(0),
            epoch,
            // Required, without a null value. The report is sent before the first frame too: it informs the
            // producer that its regions are mapped. 0 is what other implementations send; the status report
            // shows whether a frame was seen.
            last_seq_seen: last_seq.unwrap_or(0),
            drops_gap: drops(&[
                DropReason::Gap,
                DropReason::Resync,
                DropReason::Rested,
                DropReason::Paused,
                DropReason::Joining,
                DropReason::Ended,
            ]),
            drops_late: drops(&[DropReason::Late, DropReason::NotCommitted, DropReason::Stale]),
            mode: consumer_state.mode,
        };
        control.report(qos, now_ns, send);
    }

    fn on_driver_message(&self, message: &DriverMessage, tick: &Tick<'_>) {
        let Some(lease) = &self.lease else { return };
        match lease.on_driver_message(message, tick) {
            LeaseEvent::Nothing => {}
            LeaseEvent::Granted(response) => {
                lease.on_mapped(tick, response.epoch);
                self.state.lock_priority().reader.epoch.granted_epoch = Some(response.epoch);
                self.map(&response.regions(tick.now.monotonic_ns), None, tick);
            }
            LeaseEvent::Ended => self.unmap(tick, "the lease has ended"),
            LeaseEvent::ProducerGone(producer_id) => self.on_producer_gone(producer_id, tick),
        }
    }

    fn on_control_image(&self, tick: &Tick<'_>) {
        if let Some(lease) = &self.lease {
            lease.on_control_image(tick);
        }
    }

    fn send_lease(&self, tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) {
        // Request the lease only after the subscription exists: descriptors published in between would be
        // lost.
        if self.has_subscription.load(Ordering::Relaxed)
            && self.lease.as_ref().is_some_and(|l| l.work(tick, send))
        {
            self.unmap(tick, "the driver is lost");
        }
    }

    fn send_control(&self, tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) {
        self.control().send_hello(tick.now.monotonic_ns, send);
    }

    fn detach_message(&self) -> Option<Vec<u8>> {
        self.lease.as_ref()?.detach_request()
    }

    fn receives_announces(&self) -> bool {
        !self.is_closed() && self.config.supports_shm
    }

    fn on_announce(&self, announce: &PoolAnnounce, join_ns: u64, tick: &Tick<'_>) {
        if announce.stream_id != self.config.stream_id {
            return;
        }
        if let Some(lease) = &self.lease {
            if !lease.is_of_driver(announce) {
                self.counters.ignored(IgnoreReason::OtherOwner).fetch_add(1, Ordering::Relaxed);
                return;
            }
            // An old announce that Aeron replays is not activity.
            let is_recent = {
                let filter = &self.state.lock_priority().reader.epoch.announce_filter;
                filter.is_recent(announce, join_ns, tick.now)
            };
            if is_recent && lease.on_announce(announce.epoch, tick) {
                self.unmap(tick, "the lease is lost");
            }
            if !lease.is_held() {
                return;
            }
        }
        let (action, agrees, is_as_mapped) = {
            let mut state = self.state.lock_priority();
            if state.reader.epoch.is_over(announce.epoch, announce.producer_id) {
                self.counters.ignored(IgnoreReason::OlderEpoch).fetch_add(1, Ordering::Relaxed);
                return;
            }
            let current = match &state.reader.epoch.mapping {
                None => CurrentMapping::Unmapped,
                Some(m) => CurrentMapping::Mapped {
                    epoch: m.epoch,
                    active: state.reader.epoch.announce_filter.is_active(m.activity_ns(), tick.now),
                },
            };
            let mapping = state.reader.epoch.mapping.as_ref();
            let agrees = mapping.is_none_or(|m| m.is_intact(announce));
            let is_as_mapped = agrees || mapping.is_some_and(|m| m.is_as_mapped());
            if agrees && matches!(current, CurrentMapping::Mapped { epoch, .. } if epoch == announce.epoch) {
                state.reader.epoch.producer_id = Some(announce.producer_id);
                self.counters.latency.follow_clock(announce.clock_domain);
            }
            let action = state.reader.epoch.announce_filter.on_announce(announce, join_ns, current, tick.now);
            (action, agrees, is_as_mapped)
        };
        match action {
            AnnounceAction::Keep if agrees => {}
            // Any client may have sent it: what it announces is opened first, and what is mapped stays otherwise.
            AnnounceAction::Keep if is_as_mapped => self.map(announce, Some(announce.producer_id), tick),
            AnnounceAction::Keep => self.unmap(tick, "the superblocks differ from what was mapped"),
            AnnounceAction::Ignore(why) => {
                self.counters.ignored(why).fetch_add(1, Ordering::Relaxed);
            }
            AnnounceAction::Map => self.map(announce, Some(announce.producer_id), tick),
        }
    }
}
