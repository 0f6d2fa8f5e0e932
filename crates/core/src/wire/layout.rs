//! Layout constants: field offsets inside SBE blocks, block lengths, template ids, enum values. Pure.
//!
//! The schemas in `schemas/` are the source. A test compares each constant with them, so a name is always
//! `MESSAGE_FIELD` in capitals. SBE packs its fields, so several are unaligned (wire §16): they are read
//! byte-wise, never by reference.

pub const WIRE_SCHEMA_ID: u16 = 900;
pub const WIRE_SCHEMA_VERSION: u16 = 1;

pub const MESSAGE_HEADER_LENGTH: usize = 8;
pub const MESSAGE_HEADER_BLOCK_LENGTH: usize = 0;
pub const MESSAGE_HEADER_TEMPLATE_ID: usize = 2;
pub const MESSAGE_HEADER_SCHEMA_ID: usize = 4;
pub const MESSAGE_HEADER_VERSION: usize = 6;

pub const GROUP_SIZE_LENGTH: usize = 4;

/// Every region starts with a superblock of exactly this size (wire §6).
pub const SUPERBLOCK_SIZE: usize = 64;
/// A header slot: 60 fixed bytes, a u32 length, 192 bytes of tensor header (wire §8.1).
pub const HEADER_SLOT_BYTES: usize = 256;
pub const LAYOUT_VERSION: u32 = 1;
/// Stored little-endian: the file starts with the bytes `31 4D 48 53 4C 50 4F 54`.
pub const MAGIC: u64 = 0x544F_504C_5348_4D31;
pub const MAX_DIMS: usize = 8;
/// The largest sequence: a commit word holds 63 bits of it.
pub const MAX_SEQ: u64 = u64::MAX >> 1;
/// The smallest payload stride. Every stride is a multiple of it (wire §15.22).
pub const MIN_STRIDE_BYTES: u32 = 64;

pub const SHM_REGION_SUPERBLOCK_TEMPLATE_ID: u16 = 50;
pub const SHM_REGION_SUPERBLOCK_BLOCK_LENGTH: u16 = 64;
pub const SHM_REGION_SUPERBLOCK_MAGIC: usize = 0;
pub const SHM_REGION_SUPERBLOCK_LAYOUT_VERSION: usize = 8;
pub const SHM_REGION_SUPERBLOCK_EPOCH: usize = 12;
pub const SHM_REGION_SUPERBLOCK_STREAM_ID: usize = 20;
pub const SHM_REGION_SUPERBLOCK_REGION_TYPE: usize = 24;
pub const SHM_REGION_SUPERBLOCK_POOL_ID: usize = 26;
pub const SHM_REGION_SUPERBLOCK_NSLOTS: usize = 28;
pub const SHM_REGION_SUPERBLOCK_SLOT_BYTES: usize = 32;
pub const SHM_REGION_SUPERBLOCK_STRIDE_BYTES: usize = 36;
pub const SHM_REGION_SUPERBLOCK_PID: usize = 40;
pub const SHM_REGION_SUPERBLOCK_START_TIMESTAMP_NS: usize = 48;
pub const SHM_REGION_SUPERBLOCK_ACTIVITY_TIMESTAMP_NS: usize = 56;

pub const REGION_TYPE_HEADER_RING: i16 = 1;
pub const REGION_TYPE_PAYLOAD_POOL: i16 = 2;

pub const SLOT_HEADER_TEMPLATE_ID: u16 = 51;
pub const SLOT_HEADER_BLOCK_LENGTH: u16 = 60;
pub const SLOT_HEADER_SEQ_COMMIT: usize = 0;
pub const SLOT_HEADER_VALUES_LEN_BYTES: usize = 8;
pub const SLOT_HEADER_PAYLOAD_SLOT: usize = 12;
pub const SLOT_HEADER_POOL_ID: usize = 16;
pub const SLOT_HEADER_PAYLOAD_OFFSET: usize = 18;
pub const SLOT_HEADER_TIMESTAMP_NS: usize = 22;
pub const SLOT_HEADER_META_VERSION: usize = 30;
pub const SLOT_HEADER_PAD: usize = 34;
/// The u32 length of `headerBytes`, right after the fixed block, and the bytes after it.
pub const SLOT_HEADER_BYTES_LENGTH_AT: usize = 60;
pub const SLOT_HEADER_BYTES_AT: usize = 64;

