//! `FrameDescriptor`: the 48-byte message that a frame is in the ring (wire §10.2.1). Pure.

use crate::wire::layout::*;

pub const FRAME_DESCRIPTOR_ENCODED_LENGTH: usize =
    MESSAGE_HEADER_LENGTH + FRAME_DESCRIPTOR_BLOCK_LENGTH as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameDescriptor {
    pub stream_id: u32,
    pub epoch: u64,
    pub seq: u64,
    /// Time of publication, where the producer is configured to write it.
    pub timestamp_ns: Option<u64>,
    pub meta_version: Option<u32>,
    /// 0: no trace.
    pub trace_id: u64,
}

/// What a message of the descriptor stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    Descriptor(FrameDescriptor),
    /// A message of another template or schema: the stream may be shared.
    Other,
    Malformed,
}

impl FrameDescriptor {
    #[inline]
    pub fn encode(&self, bytes: &mut [u8]) {
        put_message_header(bytes, FRAME_DESCRIPTOR_BLOCK_LENGTH, FRAME_DESCRIPTOR_TEMPLATE_ID);
        let b = &mut bytes[MESSAGE_HEADER_LENGTH..];
        put_u32(b, FRAME_DESCRIPTOR_STREAM_ID, self.stream_id);
        put_u64(b, FRAME_DESCRIPTOR_EPOCH, self.epoch);
        put_u64(b, FRAME_DESCRIPTOR_SEQ, self.seq);
        put_u64(b, FRAME_DESCRIPTOR_TIMESTAMP_NS, self.timestamp_ns.unwrap_or(NULL_U64));
        put_u32(b, FRAME_DESCRIPTOR_META_VERSION, self.meta_version.unwrap_or(NULL_U32));
        put_u64(b, FRAME_DESCRIPTOR_TRACE_ID, self.trace_id);
    }

    /// Checks schema and template first, then the block. The tail of a longer block is skipped, a shorter
    /// block is malformed.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Decoded {
        if bytes.len() < MESSAGE_HEADER_LENGTH {
            return Decoded::Malformed;
        }
        if get_u16(bytes, MESSAGE_HEADER_SCHEMA_ID) != WIRE_SCHEMA_ID
            || get_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID) != FRAME_DESCRIPTOR_TEMPLATE_ID
        {
            return Decoded::Other;
        }
        let block = usize::from(get_u16(bytes, MESSAGE_HEADER_BLOCK_LENGTH));
        if block < usize::from(FRAME_DESCRIPTOR_BLOCK_LENGTH)
            || bytes.len() < MESSAGE_HEADER_LENGTH + block
            || get_u16(bytes, MESSAGE_HEADER_VERSION) < WIRE_SCHEMA_VERSION
        {
            return Decoded::Malformed;
        }
        let b = &bytes[MESSAGE_HEADER_LENGTH..];
        // A commit word holds 63 bits of the sequence. A larger one would name the slot of another frame.
        if get_u64(b, FRAME_DESCRIPTOR_SEQ) > MAX_SEQ {
            return Decoded::Malformed;
        }
        let timestamp_ns = get_u64(b, FRAME_DESCRIPTOR_TIMESTAMP_NS);
        let meta_version = get_u32(b, FRAME_DESCRIPTOR_META_VERSION);
        Decoded::Descriptor(Self {
            stream_id: get_u32(b, FRAME_DESCRIPTOR_STREAM_ID),
            epoch: get_u64(b, FRAME_DESCRIPTOR_EPOCH),
            seq: get_u64(b, FRAME_DESCRIPTOR_SEQ),
            timestamp_ns: (timestamp_ns != NULL_U64).then_some(timestamp_ns),
            meta_version: (meta_version != NULL_U32).then_some(meta_version),
            trace_id: get_u64(b, FRAME_DESCRIPTOR_TRACE_ID),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: FrameDescriptor = FrameDescriptor {
        stream_id: 10_000,
        epoch: 7,
        seq: 3,
        timestamp_ns: None,
        meta_version: None,
        trace_id: 0,
    };

    fn bytes(d: FrameDescriptor) -> [u8; FRAME_DESCRIPTOR_ENCODED_LENGTH] {
        let mut b = [0; FRAME_DESCRIPTOR_ENCODED_LENGTH];
        d.encode(&mut b);
        b
    }

    /// requirement: wire-10.1-1
    #[test]
    fn absent_fields_are_null_on_the_wire() {
        let b = bytes(PLAIN);
        assert_eq!(b[28..40], [0xFF; 12]);
        assert_eq!(FrameDescriptor::decode(&b), Decoded::Descriptor(PLAIN));
        let full = FrameDescriptor { timestamp_ns: Some(0), meta_version: Some(0), trace_id: 5, ..PLAIN };
        assert_eq!(FrameDescriptor::decode(&bytes(full)), Decoded::Descriptor(full));
    }

    #[test]
    fn every_truncation_is_malformed_and_a_longer_block_is_read() {
        let b = bytes(PLAIN);
        for len in 0..b.len() {
            assert_eq!(FrameDescriptor::decode(&b[..len]), Decoded::Malformed, "{len}");
        }
        let mut longer = b.to_vec();
        longer.extend([1, 2, 3]);
        put_u16(&mut longer, MESSAGE_HEADER_BLOCK_LENGTH, 43);
        assert_eq!(FrameDescriptor::decode(&longer), Decoded::Descriptor(PLAIN));
        put_u16(&mut longer, MESSAGE_HEADER_BLOCK_LENGTH, 44);
        assert_eq!(FrameDescriptor::decode(&longer), Decoded::Malformed);
        put_u16(&mut longer, MESSAGE_HEADER_BLOCK_LENGTH, 39);
        assert_eq!(FrameDescriptor::decode(&longer), Decoded::Malformed);
    }

    #[test]
    fn sequence_beyond_63_bits_is_malformed() {
        let at = |seq| FrameDescriptor { seq, ..PLAIN };
        assert_eq!(FrameDescriptor::decode(&bytes(at(MAX_SEQ))), Decoded::Descriptor(at(MAX_SEQ)));
        assert_eq!(FrameDescriptor::decode(&bytes(at(MAX_SEQ + 1))), Decoded::Malformed);
    }

    #[test]
    fn messages_of_other_schemas_are_other() {
        let mut b = bytes(PLAIN);
        put_u16(&mut b, MESSAGE_HEADER_SCHEMA_ID, 901);
        assert_eq!(FrameDescriptor::decode(&b), Decoded::Other);
    }
}
