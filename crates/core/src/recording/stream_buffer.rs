//! The frames of one recorded stream: rows and gaps, in the order of sequences, in arenas. Pure.
//!
//! Of each epoch, from its first known sequence on, every sequence is a row or in a gap, exactly once: that
//! is the ledger. No clock is read here and nothing waits. Rows go into arenas that exist already. Where none
//! is free, the frame is lost and recorded as a gap.

use std::sync::Arc;

use crate::recording::block_pool::{ALIGNMENT, BlockRun};

use super::rows::{Arena, ArenaPool, Gap, Row};

/// Offsets in a batch of the file are 32-bit and signed.
pub const MAX_PAYLOAD_BYTES: usize = (1 << 31) - 2 * ALIGNMENT;

pub const BACKLOG: &str = "recorder_backlog";
pub const DISK_FULL: &str = "disk_full";
pub const TOO_LARGE: &str = "too_large";
pub const NOT_RECORDING: &str = "not_recording";
pub const UNMAPPED: &str = "unmapped";
pub const EPOCH: &str = "epoch";
pub const GAP: &str = "gap";

/// Why a recorder loses frames that a consumer would have received, with the text for users.
pub const REASONS: [(&str, &str); 4] = [
    (BACKLOG, "The buffer was full: frames came faster than the disk took them."),
    (DISK_FULL, "The buffer was full, and so was the disk."),
    (TOO_LARGE, "One frame is larger than the whole buffer, or than a row may be."),
    (NOT_RECORDING, "No recorder was there."),
];

/// Gaps of an arena. Further neighbours are merged, which keeps the count and loses a reason.
const MAX_GAPS: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub struct BufferLimits {
    pub rows: usize,
    /// An arena of this age is handed over. 0: only when it is full.
    pub age_ns: u64,
}

/// The position in an epoch: every known sequence before it is a row or in a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    epoch: u64,
    next: u64,
}

pub struct StreamBuffer {
    stream_id: u32,
    memory: Arc<ArenaPool>,
    limits: BufferLimits,
    open: Option<Arena>,
    full: Vec<Arena>,
    /// Gaps that have no arena yet.
    lost: Vec<Gap>,
    lost_since_ns: u64,
    position: Option<Position>,
    /// The previous epoch: its further frames are lost, and still counted.
    previous: Option<Position>,
    /// An epoch that is not mapped, or not again: its first known sequence, and the next one.
    ahead: Option<(Position, u64)>,
    /// Sequences missing before the first row of the resumed epoch passed while nothing was recorded.
    is_resuming: bool,
    pub backlog_reason: &'static str,
    pub counts: BufferCounts,
    now_ns: u64,
    wall_ns: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferCounts {
    pub rows: u64,
    pub bytes: u64,
    pub lost: u64,
    /// Repeated frames, or frames of a past epoch: not part of the ledger.
    pub strays: u64,
}

impl StreamBuffer {
    /// `resume`: the epoch and last sequence that are recorded already.
    pub fn new(
        stream_id: u32,
        memory: Arc<ArenaPool>,
        limits: BufferLimits,
        resume: Option<(u64, u64)>,
    ) -> Self {
        Self {
            stream_id,
            memory,
            limits,
            open: None,
            full: Vec::new(),
            lost: Vec::new(),
            lost_since_ns: 0,
            position: resume.map(|(epoch, last)| Position { epoch, next: last.saturating_add(1) }),
            previous: None,
            ahead: None,
            is_resuming: resume.is_some(),
            backlog_reason: BACKLOG,
            counts: BufferCounts::default(),
            now_ns: 0,
            wall_ns: 0,
        }
    }

    pub fn stream_id(&self) -> u32 {
        self.stream_id
    }

    pub fn set_age_ns(&mut self, age_ns: u64) {
        self.limits.age_ns = age_ns;
    }

    /// Sets the monotonic time and the wall clock time.
    pub fn set_time(&mut self, now_ns: u64, wall_ns: i64) {
        (self.now_ns, self.wall_ns) = (now_ns, wall_ns);
    }

    pub fn set_wall_ns(&mut self, wall_ns: i64) {
        self.wall_ns = wall_ns;
    }

    /// Records sequences of an epoch that will never be rows.
    pub fn add_gap(&mut self, epoch: u64, first_seq: u64, count: u64, reason: &'static str) {
        if count == 0 {
            return;
        }
        match self.position {
            Some(at) if epoch < at.epoch => self.lost_before(epoch, first_seq, count),
            _ => {
                self.advance_to(epoch, first_seq);
                // Aeron lets a new subscription begin at the slowest reader's position, which is before we
                // joined.
                let reason = if self.is_resuming { NOT_RECORDING } else { reason };
                self.note(epoch, first_seq, count, reason);
            }
        }
    }

