use std::cell::Cell;

use super::*;
use crate::conductor::events::Events;
use tensorpool_core::shm::create::{EpochSpec, PoolSpec, create_epoch};
use tensorpool_core::shm::region_lock::RegionLock;
use tensorpool_core::wire::announce::{AnnouncedPool, Decoded};
use tensorpool_core::wire::layout::{CLOCK_DOMAIN_MONOTONIC, HEADER_SLOT_BYTES, LAYOUT_VERSION};

const MS: u64 = 1_000_000;
const PERIOD: u64 = 1_000 * MS;

/// An announcer with a simulated clock that starts now, because `announce` reads the real one.
struct Driver {
    _dir: tempfile::TempDir,
    bases: AllowedBases,
    announcer: StreamAnnouncer,
    events: Events,
    now_ns: u64,
}

impl Driver {
    fn new(stall_ns: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bases = AllowedBases::new([dir.path()]).unwrap();
        let announcer =
            StreamAnnouncer::new(Config { period_ns: PERIOD, stall_ns, clock: StreamClock::Monotonic });
        Self { _dir: dir, bases, announcer, events: Events::default(), now_ns: monotonic_ns() }
    }

    fn make(&self, stream_id: u32, epoch: u64, producer_id: u32) -> PoolAnnounce {
        let pool = PoolSpec { pool_id: 1, stride_bytes: 64 };
        let spec = EpochSpec {
            base: self._dir.path().to_path_buf(),
            user: "me".into(),
            namespace: "n".into(),
            stream_id,
            epoch,
            nslots: 4,
            pools: vec![pool],
            require_hugepages: false,
            prefault: false,
            dir_mode: 0o700,
            file_mode: 0o600,
            group: None,
        };
        let files = create_epoch(&spec, 1, 1).unwrap();
        let uri = files.pools[0].1.clone();
        PoolAnnounce {
            stream_id,
            producer_id,
            epoch,
            timestamp_ns: 0,
            clock_domain: CLOCK_DOMAIN_MONOTONIC,
            layout_version: LAYOUT_VERSION,
            header_nslots: 4,
            header_slot_bytes: HEADER_SLOT_BYTES as u16,
            pools: vec![AnnouncedPool { pool_id: 1, nslots: 4, stride_bytes: 64, uri }],
            header_uri: files.header_uri,
        }
    }

    fn put(&self, announce: &PoolAnnounce) {
        self.announcer.announce(announce, &self.bases, false).unwrap();
    }

    fn now(&self) -> Now {
        Now { monotonic_ns: self.now_ns, realtime_ns: 0 }
    }

    /// Advances the clock, then runs one duty cycle.
    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        let is_active = Cell::default();
        let (bases, events) = (&self.bases, &self.events);
        self.announcer.do_work(&Tick { now: self.now(), bases, events, is_active: &is_active });
    }

    /// The announces sent now, at most `taken` of which are accepted.
    fn sent(&self, mut taken: usize) -> Vec<PoolAnnounce> {
        let mut sent = Vec::new();
        self.announcer.send_announces(self.now(), &mut |message| {
            let took = taken > 0;
            if took {
                taken -= 1;
                let Decoded::Announce(announce) = PoolAnnounce::decode(message) else { panic!() };
                sent.push(announce);
            }
            took
        });
        sent
    }

    fn activity(&self, announce: &PoolAnnounce) -> u64 {
        MappedEpoch::open(announce, &self.bases, Access::Read).unwrap().activity_ns()
    }

    fn heartbeat(&self) {
        self.announcer.heartbeat_ns.store(self.now_ns, Ordering::Relaxed);
    }
}

#[test]
fn stream_is_announced_at_once_and_every_period() {
    let mut driver = Driver::new(u64::MAX);
    let announce = driver.make(5, 10, 42);
    driver.put(&announce);
    let at = |timestamp_ns| PoolAnnounce { timestamp_ns, ..announce.clone() };
    assert_eq!(driver.sent(9), [at(driver.now_ns)]);
    assert!(driver.sent(9).is_empty());
    // To the end of the first refresh: from here on a period has exactly one.
    driver.pass(PERIOD);
    assert_eq!(driver.sent(9), [at(driver.now_ns)]);
    for _ in 0..3 {
        let mut sent = Vec::new();
        for _ in 0..100 {
            driver.pass(PERIOD / 100);
            sent.extend(driver.sent(9));
        }
        assert_eq!(sent.len(), 1);
        assert_eq!(driver.activity(&announce), sent[0].timestamp_ns);
    }
}

#[test]
fn unsent_announces_stay_due_in_order() {
    let mut driver = Driver::new(u64::MAX);
    for stream_id in [5, 6, 7] {
        driver.put(&driver.make(stream_id, 10, 0));
    }
    assert!(driver.sent(0).is_empty());
    driver.pass(2 * MS);
    let ids = |sent: Vec<PoolAnnounce>| sent.iter().map(|a| a.stream_id).collect::<Vec<_>>();
    assert_eq!(ids(driver.sent(1)), [5]);
    // A refresh in between does not add a second announce.
    driver.pass(PERIOD);
    let mut rest = ids(driver.sent(9));
    assert_eq!(rest[..2], [6, 7]);
    rest.sort_unstable();
    assert_eq!(rest, [5, 6, 7]);
}

#[test]
fn announce_now_repeats_all_in_bounded_rounds() {
    let driver = Driver::new(u64::MAX);
    let count = MAX_ANNOUNCES as u32 + 6;
    for stream_id in 1..=count {
        driver.put(&driver.make(stream_id, 10, 0));
    }
    for _ in 0..2 {
        assert_eq!((driver.sent(999).len(), driver.sent(999).len()), (MAX_ANNOUNCES, 6));
        assert!(driver.sent(999).is_empty());
        driver.announcer.announce_now();
        driver.announcer.announce_now();
    }
}

