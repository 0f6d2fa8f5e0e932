//! Every drop reason of a consumer, each with its own counter (wire §15.4). The doc comments of the variants
//! are the texts that users read.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! drops {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $in_span:literal;)+) => {
        /// Why a frame, or a message about one, was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum DropReason { $($(#[doc = $doc])+ $name,)+ }

        impl DropReason {
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            /// The name of the counter.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
            /// What the counter counts, as text for users.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
            /// Whether the drop is part of the sequence span of the mapped epoch, so that
            /// span = received + the sum of these.
            pub const fn in_span(self) -> bool {
                match self { $(Self::$name => $in_span,)+ }
            }
        }
        const COUNT: usize = [$($text,)+].len();
    };
}

drops! {
    /// The descriptor never came: it was not published, or lost on the way here.
    Gap = "gap", true;
    /// The slot was overwritten before or while it was read, or was found overwritten after use.
    Late = "late", true;
    /// The slot was still being written.
    NotCommitted = "not_committed", true;
    /// The slot still held an earlier frame.
    Stale = "stale", true;
    /// Too far behind: skipped ahead in the ring.
    Resync = "resync", true;
    /// The media driver put this reader to rest because it did not poll.
    Rested = "rested", true;
    /// Published while this consumer joined: before its first descriptor, or just before it was mapped.
    Joining = "joining", true;
    /// Held back: this reader requested fewer frames a second.
    RateLimited = "rate_limited", true;
    /// Superseded by a newer frame, as the policy "latest" asks.
    Skipped = "skipped", true;
    /// The producer had given no sign of life, so its regions were not mapped for a while.
    Paused = "paused", true;
    /// Published before its epoch ended, and not read until then.
    Ended = "ended", true;
    /// The embedded header has a wrong length.
    HeaderLength = "header_length", true;
    /// The embedded header is another message, schema or version.
    HeaderMessage = "header_message", true;
    /// The element type is not in the registry.
    Dtype = "dtype", true;
    /// The major order is unknown.
    MajorOrder = "major_order", true;
    /// Not 1 to 8 dimensions.
    Ndims = "ndims", true;
    /// A negative dimension, or a shape beyond 64 bits.
    Dims = "dims", true;
    /// Strides that are negative, overlap or contradict the major order.
    Strides = "strides", true;
    /// A progress unit or stride that does not fit the layout, or progress that went backwards.
    Progress = "progress", true;
    /// The tensor spans more bytes than the payload has.
    Extent = "extent", true;
    /// The payload does not start at the start of its slot.
    PayloadOffset = "payload_offset", true;
    /// The payload slot is not the header's own index, or out of range.
    PayloadSlot = "payload_slot", true;
    /// The pool is not one of the announced ones.
    PoolId = "pool_id", true;
    /// More payload bytes than the pool's stride.
    ValuesLen = "values_len", true;
    /// The descriptor names another epoch than the mapped one.
    Epoch = "epoch", false;
    /// No region is mapped.
    Unmapped = "unmapped", false;
    /// Published and overwritten before this consumer was mapped: Aeron had kept its descriptor.
    BeforeJoining = "before_joining", false;
    /// The same sequence came again.
    Duplicate = "duplicate", false;
    /// The sequence went backwards: the regions are mapped again.
    Regressed = "regressed", false;
    /// Not a frame descriptor that this version can read.
    Malformed = "malformed", false;
}

/// One counter per reason. The polling thread writes, any thread reads.
#[derive(Debug)]
pub struct DropCounters([AtomicU64; COUNT]);

impl Default for DropCounters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; COUNT])
    }
}

impl DropCounters {
    #[inline]
    pub fn add(&self, reason: DropReason, count: u64) {
        self.0[reason as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }

    pub fn in_span(&self) -> u64 {
        DropReason::ALL.iter().filter(|d| d.in_span()).map(|d| self.get(*d)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_counter_and_name() {
        let counters = DropCounters::default();
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            counters.add(*reason, i as u64 + 1);
        }
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(counters.get(*reason), i as u64 + 1, "{}", reason.as_str());
        }
        let mut names: Vec<_> = DropReason::ALL.iter().map(|d| d.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
    }
}