pub const TENSOR_HEADER_TEMPLATE_ID: u16 = 52;
pub const TENSOR_HEADER_BLOCK_LENGTH: u16 = 184;
/// Message header and block: the only legal length of `headerBytes` (wire §8.2).
pub const TENSOR_HEADER_ENCODED_LENGTH: usize = 192;
pub const TENSOR_HEADER_DTYPE: usize = 0;
pub const TENSOR_HEADER_MAJOR_ORDER: usize = 2;
pub const TENSOR_HEADER_NDIMS: usize = 4;
pub const TENSOR_HEADER_PAD_ALIGN: usize = 5;
pub const TENSOR_HEADER_PROGRESS_UNIT: usize = 6;
pub const TENSOR_HEADER_PROGRESS_STRIDE_BYTES: usize = 7;
pub const TENSOR_HEADER_DIMS: usize = 11;
pub const TENSOR_HEADER_STRIDES: usize = 43;
pub const TENSOR_HEADER_PAD: usize = 75;

pub const FRAME_DESCRIPTOR_TEMPLATE_ID: u16 = 4;
pub const FRAME_DESCRIPTOR_BLOCK_LENGTH: u16 = 40;
pub const FRAME_DESCRIPTOR_STREAM_ID: usize = 0;
pub const FRAME_DESCRIPTOR_EPOCH: usize = 4;
pub const FRAME_DESCRIPTOR_SEQ: usize = 12;
pub const FRAME_DESCRIPTOR_TIMESTAMP_NS: usize = 20;
pub const FRAME_DESCRIPTOR_META_VERSION: usize = 28;
pub const FRAME_DESCRIPTOR_TRACE_ID: usize = 32;

pub const SHM_POOL_ANNOUNCE_TEMPLATE_ID: u16 = 1;
pub const SHM_POOL_ANNOUNCE_BLOCK_LENGTH: u16 = 35;
pub const SHM_POOL_ANNOUNCE_STREAM_ID: usize = 0;
pub const SHM_POOL_ANNOUNCE_PRODUCER_ID: usize = 4;
pub const SHM_POOL_ANNOUNCE_EPOCH: usize = 8;
pub const SHM_POOL_ANNOUNCE_ANNOUNCE_TIMESTAMP_NS: usize = 16;
pub const SHM_POOL_ANNOUNCE_ANNOUNCE_CLOCK_DOMAIN: usize = 24;
pub const SHM_POOL_ANNOUNCE_LAYOUT_VERSION: usize = 25;
pub const SHM_POOL_ANNOUNCE_HEADER_NSLOTS: usize = 29;
pub const SHM_POOL_ANNOUNCE_HEADER_SLOT_BYTES: usize = 33;
/// One entry of `payloadPools`: poolId, poolNslots, strideBytes, then the region URI as var-data.
pub const SHM_POOL_ANNOUNCE_PAYLOAD_POOLS_BLOCK_LENGTH: u16 = 10;
pub const SHM_POOL_ANNOUNCE_PAYLOAD_POOLS_POOL_ID: usize = 0;
pub const SHM_POOL_ANNOUNCE_PAYLOAD_POOLS_POOL_NSLOTS: usize = 2;
pub const SHM_POOL_ANNOUNCE_PAYLOAD_POOLS_STRIDE_BYTES: usize = 6;

pub const CLOCK_DOMAIN_MONOTONIC: u8 = 1;
pub const CLOCK_DOMAIN_REALTIME_SYNCED: u8 = 2;

