//! Announcer of a driver's streams: announces, activity timestamps in the superblocks, and watches on
//! producers' locks (driver §4, wire §7.1). On the conductor's thread, so that a busy interpreter delays
//! nothing.
//!
//! A driver whose duty cycle stops sending heartbeats is no longer announced, so that no client trusts it.
//!
//! A thousand streams cost little in one duty cycle: each has its own time within the period, and only those
//! that are due are touched.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tensorpool_core::consumer::announce_filter::Now;
use tensorpool_core::os::time::{StreamClock, monotonic_ns};
use tensorpool_core::shm::containment::AllowedBases;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::region::{Access, RegionError};
use tensorpool_core::shm::region_lock::{LockWatch, RegionLockError};
use tensorpool_core::wire::announce::PoolAnnounce;
use tensorpool_core::wire::layout::{
    MESSAGE_HEADER_LENGTH, SHM_POOL_ANNOUNCE_ANNOUNCE_TIMESTAMP_NS, put_u64,
};

use crate::aeron::{AeronError, Client};
use crate::conductor::{Endpoint, Tick};

/// How often each producer's lock is checked, unless there are too many for `MAX_LOCK_CHECKS`.
const WATCH_NS: u64 = 20_000_000;
/// Bounds on the locks checked, announces sent and superblocks refreshed in one duty cycle.
const MAX_LOCK_CHECKS: usize = 64;
const MAX_ANNOUNCES: usize = 64;
const MAX_REFRESHES: usize = 256;

#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Period of announces and activity timestamps. Not 0.
    pub period_ns: u64,
    /// Announcing stops after this time without a heartbeat.
    pub stall_ns: u64,
    /// The clock of announces and activity timestamps.
    pub clock: StreamClock,
}

#[derive(Debug)]
pub enum AnnounceError {
    Closed,
    Region(RegionError),
    Watch(RegionLockError),
    /// The memory lock limit is too low.
    LockMemory(io::Error),
}

impl fmt::Display for AnnounceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the announcer is closed; create a new one"),
            Self::Region(error) => write!(f, "{error}"),
            Self::Watch(error) => write!(f, "{error}"),
            Self::LockMemory(error) => write!(f, "cannot keep the regions in memory: {error}"),
        }
    }
}

impl std::error::Error for AnnounceError {}

/// One announced stream.
struct OwnedStream {
    announce: PoolAnnounce,
    /// Encoded once. Only its timestamp changes.
    message: Vec<u8>,
    mapping: MappedEpoch,
    /// Present while a producer holds the stream and its end is not reported yet.
    watch: Option<LockWatch>,
    /// When its activity timestamp is refreshed next.
    refresh_ns: u64,
    /// Its announce waits to be sent.
    due: bool,
    /// Its regions are damaged, and that is reported: it is neither refreshed nor announced any more.
    is_damaged: bool,
}

/// An epoch whose regions were truncated or overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedEpoch {
    pub stream_id: u32,
    pub epoch: u64,
    pub reason: String,
}

impl OwnedStream {
    /// Why the regions cannot be used any more.
    fn damage(&self) -> Option<String> {
        self.mapping.probe();
        self.mapping.lost_reason().or_else(|| {
            let is_intact = self.mapping.is_intact(&self.announce);
            // A file that is truncated right now fails the comparison, too.
            (!is_intact).then(|| {
                self.mapping.lost_reason().unwrap_or_else(|| "a superblock was overwritten".to_owned())
            })
        })
    }
}

#[derive(Default)]
struct State {
    streams: HashMap<u32, OwnedStream>,
    /// When each stream is refreshed, soonest first.
    schedule: BTreeSet<(u64, u32)>,
    /// Streams whose announce is due, in the order they became due.
    due: VecDeque<u32>,
    /// When each lock is checked. All wait equally long, so the next one is always in front.
    watched: VecDeque<(u64, u32)>,
    dead_producers: Vec<(u32, u64)>,
    damaged: Vec<DamagedEpoch>,
    closed: bool,
}

pub struct StreamAnnouncer {
    config: Config,
    state: Mutex<State>,
    heartbeat_ns: AtomicU64,
    closed: AtomicBool,
}