    /// A descriptor of an epoch that is not mapped: past, or to come.
    pub fn unmapped(&mut self, epoch: u64, seq: u64) {
        if self.position.is_some_and(|at| epoch < at.epoch) {
            return self.lost_before(epoch, seq, 1);
        }
        // Any process may write any number: it counts only once that epoch is mapped, and up to its first
        // frame.
        match &mut self.ahead {
            Some((first, next)) if first.epoch == epoch => *next = seq.saturating_add(1).max(*next),
            ahead => *ahead = Some((Position { epoch, next: seq }, seq.saturating_add(1))),
        }
    }

    /// Claims room for the payload of the next frame. `None` if the frame is lost, which is recorded.
    pub fn begin(&mut self, epoch: u64, seq: u64, len: usize) -> Option<*mut u8> {
        if self.position.is_some_and(|at| epoch < at.epoch || (epoch == at.epoch && seq < at.next)) {
            self.counts.strays += 1;
            return None;
        }
        self.advance_to(epoch, seq);
        let needed = len.next_multiple_of(ALIGNMENT);
        if needed > MAX_PAYLOAD_BYTES || needed > self.memory.blocks.total_bytes() {
            self.note(epoch, seq, 1, TOO_LARGE);
            return None;
        }
        if !self.has_room(epoch, needed) {
            self.hand_over();
            let Some(run) = self.memory.blocks.take(needed) else {
                self.note(epoch, seq, 1, self.backlog_reason);
                return None;
            };
            self.open = Some(self.arena(epoch, Some(run)));
        }
        let arena = self.open.as_ref()?;
        arena.run.as_ref().map(|run| run.at(arena.filled_bytes))
    }

    /// Adds a row whose payload is complete at the address that `begin` returned. Fills in its offsets.
    pub fn commit(&mut self, mut row: Row) {
        let Some(arena) = &mut self.open else { return };
        let Some(run) = &arena.run else { return };
        let len = row.payload_bytes as usize;
        let padded = len.next_multiple_of(ALIGNMENT);
        // SAFETY: `begin` made room for all of it, and the bytes in between are this arena's own.
        unsafe { std::ptr::write_bytes(run.at(arena.filled_bytes + len), 0, padded - len) };
        row.payload_offset = arena.filled_bytes as u64;
        row.receive_time_ns = self.wall_ns;
        arena.filled_bytes += padded;
        self.is_resuming = false;
        self.counts.rows += 1;
        self.counts.bytes += row.payload_bytes;
        self.position = Some(Position { epoch: arena.epoch, next: row.seq.saturating_add(1) });
        arena.rows.push(row);
    }

    /// Whether `take_full` may return something.
    pub fn is_due(&self) -> bool {
        !self.full.is_empty()
            || self.open.as_ref().is_some_and(|arena| self.is_old(arena.since_ns))
            || (!self.lost.is_empty() && self.is_old(self.lost_since_ns))
    }

    fn is_old(&self, since_ns: u64) -> bool {
        self.limits.age_ns > 0 && self.now_ns.saturating_sub(since_ns) >= self.limits.age_ns
    }

    /// Hands over arenas that are full or old, or with `all` every one. Gaps without an arena are handed over
    /// alone if `gaps_alone`, and otherwise wait for one.
    pub fn take_full(&mut self, all: bool, gaps_alone: bool, out: &mut impl Extend<Arena>) {
        if self.open.as_ref().is_some_and(|arena| all || self.is_old(arena.since_ns)) {
            self.hand_over();
        }
        let is_due = all || (gaps_alone && self.is_old(self.lost_since_ns));
        if !self.lost.is_empty() && self.open.is_none() && is_due {
            let epoch = self.lost[0].epoch;
            let arena = self.arena(epoch, None);
            self.full.push(arena);
        }
        out.extend(self.full.drain(..));
    }

    fn has_room(&self, epoch: u64, needed: usize) -> bool {
        let fits = |arena: &Arena| {
            let left =
                arena.run.as_ref().map_or(0, |run| run.bytes().min(MAX_PAYLOAD_BYTES)) - arena.filled_bytes;
            arena.epoch == epoch && left >= needed && arena.rows.len() < self.limits.rows
        };
        self.open.as_ref().is_some_and(fits)
    }

