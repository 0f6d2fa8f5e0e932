//! One input of a join: its frames that are held back, and the count of all of them.

use std::collections::VecDeque;

/// Frames that an input can hold back before its buffer grows.
const FIRST_CAPACITY: usize = 16;

/// Why a frame that a join received is in no output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum JoinReason {
    /// No output needed it.
    Unmatched,
    /// A frame of the driving input, for whose output another input has no frame.
    Missing,
    /// Its slot was reused before its output.
    Overwritten,
    /// A frame of the driving input, whose partner's slot was reused.
    PartnerOverwritten,
    /// Its stream began another epoch.
    Epoch,
    /// Timestamps of its epoch ran backwards, at this frame or before it.
    Backwards,
    /// Its descriptor has no timestamp, and publication times are joined.
    NoTimestamp,
    /// Too many frames were held back while another input was behind.
    Overflow,
    /// A newer frame replaced it.
    Superseded,
    /// The merge map changed, or the join was closed.
    Discarded,
}

impl JoinReason {
    pub const ALL: [Self; 10] = [
        Self::Unmatched,
        Self::Missing,
        Self::Overwritten,
        Self::PartnerOverwritten,
        Self::Epoch,
        Self::Backwards,
        Self::NoTimestamp,
        Self::Overflow,
        Self::Superseded,
        Self::Discarded,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unmatched => "unmatched",
            Self::Missing => "missing",
            Self::Overwritten => "overwritten",
            Self::PartnerOverwritten => "partner_overwritten",
            Self::Epoch => "epoch",
            Self::Backwards => "backwards",
            Self::NoTimestamp => "no_timestamp",
            Self::Overflow => "overflow",
            Self::Superseded => "superseded",
            Self::Discarded => "discarded",
        }
    }
}

/// What became of the frames of an input: `received == joined + drops + pending`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputCounts {
    pub received: u64,
    /// Frames that are in one output or more.
    pub joined: u64,
    pub drops: [u64; JoinReason::ALL.len()],
    /// Frames held back that are in no output yet.
    pub pending: u64,
    /// Outputs that were dropped because this input had no frame for them.
    pub lacking: u64,
    /// Outputs in which this input was absent.
    pub absent: u64,
}

impl InputCounts {
    pub fn dropped(&self, reason: JoinReason) -> u64 {
        self.drops[reason as usize]
    }

    pub fn adds_up(&self) -> bool {
        self.received == self.joined + self.drops.iter().sum::<u64>() + self.pending
    }
}

pub(super) struct Entry<T> {
    /// Sequence or timestamp.
    pub(super) key: u64,
    /// It is in an output already.
    is_used: bool,
    /// Its slot was reused.
    is_lost: bool,
    pub(super) item: T,
}

pub(super) struct Input<T> {
    /// In the order of their keys.
    pub(super) entries: VecDeque<Entry<T>>,
    depth: usize,
    /// How many entries at the front are decided: kept for windows of later outputs. 0 unless it drives.
    pub(super) decided: usize,
    pub(super) epoch: Option<u64>,
    /// The highest key of the stream.
    pub(super) newest: Option<u64>,
    pub(super) seen_ns: u64,
    /// Timestamps ran backwards: no frame of this epoch is joined.
    pub(super) is_rejected: bool,
    pub(super) counts: InputCounts,
}

impl<T> Input<T> {
    pub(super) fn new(depth: usize, now_ns: u64) -> Self {
        Self {
            // Grows to what the streams need, so that it stays in the cache.
            entries: VecDeque::with_capacity(depth.min(FIRST_CAPACITY)),
            depth,
            decided: 0,
            epoch: None,
            newest: None,
            seen_ns: now_ns,
            is_rejected: false,
            counts: InputCounts::default(),
        }
    }

    pub(super) fn drop_new(&mut self, reason: JoinReason) {
        self.counts.drops[reason as usize] += 1;
    }

    pub(super) fn push(&mut self, key: u64, item: T) {
        if self.entries.len() >= self.depth {
            self.pop(JoinReason::Overflow);
        }
        self.counts.pending += 1;
        self.newest = Some(key);
        self.entries.push_back(Entry { key, is_used: false, is_lost: false, item });
    }

    /// Removes the oldest entry. It counts by `reason` unless it was in an output.
    pub(super) fn pop(&mut self, reason: JoinReason) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.decided = self.decided.saturating_sub(1);
        if !entry.is_used {
            let reason = if entry.is_lost { JoinReason::Overwritten } else { reason };
            self.counts.pending -= 1;
            self.counts.drops[reason as usize] += 1;
        }
        if self.entries.is_empty() {
            // Begins again at the start of its memory, which is in the cache.
            self.entries.clear();
        }
    }

    pub(super) fn clear(&mut self, reason: JoinReason) {
        while !self.entries.is_empty() {
            self.pop(reason);
        }
    }

    /// The entry is in an output.
    pub(super) fn mark_used(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        if !std::mem::replace(&mut entry.is_used, true) {
            self.counts.pending -= 1;
            self.counts.joined += 1;
        }
    }

    pub(super) fn mark_lost(&mut self, at: usize) {
        self.entries[at].is_lost = true;
    }

    pub(super) fn is_lost(&self, at: usize) -> bool {
        self.entries[at].is_lost
    }

    /// The driving input: its oldest undecided entry is decided, by `reason` if it is in no output.
    pub(super) fn decide(&mut self, reason: Option<JoinReason>) {
        if let (Some(reason), Some(entry)) = (reason, self.entries.get_mut(self.decided))
            && !std::mem::replace(&mut entry.is_used, true)
        {
            // Kept for windows, perhaps; counted now, so that it is counted by its own reason.
            self.counts.pending -= 1;
            self.counts.drops[reason as usize] += 1;
        }
        self.decided += 1;
    }

    pub(super) fn index_of_first_at_least(&self, key: u64) -> usize {
        self.entries.partition_point(|entry| entry.key < key)
    }

    /// The entry nearest to `key` within `tolerance`: of two equally near ones the earlier, of equal keys the
    /// first.
    pub(super) fn nearest(&self, key: u64, tolerance: u64) -> Option<usize> {
        let right = self.index_of_first_at_least(key);
        let after = self.entries.get(right).map(|entry| entry.key - key);
        let before = right.checked_sub(1).map(|at| key - self.entries[at].key);
        let (at, distance) = match (before, after) {
            (Some(before), after) if after.is_none_or(|after| before <= after) => {
                (self.index_of_first_at_least(key - before), before)
            }
            (_, Some(after)) => (right, after),
            _ => return None,
        };
        (distance <= tolerance).then_some(at)
    }

    /// Removes entries that no output from `lowest` on can need: those before the window.
    pub(super) fn forget_before(&mut self, lowest: u64) {
        while self.entries.front().is_some_and(|entry| entry.key < lowest) {
            self.pop(JoinReason::Unmatched);
        }
    }

    /// Removes entries that are not the nearest to `key` or to any later one.
    pub(super) fn forget_farther(&mut self, key: u64, tolerance: u64) {
        self.forget_before(key.saturating_sub(tolerance));
        // The last one before the key is nearer than all others before it.
        let last = self.index_of_first_at_least(key);
        let Some(last) = last.checked_sub(1) else { return };
        self.forget_before(self.entries[last].key);
    }
}
