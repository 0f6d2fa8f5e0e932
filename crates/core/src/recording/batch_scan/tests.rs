use super::*;
use proptest::prelude::*;

/// Metadata of these tests: four common bytes, the numbers, and one byte behind them.
const BUFFERS: usize = 2;
const SIZE: usize = 4 + 8 + 8 + PAIR_BYTES + BUFFERS * PAIR_BYTES + CHECK_BYTES + 1;

fn shape() -> BatchTemplate {
    BatchTemplate {
        body_bytes_at: 4,
        rows_at: 12,
        nodes: 20..36,
        buffers: 36..36 + BUFFERS * PAIR_BYTES,
        check_at: 36 + BUFFERS * PAIR_BYTES,
        seq: 0,
        sources: vec![1],
    }
}

/// A batch with sequences, a suffix that describes its tensors, and a payload that no checksum here covers.
fn batch(seqs: &[u64], suffix: &[u8], payload: usize) -> Vec<u8> {
    let described: Vec<u8> =
        seqs.iter().flat_map(|seq| seq.to_le_bytes()).chain(suffix.iter().copied()).collect();
    let pairs = [0, seqs.len() * 8, seqs.len() * 8, suffix.len()];
    let mut metadata = b"like".to_vec();
    for number in [described.len() + payload, seqs.len(), seqs.len(), 0].iter().chain(&pairs) {
        metadata.extend((*number as u64).to_le_bytes());
    }
    metadata.extend(format!("00000000:{:012x}!", described.len()).bytes());
    assert_eq!(metadata.len(), SIZE);
    let crc = checksum::crc32c_append(checksum::crc32c(&metadata), &described);
    let at = shape().check_at;
    metadata[at..at + DIGITS].copy_from_slice(format!("{crc:08x}").as_bytes());
    [&CONTINUATION[..], &(SIZE as u32).to_le_bytes(), &metadata, &described, &vec![7; payload]].concat()
}

fn found(data: &[u8]) -> Vec<(usize, u64, u64, usize)> {
    let mut end = batch(&[0, 1], b"u8", 10).len();
    scan_alike(data, 0, &shape())
        .iter()
        .map(|one| {
            assert_eq!((one.start, one.body), (end, end + PREFIX_BYTES + SIZE));
            end = one.end;
            (one.rows, one.first_seq, one.last_seq, one.like)
        })
        .collect()
}

fn three() -> Vec<u8> {
    [batch(&[0, 1], b"u8", 10), batch(&[2, u64::MAX], b"u8", 10), batch(&[9], b"i8", 3)].concat()
}

#[test]
fn batches_of_the_same_template_are_found() {
    assert_eq!(found(&three()), [(2, 2, u64::MAX, 0), (1, 9, 9, 2 * batch(&[0, 1], b"u8", 10).len())]);
}

#[test]
fn end_of_stream_ends_the_scan() {
    let end = [&CONTINUATION[..], &[0; 4], &[0; 64]].concat();
    assert_eq!(found(&[three(), end].concat()).len(), 2);
}

#[test]
fn batch_of_other_tensors_is_not_alike() {
    let begin = batch(&[0, 1], b"u8", 10);
    for other in [batch(&[2, 3], b"i8", 10), batch(&[2, 3], b"u8", 11), batch(&[2, 3], b"u16", 9)] {
        let data = [&begin[..], &other, &other].concat();
        assert_eq!(found(&data), [(2, 2, 3, begin.len()), (2, 2, 3, begin.len())]);
    }
}

#[test]
fn batch_without_rows_ends_the_scan() {
    let data = [batch(&[0, 1], b"u8", 10), batch(&[], b"u8", 10)].concat();
    assert_eq!(found(&data), []);
}

#[test]
fn invalid_template_offsets_find_nothing() {
    let data = three();
    let sound = shape();
    assert_eq!(scan_alike(&data, 0, &sound).len(), 2);
    for wrong in [
        BatchTemplate { body_bytes_at: SIZE, ..sound.clone() },
        BatchTemplate { rows_at: usize::MAX, ..sound.clone() },
        BatchTemplate { rows_at: 8, ..sound.clone() },
        BatchTemplate { buffers: 60..usize::MAX, ..sound.clone() },
        BatchTemplate { check_at: SIZE - 20, ..sound.clone() },
        BatchTemplate { seq: usize::MAX, ..sound.clone() },
    ] {
        assert_eq!(scan_alike(&data, 0, &wrong), [], "{wrong:?}");
    }
    assert_eq!(scan_alike(&data, usize::MAX, &sound), []);
    let odd = BatchTemplate { sources: vec![2], ..sound };
    assert!(scan_alike(&data, 0, &odd).iter().all(|one| one.like == one.start));
}

proptest! {
    #[test]
    fn truncated_data_gives_complete_batches_only(cut in 0..3 * 200_usize) {
        let complete = three();
        let data = &complete[..cut.min(complete.len())];
        let ends = [batch(&[0, 1], b"u8", 10).len() * 2, complete.len()];
        prop_assert_eq!(found(data).len(), ends.iter().filter(|&&end| end <= data.len()).count());
    }

    #[test]
    fn changed_metadata_byte_ends_the_scan(at in 0..PREFIX_BYTES + SIZE + 18, bits in 1..=255_u8) {
        let mut data = three();
        let second = batch(&[0, 1], b"u8", 10).len();
        data[second + at] ^= bits;
        prop_assert_eq!(found(&data), []);
    }

    #[test]
    fn arbitrary_bytes_are_scanned_safely(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0..500_usize) {
        let _ = scan_alike(&bytes, at, &shape());
    }
}
