//! Fuzz targets: what must hold for any bytes. `fuzz/` runs them under libFuzzer, `corpus.rs` over the corpora.
//!
//! A target panics if a rule is broken. Each takes plain bytes, so that one corpus serves both.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tensorpool_core::bridge::assembly::{AssemblyTable, ChunkOutcome, FrameStore, Loss};
use tensorpool_core::bridge::seal::{Opener, Purpose, Sealer, SharedKeys};
use tensorpool_core::consumer::blob_assembly::BlobAssembly;
use tensorpool_core::consumer::metadata_cache::{MAX_BYTES, MAX_VERSIONS, MetadataCache};
use tensorpool_core::consumer::sequence_tracker::{SequenceStep, SequenceTracker};
use tensorpool_core::recording::batch_scan::{BatchTemplate, scan_alike};
use tensorpool_core::shm::create::PoolSpec;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::slot;
use tensorpool_core::shm::superblock::{Expected, RegionKind, Superblock};
use tensorpool_core::shm::tensor::Tensor;
use tensorpool_core::wire::announce::{self, PoolAnnounce};
use tensorpool_core::wire::chunk::{self, Chunk};
use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::descriptor::{self, FRAME_DESCRIPTOR_ENCODED_LENGTH, FrameDescriptor};
use tensorpool_core::wire::driver::DriverMessage;
use tensorpool_core::wire::event::{self, TagFilter};
use tensorpool_core::wire::fallback_uri::FallbackUri;
use tensorpool_core::wire::hello::StreamRequest;
use tensorpool_core::wire::layout::{
    HEADER_SLOT_BYTES, MAX_SEQ, SUPERBLOCK_SIZE, TENSOR_HEADER_ENCODED_LENGTH,
};
use tensorpool_core::wire::metadata::MetadataMessage;
use tensorpool_core::wire::region_uri::RegionUri;
use tensorpool_core::wire::status::StatusReport;

/// A target by the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("wire", wire),
    ("metadata", metadata),
    ("uri", uri),
    ("slot", slot_header),
    ("superblock", superblock),
    ("chunk", chunks),
    ("sealed", sealed),
    ("segment", segment),
    ("region", region),
];

/// Splits the input into messages: a length of two bytes before each.
fn messages(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first_chunk::<2>()?;
        let (message, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        data = rest;
        Some(message)
    })
}

/// Messages of the shared streams. What was decoded has an encoding that is decoded to the same.
pub fn wire(data: &[u8]) {
    if let announce::Decoded::Announce(announce) = PoolAnnounce::decode(data) {
        assert!(announce.pools.len() <= announce::MAX_POOLS);
        assert_eq!(PoolAnnounce::decode(&announce.encode()), announce::Decoded::Announce(announce));
    }
    if let descriptor::Decoded::Descriptor(found) = FrameDescriptor::decode(data) {
        let mut bytes = [0; FRAME_DESCRIPTOR_ENCODED_LENGTH];
        found.encode(&mut bytes);
        assert_eq!(FrameDescriptor::decode(&bytes), descriptor::Decoded::Descriptor(found));
    }
    let is_valid = |requests: [&StreamRequest; 2]| !requests.contains(&&StreamRequest::Invalid);
    let again = match ControlMessage::decode(data) {
        // An invalid request of a stream has no encoding.
        ControlMessage::Hello(hello) => is_valid([&hello.descriptor, &hello.control])
            .then(|| (hello.encode(), ControlMessage::Hello(hello))),
        ControlMessage::Config(config) => is_valid([&config.descriptor, &config.control])
            .then(|| (config.encode(), ControlMessage::Config(config))),
        ControlMessage::Progress(progress) => {
            Some((progress.encode().to_vec(), ControlMessage::Progress(progress)))
        }
        ControlMessage::QosConsumer(qos) => Some((qos.encode(), ControlMessage::QosConsumer(qos))),
        ControlMessage::QosProducer(qos) => Some((qos.encode(), ControlMessage::QosProducer(qos))),
        ControlMessage::Other | ControlMessage::Malformed(_) => None,
    };
    if let Some((bytes, message)) = again {
        assert_eq!(ControlMessage::decode(&bytes), message);
    }
    if let DriverMessage::Attached(response) = DriverMessage::decode(data) {
        assert!(response.pools.len() <= announce::MAX_POOLS);
        let is_whole = response.missing().is_none();
        assert!(!is_whole || response.regions(1).pools.len() == response.pools.len());
    }
    match StatusReport::decode_event(data) {
        StatusReport::Consumer(status) => drop(status.dropped.iter().count()),
        StatusReport::Producer(status) => {
            let (dropped, sources) = (status.dropped, status.sources);
            assert!(dropped.iter().count() + sources.iter().count() <= data.len());
        }
        StatusReport::Other | StatusReport::Malformed => {}
    }
    let _ = event::bytes_event(data);
    for tags in [vec![], vec!["a*".to_owned(), "camera".to_owned()]] {
        let _ = TagFilter::new(tags).answers_to(Some(7)).match_message(data);
    }
}

