//! Outcomes of offers, and the counters of a producer (wire §15.18).

use std::sync::atomic::{AtomicU64, Ordering};

/// The outcome of a frame. Only `Published` reached a consumer's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    Published,
    /// In the ring. Its descriptor follows when an older claim is settled.
    Deferred,
    BackPressured,
    NotConnected,
    Closed,
    NoPool,
    SlotClaimed,
    /// There is no lease at the moment. It is requested.
    Detached,
}

impl Outcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Published,
        Self::Deferred,
        Self::BackPressured,
        Self::NotConnected,
        Self::Closed,
        Self::NoPool,
        Self::SlotClaimed,
        Self::Detached,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Deferred => "deferred",
            Self::BackPressured => "back_pressured",
            Self::NotConnected => "not_connected",
            Self::Closed => "closed",
            Self::NoPool => "no_pool",
            Self::SlotClaimed => "slot_claimed",
            Self::Detached => "detached",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct OfferResult {
    pub outcome: Outcome,
    /// The frame's sequence, if it is in the ring.
    pub seq: Option<u64>,
    /// The epoch of that sequence.
    pub epoch: Option<u64>,
}

/// What a frame carries beside its payload.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameStamp {
    /// Source time. The time of the commit if not given.
    pub timestamp_ns: Option<u64>,
    pub meta_version: u32,
    pub trace_id: u64,
}

/// committed = published + back_pressured + not_connected + closed + deferred.
#[derive(Debug, Default)]
pub struct Counters {
    pub committed: AtomicU64,
    pub published: AtomicU64,
    pub back_pressured: AtomicU64,
    pub not_connected: AtomicU64,
    pub closed: AtomicU64,
    pub no_pool: AtomicU64,
    pub slot_claimed: AtomicU64,
    pub detached: AtomicU64,
    pub after_close: AtomicU64,
    pub abandoned: AtomicU64,
    pub holes: AtomicU64,
    pub bytes: AtomicU64,
}

pub(super) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