pub const DTYPE_UNKNOWN: i16 = 0;
pub const DTYPE_UINT8: i16 = 1;
pub const DTYPE_INT8: i16 = 2;
pub const DTYPE_UINT16: i16 = 3;
pub const DTYPE_INT16: i16 = 4;
pub const DTYPE_UINT32: i16 = 5;
pub const DTYPE_INT32: i16 = 6;
pub const DTYPE_UINT64: i16 = 7;
pub const DTYPE_INT64: i16 = 8;
pub const DTYPE_FLOAT32: i16 = 9;
pub const DTYPE_FLOAT64: i16 = 10;
pub const DTYPE_BOOLEAN: i16 = 11;
pub const DTYPE_BYTES: i16 = 13;
pub const DTYPE_BIT: i16 = 14;

pub const MAJOR_ORDER_UNKNOWN: i16 = 0;
pub const MAJOR_ORDER_ROW: i16 = 1;
pub const MAJOR_ORDER_COLUMN: i16 = 2;

pub const PROGRESS_UNIT_NONE: u8 = 0;
pub const PROGRESS_UNIT_ROWS: u8 = 1;
pub const PROGRESS_UNIT_COLUMNS: u8 = 2;

pub const SERVICE_SCHEMA_ID: u16 = 920;
pub const SERVICE_SCHEMA_VERSION: u16 = 1;
pub const EVENT_MESSAGE_TEMPLATE_ID: u16 = 1;
/// The block; `tag`, `key` and `value` follow as var-data, each behind a u32 length.
pub const EVENT_MESSAGE_BLOCK_LENGTH: u16 = 48;
pub const EVENT_MESSAGE_TIMESTAMP_NS: usize = 0;
pub const EVENT_MESSAGE_CORRELATION_ID: usize = 8;
pub const EVENT_MESSAGE_FORMAT: usize = 16;
pub const EVENT_MESSAGE_REF_STREAM_ID: usize = 20;
pub const EVENT_MESSAGE_REF_EPOCH: usize = 24;
pub const EVENT_MESSAGE_REF_SEQ: usize = 32;
pub const EVENT_MESSAGE_TRACE_ID: usize = 40;
pub const FORMAT_BYTES: i8 = 13;