    fn arena(&mut self, epoch: u64, run: Option<BlockRun>) -> Arena {
        let rows = if run.is_some() { self.memory.list(self.limits.rows) } else { Vec::new() };
        Arena {
            stream_id: self.stream_id,
            epoch,
            rows,
            gaps: std::mem::take(&mut self.lost),
            filled_bytes: 0,
            run,
            since_ns: self.now_ns,
            memory: self.memory.clone(),
        }
    }

    fn hand_over(&mut self) {
        self.full.extend(self.open.take());
    }

    /// Advances to `seq`. Sequences in between are missing.
    fn advance_to(&mut self, epoch: u64, seq: u64) {
        match self.position {
            Some(at) if at.epoch == epoch => {
                let reason = if self.is_resuming { NOT_RECORDING } else { GAP };
                if seq > at.next {
                    if let Some((first, next)) = self.ahead.take_if(|(first, _)| first.epoch == epoch) {
                        let (first, end) = (first.next.clamp(at.next, seq), next.clamp(at.next, seq));
                        let unmapped = if self.is_resuming { NOT_RECORDING } else { UNMAPPED };
                        self.note(epoch, at.next, first - at.next, reason);
                        self.note(epoch, first, end.saturating_sub(first), unmapped);
                    }
                    // What is noted already is left out.
                    self.note(epoch, at.next, seq - at.next, reason);
                }
            }
            before => {
                self.hand_over();
                // A position that was resumed is that of an earlier recorder.
                let saw_before = before.is_some() && !std::mem::take(&mut self.is_resuming);
                self.previous = before;
                // Of the first epoch, descriptors may be from before this recorder joined: Aeron lets a new
                // subscription begin at the slowest reader's position, also a dead one's. From the first
                // sequence on, the recorder was there.
                let is_counted = |first: &Position| saw_before || first.next == 0;
                let ahead = self
                    .ahead
                    .take()
                    .filter(|(first, _)| first.epoch == epoch && first.next < seq && is_counted(first));
                let first = ahead.map_or(seq, |(first, _)| first.next);
                self.position = Some(Position { epoch, next: first });
                if let Some((_, next)) = ahead {
                    let end = next.min(seq);
                    self.note(epoch, first, end - first, UNMAPPED);
                    self.note(epoch, end, seq - end, GAP);
                }
            }
        }
    }

    /// The epoch is over, and its regions may be gone: its further frames are lost.
    fn lost_before(&mut self, epoch: u64, first_seq: u64, count: u64) {
        match &mut self.previous {
            Some(at) if at.epoch == epoch && first_seq.saturating_add(count) > at.next => {
                let (first, end) = (at.next, first_seq.saturating_add(count));
                at.next = end;
                self.push(Gap {
                    epoch,
                    first_seq: first,
                    count: end - first,
                    reason: EPOCH,
                    before_row: 0,
                    time_ns: self.wall_ns,
                });
            }
            _ => self.counts.strays += 1,
        }
    }

    /// Records a gap of the current epoch at its position.
    fn note(&mut self, epoch: u64, first_seq: u64, count: u64, reason: &'static str) {
        let Some(at) = &mut self.position else { return };
        debug_assert_eq!(at.epoch, epoch);
        let first = first_seq.max(at.next);
        let end = first_seq.saturating_add(count);
        if end <= first {
            return;
        }
        at.next = end;
        self.push(Gap {
            epoch,
            first_seq: first,
            count: end - first,
            reason,
            before_row: 0,
            time_ns: self.wall_ns,
        });
    }

    fn push(&mut self, mut gap: Gap) {
        self.counts.lost += gap.count;
        let (gaps, rows) = match &mut self.open {
            Some(arena) => (&mut arena.gaps, arena.rows.len() as u32),
            None => {
                if self.lost.is_empty() {
                    self.lost_since_ns = self.now_ns;
                }
                (&mut self.lost, 0)
            }
        };
        gap.before_row = rows;
        let is_many = gaps.len() >= MAX_GAPS;
        let follows = |last: &Gap| {
            last.epoch == gap.epoch
                && last.before_row == rows
                && last.first_seq + last.count == gap.first_seq
                && (last.reason == gap.reason || is_many)
        };
        // Late gaps of the past epoch may take turns with those of this one: then the neighbour is the last
        // but one. Only two epochs can, so the search ends there.
        let newest = gaps.len().saturating_sub(2);
        match gaps[newest..].iter_mut().rev().find(|last| follows(last)) {
            Some(last) => last.count += gap.count,
            None => gaps.push(gap),
        }
    }
}

#[cfg(test)]
mod tests;
