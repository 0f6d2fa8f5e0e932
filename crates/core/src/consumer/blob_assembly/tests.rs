use super::*;
use proptest::prelude::*;

const SESSION_ID: i32 = 1;

fn announce(version: u32, blob_type: u32, bytes: &[u8]) -> BlobAnnounce {
    BlobAnnounce {
        stream_id: 1,
        meta_version: version,
        blob_type,
        total_len: bytes.len() as u64,
        checksum: u64::from(checksum::crc32c(bytes)),
    }
}

fn chunk(version: u32, offset: usize, bytes: &[u8]) -> BlobChunk<'_> {
    BlobChunk { stream_id: 1, meta_version: version, offset: offset as u64, bytes }
}

fn complete(version: u32, checksum: u64) -> BlobComplete {
    BlobComplete { stream_id: 1, meta_version: version, checksum }
}

fn send(blobs: &mut BlobAssembly, version: u32, blob_type: u32, bytes: &[u8]) {
    let announced = announce(version, blob_type, bytes);
    blobs.on_announce(SESSION_ID, Some(1), announced);
    for (i, part) in bytes.chunks(3).enumerate() {
        blobs.on_chunk(SESSION_ID, chunk(version, 3 * i, part));
    }
    blobs.on_complete(SESSION_ID, complete(version, announced.checksum));
}

fn found(blobs: &BlobAssembly, blob_type: u32) -> Option<&[u8]> {
    blobs.newest(blob_type, None).map(|b| b.bytes.as_slice())
}

#[test]
fn newest_complete_blob_of_a_type_is_found() {
    let mut blobs = BlobAssembly::default();
    send(&mut blobs, 1, 7, b"flat field");
    send(&mut blobs, 2, 8, b"");
    send(&mut blobs, 4, 7, b"another");
    assert_eq!(
        (found(&blobs, 7), found(&blobs, 8), found(&blobs, 9)),
        (Some(&b"another"[..]), Some(&b""[..]), None)
    );
    let at = |version| blobs.newest(7, Some((1, version))).map(|b| b.version);
    assert_eq!((at(0), at(1), at(3), at(4), at(9)), (None, Some(1), Some(1), Some(4), Some(4)));
    assert_eq!(blobs.newest(7, Some((2, 9))), None, "another epoch has blobs of its own");
    send(&mut blobs, 5, 7, b"third");
    assert_eq!(blobs.newest(7, Some((1, 3))), None, "two of a type are kept");
}

#[test]
fn known_blob_is_skipped() {
    let mut blobs = BlobAssembly::default();
    for _ in 0..3 {
        send(&mut blobs, 1, 7, b"the same");
    }
    assert_eq!(blobs.completed(), 1);
    assert!(DiscardReason::ALL.iter().all(|why| blobs.discarded(*why) == 0));
}

/// requirement: wire-10.3.3-1, wire-15.9-1
#[test]
fn each_flaw_discards_the_blob_by_its_reason() {
    type Flaw = fn(&mut BlobAssembly);
    let flaws: [(DiscardReason, Flaw); 7] = [
        (DiscardReason::Gap, |b| b.on_chunk(SESSION_ID, chunk(1, 4, b"e"))),
        (DiscardReason::Gap, |b| b.on_complete(SESSION_ID, complete(1, 0))),
        (DiscardReason::Overlap, |b| b.on_chunk(SESSION_ID, chunk(1, 2, b"c"))),
        (DiscardReason::Overlap, |b| b.on_chunk(SESSION_ID, chunk(1, 3, b""))),
        (DiscardReason::Overrun, |b| b.on_chunk(SESSION_ID, chunk(1, 3, b"defg"))),
        (DiscardReason::Unfinished, |b| b.on_announce(SESSION_ID, Some(1), announce(1, 8, b"x"))),
        (DiscardReason::Stray, |b| b.on_chunk(SESSION_ID, chunk(2, 0, b"x"))),
    ];
    for (why, flaw) in flaws {
        let mut blobs = BlobAssembly::default();
        blobs.on_announce(SESSION_ID, Some(1), announce(1, 7, b"abcdef"));
        blobs.on_chunk(SESSION_ID, chunk(1, 0, b"abc"));
        flaw(&mut blobs);
        assert_eq!(blobs.discarded(why), 1, "{why:?}");
        if why != DiscardReason::Stray {
            // Later chunks do not restore it.
            blobs.on_chunk(SESSION_ID, chunk(1, 3, b"def"));
            blobs.on_complete(SESSION_ID, complete(1, 0));
            assert_eq!(found(&blobs, 7), None, "{why:?}");
        }
    }
}