pub const STATUS_SCHEMA_ID: u16 = 921;
pub const STATUS_SCHEMA_VERSION: u16 = 1;
pub const PRODUCER_STATUS_TEMPLATE_ID: u16 = 1;
/// The block; the groups `unpublished`, `dropped` and `sources` follow.
pub const PRODUCER_STATUS_BLOCK_LENGTH: u16 = 69;
pub const PRODUCER_STATUS_STREAM_ID: usize = 0;
pub const PRODUCER_STATUS_PRODUCER_ID: usize = 4;
pub const PRODUCER_STATUS_PID: usize = 8;
pub const PRODUCER_STATUS_IS_FINAL: usize = 12;
pub const PRODUCER_STATUS_EPOCH: usize = 13;
pub const PRODUCER_STATUS_NEXT_SEQ: usize = 21;
pub const PRODUCER_STATUS_COMMITTED: usize = 29;
pub const PRODUCER_STATUS_PUBLISHED: usize = 37;
pub const PRODUCER_STATUS_DEFERRED: usize = 45;
pub const PRODUCER_STATUS_HOLES: usize = 53;
pub const PRODUCER_STATUS_PAYLOAD_BYTES: usize = 61;
pub const PRODUCER_STATUS_UNPUBLISHED_BLOCK_LENGTH: u16 = 8;
pub const PRODUCER_STATUS_UNPUBLISHED_FRAMES: usize = 0;
pub const PRODUCER_STATUS_DROPPED_BLOCK_LENGTH: u16 = 8;
pub const PRODUCER_STATUS_DROPPED_FRAMES: usize = 0;
pub const PRODUCER_STATUS_SOURCES_BLOCK_LENGTH: u16 = 4;
pub const PRODUCER_STATUS_SOURCES_STREAM_ID: usize = 0;
pub const CONSUMER_STATUS_TEMPLATE_ID: u16 = 2;
/// The block; the groups `dropped` and `outside` follow.
pub const CONSUMER_STATUS_BLOCK_LENGTH: u16 = 134;
pub const CONSUMER_STATUS_STREAM_ID: usize = 0;
pub const CONSUMER_STATUS_CONSUMER_ID: usize = 4;
pub const CONSUMER_STATUS_PID: usize = 8;
pub const CONSUMER_STATUS_IS_FINAL: usize = 12;
pub const CONSUMER_STATUS_LATENCY_SINCE: usize = 13;
pub const CONSUMER_STATUS_EPOCH: usize = 14;
pub const CONSUMER_STATUS_FIRST_SEQ: usize = 22;
pub const CONSUMER_STATUS_LAST_SEQ: usize = 30;
pub const CONSUMER_STATUS_SPAN: usize = 38;
pub const CONSUMER_STATUS_RECEIVED: usize = 46;
pub const CONSUMER_STATUS_POLLS: usize = 54;
pub const CONSUMER_STATUS_LATENCY_EXCLUDED: usize = 62;
pub const CONSUMER_STATUS_INTERVAL_FRAMES: usize = 70;
pub const CONSUMER_STATUS_INTERVAL_P50_NS: usize = 78;
pub const CONSUMER_STATUS_INTERVAL_P99_NS: usize = 86;
pub const CONSUMER_STATUS_INTERVAL_MAX_NS: usize = 94;
pub const CONSUMER_STATUS_TOTAL_FRAMES: usize = 102;
pub const CONSUMER_STATUS_TOTAL_P50_NS: usize = 110;
pub const CONSUMER_STATUS_TOTAL_P99_NS: usize = 118;
pub const CONSUMER_STATUS_TOTAL_MAX_NS: usize = 126;
pub const CONSUMER_STATUS_DROPPED_BLOCK_LENGTH: u16 = 8;
pub const CONSUMER_STATUS_DROPPED_FRAMES: usize = 0;
pub const CONSUMER_STATUS_OUTSIDE_BLOCK_LENGTH: u16 = 8;
pub const CONSUMER_STATUS_OUTSIDE_FRAMES: usize = 0;
pub const TIME_ORIGIN_NOTHING: u8 = 0;
pub const TIME_ORIGIN_PUBLISH: u8 = 1;
pub const TIME_ORIGIN_CAPTURE: u8 = 2;
pub const TIME_ORIGIN_MIXED: u8 = 3;

pub const BRIDGE_SCHEMA_ID: u16 = 902;
pub const BRIDGE_SCHEMA_VERSION: u16 = 1;
pub const BRIDGE_FRAME_CHUNK_TEMPLATE_ID: u16 = 1;
/// The block; `headerBytes` and `payloadBytes` follow as var-data, each behind a u32 length.
pub const BRIDGE_FRAME_CHUNK_BLOCK_LENGTH: u16 = 41;
pub const BRIDGE_FRAME_CHUNK_STREAM_ID: usize = 0;
pub const BRIDGE_FRAME_CHUNK_EPOCH: usize = 4;
pub const BRIDGE_FRAME_CHUNK_SEQ: usize = 12;
pub const BRIDGE_FRAME_CHUNK_CHUNK_INDEX: usize = 20;
pub const BRIDGE_FRAME_CHUNK_CHUNK_COUNT: usize = 24;
pub const BRIDGE_FRAME_CHUNK_CHUNK_OFFSET: usize = 28;
pub const BRIDGE_FRAME_CHUNK_CHUNK_LENGTH: usize = 32;
pub const BRIDGE_FRAME_CHUNK_PAYLOAD_LENGTH: usize = 36;
pub const BRIDGE_FRAME_CHUNK_HEADER_INCLUDED: usize = 40;

/// The second revision: same template, distinguished by its block length.
pub const BRIDGE_FRAME_CHUNK_R2_BLOCK_LENGTH: u16 = 53;
pub const BRIDGE_FRAME_CHUNK_R2_TRACE_ID: usize = 20;
pub const BRIDGE_FRAME_CHUNK_R2_CHUNK_INDEX: usize = 28;
pub const BRIDGE_FRAME_CHUNK_R2_CHUNK_COUNT: usize = 32;
pub const BRIDGE_FRAME_CHUNK_R2_CHUNK_OFFSET: usize = 36;
pub const BRIDGE_FRAME_CHUNK_R2_CHUNK_LENGTH: usize = 40;
pub const BRIDGE_FRAME_CHUNK_R2_PAYLOAD_LENGTH: usize = 44;
pub const BRIDGE_FRAME_CHUNK_R2_PAYLOAD_CRC32C: usize = 48;
pub const BRIDGE_FRAME_CHUNK_R2_HEADER_INCLUDED: usize = 52;

