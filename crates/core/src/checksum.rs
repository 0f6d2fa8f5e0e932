//! CRC32C (Castagnoli), the checksum of payloads, batches and blobs. Pure.

use crc_fast::{CrcAlgorithm, Digest};

pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The checksum of `bytes` behind data whose checksum is `before`.
pub fn crc32c_append(before: u32, bytes: &[u8]) -> u32 {
    // A checksum is the complement of the digest's state.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn crc32c_has_the_catalogue_check_value() {
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(super::crc32c(b""), 0);
        assert_eq!(super::crc32c_append(0x1234_5678, b""), 0x1234_5678);
    }

    proptest! {
        /// Lengths around every block of the wide instructions, at any alignment, in one piece and in two.
        #[test]
        fn crc32c_equals_another_implementation(bytes in prop::collection::vec(any::<u8>(), 0..5000), at in any::<usize>()) {
            let expected = ::crc32c::crc32c(&bytes);
            prop_assert_eq!(super::crc32c(&bytes), expected);
            let (head, tail) = bytes.split_at(at % (bytes.len() + 1));
            prop_assert_eq!(super::crc32c(tail), ::crc32c::crc32c(tail));
            prop_assert_eq!(super::crc32c_append(super::crc32c(head), tail), expected);
        }
    }
}
