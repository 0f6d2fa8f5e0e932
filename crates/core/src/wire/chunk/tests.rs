use super::*;
use proptest::prelude::*;

const LIMITS: ChunkLimits = ChunkLimits { chunk_bytes: 1280, payload_bytes: 1 << 30, needs_checksum: false };
const KEY: FrameKey = FrameKey { stream_id: 10_000, epoch: 7, seq: 3, trace_id: 99 };
const MTU: u32 = 1408;

fn slices() -> ChunkSizes {
    ChunkSizes::new(MTU, None, 65_535, 0).unwrap()
}

/// One message of a frame whose payload counts up.
fn message(revision: Revision, payload_length: u32, index: u32) -> Vec<u8> {
    let plan = slices().plan(payload_length).unwrap();
    let header = [0xABu8; HEADER_SLOT_BYTES];
    let header = (index == 0).then_some(&header);
    let (offset, length) = plan.slice(index);
    let mut bytes = vec![0; revision.overhead(header.is_some()) + length as usize];
    let at = encode(&mut bytes, revision, &KEY, &plan, index, header);
    assert_eq!(at + length as usize, bytes.len());
    for (i, byte) in bytes[at..].iter_mut().enumerate() {
        *byte = (offset as usize + i) as u8;
    }
    if revision == Revision::Second {
        write_checksum(&mut bytes);
    }
    bytes
}

/// The message with one field of the first revision changed.
fn with(index: u32, at: usize, value: &[u8]) -> Result<(), Fault> {
    let mut bytes = message(Revision::First, 4000, index);
    bytes[MESSAGE_HEADER_LENGTH + at..MESSAGE_HEADER_LENGTH + at + value.len()].copy_from_slice(value);
    Chunk::decode(&bytes, &LIMITS).map(|_| ())
}

fn with_u32(index: u32, at: usize, value: u32) -> Result<(), Fault> {
    with(index, at, &value.to_le_bytes())
}

/// requirement: bridge-5.2-4, bridge-5.2-13, bridge-5.2-14
#[test]
fn only_the_first_chunk_carries_the_header() {
    for revision in [Revision::First, Revision::Second] {
        let bytes = message(revision, 4000, 0);
        let chunk = Chunk::decode(&bytes, &LIMITS).unwrap();
        assert_eq!(chunk.header, Some(&[0xAB; HEADER_SLOT_BYTES]));
        assert_eq!((chunk.stream_id, chunk.epoch, chunk.seq), (10_000, 7, 3));
        assert_eq!(chunk.trace_id, if revision == Revision::Second { 99 } else { 0 });
        let bytes = message(revision, 4000, 1);
        let chunk = Chunk::decode(&bytes, &LIMITS).unwrap();
        assert_eq!((chunk.header, chunk.index, chunk.payload.len()), (None, 1, 1280));
        assert_eq!(chunk.payload[0], chunk.offset as u8);
    }
}

/// requirement: bridge-5.2-1, bridge-5.2-2
#[test]
fn frame_has_one_to_65535_chunks() {
    assert_eq!(with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_COUNT, 0), Err(Fault::Count));
    assert_eq!(with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_COUNT, 65_536), Err(Fault::Count));
    assert_eq!(with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_COUNT, 65_535), Ok(()));
    let most = slices().first + 65_534 * slices().rest;
    assert_eq!(slices().plan(most).map(|c| c.count), Some(65_535));
    assert_eq!(slices().plan(most + 1), None, "one more would not be readable");
    assert_eq!(slices().plan(0), Some(ChunkPlan { payload_length: 0, first: 0, rest: 1280, count: 1 }));
}

/// requirement: bridge-5.2-3
#[test]
fn chunk_index_is_below_the_count() {
    assert_eq!(with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_INDEX, 4), Err(Fault::Index));
    assert_eq!(with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_INDEX, 3), Ok(()));
}

/// requirement: bridge-5.2-5
#[test]
fn first_chunk_has_offset_zero() {
    assert_eq!(with_u32(0, BRIDGE_FRAME_CHUNK_CHUNK_OFFSET, 1), Err(Fault::Offset));
    assert_eq!(with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_OFFSET, 1), Ok(()));
    assert_eq!(
        with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_OFFSET, 4000 - 1279),
        Err(Fault::Offset),
        "beyond the end"
    );
    assert_eq!(with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_OFFSET, u32::MAX), Err(Fault::Offset));
}

/// requirement: bridge-5.2-6, bridge-5.2-15
#[test]
fn header_flag_and_length_agree() {
    assert_eq!(with(0, BRIDGE_FRAME_CHUNK_HEADER_INCLUDED, &[BOOL_FALSE]), Err(Fault::Header));
    assert_eq!(with(1, BRIDGE_FRAME_CHUNK_HEADER_INCLUDED, &[BOOL_TRUE]), Err(Fault::Header));
    assert_eq!(with(1, BRIDGE_FRAME_CHUNK_HEADER_INCLUDED, &[2]), Err(Fault::Malformed));
    let length_at = MESSAGE_HEADER_LENGTH + usize::from(BRIDGE_FRAME_CHUNK_BLOCK_LENGTH);
    // One byte of the header becomes the first byte of the payload length. Both stay inside the message.
    let mut bytes = message(Revision::First, 100, 0);
    put_u32(&mut bytes, length_at, 255);
    bytes[length_at + 4 + 255..length_at + 4 + 259].copy_from_slice(&100u32.to_le_bytes());
    assert_eq!(Chunk::decode(&bytes, &LIMITS), Err(Fault::Header));
    let mut bytes = message(Revision::First, 4000, 1);
    put_u32(&mut bytes, length_at, 8);
    put_u32(&mut bytes, length_at + 12, 1264);
    assert_eq!(Chunk::decode(&bytes, &LIMITS), Err(Fault::Header));
}