/// Messages of the metadata stream into the caches of a consumer, which stay within their limits.
pub fn metadata(data: &[u8]) {
    let (mut cache, mut blobs) = (MetadataCache::default(), BlobAssembly::default());
    for (at, message) in messages(data).enumerate() {
        let session_id = (at % 3) as i32;
        let _ = MetadataMessage::stream_of(message);
        match MetadataMessage::decode(message) {
            MetadataMessage::Announce(announce) => {
                assert_eq!(
                    MetadataMessage::decode(&announce.encode()),
                    MetadataMessage::Announce(announce.clone())
                );
                cache.on_announce(session_id, announce);
            }
            MetadataMessage::Meta(meta) => cache.on_meta(session_id, meta),
            MetadataMessage::BlobAnnounce(announce) => {
                blobs.on_announce(session_id, cache.epoch_of(session_id), announce);
            }
            MetadataMessage::BlobChunk(chunk) => blobs.on_chunk(session_id, chunk),
            MetadataMessage::BlobComplete(complete) => blobs.on_complete(session_id, complete),
            _ => {}
        }
        assert!(cache.len() <= MAX_VERSIONS);
        if let Some(newest) = cache.newest() {
            assert!(newest.attributes.iter().map(|a| a.value.len()).sum::<usize>() <= MAX_BYTES);
        }
    }
}

/// Region and fallback URIs. A region URI that is accepted is written as it was read.
pub fn uri(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(uri) = RegionUri::parse(&text) {
        assert!(uri.path.starts_with('/') && uri.path.is_ascii());
        assert_eq!(RegionUri::parse(&uri.to_string()), Ok(uri));
    }
    let _ = FallbackUri::parse(&text);
}

/// A header slot. The tensor that is accepted lies within its payload, element by element.
pub fn slot_header(data: &[u8]) {
    let mut bytes = [0; HEADER_SLOT_BYTES];
    let length = data.len().min(HEADER_SLOT_BYTES);
    bytes[..length].copy_from_slice(&data[..length]);
    let index = data.get(HEADER_SLOT_BYTES).map_or(0, |index| u32::from(*index));
    if let Ok(info) = slot::decode(&bytes, index) {
        check_extent(&info.tensor, info.values_len_bytes);
    }
    let tail: &[u8; TENSOR_HEADER_ENCODED_LENGTH] = bytes.last_chunk().expect("192 of 256 bytes");
    if let Ok(tensor) = Tensor::decode(tail, 4096) {
        check_extent(&tensor, 4096);
    }
}

fn check_extent(tensor: &Tensor, payload_bytes: u32) {
    let mut last: i128 = 0;
    for (dim, stride) in tensor.shape().iter().zip(tensor.strides) {
        assert!(*dim >= 0 && stride >= 0, "{tensor:?}");
        if *dim == 0 {
            return;
        }
        last += i128::from(dim - 1) * i128::from(stride);
    }
    assert!(last < i128::from(payload_bytes), "{tensor:?} reaches beyond {payload_bytes} bytes");
}

