//! `BridgeFrameChunk`: a slice of a frame on UDP (bridge §5, §11), in both revisions. Pure.
//!
//! Decoding allocates nothing: a chunk borrows the bytes it came in. Every length is checked against those
//! bytes before it is used.

use crate::checksum;
use crate::wire::layout::*;

pub const MAX_CHUNKS: u32 = 65_535;
/// Bytes of the header of an Aeron data frame.
pub const DATA_HEADER_LENGTH: u32 = 32;
/// Bytes of an MTU that are not available for payload (bridge §5.2).
pub const MTU_OVERHEAD: u32 = 128;

const LENGTH: usize = 4;

/// The form of the message that is sent. Both forms are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    First,
    /// With a trace id and a checksum.
    Second,
}

impl Revision {
    const fn block_length(self) -> u16 {
        match self {
            Self::First => BRIDGE_FRAME_CHUNK_BLOCK_LENGTH,
            Self::Second => BRIDGE_FRAME_CHUNK_R2_BLOCK_LENGTH,
        }
    }

    /// Bytes before the payload.
    pub const fn overhead(self, with_header: bool) -> usize {
        let header = if with_header { HEADER_SLOT_BYTES } else { 0 };
        MESSAGE_HEADER_LENGTH + self.block_length() as usize + LENGTH + header + LENGTH
    }
}

/// Limits of a receiver (bridge §5.2, §10).
#[derive(Clone, Copy, Debug)]
pub struct ChunkLimits {
    /// The longest slice: the smaller of the configured size and what the MTU allows.
    pub chunk_bytes: u32,
    pub payload_bytes: u32,
    /// Accept only chunks that carry a checksum.
    pub needs_checksum: bool,
}

macro_rules! reasons {
    ($(#[$meta:meta])* $enum:ident { $($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $enum { $($(#[doc = $doc])+ $name,)+ }

        impl $enum {
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            pub const COUNT: usize = Self::ALL.len();

            /// The name of the counter.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What the counter counts, as text for users.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
        }
    };
}
pub(crate) use reasons;

reasons! {
    /// Why a message on the payload stream is no chunk that can be used.
    Fault {
        /// Another schema or template.
        Other = "other",
        /// Cut short, or a block that is too short.
        Malformed = "malformed",
        /// No chunks, or more than 65,535.
        Count = "count",
        /// An index that is not below the count.
        Index = "index",
        /// The header is not there where it has to be, or there where it must not be.
        Header = "header_flag",
        /// The first slice does not start at 0, or a slice reaches beyond the payload.
        Offset = "offset",
        /// The payload bytes are not as many as the chunk says.
        Length = "length",
        /// A slice longer than is borne here.
        ChunkTooLong = "chunk_too_long",
        /// A payload longer than is borne here.
        PayloadTooLong = "payload_too_long",
        /// A sequence that no commit word can hold.
        Seq = "seq",
        /// The checksum is that of other bytes.
        Checksum = "checksum",
        /// No checksum, where one is demanded.
        Unchecked = "unchecked",
        /// Sealed, and there is no key here.
        Sealed = "sealed",
        /// Not sealed, where messages have to be.
        Unsealed = "unsealed",
        /// Sealed with a key that is not accepted here.
        WrongKey = "wrong_key",
        /// Sealed, and then altered; or never sealed with that key.
        Altered = "altered",
        /// A sealed message that was received already, or an older one.
        Replayed = "replayed",
        /// Sealed at a time that differs too much from the clock of this host.
        Stale = "stale",
        /// More sessions of senders than are remembered.
        Sessions = "sessions",
        /// Sealed by the receiver's own host, and sent back to it.
        Reflected = "reflected",
    }
}

/// A chunk that passed every check that needs the message alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    pub stream_id: u32,
    pub epoch: u64,
    pub seq: u64,
    /// 0: no trace.
    pub trace_id: u64,
    pub index: u32,
    pub count: u32,
    pub offset: u32,
    pub payload_length: u32,
    pub header: Option<&'a [u8; HEADER_SLOT_BYTES]>,
    pub payload: &'a [u8],
}

/// Field offsets of one revision.
struct Offsets {
    index: usize,
    count: usize,
    offset: usize,
    length: usize,
    payload_length: usize,
    header_included: usize,
}

const FIRST: Offsets = Offsets {
    index: BRIDGE_FRAME_CHUNK_CHUNK_INDEX,
    count: BRIDGE_FRAME_CHUNK_CHUNK_COUNT,
    offset: BRIDGE_FRAME_CHUNK_CHUNK_OFFSET,
    length: BRIDGE_FRAME_CHUNK_CHUNK_LENGTH,
    payload_length: BRIDGE_FRAME_CHUNK_PAYLOAD_LENGTH,
    header_included: BRIDGE_FRAME_CHUNK_HEADER_INCLUDED,
};

