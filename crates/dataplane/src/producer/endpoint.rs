//! What happens to a producer on the conductor's thread: handles, announces, its lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tensorpool_core::announce::PoolAnnounce;
use tensorpool_core::driver_messages::{AttachResponse, Heard};
use tensorpool_core::mapping::Now;
use tensorpool_core::order::Order;
use tensorpool_core::region::Access;
use tensorpool_core::region_lock::RegionLock;
use tensorpool_core::ring::Mapping;

use super::{Producer, State};
use crate::aeron::{AeronError, Client};
use crate::conductor::{Endpoint, Tick};
use crate::handle::Handle;
use crate::lease::{Lease, Turn};

impl State {
    /// A new epoch: its sequences count from the beginning.
    pub(super) fn take_up(&mut self, mapping: Arc<Mapping>, lock: Option<RegionLock>) {
        self.order = Order::new(mapping.nslots);
        self.pending = vec![(0, 0); mapping.nslots as usize];
        self.mapping = Some(mapping);
        self.lock = lock;
    }
}

impl Producer {
    /// Maps the regions of a lease, and locks them against our own death going unnoticed.
    fn take_up(&self, lease: &Lease, response: &AttachResponse, tick: &Tick<'_>) {
        let regions = response.regions(tick.now.monotonic_ns);
        let taken =
            RegionLock::take(&response.header_uri, tick.bases).map_err(|e| e.to_string()).and_then(|lock| {
                let mapping =
                    Mapping::open(&regions, tick.bases, Access::Write).map_err(|e| e.to_string())?;
                Ok((lock, Arc::new(mapping)))
            });
        match taken {
            Ok((lock, mapping)) => {
                self.let_go();
                if self.config.prefault {
                    prefault(mapping.clone());
                }
                self.state.lock_first().take_up(mapping, Some(lock));
                lease.taken_up(tick, response.epoch);
            }
            Err(why) => lease.give_back(tick, why),
        }
    }

    /// Nothing is written from here on. Deferred frames can no longer go out.
    fn let_go(&self) {
        let gone = {
            let mut state = self.state.lock_first();
            let deferred = state.order.give_up();
            self.counters.closed.fetch_add(deferred, Ordering::Relaxed);
            (state.mapping.take(), state.lock.take())
        };
        // Unmapping takes a while, and nobody has to wait for it.
        drop(gone);
    }
}

/// Large regions on a thread of their own: the conductor has others to keep alive.
fn prefault(mapping: Arc<Mapping>) {
    const AT_ONCE: usize = 64 << 20;
    if mapping.bytes() <= AT_ONCE {
        mapping.prefault();
        return;
    }
    let _ = std::thread::Builder::new().name("tp-prefault".into()).spawn(move || mapping.prefault());
}

impl Endpoint for Producer {
    fn attach(&self, client: &Client) -> Result<(), AeronError> {
        if self.attached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let config = &self.config;
        let mut state = self.state.lock_first();
        state.publication.advance(|| {
            client.add_exclusive_publication(&config.descriptor_channel, config.descriptor_stream_id)
        })?;
        self.attached.store(state.publication.get().is_some(), Ordering::Relaxed);
        Ok(())
    }

    fn detach(&self) {
        self.attached.store(false, Ordering::Relaxed);
        self.state.lock_first().publication = Handle::None;
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.let_go();
        self.state.lock_first().publication = Handle::None;
    }

    fn on_disconnected(&self, tick: &Tick<'_>) {
        if self.lease.as_ref().is_some_and(|l| l.on_disconnected(tick)) {
            self.let_go();
        }
    }

    fn wants_lease(&self) -> bool {
        self.lease.is_some()
    }

    fn hears_announces(&self) -> bool {
        self.lease.is_some()
    }

    fn on_announce(&self, announce: &PoolAnnounce, join_ns: u64, tick: &Tick<'_>) {
        let Some(lease) = &self.lease else { return };
        // An old announce that Aeron hands out again is no sign of life.
        if announce.stream_id == self.config.stream_id
            && announce.timestamp_ns >= join_ns
            && lease.on_announce(announce.epoch, tick)
        {
            self.let_go();
        }
    }

    fn on_driver(&self, heard: &Heard, tick: &Tick<'_>) {
        let Some(lease) = &self.lease else { return };
        match lease.on_driver(heard, tick) {
            Turn::Granted(response) => self.take_up(lease, response, tick),
            Turn::Ended => self.let_go(),
            Turn::ProducerGone(_) | Turn::Nothing => {}
        }
    }

    fn on_newcomer(&self, tick: &Tick<'_>) {
        if let Some(lease) = &self.lease {
            lease.on_newcomer(tick);
        }
    }

    fn send_requests(&self, tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) {
        // Without its descriptor stream it could not say a word of what it writes.
        if self.attached.load(Ordering::Relaxed) && self.lease.as_ref().is_some_and(|l| l.work(tick, send)) {
            self.let_go();
        }
    }

    fn farewell(&self) -> Option<Vec<u8>> {
        self.lease.as_ref()?.farewell()
    }

    /// Alone, the producer gives the sign of life of its regions itself.
    fn duty(&self, tick: &Tick<'_>) {
        let now_ns = tick.now.monotonic_ns;
        if self.config.announce.is_none() || now_ns < self.next_activity_ns.load(Ordering::Relaxed) {
            return;
        }
        let mapping = self.state.lock_first().mapping.clone();
        if let Some(mapping) = mapping {
            mapping.refresh_activity(now_ns);
        }
        self.next_activity_ns.store(now_ns + self.config.announce_period_ns, Ordering::Relaxed);
    }

    fn sends_announces(&self) -> bool {
        self.config.announce.is_some() && !self.closed.load(Ordering::Relaxed)
    }

    fn announce_soon(&self) {
        self.next_announce_ns.store(0, Ordering::Relaxed);
    }

    fn send_due(&self, now: Now, send: &mut dyn FnMut(&[u8]) -> bool) {
        let Some(announce) = &self.config.announce else { return };
        if now.monotonic_ns < self.next_announce_ns.load(Ordering::Relaxed) {
            return;
        }
        if send(&PoolAnnounce { timestamp_ns: now.monotonic_ns, ..announce.clone() }.encode()) {
            self.next_announce_ns.store(now.monotonic_ns + self.config.announce_period_ns, Ordering::Relaxed);
        }
    }
}