pub const BOOL_FALSE: u8 = 0;
pub const BOOL_TRUE: u8 = 1;

pub const CONSUMER_HELLO_TEMPLATE_ID: u16 = 2;
pub const CONSUMER_HELLO_BLOCK_LENGTH: u16 = 39;
pub const CONSUMER_HELLO_STREAM_ID: usize = 0;
pub const CONSUMER_HELLO_CONSUMER_ID: usize = 4;
pub const CONSUMER_HELLO_SUPPORTS_SHM: usize = 8;
pub const CONSUMER_HELLO_SUPPORTS_PROGRESS: usize = 9;
pub const CONSUMER_HELLO_MODE: usize = 10;
pub const CONSUMER_HELLO_MAX_RATE_HZ: usize = 11;
pub const CONSUMER_HELLO_EXPECTED_LAYOUT_VERSION: usize = 15;
pub const CONSUMER_HELLO_PROGRESS_INTERVAL_US: usize = 19;
pub const CONSUMER_HELLO_PROGRESS_BYTES_DELTA: usize = 23;
pub const CONSUMER_HELLO_PROGRESS_MAJOR_DELTA_UNITS: usize = 27;
pub const CONSUMER_HELLO_DESCRIPTOR_STREAM_ID: usize = 31;
pub const CONSUMER_HELLO_CONTROL_STREAM_ID: usize = 35;

pub const CONSUMER_CONFIG_TEMPLATE_ID: u16 = 3;
pub const CONSUMER_CONFIG_BLOCK_LENGTH: u16 = 18;
pub const CONSUMER_CONFIG_STREAM_ID: usize = 0;
pub const CONSUMER_CONFIG_CONSUMER_ID: usize = 4;
pub const CONSUMER_CONFIG_USE_SHM: usize = 8;
pub const CONSUMER_CONFIG_MODE: usize = 9;
pub const CONSUMER_CONFIG_DESCRIPTOR_STREAM_ID: usize = 10;
pub const CONSUMER_CONFIG_CONTROL_STREAM_ID: usize = 14;
/// The second revision adds a supervisor's rate, which older readers skip.
pub const CONSUMER_CONFIG_R2_BLOCK_LENGTH: u16 = 22;
pub const CONSUMER_CONFIG_R2_MAX_RATE_HZ: usize = 18;

pub const QOS_CONSUMER_TEMPLATE_ID: u16 = 5;
pub const QOS_CONSUMER_BLOCK_LENGTH: u16 = 41;
pub const QOS_CONSUMER_STREAM_ID: usize = 0;
pub const QOS_CONSUMER_CONSUMER_ID: usize = 4;
pub const QOS_CONSUMER_EPOCH: usize = 8;
pub const QOS_CONSUMER_LAST_SEQ_SEEN: usize = 16;
pub const QOS_CONSUMER_DROPS_GAP: usize = 24;
pub const QOS_CONSUMER_DROPS_LATE: usize = 32;
pub const QOS_CONSUMER_MODE: usize = 40;

pub const QOS_PRODUCER_TEMPLATE_ID: u16 = 6;
pub const QOS_PRODUCER_BLOCK_LENGTH: u16 = 28;
pub const QOS_PRODUCER_STREAM_ID: usize = 0;
pub const QOS_PRODUCER_PRODUCER_ID: usize = 4;
pub const QOS_PRODUCER_EPOCH: usize = 8;
pub const QOS_PRODUCER_CURRENT_SEQ: usize = 16;
pub const QOS_PRODUCER_WATERMARK: usize = 24;

