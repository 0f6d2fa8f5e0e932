//! Assembly of blobs from chunks (wire §10.3.3, §15.9). Pure and bounded. A blob that does not come
//! completely, in order and with its announced checksum is discarded.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::checksum;
use crate::wire::metadata::{BlobAnnounce, BlobChunk, BlobComplete};

/// The largest blob. A longer one is refused when it is announced.
pub const MAX_BLOB_BYTES: u64 = 128 << 20;
/// Bytes of all complete blobs of a stream, and of all incomplete ones.
pub const MAX_BYTES: usize = 256 << 20;
/// Incomplete blobs at a time. A new one evicts the oldest.
pub const MAX_PARTIAL: usize = 4;
/// Complete blobs of one type that are kept: one for frames to come, one for frames in flight.
pub const MAX_OF_A_TYPE: usize = 2;
/// Complete blobs of a stream.
pub const MAX_BLOBS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub epoch: Option<u64>,
    pub version: u32,
    pub blob_type: u32,
    pub checksum: u64,
    pub bytes: Vec<u8>,
}

/// Why a blob, or a chunk of one, was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardReason {
    /// A chunk is missing, or the end came too early.
    Gap,
    /// A chunk repeats bytes, or is empty.
    Overlap,
    /// A chunk exceeds the announced length.
    Overrun,
    /// The bytes do not match the checksum.
    Checksum,
    /// Longer than the limit.
    TooLarge,
    /// Another blob began before this one was complete.
    Unfinished,
    /// A chunk of a blob whose announce was not received.
    Stray,
}

impl DiscardReason {
    pub const ALL: [Self; 7] = [
        Self::Gap,
        Self::Overlap,
        Self::Overrun,
        Self::Checksum,
        Self::TooLarge,
        Self::Unfinished,
        Self::Stray,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Overlap => "overlap",
            Self::Overrun => "overrun",
            Self::Checksum => "checksum",
            Self::TooLarge => "too_large",
            Self::Unfinished => "unfinished",
            Self::Stray => "stray",
        }
    }
}

struct PartialBlob {
    session_id: i32,
    announce: BlobAnnounce,
    epoch: Option<u64>,
    bytes: Vec<u8>,
    crc: u32,
    /// The complete blob is known already: its chunks are skipped.
    known: bool,
}

/// The blobs of one stream.
#[derive(Default)]
pub struct BlobAssembly {
    partial: VecDeque<PartialBlob>,
    complete: VecDeque<Arc<Blob>>,
    discarded: [u64; DiscardReason::ALL.len()],
    completed: u64,
}

impl BlobAssembly {
    fn discard(&mut self, why: DiscardReason) {
        self.discarded[why as usize] += 1;
    }

    pub fn discarded(&self, why: DiscardReason) -> u64 {
        self.discarded[why as usize]
    }

    /// How many complete blobs came; the same blob counts once.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Chunks name no type, so a session has one incomplete blob for each metadata version.
    fn find(&self, session_id: i32, version: u32) -> Option<usize> {
        self.partial.iter().position(|u| u.session_id == session_id && u.announce.meta_version == version)
    }

    pub fn on_announce(&mut self, session_id: i32, epoch: Option<u64>, announce: BlobAnnounce) {
        if let Some(at) = self.find(session_id, announce.meta_version) {
            self.discard_partial(at, DiscardReason::Unfinished);
        }
        if announce.total_len > MAX_BLOB_BYTES {
            self.discard(DiscardReason::TooLarge);
            return;
        }
        // Without a checksum, identity cannot be checked.
        let known = announce.checksum != 0
            && self.complete.iter().any(|b| {
                b.epoch == epoch
                    && b.version == announce.meta_version
                    && b.blob_type == announce.blob_type
                    && b.checksum == announce.checksum
                    && b.bytes.len() as u64 == announce.total_len
            });
        if self.partial.len() >= MAX_PARTIAL {
            self.discard_partial(0, DiscardReason::Unfinished);
        }
        self.partial.push_back(PartialBlob { session_id, announce, epoch, bytes: Vec::new(), crc: 0, known });
    }