#[test]
fn announcing_stops_without_heartbeats() {
    let mut driver = Driver::new(3 * PERIOD);
    let announce = driver.make(5, 10, 0);
    driver.put(&announce);
    driver.heartbeat();
    driver.pass(3 * PERIOD);
    assert_eq!(driver.sent(9).len(), 1);
    let last = driver.now_ns;
    driver.announcer.announce_now();
    for _ in 0..5 {
        driver.pass(PERIOD);
        assert!(driver.sent(9).is_empty());
        assert_eq!(driver.activity(&announce), last);
    }
    driver.heartbeat();
    driver.pass(0);
    assert_eq!(driver.sent(9).len(), 1);
    assert_eq!(driver.activity(&announce), driver.now_ns);
}

#[test]
fn released_lock_is_reported_once() {
    let mut driver = Driver::new(0);
    let announce = driver.make(5, 10, 42);
    driver.put(&announce);
    driver.pass(WATCH_NS);
    let lock = RegionLock::acquire(&announce.header_uri, &driver.bases).unwrap();
    driver.pass(WATCH_NS);
    assert!(driver.announcer.dead_producers().is_empty());
    drop(lock);
    driver.pass(WATCH_NS);
    assert_eq!(driver.announcer.dead_producers(), [(5, 10)]);
    let again = RegionLock::acquire(&announce.header_uri, &driver.bases).unwrap();
    driver.pass(WATCH_NS);
    drop(again);
    driver.pass(WATCH_NS);
    assert!(driver.announcer.dead_producers().is_empty());
}

#[test]
fn stream_without_a_producer_is_not_watched() {
    let mut driver = Driver::new(u64::MAX);
    let announce = driver.make(5, 10, 0);
    driver.put(&announce);
    let lock = RegionLock::acquire(&announce.header_uri, &driver.bases).unwrap();
    driver.pass(WATCH_NS);
    drop(lock);
    driver.pass(WATCH_NS);
    assert!(driver.announcer.dead_producers().is_empty());
}

#[test]
fn every_lock_is_checked_in_time() {
    let mut driver = Driver::new(u64::MAX);
    let locks: Vec<_> = (1..=8)
        .map(|stream_id| {
            let announce = driver.make(stream_id, 10, 42);
            driver.put(&announce);
            RegionLock::acquire(&announce.header_uri, &driver.bases).unwrap()
        })
        .collect();
    let rounds = |driver: &mut Driver| (0..12).for_each(|_| driver.pass(2 * MS));
    rounds(&mut driver);
    drop(locks);
    rounds(&mut driver);
    let mut dead_producers = driver.announcer.dead_producers();
    dead_producers.sort_unstable();
    assert_eq!(dead_producers, (1..=8).map(|id| (id, 10)).collect::<Vec<_>>());
}

#[test]
fn next_epoch_replaces_the_previous() {
    let mut driver = Driver::new(u64::MAX);
    let old = driver.make(5, 10, 42);
    driver.put(&old);
    let lock = RegionLock::acquire(&old.header_uri, &driver.bases).unwrap();
    driver.pass(WATCH_NS);
    let new = driver.make(5, 11, 0);
    driver.put(&new);
    drop(lock);
    driver.pass(PERIOD);
    let epochs: Vec<_> = driver.sent(9).iter().map(|a| a.epoch).collect();
    assert_eq!((epochs, driver.announcer.len()), (vec![11], 1));
    assert!(driver.announcer.dead_producers().is_empty());
    assert_ne!(driver.activity(&old), driver.now_ns);
    assert_eq!(driver.activity(&new), driver.now_ns);
}

#[test]
fn withdrawn_or_refused_stream_is_not_announced() {
    let mut driver = Driver::new(u64::MAX);
    let announce = driver.make(5, 10, 42);
    driver.put(&announce);
    assert!(driver.announcer.withdraw(5));
    assert!(!driver.announcer.withdraw(5));
    driver.pass(PERIOD);
    assert!(driver.sent(9).is_empty());
    driver.put(&announce);
    let wrong = PoolAnnounce { epoch: 11, ..announce.clone() };
    let refused = driver.announcer.announce(&wrong, &driver.bases, false);
    assert!(matches!(refused, Err(AnnounceError::Region(e)) if e.reason() == "epoch"));
    driver.pass(PERIOD);
    assert!(driver.sent(9).is_empty() && driver.announcer.is_empty());
}

#[test]
fn closed_announcer_announces_nothing() {
    let driver = Driver::new(u64::MAX);
    let announce = driver.make(5, 10, 42);
    driver.put(&announce);
    driver.announcer.close();
    assert!(driver.announcer.is_empty() && !driver.announcer.sends_announces());
    assert!(matches!(driver.announcer.announce(&announce, &driver.bases, false), Err(AnnounceError::Closed)));
    assert!(driver.sent(9).is_empty());
}

#[test]
fn refreshes_are_spread_over_the_period() {
    let now = 123_456_789_012;
    for first in [1, 10_000, 4_000_000_000] {
        let mut rounds = [0; 500];
        for stream_id in first..first + 1000 {
            let refresh = next_refresh_ns(stream_id, now, PERIOD);
            assert!(refresh > now && refresh <= now + PERIOD);
            assert_eq!(next_refresh_ns(stream_id, refresh, PERIOD), refresh + PERIOD);
            rounds[((refresh - now - 1) / (2 * MS)) as usize] += 1;
        }
        assert!(rounds.iter().all(|n| *n <= 4), "{rounds:?}");
    }
}
