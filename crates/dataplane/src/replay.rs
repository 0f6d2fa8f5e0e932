//! Publication of recorded frames through producers, each at its due time, in the order of a replay window.
//!
//! Runs on the replayer's thread, without the interpreter, and returns at a given time at the latest.
//! Allocates nothing per frame.

use std::time::Duration;

use tensorpool_core::checksum;
use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::shm::tensor::TensorSpec;

use crate::producer::{BlockedOn, FrameStamp, Producer};

/// A frame published later than this after its due time counts as late.
pub const LATE_NS: u64 = 1_000_000;
/// Pause while a subscriber is behind.
const NO_ROOM: Duration = Duration::from_micros(20);

/// One recorded frame. Its payload is in the bytes of the batch.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub at: usize,
    pub len: u32,
    pub crc32c: u32,
    pub timestamp_ns: u64,
    pub trace_id: u64,
    pub meta_version: u32,
}

/// The rows of one batch.
#[derive(Debug, Default)]
pub struct RowTable {
    /// With the index of its spec.
    rows: Vec<(Row, Option<u32>)>,
    specs: Vec<TensorSpec>,
}

impl RowTable {
    pub fn with_capacity(rows: usize) -> Self {
        Self { rows: Vec::with_capacity(rows), specs: Vec::new() }
    }

    /// `spec` is `None` for a tensor that every reader would refuse.
    pub fn push(&mut self, row: Row, spec: Option<TensorSpec>) {
        let spec = spec.map(|spec| {
            // Neighbours nearly always have the same spec.
            if self.specs.last() != Some(&spec) {
                self.specs.push(spec);
            }
            (self.specs.len() - 1) as u32
        });
        self.rows.push((row, spec));
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows whose payload does not match its checksum. Reads every byte, so that the payloads are in memory
    /// afterwards.
    pub fn damaged(&self, bytes: &[u8]) -> Vec<u32> {
        let is_damaged = |row: &Row| {
            let end = row.at.saturating_add(row.len as usize);
            bytes.get(row.at..end).is_none_or(|payload| checksum::crc32c(payload) != row.crc32c)
        };
        let rows = self.rows.iter().zip(0..);
        rows.filter(|((row, _), _)| is_damaged(row)).map(|(_, number)| number).collect()
    }

    /// The byte range of the payloads.
    pub fn extent(&self) -> std::ops::Range<usize> {
        let start = self.rows.iter().map(|(row, _)| row.at).min().unwrap_or(0);
        let end = self.rows.iter().map(|(row, _)| row.at.saturating_add(row.len as usize)).max().unwrap_or(0);
        start..end
    }
}

/// A replayed stream: its producer, its rows and their bytes.
pub struct ReplayStream<'a> {
    pub producer: &'a Producer,
    pub table: &'a RowTable,
    pub bytes: &'a [u8],
    /// Added to every timestamp, so that none goes backwards after a jump.
    pub shift_ns: u64,
}

/// For each entry its stream, its row, and when it is due on the monotonic clock. All columns have the same
/// length.
pub struct ReplayWindow<'a> {
    pub stream: &'a [u16],
    pub row: &'a [u32],
    /// `None`: as fast as possible.
    pub due_ns: Option<&'a [i64]>,
}