    fn discard_partial(&mut self, at: usize, why: DiscardReason) {
        if self.partial.remove(at).is_some_and(|u| !u.known) {
            self.discard(why);
        }
    }

    pub fn on_chunk(&mut self, session_id: i32, chunk: BlobChunk<'_>) {
        let Some(at) = self.find(session_id, chunk.meta_version) else {
            self.discard(DiscardReason::Stray);
            return;
        };
        let all: usize = self.partial.iter().map(|u| u.bytes.len()).sum();
        let one = &mut self.partial[at];
        if one.known {
            return;
        }
        let (have, total) = (one.bytes.len() as u64, one.announce.total_len);
        let why = match chunk.offset.checked_add(chunk.bytes.len() as u64) {
            _ if chunk.offset > have => Some(DiscardReason::Gap),
            _ if chunk.offset < have => Some(DiscardReason::Overlap),
            // An empty chunk is allowed only for an empty blob.
            Some(end) if end == have && total != 0 => Some(DiscardReason::Overlap),
            Some(end) if end <= total && all + chunk.bytes.len() > MAX_BYTES => Some(DiscardReason::TooLarge),
            Some(end) if end <= total => None,
            _ => Some(DiscardReason::Overrun),
        };
        if let Some(why) = why {
            self.discard_partial(at, why);
            return;
        }
        one.bytes.extend_from_slice(chunk.bytes);
        one.crc = checksum::crc32c_append(one.crc, chunk.bytes);
    }

    pub fn on_complete(&mut self, session_id: i32, complete: BlobComplete) {
        let Some(at) = self.find(session_id, complete.meta_version) else {
            self.discard(DiscardReason::Stray);
            return;
        };
        let Some(one) = self.partial.remove(at) else { return };
        if one.known {
            return;
        }
        if one.bytes.len() as u64 != one.announce.total_len {
            self.discard(DiscardReason::Gap);
            return;
        }
        let fits = |expected: u64| expected == 0 || expected == u64::from(one.crc);
        if !fits(one.announce.checksum) || !fits(complete.checksum) {
            self.discard(DiscardReason::Checksum);
            return;
        }
        self.completed += 1;
        self.insert(Blob {
            epoch: one.epoch,
            version: one.announce.meta_version,
            blob_type: one.announce.blob_type,
            checksum: one.announce.checksum,
            bytes: one.bytes,
        });
    }

    fn insert(&mut self, blob: Blob) {
        let (blob_type, key) = (blob.blob_type, (blob.epoch, blob.version));
        self.complete.retain(|b| b.blob_type != blob_type || (b.epoch, b.version) != key);
        self.complete.push_back(Arc::new(blob));
        let of_type = |b: &Arc<Blob>| b.blob_type == blob_type;
        if self.complete.iter().filter(|b| of_type(b)).count() > MAX_OF_A_TYPE
            && let Some(at) = self.complete.iter().position(of_type)
        {
            self.complete.remove(at);
        }
        while self.complete.len() > MAX_BLOBS
            || self.complete.iter().map(|b| b.bytes.len()).sum::<usize>() > MAX_BYTES
        {
            self.complete.pop_front();
        }
    }

    /// The latest blob of a type, or the latest at the given epoch and metadata version.
    pub fn newest(&self, blob_type: u32, of: Option<(u64, u32)>) -> Option<&Arc<Blob>> {
        let fits = |b: &&Arc<Blob>| match of {
            None => true,
            Some((epoch, version)) => b.version <= version && b.epoch.is_none_or(|e| e == epoch),
        };
        self.complete
            .iter()
            .filter(|b| b.blob_type == blob_type)
            .filter(fits)
            .max_by_key(|b| (b.epoch, b.version))
    }
}

#[cfg(test)]
mod tests;
