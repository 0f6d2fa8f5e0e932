//! Messages of the metadata stream (wire §10.3): DataSourceAnnounce, DataSourceMeta, and blobs in chunks.
//! Pure.

use crate::wire::announce::take;
use crate::wire::hello::{wire_block, wire_message};
use crate::wire::layout::*;

/// The largest chunk that this crate sends (wire §15.9). Peers may send larger ones.
pub const CHUNK_MAX: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSourceAnnounce {
    pub stream_id: u32,
    pub producer_id: u32,
    pub epoch: u64,
    pub meta_version: u32,
    pub name: String,
    pub summary: String,
}

/// A key, the format of its value, and the value unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    pub key: String,
    pub format: String,
    pub value: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSourceMeta {
    pub stream_id: u32,
    pub meta_version: u32,
    pub timestamp_ns: u64,
    pub attributes: Vec<Attribute>,
}

/// Announces a blob. Checksum 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobAnnounce {
    pub stream_id: u32,
    pub meta_version: u32,
    pub blob_type: u32,
    pub total_len: u64,
    pub checksum: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobChunk<'a> {
    pub stream_id: u32,
    pub meta_version: u32,
    pub offset: u64,
    pub bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobComplete {
    pub stream_id: u32,
    pub meta_version: u32,
    pub checksum: u64,
}

/// A message of the metadata stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataMessage<'a> {
    Announce(DataSourceAnnounce),
    Meta(DataSourceMeta),
    BlobAnnounce(BlobAnnounce),
    BlobChunk(BlobChunk<'a>),
    BlobComplete(BlobComplete),
    Other,
    Malformed(&'static str),
}

impl<'a> MetadataMessage<'a> {
    pub fn decode(bytes: &'a [u8]) -> Self {
        if bytes.len() < MESSAGE_HEADER_LENGTH {
            return Self::Malformed("message header");
        }
        if get_u16(bytes, MESSAGE_HEADER_SCHEMA_ID) != WIRE_SCHEMA_ID {
            return Self::Other;
        }
        let decoded = match get_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID) {
            DATA_SOURCE_ANNOUNCE_TEMPLATE_ID => DataSourceAnnounce::decode_body(bytes).map(Self::Announce),
            DATA_SOURCE_META_TEMPLATE_ID => DataSourceMeta::decode_body(bytes).map(Self::Meta),
            META_BLOB_ANNOUNCE_TEMPLATE_ID => BlobAnnounce::decode_body(bytes).map(Self::BlobAnnounce),
            META_BLOB_CHUNK_TEMPLATE_ID => BlobChunk::decode_body(bytes).map(Self::BlobChunk),
            META_BLOB_COMPLETE_TEMPLATE_ID => BlobComplete::decode_body(bytes).map(Self::BlobComplete),
            _ => return Self::Other,
        };
        decoded.unwrap_or_else(Self::Malformed)
    }

    /// The stream id of a metadata message, from its first bytes alone. `None` for other messages.
    pub fn stream_of(bytes: &[u8]) -> Option<u32> {
        // The stream id is the first field of all these blocks.
        let known = bytes.len() >= MESSAGE_HEADER_LENGTH + 4
            && get_u16(bytes, MESSAGE_HEADER_SCHEMA_ID) == WIRE_SCHEMA_ID
            && matches!(
                get_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID),
                DATA_SOURCE_ANNOUNCE_TEMPLATE_ID
                    | DATA_SOURCE_META_TEMPLATE_ID
                    | META_BLOB_ANNOUNCE_TEMPLATE_ID
                    | META_BLOB_CHUNK_TEMPLATE_ID
                    | META_BLOB_COMPLETE_TEMPLATE_ID
            );
        known.then(|| get_u32(bytes, MESSAGE_HEADER_LENGTH))
    }
}

fn put_data(out: &mut Vec<u8>, data: &[u8]) {
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
}

fn take_data<'a>(rest: &mut &'a [u8], what: &'static str) -> Result<&'a [u8], &'static str> {
    let len = get_u32(take(rest, 4, what)?, 0) as usize;
    take(rest, len, what)
}