pub const FRAME_PROGRESS_TEMPLATE_ID: u16 = 11;
pub const FRAME_PROGRESS_BLOCK_LENGTH: u16 = 29;
pub const FRAME_PROGRESS_STREAM_ID: usize = 0;
pub const FRAME_PROGRESS_EPOCH: usize = 4;
pub const FRAME_PROGRESS_SEQ: usize = 12;
pub const FRAME_PROGRESS_PAYLOAD_BYTES_FILLED: usize = 20;
pub const FRAME_PROGRESS_STATE: usize = 28;

pub const DATA_SOURCE_ANNOUNCE_TEMPLATE_ID: u16 = 7;
pub const DATA_SOURCE_ANNOUNCE_BLOCK_LENGTH: u16 = 20;
pub const DATA_SOURCE_ANNOUNCE_STREAM_ID: usize = 0;
pub const DATA_SOURCE_ANNOUNCE_PRODUCER_ID: usize = 4;
pub const DATA_SOURCE_ANNOUNCE_EPOCH: usize = 8;
pub const DATA_SOURCE_ANNOUNCE_META_VERSION: usize = 16;

pub const DATA_SOURCE_META_TEMPLATE_ID: u16 = 8;
pub const DATA_SOURCE_META_BLOCK_LENGTH: u16 = 16;
pub const DATA_SOURCE_META_STREAM_ID: usize = 0;
pub const DATA_SOURCE_META_META_VERSION: usize = 4;
pub const DATA_SOURCE_META_TIMESTAMP_NS: usize = 8;
pub const DATA_SOURCE_META_ATTRIBUTES_BLOCK_LENGTH: u16 = 0;

pub const META_BLOB_ANNOUNCE_TEMPLATE_ID: u16 = 10;
pub const META_BLOB_ANNOUNCE_BLOCK_LENGTH: u16 = 28;
pub const META_BLOB_ANNOUNCE_STREAM_ID: usize = 0;
pub const META_BLOB_ANNOUNCE_META_VERSION: usize = 4;
pub const META_BLOB_ANNOUNCE_BLOB_TYPE: usize = 8;
pub const META_BLOB_ANNOUNCE_TOTAL_LEN: usize = 12;
pub const META_BLOB_ANNOUNCE_CHECKSUM: usize = 20;

pub const META_BLOB_CHUNK_TEMPLATE_ID: u16 = 12;
pub const META_BLOB_CHUNK_BLOCK_LENGTH: u16 = 16;
pub const META_BLOB_CHUNK_STREAM_ID: usize = 0;
pub const META_BLOB_CHUNK_META_VERSION: usize = 4;
pub const META_BLOB_CHUNK_CHUNK_OFFSET: usize = 8;

pub const META_BLOB_COMPLETE_TEMPLATE_ID: u16 = 13;
pub const META_BLOB_COMPLETE_BLOCK_LENGTH: u16 = 16;
pub const META_BLOB_COMPLETE_STREAM_ID: usize = 0;
pub const META_BLOB_COMPLETE_META_VERSION: usize = 4;
pub const META_BLOB_COMPLETE_CHECKSUM: usize = 8;

pub const MODE_STREAM: u8 = 1;
pub const MODE_RATE_LIMITED: u8 = 2;
pub const FRAME_PROGRESS_STATE_UNKNOWN: u8 = 0;
pub const FRAME_PROGRESS_STATE_STARTED: u8 = 1;
pub const FRAME_PROGRESS_STATE_PROGRESS: u8 = 2;
pub const FRAME_PROGRESS_STATE_COMPLETE: u8 = 3;

pub const DRIVER_SCHEMA_ID: u16 = 901;
pub const DRIVER_SCHEMA_VERSION: u16 = 1;

