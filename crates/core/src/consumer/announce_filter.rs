//! Decision of a consumer on each announce: map, keep or ignore (wire §10.1.1, §15.1, §15.21).
//!
//! Pure: the announce, the time and the current mapping go in, one action comes out. An announce is fresh by
//! its own timestamp, a mapped region by the activity timestamp in its superblock.

pub use crate::os::time::Now;
use crate::wire::announce::PoolAnnounce;
use crate::wire::layout::{CLOCK_DOMAIN_MONOTONIC, HEADER_SLOT_BYTES, LAYOUT_VERSION};

/// The consumer's current mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurrentMapping {
    Unmapped,
    /// A mapped epoch, and whether its activity timestamp is fresh.
    Mapped {
        epoch: u64,
        active: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnounceAction {
    /// Nothing changes.
    Keep,
    /// Map the announced regions in place of the current ones, whose frames in flight are dropped.
    Map,
    Ignore(IgnoreReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoreReason {
    /// Sent before this subscription joined: a replay of Aeron's log.
    BeforeJoin,
    /// Older than the freshness window.
    Stale,
    /// A lower epoch than the one in use, or than one received before.
    OlderEpoch,
    /// A layout that this version cannot read.
    Layout,
    /// With a lease: regions that are not of the driver that granted it.
    OtherOwner,
}

impl IgnoreReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeJoin => "before_join",
            Self::Stale => "stale",
            Self::OlderEpoch => "older_epoch",
            Self::Layout => "layout",
            Self::OtherOwner => "other_owner",
        }
    }
}

/// The announces that a consumer received for one stream.
#[derive(Clone, Debug)]
pub struct AnnounceFilter {
    freshness_ns: u64,
    highest_epoch: u64,
    highest_received_ns: u64,
}

impl AnnounceFilter {
    /// `freshness_ns`: three announce periods, unless configured.
    pub fn new(freshness_ns: u64) -> Self {
        Self { freshness_ns, highest_epoch: 0, highest_received_ns: 0 }
    }

    pub fn freshness_ns(&self) -> u64 {
        self.freshness_ns
    }

    /// Whether an activity timestamp of either clock is fresh.
    pub fn is_active(&self, activity_ns: u64, now: Now) -> bool {
        now.age_of(activity_ns) <= self.freshness_ns
    }

    fn is_fresh(&self, timestamp_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(timestamp_ns) <= self.freshness_ns
    }

    /// Whether an announce was sent since `join_ns`, and is no replay of Aeron's log.
    pub fn is_recent(&self, announce: &PoolAnnounce, join_ns: u64, now: Now) -> bool {
        match announce.clock_domain {
            CLOCK_DOMAIN_MONOTONIC => announce.timestamp_ns >= join_ns,
            _ => self.is_fresh(announce.timestamp_ns, now.realtime_ns),
        }
    }

    /// Decides on an announce. `join_ns`: when the image it came on became available.
    pub fn on_announce(
        &mut self,
        announce: &PoolAnnounce,
        join_ns: u64,
        current: CurrentMapping,
        now: Now,
    ) -> AnnounceAction {
        let monotonic = announce.clock_domain == CLOCK_DOMAIN_MONOTONIC;
        if monotonic && announce.timestamp_ns < join_ns {
            return AnnounceAction::Ignore(IgnoreReason::BeforeJoin);
        }
        let clock = if monotonic { now.monotonic_ns } else { now.realtime_ns };
        if !self.is_fresh(announce.timestamp_ns, clock) {
            return AnnounceAction::Ignore(IgnoreReason::Stale);
        }
        if announce.layout_version != LAYOUT_VERSION
            || usize::from(announce.header_slot_bytes) != HEADER_SLOT_BYTES
        {
            return AnnounceAction::Ignore(IgnoreReason::Layout);
        }
        // The highest epoch wins while it is fresh. Once it is stale, a lower epoch is accepted again,
        // because an owner may have reset its epochs.
        if announce.epoch < self.highest_epoch
            && (self.is_fresh(self.highest_received_ns, now.monotonic_ns)
                || matches!(current, CurrentMapping::Mapped { active: true, .. }))
        {
            return AnnounceAction::Ignore(IgnoreReason::OlderEpoch);
        }
        self.highest_epoch = announce.epoch;
        self.highest_received_ns = now.monotonic_ns;
        match current {
            CurrentMapping::Mapped { epoch, .. } if epoch == announce.epoch => AnnounceAction::Keep,
            _ => AnnounceAction::Map,
        }
    }

