//! One header slot: the fields that a writer stores and a reader validates (wire §8). Pure.

use crate::drop_reason::DropReason;
use crate::shm::tensor::{Tensor, TensorSpec};
use crate::wire::layout::*;

/// The fields of a slot except the commit word.
#[derive(Clone, Copy, Debug)]
pub struct SlotFields {
    pub values_len_bytes: u32,
    pub payload_slot: u32,
    pub pool_id: u16,
    pub timestamp_ns: u64,
    pub meta_version: u32,
    pub tensor: TensorSpec,
}

impl SlotFields {
    /// The complete slot as bytes. The commit word is 0: the caller never copies it.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_SLOT_BYTES] {
        let mut b = [0u8; HEADER_SLOT_BYTES];
        put_u32(&mut b, SLOT_HEADER_VALUES_LEN_BYTES, self.values_len_bytes);
        put_u32(&mut b, SLOT_HEADER_PAYLOAD_SLOT, self.payload_slot);
        put_u16(&mut b, SLOT_HEADER_POOL_ID, self.pool_id);
        put_u32(&mut b, SLOT_HEADER_PAYLOAD_OFFSET, 0);
        put_u64(&mut b, SLOT_HEADER_TIMESTAMP_NS, self.timestamp_ns);
        put_u32(&mut b, SLOT_HEADER_META_VERSION, self.meta_version);
        put_u32(&mut b, SLOT_HEADER_BYTES_LENGTH_AT, TENSOR_HEADER_ENCODED_LENGTH as u32);
        let tail: &mut [u8; TENSOR_HEADER_ENCODED_LENGTH] =
            (&mut b[SLOT_HEADER_BYTES_AT..]).try_into().expect("192 bytes follow");
        self.tensor.encode(tail);
        b
    }
}

/// A slot whose fields are all valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    pub values_len_bytes: u32,
    pub pool_id: u16,
    pub timestamp_ns: u64,
    pub meta_version: u32,
    pub tensor: Tensor,
}

/// Validates a copy of a slot. `index` is the index of that slot. The caller validates the pool.
pub fn decode(b: &[u8; HEADER_SLOT_BYTES], index: u32) -> Result<SlotInfo, DropReason> {
    if get_u32(b, SLOT_HEADER_BYTES_LENGTH_AT) as usize != TENSOR_HEADER_ENCODED_LENGTH {
        return Err(DropReason::HeaderLength);
    }
    if get_u32(b, SLOT_HEADER_PAYLOAD_OFFSET) != 0 {
        return Err(DropReason::PayloadOffset);
    }
    if get_u32(b, SLOT_HEADER_PAYLOAD_SLOT) != index {
        return Err(DropReason::PayloadSlot);
    }
    let values_len_bytes = get_u32(b, SLOT_HEADER_VALUES_LEN_BYTES);
    let tail: &[u8; TENSOR_HEADER_ENCODED_LENGTH] =
        b[SLOT_HEADER_BYTES_AT..].try_into().expect("192 bytes follow");
    Ok(SlotInfo {
        values_len_bytes,
        pool_id: get_u16(b, SLOT_HEADER_POOL_ID),
        timestamp_ns: get_u64(b, SLOT_HEADER_TIMESTAMP_NS),
        meta_version: get_u32(b, SLOT_HEADER_META_VERSION),
        tensor: Tensor::decode(tail, values_len_bytes)?,
    })
}

const SLOT_U64S: usize = HEADER_SLOT_BYTES / 8;

/// The bits that headers of one layout share: all but commit word, slot and time.
const SHARED_BITS: [u64; SLOT_U64S] = {
    let mut bits = [u64::MAX; SLOT_U64S];
    let mut at = 0;
    while at < SLOT_HEADER_BYTES_AT {
        let is_own = at < SLOT_HEADER_VALUES_LEN_BYTES
            || (SLOT_HEADER_PAYLOAD_SLOT <= at && at < SLOT_HEADER_POOL_ID)
            || (SLOT_HEADER_TIMESTAMP_NS <= at && at < SLOT_HEADER_META_VERSION);
        if is_own {
            bits[at / 8] &= !(0xFF << (at % 8 * 8));
        }
        at += 1;
    }
    bits
};

/// A valid header, to recognise others of the same layout without decoding them.
#[derive(Clone, Copy, Debug)]
pub struct HeaderPattern([u64; SLOT_U64S]);

impl HeaderPattern {
    /// The pattern of a header that `decode` accepted.
    pub fn new(valid: &[u8; HEADER_SLOT_BYTES]) -> Self {
        let mut shared = [0; SLOT_U64S];
        for (i, value) in shared.iter_mut().enumerate() {
            *value = get_u64(valid, 8 * i) & SHARED_BITS[i];
        }
        Self(shared)
    }