pub const SHM_ATTACH_REQUEST_TEMPLATE_ID: u16 = 1;
pub const SHM_ATTACH_REQUEST_BLOCK_LENGTH: u16 = 24;
pub const SHM_ATTACH_REQUEST_CORRELATION_ID: usize = 0;
pub const SHM_ATTACH_REQUEST_STREAM_ID: usize = 8;
pub const SHM_ATTACH_REQUEST_CLIENT_ID: usize = 12;
pub const SHM_ATTACH_REQUEST_ROLE: usize = 16;
pub const SHM_ATTACH_REQUEST_EXPECTED_LAYOUT_VERSION: usize = 17;
pub const SHM_ATTACH_REQUEST_MAX_DIMS: usize = 21;
pub const SHM_ATTACH_REQUEST_PUBLISH_MODE: usize = 22;
pub const SHM_ATTACH_REQUEST_REQUIRE_HUGEPAGES: usize = 23;

/// The second revision: same template, distinguished by its block length.
pub const SHM_ATTACH_REQUEST_R2_BLOCK_LENGTH: u16 = 27;
pub const SHM_ATTACH_REQUEST_R2_PUBLISH_MODE: usize = 21;
pub const SHM_ATTACH_REQUEST_R2_HUGEPAGES_POLICY: usize = 22;
pub const SHM_ATTACH_REQUEST_R2_DESIRED_NODE_ID: usize = 23;

pub const SHM_ATTACH_RESPONSE_TEMPLATE_ID: u16 = 2;
pub const SHM_ATTACH_RESPONSE_BLOCK_LENGTH: u16 = 51;
pub const SHM_ATTACH_RESPONSE_CORRELATION_ID: usize = 0;
pub const SHM_ATTACH_RESPONSE_CODE: usize = 8;
pub const SHM_ATTACH_RESPONSE_LEASE_ID: usize = 12;
pub const SHM_ATTACH_RESPONSE_LEASE_EXPIRY_TIMESTAMP_NS: usize = 20;
pub const SHM_ATTACH_RESPONSE_STREAM_ID: usize = 28;
pub const SHM_ATTACH_RESPONSE_EPOCH: usize = 32;
pub const SHM_ATTACH_RESPONSE_LAYOUT_VERSION: usize = 40;
pub const SHM_ATTACH_RESPONSE_HEADER_NSLOTS: usize = 44;
pub const SHM_ATTACH_RESPONSE_HEADER_SLOT_BYTES: usize = 48;
pub const SHM_ATTACH_RESPONSE_MAX_DIMS: usize = 50;
pub const SHM_ATTACH_RESPONSE_PAYLOAD_POOLS_BLOCK_LENGTH: u16 = 10;
pub const SHM_ATTACH_RESPONSE_R2_BLOCK_LENGTH: u16 = 54;
pub const SHM_ATTACH_RESPONSE_R2_NODE_ID: usize = 50;

pub const SHM_DETACH_REQUEST_TEMPLATE_ID: u16 = 3;
pub const SHM_DETACH_REQUEST_BLOCK_LENGTH: u16 = 25;
pub const SHM_DETACH_REQUEST_CORRELATION_ID: usize = 0;
pub const SHM_DETACH_REQUEST_LEASE_ID: usize = 8;
pub const SHM_DETACH_REQUEST_STREAM_ID: usize = 16;
pub const SHM_DETACH_REQUEST_CLIENT_ID: usize = 20;
pub const SHM_DETACH_REQUEST_ROLE: usize = 24;

pub const SHM_LEASE_KEEPALIVE_TEMPLATE_ID: u16 = 5;
pub const SHM_LEASE_KEEPALIVE_BLOCK_LENGTH: u16 = 25;
pub const SHM_LEASE_KEEPALIVE_LEASE_ID: usize = 0;
pub const SHM_LEASE_KEEPALIVE_STREAM_ID: usize = 8;
pub const SHM_LEASE_KEEPALIVE_CLIENT_ID: usize = 12;
pub const SHM_LEASE_KEEPALIVE_ROLE: usize = 16;
pub const SHM_LEASE_KEEPALIVE_CLIENT_TIMESTAMP_NS: usize = 17;

pub const SHM_DRIVER_SHUTDOWN_TEMPLATE_ID: u16 = 6;
pub const SHM_DRIVER_SHUTDOWN_BLOCK_LENGTH: u16 = 9;
pub const SHM_DRIVER_SHUTDOWN_REASON: usize = 8;