    /// The announced regions could not be used, and `mapped` is still in use: the refused epoch, which any
    /// client may have announced, does not rule out announces of lower ones.
    pub fn on_refused(&mut self, mapped: Option<u64>) {
        self.highest_epoch = mapped.unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::layout::CLOCK_DOMAIN_REALTIME_SYNCED;

    const S: u64 = 1_000_000_000;
    const NOW: Now = Now { monotonic_ns: 100 * S, realtime_ns: 5_000 * S };
    const ACTIVE: CurrentMapping = CurrentMapping::Mapped { epoch: 7, active: true };

    fn announce(epoch: u64, timestamp_ns: u64, clock_domain: u8) -> PoolAnnounce {
        PoolAnnounce {
            stream_id: 1,
            producer_id: 1,
            epoch,
            timestamp_ns,
            clock_domain,
            layout_version: 1,
            header_nslots: 8,
            header_slot_bytes: 256,
            pools: vec![],
            header_uri: String::new(),
        }
    }

    #[test]
    fn activity_has_the_age_of_its_own_clock() {
        let filter = filter();
        for now_ns in [NOW.monotonic_ns, NOW.realtime_ns] {
            assert!(filter.is_active(now_ns, NOW));
            assert!(filter.is_active(now_ns - 3 * S, NOW));
            assert!(!filter.is_active(now_ns - 3 * S - 1, NOW), "of a dead owner");
            assert!(filter.is_active(now_ns + S, NOW), "of a clock that is a little ahead");
        }
        assert!(!filter.is_active(0, NOW));
    }

    fn fresh(epoch: u64) -> PoolAnnounce {
        announce(epoch, NOW.monotonic_ns, CLOCK_DOMAIN_MONOTONIC)
    }

    fn filter() -> AnnounceFilter {
        AnnounceFilter::new(3 * S)
    }

    /// requirement: wire-10.1.1-1, wire-10.1.1-2, wire-15.1-3
    #[test]
    fn stale_announce_is_ignored() {
        let at = |age: u64| announce(7, NOW.monotonic_ns - age, CLOCK_DOMAIN_MONOTONIC);
        assert_eq!(filter().on_announce(&at(3 * S), 0, CurrentMapping::Unmapped, NOW), AnnounceAction::Map);
        assert_eq!(
            filter().on_announce(&at(3 * S + 1), 0, CurrentMapping::Unmapped, NOW),
            AnnounceAction::Ignore(IgnoreReason::Stale)
        );
    }

    /// requirement: wire-10.1.1-3
    #[test]
    fn monotonic_announce_from_before_the_join_is_ignored() {
        let a = announce(7, NOW.monotonic_ns - S, CLOCK_DOMAIN_MONOTONIC);
        let join = NOW.monotonic_ns - S + 1;
        assert_eq!(
            filter().on_announce(&a, join, CurrentMapping::Unmapped, NOW),
            AnnounceAction::Ignore(IgnoreReason::BeforeJoin)
        );
        assert_eq!(filter().on_announce(&a, join - 1, CurrentMapping::Unmapped, NOW), AnnounceAction::Map);
    }

    /// requirement: wire-10.1.1-4
    #[test]
    fn realtime_announce_is_checked_for_freshness_only() {
        let at = |age: u64| announce(7, NOW.realtime_ns - age, CLOCK_DOMAIN_REALTIME_SYNCED);
        assert_eq!(
            filter().on_announce(&at(2 * S), u64::MAX, CurrentMapping::Unmapped, NOW),
            AnnounceAction::Map
        );
        assert_eq!(
            filter().on_announce(&at(4 * S), 0, CurrentMapping::Unmapped, NOW),
            AnnounceAction::Ignore(IgnoreReason::Stale)
        );
    }

    /// requirement: wire-10.1.1-2, wire-15.2-1, wire-15.21-5
    #[test]
    fn highest_epoch_wins_and_a_change_remaps() {
        let mut j = filter();
        assert_eq!(j.on_announce(&fresh(7), 0, CurrentMapping::Unmapped, NOW), AnnounceAction::Map);
        assert_eq!(j.on_announce(&fresh(7), 0, ACTIVE, NOW), AnnounceAction::Keep);
        assert_eq!(
            j.on_announce(&fresh(6), 0, ACTIVE, NOW),
            AnnounceAction::Ignore(IgnoreReason::OlderEpoch)
        );
        assert_eq!(j.on_announce(&fresh(8), 0, ACTIVE, NOW), AnnounceAction::Map);
        assert_eq!(
            j.on_announce(&fresh(7), 0, CurrentMapping::Unmapped, NOW),
            AnnounceAction::Ignore(IgnoreReason::OlderEpoch)
        );
    }

    #[test]
    fn lower_epoch_is_accepted_once_the_higher_is_stale() {
        let mut j = filter();
        j.on_announce(&fresh(7), 0, CurrentMapping::Unmapped, NOW);
        let later = Now { monotonic_ns: NOW.monotonic_ns + 4 * S, ..NOW };
        let a = announce(6, later.monotonic_ns, CLOCK_DOMAIN_MONOTONIC);
        let mapped = |active| CurrentMapping::Mapped { epoch: 7, active };
        assert_eq!(
            j.clone().on_announce(&a, 0, mapped(true), later),
            AnnounceAction::Ignore(IgnoreReason::OlderEpoch)
        );
        assert_eq!(j.on_announce(&a, 0, mapped(false), later), AnnounceAction::Map);
    }

    #[test]
    fn refused_epoch_does_not_rule_out_the_mapped_one() {
        let mut j = filter();
        j.on_announce(&fresh(7), 0, CurrentMapping::Unmapped, NOW);
        assert_eq!(j.on_announce(&fresh(9), 0, ACTIVE, NOW), AnnounceAction::Map);
        j.on_refused(Some(7));
        assert_eq!(j.on_announce(&fresh(7), 0, ACTIVE, NOW), AnnounceAction::Keep);
        assert_eq!(
            j.on_announce(&fresh(6), 0, ACTIVE, NOW),
            AnnounceAction::Ignore(IgnoreReason::OlderEpoch)
        );
    }

    /// requirement: wire-15.1-1
    #[test]
    fn announce_of_an_unknown_layout_is_ignored() {
        let a = PoolAnnounce { layout_version: 2, ..fresh(7) };
        assert_eq!(
            filter().on_announce(&a, 0, CurrentMapping::Unmapped, NOW),
            AnnounceAction::Ignore(IgnoreReason::Layout)
        );
        let a = PoolAnnounce { header_slot_bytes: 512, ..fresh(7) };
        assert_eq!(
            filter().on_announce(&a, 0, CurrentMapping::Unmapped, NOW),
            AnnounceAction::Ignore(IgnoreReason::Layout)
        );
    }
}