impl StreamAnnouncer {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: Mutex::default(),
            heartbeat_ns: AtomicU64::new(monotonic_ns()),
            closed: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces the regions of a stream in place of earlier ones. If that fails, the stream is not
    /// announced.
    pub fn announce(
        &self,
        announce: &PoolAnnounce,
        bases: &AllowedBases,
        keep: bool,
    ) -> Result<(), AnnounceError> {
        // Withdraw first: the locked memory of old and new regions together may exceed the limit.
        self.withdraw(announce.stream_id);
        let mapping = MappedEpoch::open(announce, bases, Access::Write).map_err(AnnounceError::Region)?;
        if keep {
            mapping.lock_memory().map_err(AnnounceError::LockMemory)?;
        }
        let watch = match announce.producer_id {
            0 => None,
            _ => Some(LockWatch::open(&announce.header_uri, bases).map_err(AnnounceError::Watch)?),
        };
        let now_ns = monotonic_ns();
        mapping.refresh_activity(self.config.clock.now_ns());
        let announce = &PoolAnnounce { clock_domain: self.config.clock.domain(), ..announce.clone() };
        let stream = OwnedStream {
            announce: announce.clone(),
            message: announce.encode(),
            mapping,
            watch,
            refresh_ns: next_refresh_ns(announce.stream_id, now_ns, self.config.period_ns),
            due: false,
            is_damaged: false,
        };
        let mut state = self.lock();
        if state.closed {
            return Err(AnnounceError::Closed);
        }
        let replaced = state.insert(announce.stream_id, stream);
        // Unmapping takes time, and must not delay the conductor.
        drop(state);
        drop(replaced);
        Ok(())
    }

    /// Stops announcing a stream. False: there was none.
    pub fn withdraw(&self, stream_id: u32) -> bool {
        let removed = self.lock().take(stream_id);
        removed.is_some()
    }

    /// The driver's duty cycle is running.
    pub fn heartbeat(&self) {
        self.heartbeat_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// The producers (by stream and epoch) whose lock was released since the last call.
    pub fn dead_producers(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.lock().dead_producers)
    }

    /// The epochs that were found damaged since the last call, each once.
    pub fn damaged(&self) -> Vec<DamagedEpoch> {
        std::mem::take(&mut self.lock().damaged)
    }

    /// Whether one of the two above has something to say.
    pub fn has_reports(&self) -> bool {
        let state = self.lock();
        !(state.dead_producers.is_empty() && state.damaged.is_empty())
    }

    pub fn len(&self) -> usize {
        self.lock().streams.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_stalled(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.heartbeat_ns.load(Ordering::Relaxed)) > self.config.stall_ns
    }
}

impl State {
    fn insert(&mut self, stream_id: u32, stream: OwnedStream) -> Option<OwnedStream> {
        let replaced = self.take(stream_id);
        self.schedule.insert((stream.refresh_ns, stream_id));
        if stream.watch.is_some() {
            self.watched.push_front((0, stream_id));
        }
        self.streams.insert(stream_id, stream);
        self.mark_due(stream_id);
        replaced
    }

    fn take(&mut self, stream_id: u32) -> Option<OwnedStream> {
        let stream = self.streams.remove(&stream_id)?;
        self.schedule.remove(&(stream.refresh_ns, stream_id));
        self.due.retain(|id| *id != stream_id);
        self.watched.retain(|(_, id)| *id != stream_id);
        Some(stream)
    }

    /// Makes the stream's announce due, once.
    fn mark_due(&mut self, stream_id: u32) {
        if let Some(stream) = self.streams.get_mut(&stream_id)
            && !stream.is_damaged
            && !std::mem::replace(&mut stream.due, true)
        {
            self.due.push_back(stream_id);
        }
    }