pub const SHM_LEASE_REVOKED_TEMPLATE_ID: u16 = 7;
pub const SHM_LEASE_REVOKED_BLOCK_LENGTH: u16 = 26;
pub const SHM_LEASE_REVOKED_LEASE_ID: usize = 8;
pub const SHM_LEASE_REVOKED_STREAM_ID: usize = 16;
pub const SHM_LEASE_REVOKED_CLIENT_ID: usize = 20;
pub const SHM_LEASE_REVOKED_ROLE: usize = 24;
pub const SHM_LEASE_REVOKED_REASON: usize = 25;

pub const ROLE_PRODUCER: u8 = 1;
pub const ROLE_CONSUMER: u8 = 2;
pub const PUBLISH_MODE_REQUIRE_EXISTING: u8 = 1;
pub const PUBLISH_MODE_EXISTING_OR_CREATE: u8 = 2;
pub const HUGEPAGES_POLICY_UNSPECIFIED: u8 = 0;
pub const HUGEPAGES_POLICY_HUGEPAGES: u8 = 2;
pub const RESPONSE_CODE_OK: i32 = 0;
pub const RESPONSE_CODE_UNSUPPORTED: i32 = 1;
pub const RESPONSE_CODE_INVALID_PARAMS: i32 = 2;
pub const RESPONSE_CODE_REJECTED: i32 = 3;
pub const RESPONSE_CODE_INTERNAL_ERROR: i32 = 4;
pub const LEASE_REVOKE_REASON_DETACHED: u8 = 1;
pub const LEASE_REVOKE_REASON_EXPIRED: u8 = 2;
pub const LEASE_REVOKE_REASON_REVOKED: u8 = 3;
pub const SHUTDOWN_REASON_NORMAL: u8 = 0;
pub const SHUTDOWN_REASON_ADMIN: u8 = 1;
pub const SHUTDOWN_REASON_ERROR: u8 = 2;

pub const NULL_U8: u8 = u8::MAX;
pub const NULL_U16: u16 = u16::MAX;
pub const NULL_U32: u32 = u32::MAX;
pub const NULL_U64: u64 = u64::MAX;
/// The largest value of an optional u32: the next one is its null.
pub const MAX_U32: u32 = NULL_U32 - 1;
/// The only optional field whose null is 0: a frame without a trace.
pub const NULL_TRACE_ID: u64 = 0;

/// Little-endian reads and writes at any alignment. They panic past the end of the slice, so callers check
/// the length of untrusted bytes first.
macro_rules! le {
    ($read:ident, $write:ident, $type:ty) => {
        #[inline]
        pub fn $read(bytes: &[u8], at: usize) -> $type {
            const N: usize = size_of::<$type>();
            let mut word = [0u8; N];
            word.copy_from_slice(&bytes[at..at + N]);
            <$type>::from_le_bytes(word)
        }

        #[inline]
        pub fn $write(bytes: &mut [u8], at: usize, value: $type) {
            bytes[at..at + size_of::<$type>()].copy_from_slice(&value.to_le_bytes());
        }
    };
}

le!(get_u16, put_u16, u16);
le!(get_i16, put_i16, i16);
le!(get_u32, put_u32, u32);
le!(get_i32, put_i32, i32);
le!(get_u64, put_u64, u64);

/// Writes an SBE message header of the wire schema at the start of `bytes`.
#[inline]
pub fn put_message_header(bytes: &mut [u8], block_length: u16, template_id: u16) {
    put_header_of(bytes, block_length, template_id, WIRE_SCHEMA_ID, WIRE_SCHEMA_VERSION);
}

#[inline]
pub fn put_header_of(bytes: &mut [u8], block_length: u16, template_id: u16, schema_id: u16, version: u16) {
    put_u16(bytes, MESSAGE_HEADER_BLOCK_LENGTH, block_length);
    put_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID, template_id);
    put_u16(bytes, MESSAGE_HEADER_SCHEMA_ID, schema_id);
    put_u16(bytes, MESSAGE_HEADER_VERSION, version);
}