/// Decodes a name. Bytes that are not UTF-8 are replaced, which is enough for display.
fn take_text(rest: &mut &[u8], what: &'static str) -> Result<String, &'static str> {
    take_data(rest, what).map(|text| String::from_utf8_lossy(text).into_owned())
}

impl DataSourceAnnounce {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire_message(DATA_SOURCE_ANNOUNCE_BLOCK_LENGTH, DATA_SOURCE_ANNOUNCE_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, DATA_SOURCE_ANNOUNCE_STREAM_ID, self.stream_id);
        put_u32(b, DATA_SOURCE_ANNOUNCE_PRODUCER_ID, self.producer_id);
        put_u64(b, DATA_SOURCE_ANNOUNCE_EPOCH, self.epoch);
        put_u32(b, DATA_SOURCE_ANNOUNCE_META_VERSION, self.meta_version);
        put_data(&mut out, self.name.as_bytes());
        put_data(&mut out, self.summary.as_bytes());
        out
    }

    fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let (b, mut rest) = wire_block(bytes, DATA_SOURCE_ANNOUNCE_BLOCK_LENGTH)?;
        Ok(Self {
            stream_id: get_u32(b, DATA_SOURCE_ANNOUNCE_STREAM_ID),
            producer_id: get_u32(b, DATA_SOURCE_ANNOUNCE_PRODUCER_ID),
            epoch: get_u64(b, DATA_SOURCE_ANNOUNCE_EPOCH),
            meta_version: get_u32(b, DATA_SOURCE_ANNOUNCE_META_VERSION),
            name: take_text(&mut rest, "name")?,
            summary: take_text(&mut rest, "summary")?,
        })
    }
}

impl DataSourceMeta {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire_message(DATA_SOURCE_META_BLOCK_LENGTH, DATA_SOURCE_META_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, DATA_SOURCE_META_STREAM_ID, self.stream_id);
        put_u32(b, DATA_SOURCE_META_META_VERSION, self.meta_version);
        put_u64(b, DATA_SOURCE_META_TIMESTAMP_NS, self.timestamp_ns);
        out.extend(DATA_SOURCE_META_ATTRIBUTES_BLOCK_LENGTH.to_le_bytes());
        out.extend((self.attributes.len() as u16).to_le_bytes());
        for attribute in &self.attributes {
            put_data(&mut out, attribute.key.as_bytes());
            put_data(&mut out, attribute.format.as_bytes());
            put_data(&mut out, &attribute.value);
        }
        out
    }

    fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let (b, mut rest) = wire_block(bytes, DATA_SOURCE_META_BLOCK_LENGTH)?;
        let group = take(&mut rest, GROUP_SIZE_LENGTH, "attributes")?;
        let (entry_length, count) = (usize::from(get_u16(group, 0)), usize::from(get_u16(group, 2)));
        // A wrong count is rejected before anything is allocated: each entry has three length fields at
        // least.
        if count * (entry_length + 12) > rest.len() {
            return Err("attributes");
        }
        let mut attributes = Vec::with_capacity(count);
        for _ in 0..count {
            take(&mut rest, entry_length, "attributes")?;
            attributes.push(Attribute {
                key: take_text(&mut rest, "attributes.key")?,
                format: take_text(&mut rest, "attributes.format")?,
                value: take_data(&mut rest, "attributes.value")?.to_vec(),
            });
        }
        Ok(Self {
            stream_id: get_u32(b, DATA_SOURCE_META_STREAM_ID),
            meta_version: get_u32(b, DATA_SOURCE_META_META_VERSION),
            timestamp_ns: get_u64(b, DATA_SOURCE_META_TIMESTAMP_NS),
            attributes,
        })
    }
}

impl BlobAnnounce {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire_message(META_BLOB_ANNOUNCE_BLOCK_LENGTH, META_BLOB_ANNOUNCE_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, META_BLOB_ANNOUNCE_STREAM_ID, self.stream_id);
        put_u32(b, META_BLOB_ANNOUNCE_META_VERSION, self.meta_version);
        put_u32(b, META_BLOB_ANNOUNCE_BLOB_TYPE, self.blob_type);
        put_u64(b, META_BLOB_ANNOUNCE_TOTAL_LEN, self.total_len);
        put_u64(b, META_BLOB_ANNOUNCE_CHECKSUM, self.checksum);
        out
    }

    fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let (b, _) = wire_block(bytes, META_BLOB_ANNOUNCE_BLOCK_LENGTH)?;
        Ok(Self {
            stream_id: get_u32(b, META_BLOB_ANNOUNCE_STREAM_ID),
            meta_version: get_u32(b, META_BLOB_ANNOUNCE_META_VERSION),
            blob_type: get_u32(b, META_BLOB_ANNOUNCE_BLOB_TYPE),
            total_len: get_u64(b, META_BLOB_ANNOUNCE_TOTAL_LEN),
            checksum: get_u64(b, META_BLOB_ANNOUNCE_CHECKSUM),
        })
    }
}

