//! Schedule of a producer's metadata messages: announce and attributes every period, blobs less often
//! (wire §10.3). Pure: time and identity go in, due messages come out.
//!
//! A late consumer waits one period at most. A consumer that sends a hello gets everything at once. A producer
//! that has no metadata sends its announce alone, with version 0 and without a name: inventories see it too.

use std::collections::VecDeque;

use crate::checksum;
use crate::wire::layout::*;
use crate::wire::metadata::{BlobAnnounce, BlobChunk, BlobComplete, CHUNK_MAX, DataSourceAnnounce};

/// Chunks sent in one duty cycle, because the conductor has other endpoints to serve.
const CHUNKS_A_ROUND: usize = 16;
/// The shortest time between two rounds of blobs, however many consumers ask.
const BLOB_PAUSE_NS: u64 = 1_000_000_000;
/// Consumers kept, and for how long after their last hello.
const MAX_KNOWN: usize = 1024;
const FORGET_NS: u64 = 30_000_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Periods {
    pub attributes_ns: u64,
    pub blobs_ns: u64,
}

/// The producer id and epoch of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerIdentity {
    pub producer_id: u32,
    pub epoch: u64,
}

struct ScheduledBlob {
    announce: BlobAnnounce,
    bytes: Vec<u8>,
}

impl ScheduledBlob {
    /// The messages of a blob: announce, chunks, complete.
    fn message(&self, at: usize) -> Option<Vec<u8>> {
        let BlobAnnounce { stream_id, meta_version, checksum, .. } = self.announce;
        let chunks = self.bytes.len().div_ceil(CHUNK_MAX);
        match at {
            0 => Some(self.announce.encode()),
            at if at <= chunks => {
                let offset = (at - 1) * CHUNK_MAX;
                let bytes = &self.bytes[offset..self.bytes.len().min(offset + CHUNK_MAX)];
                Some(BlobChunk { stream_id, meta_version, offset: offset as u64, bytes }.encode())
            }
            at if at == chunks + 1 => Some(BlobComplete { stream_id, meta_version, checksum }.encode()),
            _ => None,
        }
    }
}

pub struct MetadataSchedule {
    stream_id: u32,
    periods: Periods,
    /// The announce, whose producer and epoch are filled in when it is sent, and the attributes, if any.
    messages: Option<(Vec<u8>, Option<Vec<u8>>)>,
    due: bool,
    next_ns: u64,
    sent_as: Option<ProducerIdentity>,
    blobs: Vec<ScheduledBlob>,
    /// The types of the queued blobs, and the next message of the first one.
    queue: VecDeque<u32>,
    at: usize,
    blobs_requested: bool,
    next_blobs_ns: u64,
    earliest_ns: u64,
    known: Vec<(u32, u64)>,
}

impl MetadataSchedule {
    pub fn new(stream_id: u32, periods: Periods) -> Self {
        Self {
            stream_id,
            periods,
            messages: None,
            due: false,
            next_ns: 0,
            sent_as: None,
            blobs: Vec::new(),
            queue: VecDeque::new(),
            at: 0,
            blobs_requested: false,
            next_blobs_ns: 0,
            earliest_ns: 0,
            known: Vec::new(),
        }
    }

    /// Replaces the attributes, which are due at once. False: the first message is not an announce.
    pub fn put(&mut self, announce: Vec<u8>, meta: Vec<u8>) -> bool {
        let length = MESSAGE_HEADER_LENGTH + usize::from(DATA_SOURCE_ANNOUNCE_BLOCK_LENGTH);
        let is_announce = announce.len() >= length
            && get_u16(&announce, MESSAGE_HEADER_TEMPLATE_ID) == DATA_SOURCE_ANNOUNCE_TEMPLATE_ID;
        if is_announce {
            self.messages = Some((announce, Some(meta)));
            self.due = true;
        }
        is_announce
    }

    /// Announces the source without metadata, until there is some.
    pub fn put_undescribed(&mut self) {
        let announce = DataSourceAnnounce {
            stream_id: self.stream_id,
            producer_id: 0,
            epoch: 0,
            meta_version: 0,
            name: String::new(),
            summary: String::new(),
        };
        if self.messages.is_none() {
            self.messages = Some((announce.encode(), None));
            self.due = true;
        }
    }

