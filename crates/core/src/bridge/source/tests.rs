use super::*;
use crate::shm::seqlock::committed;
use crate::shm::slot::SlotFields;
use crate::shm::tensor::TensorSpec;
use crate::wire::announce::AnnouncedPool;

const S: u64 = 1_000_000_000;

fn announce(epoch: u64) -> PoolAnnounce {
    let pool =
        |pool_id: u16| AnnouncedPool { pool_id, nslots: 8, stride_bytes: 64 << pool_id, uri: "x".into() };
    PoolAnnounce {
        stream_id: 10_000,
        producer_id: 1,
        epoch,
        timestamp_ns: 0,
        clock_domain: CLOCK_DOMAIN_MONOTONIC,
        layout_version: LAYOUT_VERSION,
        header_nslots: 8,
        header_slot_bytes: 256,
        pools: vec![pool(1), pool(2)],
        header_uri: "h".into(),
    }
}

fn source(epoch: u64) -> SourceState {
    let mut source = SourceState::new(3 * S);
    assert_eq!(source.on_announce(&announce(epoch), 0), AnnounceEffect::NewEpoch);
    source
}

fn header(seq: u64, pool_id: u16, values_len_bytes: u32) -> [u8; HEADER_SLOT_BYTES] {
    let tensor = TensorSpec::new(DTYPE_UINT8, MAJOR_ORDER_ROW, &[values_len_bytes as usize]).unwrap();
    let fields =
        SlotFields { values_len_bytes, payload_slot: 5, pool_id, timestamp_ns: 77, meta_version: 3, tensor };
    let mut bytes = fields.encode();
    put_u64(&mut bytes, SLOT_HEADER_SEQ_COMMIT, committed(seq));
    bytes
}

/// requirement: bridge-5.2-10, bridge-6-1
#[test]
fn chunks_before_an_announce_are_ignored() {
    let mut source = SourceState::new(3 * S);
    assert_eq!(source.admit(7), Err((Ignored::Unannounced, false)));
    source.on_announce(&announce(7), 0);
    assert_eq!(source.admit(7), Ok(()));
}

/// requirement: bridge-6-2, bridge-8-1, bridge-8-3
#[test]
fn chunks_of_other_epochs_are_ignored() {
    let mut source = source(7);
    assert_eq!(source.admit(6), Err((Ignored::OldEpoch, false)));
    assert_eq!(source.admit(7), Ok(()));
    assert_eq!(source.admit(8), Err((Ignored::UnknownEpoch, true)), "what is in flight is over");
    assert_eq!(source.admit(8), Err((Ignored::UnknownEpoch, false)));
    assert_eq!(source.admit(7), Err((Ignored::OldEpoch, false)), "a later epoch was seen");
    assert_eq!(source.on_announce(&announce(8), S), AnnounceEffect::NewEpoch);
    assert_eq!(source.admit(8), Ok(()));
    assert_eq!(source.admit(7), Err((Ignored::OldEpoch, false)));
}

#[test]
fn chunk_of_an_unannounced_epoch_stops_the_source_until_the_next_announce() {
    let mut source = source(7);
    assert_eq!(source.admit(u64::MAX), Err((Ignored::UnknownEpoch, true)));
    assert_eq!(source.on_announce(&announce(7), S), AnnounceEffect::Same);
    assert_eq!(source.admit(7), Ok(()));
}

/// requirement: bridge-7.2-2
#[test]
fn older_epoch_is_accepted_only_after_the_later_one_is_stale() {
    let mut source = source(7);
    assert_eq!(source.on_announce(&announce(6), 3 * S), AnnounceEffect::Ignored);
    assert_eq!(source.on_announce(&announce(7), 3 * S), AnnounceEffect::Same);
    assert_eq!(source.on_announce(&announce(6), 6 * S), AnnounceEffect::Ignored);
    assert_eq!(source.on_announce(&announce(6), 6 * S + 1), AnnounceEffect::NewEpoch);
    assert_eq!(source.announced().map(|a| (a.epoch, a.nslots, a.pools.len())), Some((6, 8, 2)));
    let other_layout = PoolAnnounce { layout_version: 2, ..announce(9) };
    assert_eq!(source.on_announce(&other_layout, 6 * S + 1), AnnounceEffect::Ignored);
}

/// requirement: bridge-6-3, bridge-6-6, bridge-6-7, bridge-6-8, bridge-6-11
#[test]
fn header_is_checked_against_frame_and_source_pools() {
    let source = source(7);
    let validate_header = |header: &[u8; HEADER_SLOT_BYTES], length| {
        source.validate_header(header, 3, length).map(|i| i.meta_version)
    };
    assert_eq!(validate_header(&header(3, 1, 100), 100), Ok(3));
    assert_eq!(validate_header(&header(4, 1, 100), 100), Err(Loss::Seq));
    assert_eq!(validate_header(&header(3, 1, 100), 99), Err(Loss::ValuesLen));
    assert_eq!(validate_header(&header(3, 3, 100), 100), Err(Loss::PoolId));
    assert_eq!(validate_header(&header(3, 1, 129), 129), Err(Loss::SourceStride));
    assert_eq!(validate_header(&header(3, 2, 129), 129), Ok(3));
    let mut bad = header(3, 1, 100);
    put_u32(&mut bad, SLOT_HEADER_PAYLOAD_OFFSET, 64);
    assert_eq!(validate_header(&bad, 100), Err(Loss::PayloadOffset));
}

/// requirement: bridge-6-4, bridge-6-5
#[test]
fn header_without_a_valid_tensor_is_refused() {
    let source = source(7);
    let with = |at: usize, byte: u8| {
        let mut bytes = header(3, 1, 100);
        bytes[at] = byte;
        source.validate_header(&bytes, 3, 100).map(|_| ())
    };
    let tensor = SLOT_HEADER_BYTES_AT + MESSAGE_HEADER_LENGTH;
    assert_eq!(with(tensor + TENSOR_HEADER_NDIMS, 9), Err(Loss::Tensor));
    assert_eq!(with(tensor + TENSOR_HEADER_DTYPE, 12), Err(Loss::Tensor));
    assert_eq!(with(tensor + TENSOR_HEADER_DIMS, 101), Err(Loss::Tensor), "more than the payload has");
    for at in [MESSAGE_HEADER_SCHEMA_ID, MESSAGE_HEADER_TEMPLATE_ID, MESSAGE_HEADER_VERSION] {
        assert_eq!(with(SLOT_HEADER_BYTES_AT + at, 9), Err(Loss::Kind));
    }
    assert_eq!(with(SLOT_HEADER_BYTES_AT + MESSAGE_HEADER_BLOCK_LENGTH, 9), Err(Loss::Kind));
    assert_eq!(with(SLOT_HEADER_BYTES_LENGTH_AT, 191), Err(Loss::Kind));
}

/// requirement: bridge-6-10
#[test]
fn local_header_replaces_only_pool_and_slot() {
    let remote = header(3, 1, 100);
    let local = local_header(&remote, 9, 2);
    let info = slot::decode(&local, 2).unwrap();
    assert_eq!((info.pool_id, info.timestamp_ns, info.meta_version), (9, 77, 3));
    assert_eq!(local[..8], [0; 8], "the commit word is not copied");
    assert_eq!(local[18..], remote[18..]);
    assert_eq!(local[8..12], remote[8..12]);
}