impl<'a> BlobChunk<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire_message(META_BLOB_CHUNK_BLOCK_LENGTH, META_BLOB_CHUNK_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, META_BLOB_CHUNK_STREAM_ID, self.stream_id);
        put_u32(b, META_BLOB_CHUNK_META_VERSION, self.meta_version);
        put_u64(b, META_BLOB_CHUNK_CHUNK_OFFSET, self.offset);
        put_data(&mut out, self.bytes);
        out
    }

    fn decode_body(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (b, mut rest) = wire_block(bytes, META_BLOB_CHUNK_BLOCK_LENGTH)?;
        Ok(Self {
            stream_id: get_u32(b, META_BLOB_CHUNK_STREAM_ID),
            meta_version: get_u32(b, META_BLOB_CHUNK_META_VERSION),
            offset: get_u64(b, META_BLOB_CHUNK_CHUNK_OFFSET),
            bytes: take_data(&mut rest, "bytes")?,
        })
    }
}

impl BlobComplete {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire_message(META_BLOB_COMPLETE_BLOCK_LENGTH, META_BLOB_COMPLETE_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, META_BLOB_COMPLETE_STREAM_ID, self.stream_id);
        put_u32(b, META_BLOB_COMPLETE_META_VERSION, self.meta_version);
        put_u64(b, META_BLOB_COMPLETE_CHECKSUM, self.checksum);
        out
    }

    fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let (b, _) = wire_block(bytes, META_BLOB_COMPLETE_BLOCK_LENGTH)?;
        Ok(Self {
            stream_id: get_u32(b, META_BLOB_COMPLETE_STREAM_ID),
            meta_version: get_u32(b, META_BLOB_COMPLETE_META_VERSION),
            checksum: get_u64(b, META_BLOB_COMPLETE_CHECKSUM),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> [Vec<u8>; 5] {
        let attributes = vec![
            Attribute { key: "serial".into(), format: "text/plain".into(), value: b"A1".to_vec() },
            Attribute { key: "empty".into(), format: String::new(), value: Vec::new() },
        ];
        [
            DataSourceAnnounce {
                stream_id: 1,
                producer_id: 2,
                epoch: 3,
                meta_version: 4,
                name: "camera".into(),
                summary: "480x640".into(),
            }
            .encode(),
            DataSourceMeta { stream_id: 1, meta_version: 4, timestamp_ns: 5, attributes }.encode(),
            BlobAnnounce { stream_id: 1, meta_version: 4, blob_type: 9, total_len: 3, checksum: 7 }.encode(),
            BlobChunk { stream_id: 1, meta_version: 4, offset: 0, bytes: b"abc" }.encode(),
            BlobComplete { stream_id: 1, meta_version: 4, checksum: 7 }.encode(),
        ]
    }

    #[test]
    fn messages_round_trip() {
        for message in all() {
            let again = match MetadataMessage::decode(&message) {
                MetadataMessage::Announce(m) => m.encode(),
                MetadataMessage::Meta(m) => m.encode(),
                MetadataMessage::BlobAnnounce(m) => m.encode(),
                MetadataMessage::BlobChunk(m) => m.encode(),
                MetadataMessage::BlobComplete(m) => m.encode(),
                other => panic!("{other:?}"),
            };
            assert_eq!(again, message);
            assert_eq!(MetadataMessage::stream_of(&message), Some(1));
        }
    }

    #[test]
    fn every_truncation_is_malformed() {
        for message in all() {
            for len in 0..message.len() {
                assert!(
                    matches!(MetadataMessage::decode(&message[..len]), MetadataMessage::Malformed(_)),
                    "{len}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 8..200), template in 5u16..15, length in 0u16..40) {
            put_message_header(&mut bytes, length, template);
            let _ = MetadataMessage::decode(&bytes);
            let _ = MetadataMessage::stream_of(&bytes);
        }
    }
}
