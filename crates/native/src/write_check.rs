//! Notices frames that were changed after their commit, in Python's development mode (`python -X dev`).
//!
//! The commit makes `slot.array` read-only, but numpy cannot do that to views that were made of it before, nor
//! to tensors of other libraries over the same memory. A write through one of them changes a published frame.
//! So each committed slot is remembered with the checksum of its payload, which is compared with the next
//! claim or offer, again before the slot is used for another frame, and when the producer is closed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use tensorpool_core::checksum::crc32c;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_dataplane::producer::Claim;

/// A frame that was written in place.
pub struct WrittenFrame {
    mapping: Arc<MappedEpoch>,
    seq: u64,
    payload: usize,
    len: usize,
    checksum: u32,
}

impl WrittenFrame {
    /// The frame of a claim that is about to be committed.
    pub fn new(claim: &Claim) -> Self {
        let (payload, len) = (claim.payload() as usize, claim.values_len as usize);
        let mapping = claim.mapping().clone();
        Self { checksum: checksum_at(payload, len), mapping, seq: claim.seq, payload, len }
    }

    /// Whether the slot still has this frame, with another payload.
    fn is_changed(&self) -> bool {
        let is_there = || self.mapping.is_unchanged(self.seq);
        // Asked again behind the checksum: another thread may have used the slot meanwhile.
        is_there() && checksum_at(self.payload, self.len) != self.checksum && is_there()
    }
}

fn checksum_at(payload: usize, len: usize) -> u32 {
    // SAFETY: the payload of a claim, whose mapping the caller holds. Another thread that writes meanwhile is
    // what this module looks for: any bytes will do.
    crc32c(unsafe { std::slice::from_raw_parts(payload as *const u8, len) })
}

/// The frames of one producer that are still in its ring.
#[derive(Default)]
pub struct WriteCheck {
    frames: Mutex<VecDeque<WrittenFrame>>,
}

impl WriteCheck {
    /// A check, in Python's development mode. Checksums cost too much for every day.
    pub fn in_dev_mode(py: Python<'_>) -> PyResult<Option<Arc<Self>>> {
        let is_dev: bool = py.import("sys")?.getattr("flags")?.getattr("dev_mode")?.extract()?;
        Ok(is_dev.then(Arc::default))
    }

    /// Remembers a committed frame.
    pub fn add(&self, frame: WrittenFrame) {
        self.frames().push_back(frame);
    }

    /// The sequences of frames that were changed: of the newest one and of those whose slots are used next, or
    /// with `all` of every one. Each is reported once.
    pub fn take_changed(&self, all: bool) -> Vec<u64> {
        let mut frames = self.frames();
        let Some(newest) = frames.back().map(|frame| (frame.mapping.clone(), frame.seq)) else {
            return Vec::new();
        };
        let mut changed = Vec::new();
        frames.retain(|frame| {
            // A frame of an earlier epoch is compared a last time, and its memory released.
            let is_old = !Arc::ptr_eq(&frame.mapping, &newest.0)
                || newest.1.saturating_sub(frame.seq) + 1 >= u64::from(frame.mapping.nslots);
            let is_due = all || is_old || frame.seq == newest.1;
            let is_changed = is_due && frame.is_changed();
            changed.extend(is_changed.then_some(frame.seq));
            !(all || is_old || is_changed)
        });
        changed
    }

    fn frames(&self) -> std::sync::MutexGuard<'_, VecDeque<WrittenFrame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