/// A superblock. One that is accepted has the fields that the announce demands.
pub fn superblock(data: &[u8]) {
    let Some((bytes, rest)) = data.split_first_chunk::<SUPERBLOCK_SIZE>() else { return };
    let found = Superblock::decode(bytes);
    assert_eq!(&Superblock::decode(&found.encode()), &found);
    let kind = match rest.first() {
        Some(pool) if pool % 2 == 1 => RegionKind::PayloadPool { pool_id: 1, stride_bytes: 4096 },
        _ => RegionKind::HeaderRing,
    };
    let expected = Expected { layout_version: 1, epoch: 7, stream_id: 10_000, kind, nslots: 8 };
    if found.check(&expected).is_ok() {
        assert_eq!((found.epoch, found.stream_id, found.nslots), (7, 10_000, 8));
        if let RegionKind::PayloadPool { pool_id, stride_bytes } = kind {
            assert_eq!((found.pool_id, found.stride_bytes), (pool_id, stride_bytes));
        }
    }
}

const MAX_FRAME_BYTES: u32 = 1 << 16;

/// Frames in memory: a write outside of a frame panics.
#[derive(Default)]
struct MemoryStore {
    committed: u64,
}

impl FrameStore for MemoryStore {
    type Slot = Vec<Option<u8>>;

    fn nslots(&mut self) -> u32 {
        8
    }

    fn open(&mut self, _: u64, payload_length: u32) -> Result<Self::Slot, Loss> {
        assert!(payload_length <= MAX_FRAME_BYTES);
        Ok(vec![None; payload_length as usize])
    }

    fn write(&mut self, slot: &mut Self::Slot, offset: u32, bytes: &[u8]) {
        let part = &mut slot[offset as usize..offset as usize + bytes.len()];
        part.iter_mut().zip(bytes).for_each(|(to, from)| *to = Some(*from));
    }

    fn holds(&self, slot: &Self::Slot, offset: u32, bytes: &[u8]) -> bool {
        let part = &slot[offset as usize..offset as usize + bytes.len()];
        part.iter().zip(bytes).all(|(have, want)| *have == Some(*want))
    }

    fn describe(
        &mut self,
        _: &mut Self::Slot,
        seq: u64,
        _: u32,
        header: &[u8; HEADER_SLOT_BYTES],
    ) -> Result<(), Loss> {
        slot::decode(header, (seq % 8) as u32).map(drop).map_err(|_| Loss::Kind)
    }

    fn commit(&mut self, slot: Self::Slot, _: u64, _: u64) -> Result<(), Loss> {
        assert!(slot.iter().all(Option::is_some), "a frame with holes is delivered");
        self.committed += 1;
        Ok(())
    }
}

/// Chunks into assemblies. A frame that is delivered has all its bytes, and each is counted once.
pub fn chunks(data: &[u8]) {
    let limits =
        chunk::ChunkLimits { chunk_bytes: 8192, payload_bytes: MAX_FRAME_BYTES, needs_checksum: false };
    let mut table = AssemblyTable::new(1_000);
    let mut store = MemoryStore::default();
    for (now_ns, message) in messages(data).enumerate() {
        let Ok(chunk) = Chunk::decode(message, &limits) else { continue };
        assert!(chunk.seq <= MAX_SEQ && chunk.index < chunk.count && chunk.count <= chunk::MAX_CHUNKS);
        assert!(chunk.payload.len() <= 8192 && chunk.payload_length <= MAX_FRAME_BYTES);
        let before = store.committed;
        let outcome = table.on_chunk(&chunk, 100 * now_ns as u64, &mut store);
        assert_eq!(store.committed - before, u64::from(outcome == ChunkOutcome::Delivered));
        table.on_tick(100 * now_ns as u64);
    }
    assert_eq!(table.counters().delivered, store.committed);
}

/// Sealed messages. The first byte chooses: bytes without a key, or a sealed message with changes.
pub fn sealed(data: &[u8]) {
    const NOW_NS: u64 = 1 << 40;
    let Some((choice, rest)) = data.split_first() else { return };
    let keys = |origin| Arc::new(SharedKeys::new(&[[7; 32]], origin).expect("one key"));
    let mut opener = Opener::new(keys(1), Purpose::Payload, 1 << 30);
    if choice % 2 == 0 {
        for message in messages(rest) {
            assert!(opener.open(message, NOW_NS).is_err(), "a message without the key is accepted");
        }
        return;
    }
    let Some(mut sealer) = Sealer::new(keys(2), Purpose::Payload) else { return };
    let (message, changes) = rest.split_at(rest.len() / 2);
    let Some(whole) = sealer.seal_message(message, NOW_NS) else { return };
    let mut changed = whole.clone();
    for &[low, high, bits] in changes.as_chunks().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % changed.len();
        changed[at] ^= bits;
    }
    // Byte by byte: libFuzzer learns from calls of memcmp, and would send the sealed message as its own.
    let is_same = whole.iter().zip(&changed).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0;
    assert_eq!(opener.open(&changed, NOW_NS).is_ok(), is_same, "a changed message is accepted");
    if is_same {
        assert!(opener.open(&whole, NOW_NS).is_err(), "a message is accepted twice");
    } else {
        assert!(opener.open(&whole, NOW_NS).is_ok(), "a forgery keeps the message out");
    }
}