    /// Refreshes the activity timestamps that are due.
    fn refresh_activity(&mut self, now: Now, config: &Config) {
        let (now_ns, period_ns) = (now.monotonic_ns, config.period_ns);
        for _ in 0..MAX_REFRESHES {
            match self.schedule.first() {
                Some(&(refresh_ns, stream_id)) if refresh_ns <= now_ns => {
                    self.schedule.pop_first();
                    if let Some(stream) = self.streams.get_mut(&stream_id) {
                        if let Some(reason) = stream.damage() {
                            // No later refresh: consumers see the epoch become stale, unless the driver is
                            // faster with a new one.
                            stream.is_damaged = true;
                            self.damaged.push(DamagedEpoch {
                                stream_id,
                                epoch: stream.announce.epoch,
                                reason,
                            });
                            continue;
                        }
                        stream.mapping.refresh_activity(now.time_ns(config.clock));
                        stream.refresh_ns = next_refresh_ns(stream_id, now_ns, period_ns);
                        self.schedule.insert((stream.refresh_ns, stream_id));
                    }
                    self.mark_due(stream_id);
                }
                _ => return,
            }
        }
    }

    /// Checks the locks that are due.
    fn check_locks(&mut self, now_ns: u64) {
        for _ in 0..MAX_LOCK_CHECKS {
            match self.watched.front() {
                Some(&(check_ns, stream_id)) if check_ns <= now_ns => {
                    self.watched.pop_front();
                    let Some(stream) = self.streams.get_mut(&stream_id) else { continue };
                    if stream.watch.as_mut().is_some_and(LockWatch::is_released) {
                        stream.watch = None;
                        self.dead_producers.push((stream_id, stream.announce.epoch));
                    } else {
                        self.watched.push_back((now_ns + WATCH_NS, stream_id));
                    }
                }
                _ => return,
            }
        }
    }
}

/// The golden ratio as a fraction of 2^32. The multiples of neighbouring ids are far apart.
const GOLDEN_RATIO: u32 = 0x9E37_79B9;

/// The next refresh of a stream after `now_ns`. Each stream has its own time in the period, so that refreshes
/// are evenly spread, also after all were sent at once. Two refreshes are never more than one period apart.
fn next_refresh_ns(stream_id: u32, now_ns: u64, period_ns: u64) -> u64 {
    let fraction = stream_id.wrapping_mul(GOLDEN_RATIO);
    let moment_ns = ((u128::from(fraction) * u128::from(period_ns)) >> 32) as u64;
    let refresh_ns = now_ns - now_ns % period_ns + moment_ns;
    if refresh_ns > now_ns { refresh_ns } else { refresh_ns + period_ns }
}

impl Endpoint for StreamAnnouncer {
    fn connect(&self, _client: &Client) -> Result<(), AeronError> {
        Ok(())
    }

    fn disconnect(&self) {}

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        let dead_producers = std::mem::take(&mut state.dead_producers);
        let ended =
            std::mem::replace(&mut *state, State { closed: true, dead_producers, ..State::default() });
        drop(state);
        drop(ended);
    }

    fn do_work(&self, tick: &Tick<'_>) {
        let now_ns = tick.now.monotonic_ns;
        let mut state = self.lock();
        state.check_locks(now_ns);
        if !self.is_stalled(now_ns) {
            state.refresh_activity(tick.now, &self.config);
        }
    }

    fn sends_announces(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    fn announce_now(&self) {
        let mut state = self.lock();
        let all: Vec<u32> = state.streams.keys().copied().collect();
        all.into_iter().for_each(|id| state.mark_due(id));
    }

    fn send_announces(&self, now: Now, send: &mut dyn FnMut(&[u8]) -> bool) {
        if self.is_stalled(now.monotonic_ns) {
            return;
        }
        let mut state = self.lock();
        let State { due, streams, .. } = &mut *state;
        for _ in 0..MAX_ANNOUNCES {
            let Some(stream_id) = due.front() else { return };
            if let Some(stream) = streams.get_mut(stream_id) {
                let body = &mut stream.message[MESSAGE_HEADER_LENGTH..];
                put_u64(body, SHM_POOL_ANNOUNCE_ANNOUNCE_TIMESTAMP_NS, now.time_ns(self.config.clock));
                if !send(&stream.message) {
                    return;
                }
                stream.due = false;
            }
            due.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