    /// Replaces the blob of its type. `version` is the first metadata version that it applies to.
    pub fn put_blob(&mut self, blob_type: u32, version: u32, bytes: Vec<u8>) {
        self.take_blob(blob_type);
        let announce = BlobAnnounce {
            stream_id: self.stream_id,
            meta_version: version,
            blob_type,
            total_len: bytes.len() as u64,
            checksum: u64::from(checksum::crc32c(&bytes)),
        };
        self.blobs.push(ScheduledBlob { announce, bytes });
        self.queue.push_back(blob_type);
    }

    pub fn take_blob(&mut self, blob_type: u32) -> bool {
        let before = self.blobs.len();
        self.blobs.retain(|b| b.announce.blob_type != blob_type);
        if self.queue.front() == Some(&blob_type) {
            self.at = 0;
        }
        self.queue.retain(|t| *t != blob_type);
        self.blobs.len() != before
    }

    /// A consumer of the stream sent a hello. A new consumer gets everything.
    pub fn on_hello(&mut self, consumer_id: u32, now_ns: u64) {
        self.known.retain(|(_, received_ns)| now_ns.saturating_sub(*received_ns) < FORGET_NS);
        if let Some(known) = self.known.iter_mut().find(|(id, _)| *id == consumer_id) {
            known.1 = now_ns;
            return;
        }
        if self.known.len() >= MAX_KNOWN {
            self.known.remove(0);
        }
        self.known.push((consumer_id, now_ns));
        self.due = true;
        self.blobs_requested = true;
    }