/// A segment: the scan for batches stays within the data, and moves on.
pub fn segment(data: &[u8]) {
    let Some((numbers, data)) = data.split_first_chunk::<8>() else { return };
    let [body_bytes_at, rows_at, nodes, columns, buffers, count, check_at, seq] = numbers.map(usize::from);
    let template = BatchTemplate {
        body_bytes_at,
        rows_at,
        nodes: nodes..nodes + 16 * columns,
        buffers: buffers..buffers + 16 * count,
        check_at,
        seq,
        sources: vec![seq + 1],
    };
    let mut end = 0;
    for batch in scan_alike(data, 0, &template) {
        assert!(batch.start >= end && batch.body > batch.start && batch.end >= batch.body);
        assert!(batch.end <= data.len() && batch.like <= batch.start);
        end = batch.end;
    }
}

const NSLOTS: u32 = 8;
const STRIDES: [u32; 2] = [64, 4096];

/// A reader of an epoch whose header ring is changed by others between any two of its steps.
///
/// Each step is a byte that says what is done, a byte for the sequence, and its operands.
pub fn region(data: &[u8]) {
    let pools = [0, 1].map(|at| PoolSpec { pool_id: at as u16 + 1, stride_bytes: STRIDES[at] });
    let Ok(epoch) = MappedEpoch::anonymous(10_000, 7, NSLOTS, &pools, 1 << 20) else { return };
    let mut tracker = SequenceTracker::new(256);
    let (mut received, mut dropped) = (0, 0);
    let mut copy = vec![0; STRIDES[1] as usize];
    let mut rest = data;
    while let Some(([step, seq], tail)) = rest.split_first_chunk::<2>() {
        rest = tail;
        let seq = u64::from(*seq);
        match step % 4 {
            0 => {
                let Some((word, tail)) = rest.split_first_chunk::<8>() else { return };
                rest = tail;
                epoch.commit_word(seq).store(u64::from_le_bytes(*word), Ordering::Release);
            }
            1 => {
                let mut header = [0; HEADER_SLOT_BYTES];
                let length = rest.len().min(HEADER_SLOT_BYTES);
                header[..length].copy_from_slice(&rest[..length]);
                rest = &rest[length..];
                epoch.begin(seq);
                epoch.describe_bytes(seq, &header);
                epoch.commit_described(seq);
            }
            2 => {
                let _ = epoch.locate_in_progress(seq);
                let _ = epoch.newest_committed();
            }
            _ => {
                let (missed, is_new) = match tracker.on_seq(seq, false) {
                    SequenceStep::Next { missed, .. } => (missed, true),
                    SequenceStep::Behind { missed, .. } => (missed, false),
                    SequenceStep::Duplicate | SequenceStep::Regressed => continue,
                };
                dropped += missed;
                match epoch.locate(seq) {
                    Ok(frame) if is_new => {
                        let stride = STRIDES[usize::from(frame.pool)];
                        assert!(frame.info.values_len_bytes <= stride);
                        check_extent(&frame.info.tensor, stride);
                        // SAFETY: the copy has room for the largest stride.
                        let is_whole = unsafe { epoch.copy_out(&frame, copy.as_mut_ptr()) };
                        assert!(is_whole, "nobody wrote meanwhile");
                        received += 1;
                    }
                    _ => {
                        if let Some(newest) = epoch.overwritten_by(seq) {
                            tracker.on_overwritten(seq, newest, u64::from(NSLOTS));
                        }
                        dropped += 1;
                    }
                }
            }
        }
        assert_eq!(tracker.span(), received + dropped);
    }
}