/// requirement: bridge-5.2-16
#[test]
fn payload_bytes_match_the_chunk_length() {
    assert_eq!(with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_LENGTH, 1279), Err(Fault::Length));
    assert_eq!(with_u32(1, BRIDGE_FRAME_CHUNK_CHUNK_LENGTH, 1281), Err(Fault::Length));
}

/// requirement: bridge-5.2-20, bridge-5.2-21
#[test]
fn lengths_beyond_the_limits_are_refused_before_allocation() {
    let bytes = message(Revision::First, 4000, 1);
    let tight = ChunkLimits { chunk_bytes: 1279, ..LIMITS };
    assert_eq!(Chunk::decode(&bytes, &tight), Err(Fault::ChunkTooLong));
    let tight = ChunkLimits { payload_bytes: 3999, ..LIMITS };
    assert_eq!(Chunk::decode(&bytes, &tight), Err(Fault::PayloadTooLong));
    let lengths_at = MESSAGE_HEADER_LENGTH + usize::from(BRIDGE_FRAME_CHUNK_BLOCK_LENGTH);
    for at in [lengths_at, lengths_at + 4] {
        let mut bytes = bytes.clone();
        put_u32(&mut bytes, at, u32::MAX);
        assert_eq!(Chunk::decode(&bytes, &LIMITS), Err(Fault::Malformed));
    }
}

/// requirement: bridge-5.2-11, bridge-5.2-12
#[test]
fn every_chunk_fits_one_datagram() {
    for (mtu, chunk_bytes) in
        [(576, None), (1408, None), (1408, Some(200)), (8192, None), (65_504, Some(4096))]
    {
        let slices = ChunkSizes::new(mtu, chunk_bytes, 65_535, 0).unwrap();
        let room = (mtu - DATA_HEADER_LENGTH) as usize;
        for revision in [Revision::First, Revision::Second] {
            assert!(revision.overhead(true) + slices.first as usize <= room, "{mtu}");
            assert!(revision.overhead(false) + slices.rest as usize <= room, "{mtu}");
        }
        assert_eq!(slices.rest, (mtu - 128).min(chunk_bytes.unwrap_or(u32::MAX)));
        for length in [0, 1, slices.first, slices.first + 1, 10_000, 655_360] {
            let Some(plan) = slices.plan(length) else { continue };
            let mut next = 0;
            for index in 0..plan.count {
                let (offset, length) = plan.slice(index);
                assert_eq!(offset, next);
                next += length;
            }
            assert_eq!(next, length);
        }
    }
    assert_eq!(ChunkSizes::new(128, None, 65_535, 0), None);
    assert_eq!(ChunkSizes::new(100, None, 65_535, 0), None);
}

#[test]
fn checksum_covers_header_and_payload() {
    for index in [0, 1] {
        let good = message(Revision::Second, 4000, index);
        assert!(Chunk::decode(&good, &ChunkLimits { needs_checksum: true, ..LIMITS }).is_ok());
        let data = MESSAGE_HEADER_LENGTH + usize::from(BRIDGE_FRAME_CHUNK_R2_BLOCK_LENGTH);
        for at in [data + 8, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(Chunk::decode(&bad, &LIMITS), Err(Fault::Checksum), "{index} {at}");
        }
    }
    let plain = message(Revision::First, 4000, 1);
    assert_eq!(Chunk::decode(&plain, &ChunkLimits { needs_checksum: true, ..LIMITS }), Err(Fault::Unchecked));
}

#[test]
fn other_messages_and_truncations_are_rejected() {
    let bytes = message(Revision::First, 1000, 0);
    for len in 0..bytes.len() {
        assert_eq!(Chunk::decode(&bytes[..len], &LIMITS), Err(Fault::Malformed), "{len}");
    }
    for (at, value, fault) in [
        (MESSAGE_HEADER_SCHEMA_ID, 900, Fault::Other),
        (MESSAGE_HEADER_TEMPLATE_ID, 2, Fault::Other),
        (MESSAGE_HEADER_BLOCK_LENGTH, 40, Fault::Malformed),
        (MESSAGE_HEADER_VERSION, 0, Fault::Malformed),
    ] {
        let mut bytes = bytes.clone();
        put_u16(&mut bytes, at, value);
        assert_eq!(Chunk::decode(&bytes, &LIMITS), Err(fault));
    }
    assert_eq!(with(1, BRIDGE_FRAME_CHUNK_SEQ + 7, &[0x80]), Err(Fault::Seq));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..600),
        block in prop_oneof![Just(41u16), Just(53), any::<u16>()],
        ours in any::<bool>(),
    ) {
        if ours && bytes.len() >= MESSAGE_HEADER_LENGTH {
            put_header_of(&mut bytes, block, BRIDGE_FRAME_CHUNK_TEMPLATE_ID, BRIDGE_SCHEMA_ID, 1);
        }
        let _ = Chunk::decode(&bytes, &LIMITS);
    }
}