    /// Whether `send_due` would send something.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let messages = self.messages.is_some() && (self.due || now_ns >= self.next_ns);
        messages || !self.queue.is_empty() || self.blobs_are_due(now_ns)
    }

    fn blobs_are_due(&self, now_ns: u64) -> bool {
        !self.blobs.is_empty()
            && (now_ns >= self.next_blobs_ns || (self.blobs_requested && now_ns >= self.earliest_ns))
    }

    fn queue_all(&mut self, now_ns: u64) {
        self.queue = self.blobs.iter().map(|b| b.announce.blob_type).collect();
        self.at = 0;
        self.blobs_requested = false;
        self.earliest_ns = now_ns + BLOB_PAUSE_NS;
        self.next_blobs_ns = now_ns + self.periods.blobs_ns;
    }

    /// Sends what is due with `send`, which returns whether the message was sent. Unsent messages stay due.
    pub fn send_due(&mut self, now_ns: u64, identity: ProducerIdentity, send: &mut dyn FnMut(&[u8]) -> bool) {
        if self.sent_as != Some(identity) {
            // A new epoch: its consumers have received nothing yet.
            self.sent_as = Some(identity);
            self.due = true;
            self.queue_all(now_ns);
        }
        if let Some((announce, meta)) = &mut self.messages
            && (self.due || now_ns >= self.next_ns)
        {
            let body = &mut announce[MESSAGE_HEADER_LENGTH..];
            put_u32(body, DATA_SOURCE_ANNOUNCE_PRODUCER_ID, identity.producer_id);
            put_u64(body, DATA_SOURCE_ANNOUNCE_EPOCH, identity.epoch);
            // The announce first: it names the epoch of the attributes.
            if !(send(announce) && meta.as_ref().is_none_or(|meta| send(meta))) {
                return;
            }
            self.due = false;
            self.next_ns = now_ns + self.periods.attributes_ns;
        }
        if self.queue.is_empty() && self.blobs_are_due(now_ns) {
            self.queue_all(now_ns);
        }
        self.send_blobs(send);
    }

    fn send_blobs(&mut self, send: &mut dyn FnMut(&[u8]) -> bool) {
        for _ in 0..CHUNKS_A_ROUND {
            let Some(front) = self.queue.front() else { return };
            let blob = self.blobs.iter().find(|b| b.announce.blob_type == *front);
            match blob.and_then(|p| p.message(self.at)) {
                Some(message) if send(&message) => self.at += 1,
                Some(_) => return,
                None => {
                    self.queue.pop_front();
                    self.at = 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::blob_assembly::BlobAssembly;
    use crate::wire::metadata::{DataSourceMeta, MetadataMessage};

    const IDENTITY: ProducerIdentity = ProducerIdentity { producer_id: 5, epoch: 6 };
    const SECOND: u64 = 1_000_000_000;

    fn schedule() -> MetadataSchedule {
        let mut schedule = MetadataSchedule::new(1, Periods { attributes_ns: SECOND, blobs_ns: 10 * SECOND });
        assert!(put_attributes(&mut schedule, 1));
        schedule
    }

    fn put_attributes(schedule: &mut MetadataSchedule, meta_version: u32) -> bool {
        let announce = DataSourceAnnounce {
            stream_id: 1,
            producer_id: 0,
            epoch: 0,
            meta_version,
            name: "cam".into(),
            summary: String::new(),
        };
        let meta = DataSourceMeta { stream_id: 1, meta_version, timestamp_ns: 0, attributes: Vec::new() };
        schedule.put(announce.encode(), meta.encode())
    }

    /// The messages sent at a time, as text, with a limit on how many are accepted.
    fn sent_at(
        schedule: &mut MetadataSchedule,
        now_ns: u64,
        identity: ProducerIdentity,
        mut room: usize,
    ) -> Vec<String> {
        let mut sent = Vec::new();
        schedule.send_due(now_ns, identity, &mut |message| {
            if room == 0 {
                return false;
            }
            room -= 1;
            sent.push(match MetadataMessage::decode(message) {
                MetadataMessage::Announce(a) => {
                    format!("announce {} of {}/{}", a.meta_version, a.producer_id, a.epoch)
                }
                MetadataMessage::Meta(m) => format!("meta {}", m.meta_version),
                MetadataMessage::BlobAnnounce(b) => format!("blob {} at {}", b.blob_type, b.meta_version),
                MetadataMessage::BlobChunk(c) => format!("chunk {}", c.offset),
                MetadataMessage::BlobComplete(_) => "complete".to_owned(),
                other => panic!("{other:?}"),
            });
            true
        });
        sent
    }

    fn sent(schedule: &mut MetadataSchedule, now_ns: u64) -> Vec<String> {
        sent_at(schedule, now_ns, IDENTITY, usize::MAX)
    }

    #[test]
    fn attributes_are_sent_on_change_and_every_period() {
        let mut schedule = schedule();
        assert_eq!(sent(&mut schedule, 0), ["announce 1 of 5/6", "meta 1"]);
        assert!(sent(&mut schedule, SECOND - 1).is_empty());
        assert_eq!(sent(&mut schedule, SECOND).len(), 2);
        assert!(put_attributes(&mut schedule, 2));
        assert_eq!(sent(&mut schedule, SECOND + 1), ["announce 2 of 5/6", "meta 2"]);
        assert!(!schedule.put(vec![0; 40], Vec::new()), "only an announce can be stamped");
    }

    #[test]
    fn source_without_metadata_is_announced_every_period() {
        let mut schedule = MetadataSchedule::new(1, Periods { attributes_ns: SECOND, blobs_ns: 10 * SECOND });
        assert!(sent(&mut schedule, 0).is_empty());
        schedule.put_undescribed();
        assert_eq!(sent(&mut schedule, 0), ["announce 0 of 5/6"]);
        assert!(sent(&mut schedule, SECOND - 1).is_empty());
        assert_eq!(sent(&mut schedule, SECOND), ["announce 0 of 5/6"]);
        schedule.on_hello(40, SECOND + 1);
        assert_eq!(sent(&mut schedule, SECOND + 1), ["announce 0 of 5/6"]);
        assert!(put_attributes(&mut schedule, 1));
        schedule.put_undescribed();
        assert_eq!(sent(&mut schedule, SECOND + 2), ["announce 1 of 5/6", "meta 1"]);
    }

    #[test]
    fn new_epoch_and_new_consumer_get_everything_at_once() {
        let mut schedule = schedule();
        schedule.put_blob(7, 1, b"x".to_vec());
        assert_eq!(sent(&mut schedule, 0).len(), 5);
        let moved = ProducerIdentity { epoch: 7, ..IDENTITY };
        let all = ["announce 1 of 5/7", "meta 1", "blob 7 at 1", "chunk 0", "complete"];
        assert_eq!(sent_at(&mut schedule, 1, moved, 99), all);
        schedule.on_hello(40, 2 * SECOND - 1);
        assert_eq!(sent_at(&mut schedule, 2 * SECOND, moved, 99), all);
        schedule.on_hello(40, 2 * SECOND + 1);
        assert!(sent_at(&mut schedule, 2 * SECOND + 2, moved, 99).is_empty(), "known already");
        schedule.on_hello(41, 2 * SECOND + 3);
        assert_eq!(sent_at(&mut schedule, 2 * SECOND + 4, moved, 99).len(), 2, "blobs not so soon again");
        assert_eq!(sent_at(&mut schedule, 3 * SECOND + 4, moved, 99).len(), 5);
        assert_eq!(sent_at(&mut schedule, 12 * SECOND, moved, 99).len(), 2);
        assert_eq!(sent_at(&mut schedule, 13 * SECOND + 4, moved, 99).len(), 5, "and by themselves");
    }

    #[test]
    fn unsent_messages_stay_due() {
        let mut schedule = schedule();
        schedule.put_blob(7, 1, vec![1; 3 * CHUNK_MAX + 1]);
        assert_eq!(sent_at(&mut schedule, 0, IDENTITY, 1), ["announce 1 of 5/6"]);
        assert_eq!(
            sent_at(&mut schedule, 1, IDENTITY, 4),
            ["announce 1 of 5/6", "meta 1", "blob 7 at 1", "chunk 0"]
        );
        let rest = ["chunk 65536", "chunk 131072", "chunk 196608", "complete"];
        assert_eq!(sent(&mut schedule, 2), rest);
        assert!(!schedule.is_due(3));
    }

    #[test]
    fn blob_is_sent_in_bounded_rounds() {
        let mut schedule = MetadataSchedule::new(1, Periods { attributes_ns: SECOND, blobs_ns: SECOND });
        let bytes: Vec<u8> = (0..100 * CHUNK_MAX + 77).map(|i| ((i * i) >> 7) as u8).collect();
        schedule.put_blob(9, 3, bytes.clone());
        schedule.put_blob(10, 4, Vec::new());
        let (mut blobs, mut rounds) = (BlobAssembly::default(), 0);
        while schedule.is_due(1) {
            let mut messages = 0;
            schedule.send_due(1, IDENTITY, &mut |message| {
                messages += 1;
                match MetadataMessage::decode(message) {
                    MetadataMessage::BlobAnnounce(m) => blobs.on_announce(1, Some(6), m),
                    MetadataMessage::BlobChunk(m) => blobs.on_chunk(1, m),
                    MetadataMessage::BlobComplete(m) => blobs.on_complete(1, m),
                    other => panic!("{other:?}"),
                }
                true
            });
            assert!(messages <= CHUNKS_A_ROUND);
            rounds += 1;
        }
        assert!(rounds >= 6, "{rounds}");
        assert_eq!(blobs.newest(9, None).map(|b| &b.bytes), Some(&bytes));
        assert_eq!(blobs.newest(10, None).map(|b| b.bytes.len()), Some(0));
    }

    #[test]
    fn replaced_blob_starts_again() {
        let mut schedule = schedule();
        schedule.put_blob(7, 1, vec![1; 3 * CHUNK_MAX]);
        sent_at(&mut schedule, 0, IDENTITY, 4);
        schedule.put_blob(7, 2, b"y".to_vec());
        assert_eq!(sent(&mut schedule, 1), ["blob 7 at 2", "chunk 0", "complete"]);
        assert!(schedule.take_blob(7) && !schedule.take_blob(7));
        assert_eq!(sent(&mut schedule, 60 * SECOND).len(), 2);
    }
}