#[test]
fn blob_checksums_must_match_and_zero_means_none() {
    let crc = u64::from(checksum::crc32c(b"abc"));
    for (announced, at_the_end, kept) in [
        (0, 0, true),
        (crc, 0, true),
        (0, crc, true),
        (crc, crc, true),
        (crc ^ 1, 0, false),
        (crc, crc ^ 1, false),
        (crc | 1 << 32, 0, false),
    ] {
        let mut blobs = BlobAssembly::default();
        blobs.on_announce(SESSION_ID, None, BlobAnnounce { checksum: announced, ..announce(1, 7, b"abc") });
        blobs.on_chunk(SESSION_ID, chunk(1, 0, b"abc"));
        blobs.on_complete(SESSION_ID, complete(1, at_the_end));
        assert_eq!(found(&blobs, 7).is_some(), kept, "{announced} {at_the_end}");
        assert_eq!(blobs.discarded(DiscardReason::Checksum), u64::from(!kept));
    }
}

#[test]
fn announced_blob_length_allocates_nothing() {
    let mut blobs = BlobAssembly::default();
    for version in 0..1000 {
        let claim = BlobAnnounce { total_len: MAX_BLOB_BYTES, ..announce(version, 7, b"") };
        blobs.on_announce(version as i32, None, claim);
    }
    assert_eq!(blobs.partial.len(), MAX_PARTIAL);
    assert!(blobs.partial.iter().all(|u| u.bytes.capacity() == 0));
    blobs.on_announce(
        SESSION_ID,
        None,
        BlobAnnounce { total_len: MAX_BLOB_BYTES + 1, ..announce(1, 7, b"") },
    );
    blobs.on_announce(SESSION_ID, None, BlobAnnounce { total_len: u64::MAX, ..announce(1, 7, b"") });
    assert_eq!(blobs.discarded(DiscardReason::TooLarge), 2);
}

#[derive(Clone, Debug)]
enum BlobMessage {
    Announce(u32, u32),
    Chunk(u32, usize, usize),
    Complete(u32),
}

const BODY: &[u8] = b"0123456789abcdef";

fn piece() -> impl Strategy<Value = BlobMessage> {
    prop_oneof![
        1 => (1..3u32, 1..3u32).prop_map(|(v, t)| BlobMessage::Announce(v, t)),
        4 => (1..3u32, 0..4usize, 1..3usize).prop_map(|(v, at, n)| BlobMessage::Chunk(v, 4 * at, 4 * n)),
        1 => (1..3u32).prop_map(BlobMessage::Complete),
    ]
}

proptest! {
    /// requirement: wire-10.3.3-1, wire-15.9-1
    ///
    /// Pieces in any order: a blob is there only after the announce, each chunk in turn and the end, and then
    /// its bytes are right.
    #[test]
    fn blob_needs_contiguous_chunks(pieces in proptest::collection::vec(piece(), 0..80)) {
        let mut blobs = BlobAssembly::default();
        let mut model: std::collections::HashMap<u32, (u32, usize)> = std::collections::HashMap::new();
        let mut count = 0;
        for piece in pieces {
            match piece {
                BlobMessage::Announce(version, blob_type) => {
                    // Without a checksum no blob counts as known.
                    blobs.on_announce(SESSION_ID, Some(1), BlobAnnounce { checksum: 0, ..announce(version, blob_type, BODY) });
                    model.insert(version, (blob_type, 0));
                }
                BlobMessage::Chunk(version, at, len) => {
                    let end = (at + len).min(BODY.len() + 4);
                    let bytes: Vec<u8> = (at..end).map(|i| BODY.get(i).copied().unwrap_or(b'!')).collect();
                    blobs.on_chunk(SESSION_ID, chunk(version, at, &bytes));
                    if let Some((_, have)) = model.get_mut(&version) {
                        if at == *have && end <= BODY.len() { *have = end } else { model.remove(&version); }
                    }
                }
                BlobMessage::Complete(version) => {
                    blobs.on_complete(SESSION_ID, complete(version, u64::from(checksum::crc32c(BODY))));
                    count += u64::from(model.remove(&version).is_some_and(|(_, have)| have == BODY.len()));
                }
            }
            prop_assert_eq!(blobs.completed(), count);
            for blob_type in 1..3 {
                prop_assert!(found(&blobs, blob_type).is_none_or(|bytes| bytes == BODY));
            }
        }
    }
}