    /// The timestamp of the header in slot `index` that `word` reads, if `decode` would find the same in it as
    /// in the pattern's but for the timestamp. Otherwise the caller decodes it.
    #[inline]
    pub fn timestamp_in(&self, index: u32, word: impl Fn(usize) -> u64) -> Option<u64> {
        let mut own = [0u8; SLOT_HEADER_PAD.next_multiple_of(8)];
        let mut other = 0;
        for (i, chunk) in own.as_chunks_mut().0.iter_mut().enumerate().skip(1) {
            let value = word(i);
            *chunk = value.to_le_bytes();
            other |= (value & SHARED_BITS[i]) ^ self.0[i];
        }
        for (i, shared) in self.0.iter().enumerate().skip(own.len() / 8) {
            other |= word(i) ^ shared;
        }
        (other == 0 && get_u32(&own, SLOT_HEADER_PAYLOAD_SLOT) == index)
            .then(|| get_u64(&own, SLOT_HEADER_TIMESTAMP_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8; HEADER_SLOT_BYTES]) -> impl Fn(usize) -> u64 + '_ {
        move |i| get_u64(bytes, 8 * i)
    }

    #[test]
    fn header_of_the_same_layout_is_recognised_with_its_time() {
        let pattern = HeaderPattern::new(&fields().encode());
        let other = SlotFields { payload_slot: 9, timestamp_ns: u64::MAX - 1, ..fields() };
        let mut bytes = other.encode();
        bytes[..8].copy_from_slice(&77u64.to_le_bytes());
        assert_eq!(pattern.timestamp_in(9, word(&bytes)), Some(u64::MAX - 1));
        assert_eq!(pattern.timestamp_in(5, word(&bytes)), None, "of another slot");
    }

    #[test]
    fn pattern_recognises_no_header_that_decodes_to_something_else() {
        let (valid, expected) = (fields().encode(), decode(&fields().encode(), 5).unwrap());
        let pattern = HeaderPattern::new(&valid);
        for bit in 64..8 * HEADER_SLOT_BYTES {
            let mut bytes = valid;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let recognised = pattern.timestamp_in(5, word(&bytes));
            let decoded = decode(&bytes, 5);
            if let Some(timestamp_ns) = recognised {
                assert_eq!(decoded, Ok(SlotInfo { timestamp_ns, ..expected }), "bit {bit}");
            }
            let is_time = (SLOT_HEADER_TIMESTAMP_NS..SLOT_HEADER_META_VERSION).contains(&(bit / 8));
            assert_eq!(recognised.is_some(), is_time, "bit {bit}");
        }
    }

    fn fields() -> SlotFields {
        SlotFields {
            values_len_bytes: 48,
            payload_slot: 5,
            pool_id: 2,
            timestamp_ns: 0x0102_0304_0506_0708,
            meta_version: 9,
            tensor: TensorSpec::new(DTYPE_UINT16, MAJOR_ORDER_ROW, &[4, 6]).unwrap(),
        }
    }

    /// requirement: wire-8.2-2, wire-8.2-3, wire-8.2-5
    #[test]
    fn slot_is_a_block_with_the_commit_word_first() {
        let b = fields().encode();
        assert_eq!(b[..8], [0; 8]);
        assert_eq!(b[8..12], [48, 0, 0, 0]);
        assert_eq!(b[22..30], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(b[60..64], [192, 0, 0, 0]);
        assert_eq!(b[64..72], [184, 0, 52, 0, 132, 3, 1, 0]);
        let info = decode(&b, 5).unwrap();
        assert_eq!((info.pool_id, info.meta_version, info.values_len_bytes), (2, 9, 48));
    }

    fn with(at: usize, byte: u8) -> Result<SlotInfo, DropReason> {
        let mut b = fields().encode();
        b[at] = byte;
        decode(&b, 5)
    }

    /// requirement: wire-8.2-10
    #[test]
    fn payload_offset_is_refused() {
        assert_eq!(with(SLOT_HEADER_PAYLOAD_OFFSET + 3, 1), Err(DropReason::PayloadOffset));
    }

    /// requirement: wire-8.2-19, wire-10.2.1-9, wire-15.5-1
    #[test]
    fn payload_slot_equals_the_header_index() {
        assert_eq!(with(SLOT_HEADER_PAYLOAD_SLOT, 4), Err(DropReason::PayloadSlot));
        assert_eq!(with(SLOT_HEADER_PAYLOAD_SLOT + 3, 4), Err(DropReason::PayloadSlot));
    }

    /// requirement: wire-8.3-1
    #[test]
    fn embedded_header_length_is_192() {
        for length in [0, 191, 193, 255] {
            assert_eq!(with(SLOT_HEADER_BYTES_LENGTH_AT, length), Err(DropReason::HeaderLength));
        }
    }

    /// requirement: wire-8.2-4
    #[test]
    fn slot_padding_is_ignored() {
        assert_eq!(with(SLOT_HEADER_PAD + 25, 0xAB), decode(&fields().encode(), 5));
    }
}