/// Why a replay returned. The number is the index of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayStop {
    Done,
    Time,
    /// No lease or no media driver at the moment.
    NotReady(usize),
    /// The next frame is larger than every pool.
    NoPool(usize),
    Closed(usize),
    /// The window names a row that does not exist.
    Misread(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct ReplayResult {
    /// The first entry of the window that was not published.
    pub next: usize,
    pub stop: ReplayStop,
    pub bytes: u64,
    /// Tensors that every reader would refuse: skipped.
    pub unfit: u64,
    pub late: u64,
    pub late_max_ns: u64,
}

/// Publishes the window from `start` until it ends, a stream is blocked, or it is `until_ns`.
pub fn replay(
    streams: &[ReplayStream<'_>],
    window: &ReplayWindow<'_>,
    start: usize,
    until_ns: u64,
) -> ReplayResult {
    let mut result =
        ReplayResult { next: start, stop: ReplayStop::Done, bytes: 0, unfit: 0, late: 0, late_max_ns: 0 };
    let entries = window.stream.iter().zip(window.row).enumerate().skip(start);
    for (number, (stream, row)) in entries {
        let at = usize::from(*stream);
        result.next = number;
        let entry = streams.get(at).and_then(|stream| Some((stream, stream.table.rows.get(*row as usize)?)));
        let Some((stream, (row, spec))) = entry else {
            result.stop = ReplayStop::Misread(at);
            return result;
        };
        let due_ns = window.due_ns.map(|due| due[number].max(0) as u64);
        if !wait(due_ns, until_ns) {
            result.stop = ReplayStop::Time;
            return result;
        }
        let Some(spec) = spec.map(|spec| stream.table.specs[spec as usize]) else {
            result.unfit += 1;
            continue;
        };
        let end = row.at.saturating_add(row.len as usize);
        let Some(payload) = stream.bytes.get(row.at..end) else {
            result.stop = ReplayStop::Misread(at);
            return result;
        };
        if let Err(stop) = publish(stream, at, row, spec, payload, until_ns) {
            result.stop = stop;
            return result;
        }
        result.bytes += u64::from(row.len);
        if let Some(due_ns) = due_ns {
            let late_ns = monotonic_ns().saturating_sub(due_ns);
            result.late += u64::from(late_ns > LATE_NS);
            result.late_max_ns = result.late_max_ns.max(late_ns);
        }
    }
    result.next = window.stream.len();
    result
}

/// Waits until `due_ns`. False: that is not before `until_ns`.
#[inline]
fn wait(due_ns: Option<u64>, until_ns: u64) -> bool {
    loop {
        let now_ns = monotonic_ns();
        match due_ns {
            Some(due_ns) if due_ns > now_ns => {
                if now_ns >= until_ns {
                    return false;
                }
                std::thread::sleep(Duration::from_nanos(due_ns.min(until_ns) - now_ns));
            }
            _ => return now_ns < until_ns,
        }
    }
}

#[inline]
fn publish(
    stream: &ReplayStream<'_>,
    at: usize,
    row: &Row,
    spec: TensorSpec,
    payload: &[u8],
    until_ns: u64,
) -> Result<(), ReplayStop> {
    let stamp = FrameStamp {
        timestamp_ns: Some(row.timestamp_ns.wrapping_add(stream.shift_ns)),
        meta_version: row.meta_version,
        trace_id: row.trace_id,
    };
    loop {
        let offered = stream.producer.offer_blocking(spec, payload.len() as u64, stamp, |target| {
            // SAFETY: the slot has room for the payload, and the file is other memory.
            unsafe { target.write(payload.as_ptr(), payload.len()) }
        });
        match offered {
            Ok(_) => return Ok(()),
            Err(BlockedOn::NoRoom) if monotonic_ns() >= until_ns => return Err(ReplayStop::Time),
            Err(BlockedOn::NoRoom) => std::thread::sleep(NO_ROOM),
            Err(BlockedOn::NotReady) => return Err(ReplayStop::NotReady(at)),
            Err(BlockedOn::NoPool) => return Err(ReplayStop::NoPool(at)),
            Err(BlockedOn::Closed) => return Err(ReplayStop::Closed(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorpool_core::wire::layout::{DTYPE_UINT8, MAJOR_ORDER_ROW};

    use super::*;

    fn row(at: usize, len: u32, crc32c: u32) -> Row {
        Row { at, len, crc32c, timestamp_ns: 0, trace_id: 0, meta_version: 0 }
    }

    #[test]
    fn alike_rows_share_their_spec() {
        let spec = |n: usize| TensorSpec::new(DTYPE_UINT8, MAJOR_ORDER_ROW, &[n]);
        let mut table = RowTable::with_capacity(4);
        for shape in [Some(4), Some(4), None, Some(5)] {
            table.push(row(0, 5, 0), shape.and_then(spec));
        }
        assert_eq!((table.len(), table.specs.len()), (4, 2));
        let specs: Vec<_> = table.rows.iter().map(|(_, spec)| *spec).collect();
        assert_eq!(specs, [Some(0), Some(0), None, Some(1)]);
    }

    #[test]
    fn changed_or_truncated_payload_is_damaged() {
        let bytes = b"0123456789";
        let crc = checksum::crc32c(&bytes[2..6]);
        let mut table = RowTable::with_capacity(3);
        assert!(table.is_empty());
        assert_eq!(table.extent(), 0..0);
        for row_at in [row(2, 4, crc), row(3, 4, crc), row(8, 4, crc), row(10, 0, 0)] {
            table.push(row_at, None);
        }
        assert_eq!(table.damaged(bytes), [1, 2]);
        assert_eq!(table.extent(), 2..12);
    }

    #[test]
    fn wait_ends_at_the_due_time_or_the_deadline() {
        let now = monotonic_ns();
        assert!(wait(None, now + 1_000_000_000));
        assert!(!wait(None, now));
        assert!(wait(Some(now), now + 1_000_000_000));
        let due = now + 2_000_000;
        assert!(wait(Some(due), now + 60_000_000_000));
        assert!(monotonic_ns() >= due);
        let until = monotonic_ns() + 1_000_000;
        assert!(!wait(Some(until + 60_000_000_000), until));
        assert!(monotonic_ns() >= until);
    }
}