const SECOND: Offsets = Offsets {
    index: BRIDGE_FRAME_CHUNK_R2_CHUNK_INDEX,
    count: BRIDGE_FRAME_CHUNK_R2_CHUNK_COUNT,
    offset: BRIDGE_FRAME_CHUNK_R2_CHUNK_OFFSET,
    length: BRIDGE_FRAME_CHUNK_R2_CHUNK_LENGTH,
    payload_length: BRIDGE_FRAME_CHUNK_R2_PAYLOAD_LENGTH,
    header_included: BRIDGE_FRAME_CHUNK_R2_HEADER_INCLUDED,
};

const fn offsets(revision: Revision) -> &'static Offsets {
    match revision {
        Revision::First => &FIRST,
        Revision::Second => &SECOND,
    }
}

fn take_data<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Fault> {
    let (length, tail) = rest.split_at_checked(LENGTH).ok_or(Fault::Malformed)?;
    let (data, tail) = tail.split_at_checked(get_u32(length, 0) as usize).ok_or(Fault::Malformed)?;
    *rest = tail;
    Ok(data)
}

/// The checksum of a chunk: over header and payload where there is a header, else over the payload.
pub fn checksum(header: Option<&[u8; HEADER_SLOT_BYTES]>, payload: &[u8]) -> u32 {
    checksum::crc32c_append(header.map_or(0, |h| checksum::crc32c(h)), payload)
}

impl<'a> Chunk<'a> {
    /// Decodes a message and applies every rule that needs nothing but the message (bridge §5.2).
    #[inline]
    pub fn decode(bytes: &'a [u8], limits: &ChunkLimits) -> Result<Self, Fault> {
        if bytes.len() < MESSAGE_HEADER_LENGTH {
            return Err(Fault::Malformed);
        }
        if get_u16(bytes, MESSAGE_HEADER_SCHEMA_ID) != BRIDGE_SCHEMA_ID
            || get_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID) != BRIDGE_FRAME_CHUNK_TEMPLATE_ID
        {
            return Err(Fault::Other);
        }
        let block_length = get_u16(bytes, MESSAGE_HEADER_BLOCK_LENGTH);
        let revision = match block_length {
            BRIDGE_FRAME_CHUNK_R2_BLOCK_LENGTH => Revision::Second,
            // Of an unknown longer block only the documented beginning is read.
            n if n >= BRIDGE_FRAME_CHUNK_BLOCK_LENGTH => Revision::First,
            _ => return Err(Fault::Malformed),
        };
        if get_u16(bytes, MESSAGE_HEADER_VERSION) < BRIDGE_SCHEMA_VERSION {
            return Err(Fault::Malformed);
        }
        let (b, mut rest) =
            bytes[MESSAGE_HEADER_LENGTH..].split_at_checked(block_length.into()).ok_or(Fault::Malformed)?;
        let at = offsets(revision);
        let (index, count) = (get_u32(b, at.index), get_u32(b, at.count));
        if count == 0 || count > MAX_CHUNKS {
            return Err(Fault::Count);
        }
        if index >= count {
            return Err(Fault::Index);
        }
        let header = take_data(&mut rest)?;
        let payload = take_data(&mut rest)?;
        let included = match b[at.header_included] {
            BOOL_FALSE => false,
            BOOL_TRUE => true,
            _ => return Err(Fault::Malformed),
        };
        if included != (index == 0) {
            return Err(Fault::Header);
        }
        let header = match (included, header.len()) {
            (true, HEADER_SLOT_BYTES) => header.try_into().ok(),
            (false, 0) => None,
            _ => return Err(Fault::Header),
        };
        let length = get_u32(b, at.length);
        if payload.len() != length as usize {
            return Err(Fault::Length);
        }
        if length > limits.chunk_bytes {
            return Err(Fault::ChunkTooLong);
        }
        let (offset, payload_length) = (get_u32(b, at.offset), get_u32(b, at.payload_length));
        if payload_length > limits.payload_bytes {
            return Err(Fault::PayloadTooLong);
        }
        if (index == 0 && offset != 0) || u64::from(offset) + u64::from(length) > u64::from(payload_length) {
            return Err(Fault::Offset);
        }
        let seq = get_u64(b, BRIDGE_FRAME_CHUNK_SEQ);
        if seq > MAX_SEQ {
            return Err(Fault::Seq);
        }
        let trace_id = match revision {
            Revision::Second => {
                if get_u32(b, BRIDGE_FRAME_CHUNK_R2_PAYLOAD_CRC32C) != checksum(header, payload) {
                    return Err(Fault::Checksum);
                }
                get_u64(b, BRIDGE_FRAME_CHUNK_R2_TRACE_ID)
            }
            Revision::First if limits.needs_checksum => return Err(Fault::Unchecked),
            Revision::First => NULL_TRACE_ID,
        };
        Ok(Self {
            stream_id: get_u32(b, BRIDGE_FRAME_CHUNK_STREAM_ID),
            epoch: get_u64(b, BRIDGE_FRAME_CHUNK_EPOCH),
            seq,
            trace_id,
            index,
            count,
            offset,
            payload_length,
            header,
            payload,
        })
    }

    /// Whether this is the last chunk of its frame, after which the sender has sent all of them.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.count
    }
}

/// How one frame is divided. The first chunk carries the header too, so it has less payload (decision 29).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlan {
    pub payload_length: u32,
    pub first: u32,
    pub rest: u32,
    pub count: u32,
}

