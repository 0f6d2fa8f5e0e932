//! Schedule of FrameProgress messages (wire §10.2.2). Pure: filled bytes and the time go in, due updates come
//! out. The producer bounds the rate for all consumers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::control::ProgressState;
use crate::wire::hello::ProgressHints;

const DEFAULT_INTERVAL_US: u32 = 250;
const DEFAULT_BYTES: u32 = 64 << 10;
/// After this many intervals even a small step is sent, so that a slow source stays visible.
const MAX_QUIET_INTERVALS: u64 = 8;

/// Lower bounds on what consumers may ask for.
#[derive(Clone, Copy, Debug)]
pub struct ProgressLimits {
    pub interval_us: u32,
    pub bytes_delta: u32,
}

/// How often, and after how many bytes, progress is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressPace {
    pub interval_ns: u64,
    bytes: Option<u32>,
    units: Option<u32>,
    least_bytes: u32,
}

impl ProgressPace {
    /// The pace of the smallest hints, bounded by the limits.
    pub fn from_hints(hints: ProgressHints, limits: ProgressLimits) -> Self {
        let interval_us = hints.interval_us.unwrap_or(DEFAULT_INTERVAL_US).max(limits.interval_us);
        // 0 rows: the consumer does not know (wire §10.1.2).
        let units = hints.major_delta_units.filter(|units| *units > 0);
        let bytes = hints.bytes_delta.or(if units.is_none() { Some(DEFAULT_BYTES) } else { None });
        let interval_ns = u64::from(interval_us) * 1000;
        Self { interval_ns, bytes, units, least_bytes: limits.bytes_delta }
    }

    /// The bytes that make an update due, for rows (or columns) of `stride` bytes: the smaller of both hints.
    pub fn delta(&self, stride: u32) -> u64 {
        let rows = self.units.map(|units| u64::from(units) * u64::from(stride));
        let least = match (self.bytes.map(u64::from), rows) {
            (Some(bytes), Some(rows)) => bytes.min(rows),
            (bytes, rows) => bytes.or(rows).unwrap_or(0),
        };
        least.max(u64::from(self.least_bytes)).max(1)
    }
}

/// How many bytes of an open slot are written. Stored by the writing thread, after the bytes themselves.
#[derive(Clone, Debug, Default)]
pub struct FilledBytes(Arc<AtomicU64>);

impl FilledBytes {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Never decreases, whichever of two threads is first. Pairs with `get`.
    pub fn raise(&self, bytes: u64) {
        self.0.fetch_max(bytes, Ordering::Release);
    }
}

#[derive(Debug)]
struct OpenFrame {
    seq: u64,
    filled: FilledBytes,
    stride: u32,
    /// Bytes and time of the last update. `None`: nothing sent yet.
    sent: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressUpdate {
    pub seq: u64,
    pub filled: u64,
    pub state: ProgressState,
}

/// The frames of one stream that are being written, and the last update of each.
#[derive(Debug, Default)]
pub struct ProgressSchedule {
    pace: Option<ProgressPace>,
    /// When a frame was last reported as started, and as in progress.
    started_ns: Option<u64>,
    continued_ns: Option<u64>,
    open: Vec<OpenFrame>,
}

impl ProgressSchedule {
    /// `None`: no consumer asks for progress, so nothing is sent.
    pub fn set_pace(&mut self, pace: Option<ProgressPace>) {
        self.pace = pace;
    }

    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    pub fn begin(&mut self, seq: u64, stride: u32) -> FilledBytes {
        let filled = FilledBytes::default();
        self.open.push(OpenFrame { seq, filled: filled.clone(), stride, sent: None });
        filled
    }

    /// The next update to send. Call until `None`.
    ///
    /// In one interval at most one frame is reported as started and one as in progress, so the rate of a
    /// stream is bounded however many frames are open. Among several frames the one that waited longest is
    /// reported.
    pub fn next(&mut self, now_ns: u64) -> Option<ProgressUpdate> {
        let pace = self.pace?;
        // Measured from the last update, so a shorter interval applies at once.
        let is_time = |last: Option<u64>| last.is_none_or(|ns| now_ns.saturating_sub(ns) >= pace.interval_ns);
        if is_time(self.started_ns)
            && let Some(open) = self.open.iter_mut().find(|o| o.sent.is_none())
        {
            self.started_ns = Some(now_ns);
            return Some(open.update(ProgressState::Started, open.filled.get(), now_ns));
        }
        if !is_time(self.continued_ns) {
            return None;
        }
        let longest_waiting = self
            .open
            .iter_mut()
            .filter_map(|open| Some((open.sent?.1, open.new_bytes(&pace, now_ns)?, open)))
            .min_by_key(|(sent_ns, ..)| *sent_ns);
        let (_, filled, open) = longest_waiting?;
        self.continued_ns = Some(now_ns);
        Some(open.update(ProgressState::Progress, filled, now_ns))
    }

    /// The frame is committed. A frame that was reported as started is reported as complete.
    pub fn complete(&mut self, seq: u64, values_len: u64) -> Option<ProgressUpdate> {
        let was_sent = self.forget(seq);
        (was_sent && self.pace.is_some()).then_some(ProgressUpdate {
            seq,
            filled: values_len,
            state: ProgressState::Complete,
        })
    }

    /// The frame is abandoned. True if an update of it was sent.
    pub fn forget(&mut self, seq: u64) -> bool {
        let at = self.open.iter().position(|o| o.seq == seq);
        at.is_some_and(|at| self.open.swap_remove(at).sent.is_some())
    }

    pub fn clear(&mut self) {
        self.open.clear();
    }
}

impl OpenFrame {
    /// The filled bytes, if an update is due.
    fn new_bytes(&self, pace: &ProgressPace, now_ns: u64) -> Option<u64> {
        let (sent, sent_ns) = self.sent?;
        let filled = self.filled.get();
        let is_overdue = now_ns.saturating_sub(sent_ns) >= MAX_QUIET_INTERVALS * pace.interval_ns;
        (filled > sent && (filled - sent >= pace.delta(self.stride) || is_overdue)).then_some(filled)
    }

    fn update(&mut self, state: ProgressState, filled: u64, now_ns: u64) -> ProgressUpdate {
        self.sent = Some((filled, now_ns));
        ProgressUpdate { seq: self.seq, filled, state }
    }
}

#[cfg(test)]
mod tests;