/// Slice sizes of a channel, chosen so that each message fits one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSizes {
    pub first: u32,
    pub rest: u32,
}

impl ChunkSizes {
    /// `seal_bytes`: what sealing adds to a message. Returns `None` for an MTU that leaves no room for payload.
    pub fn new(
        mtu_bytes: u32,
        chunk_bytes: Option<u32>,
        max_chunk_bytes: u32,
        seal_bytes: u32,
    ) -> Option<Self> {
        let rest = mtu_bytes
            .checked_sub(MTU_OVERHEAD + seal_bytes)?
            .min(chunk_bytes.unwrap_or(u32::MAX))
            .min(max_chunk_bytes);
        let overhead = DATA_HEADER_LENGTH + Revision::Second.overhead(true) as u32 + seal_bytes;
        let room = mtu_bytes.saturating_sub(overhead);
        (rest > 0).then_some(Self { first: room.min(rest), rest })
    }

    /// Returns `None` for a frame that needs too many chunks. An empty frame is one chunk of length 0.
    pub fn plan(&self, payload_length: u32) -> Option<ChunkPlan> {
        let first = self.first.min(payload_length);
        let count = 1 + (payload_length - first).div_ceil(self.rest);
        (count <= MAX_CHUNKS).then_some(ChunkPlan { payload_length, first, rest: self.rest, count })
    }
}

impl ChunkPlan {
    /// Offset and length of one slice.
    #[inline]
    pub fn slice(&self, index: u32) -> (u32, u32) {
        if index == 0 {
            return (0, self.first);
        }
        let offset = self.first + (index - 1) * self.rest;
        (offset, self.rest.min(self.payload_length - offset))
    }
}

/// The fields that all chunks of a frame share.
#[derive(Clone, Copy, Debug)]
pub struct FrameKey {
    pub stream_id: u32,
    pub epoch: u64,
    pub seq: u64,
    pub trace_id: u64,
}

/// Writes everything but the payload bytes, and returns the offset where those go. `bytes` is as long as
/// `revision.overhead(header.is_some())` and the slice together.
#[inline]
pub fn encode(
    bytes: &mut [u8],
    revision: Revision,
    key: &FrameKey,
    plan: &ChunkPlan,
    index: u32,
    header: Option<&[u8; HEADER_SLOT_BYTES]>,
) -> usize {
    let (offset, length) = plan.slice(index);
    let block_length = revision.block_length();
    put_header_of(
        bytes,
        block_length,
        BRIDGE_FRAME_CHUNK_TEMPLATE_ID,
        BRIDGE_SCHEMA_ID,
        BRIDGE_SCHEMA_VERSION,
    );
    let b = &mut bytes[MESSAGE_HEADER_LENGTH..];
    put_u32(b, BRIDGE_FRAME_CHUNK_STREAM_ID, key.stream_id);
    put_u64(b, BRIDGE_FRAME_CHUNK_EPOCH, key.epoch);
    put_u64(b, BRIDGE_FRAME_CHUNK_SEQ, key.seq);
    if revision == Revision::Second {
        put_u64(b, BRIDGE_FRAME_CHUNK_R2_TRACE_ID, key.trace_id);
        put_u32(b, BRIDGE_FRAME_CHUNK_R2_PAYLOAD_CRC32C, 0);
    }
    let at = offsets(revision);
    put_u32(b, at.index, index);
    put_u32(b, at.count, plan.count);
    put_u32(b, at.offset, offset);
    put_u32(b, at.length, length);
    put_u32(b, at.payload_length, plan.payload_length);
    b[at.header_included] = if header.is_some() { BOOL_TRUE } else { BOOL_FALSE };
    let mut at = usize::from(block_length);
    put_u32(b, at, header.map_or(0, |h| h.len() as u32));
    at += LENGTH;
    if let Some(header) = header {
        b[at..at + HEADER_SLOT_BYTES].copy_from_slice(header);
        at += HEADER_SLOT_BYTES;
    }
    put_u32(b, at, length);
    MESSAGE_HEADER_LENGTH + at + LENGTH
}

/// Writes the checksum into a complete message of the second revision.
pub fn write_checksum(bytes: &mut [u8]) {
    let block = MESSAGE_HEADER_LENGTH + usize::from(BRIDGE_FRAME_CHUNK_R2_BLOCK_LENGTH);
    let included = bytes[MESSAGE_HEADER_LENGTH + BRIDGE_FRAME_CHUNK_R2_HEADER_INCLUDED] == BOOL_TRUE;
    let (head, rest) = bytes.split_at_mut(block);
    let header = if included { HEADER_SLOT_BYTES } else { 0 };
    let crc = checksum::crc32c(&rest[LENGTH..LENGTH + header]);
    let crc = checksum::crc32c_append(crc, &rest[LENGTH + header + LENGTH..]);
    put_u32(head, MESSAGE_HEADER_LENGTH + BRIDGE_FRAME_CHUNK_R2_PAYLOAD_CRC32C, crc);
}

#[cfg(test)]
mod tests;
