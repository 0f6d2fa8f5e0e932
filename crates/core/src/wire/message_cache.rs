//! A cache of decoded messages, so that a repeated message is not decoded again. Pure and bounded.
//!
//! Thousands of endpoints repeat the same hello or announce every second. The key is the schema, the template
//! and the two ids that such a message begins with. An announce is keyed by its stream alone, and its
//! timestamp is not compared. The announces of a source with metadata version 0 have keys of their own: a
//! driver repeats its own, with the id of the producer, beside the producer's.

use std::collections::HashMap;

use crate::wire::layout::*;

type MessageKey = (u16, u16, u32, u32);

const SOURCE_TEXT_AT: usize = MESSAGE_HEADER_LENGTH + DATA_SOURCE_ANNOUNCE_BLOCK_LENGTH as usize;
const ANNOUNCE_TIMESTAMP_AT: usize = MESSAGE_HEADER_LENGTH + SHM_POOL_ANNOUNCE_ANNOUNCE_TIMESTAMP_NS;

/// The last message of each key, and the value it was decoded to.
pub struct MessageCache<T> {
    last: HashMap<MessageKey, (Box<[u8]>, T)>,
    bytes: usize,
    max_bytes: usize,
}

impl<T> MessageCache<T> {
    /// Keeps up to `max_bytes` bytes of messages, so that made-up messages cannot exhaust memory.
    pub fn new(max_bytes: usize) -> Self {
        Self { last: HashMap::new(), bytes: 0, max_bytes }
    }

    /// The value of an identical earlier message. `None` for a new message.
    pub fn get(&self, message: &[u8]) -> Option<&T> {
        let key = key_of(message)?;
        let (cached_message, value) = self.last.get(&key)?;
        let is_same = if is_announce(key) {
            is_same_except_timestamp(cached_message, message)
        } else {
            **cached_message == *message
        };
        is_same.then_some(value)
    }

    /// Stores a message with its value. Returns the values that were evicted.
    pub fn insert(&mut self, message: &[u8], value: T) -> Vec<T> {
        let Some(key) = key_of(message) else { return vec![value] };
        let mut gone = Vec::new();
        if let Some((cached_message, value)) = self.last.remove(&key) {
            self.bytes -= cached_message.len();
            gone.push(value);
        }
        if self.bytes + message.len() > self.max_bytes {
            gone.extend(self.clear());
        }
        self.bytes += message.len();
        self.last.insert(key, (message.into(), value));
        gone
    }

    /// Removes every message. Returns their values.
    pub fn clear(&mut self) -> Vec<T> {
        self.bytes = 0;
        self.last.drain().map(|(_, (_, value))| value).collect()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn key_of(message: &[u8]) -> Option<MessageKey> {
    let head = message.get(..MESSAGE_HEADER_LENGTH + 8)?;
    let kind = (get_u16(head, MESSAGE_HEADER_SCHEMA_ID), get_u16(head, MESSAGE_HEADER_TEMPLATE_ID));
    let (first, second) = (get_u32(head, MESSAGE_HEADER_LENGTH), get_u32(head, MESSAGE_HEADER_LENGTH + 4));
    let key = (kind.0, kind.1, first, second);
    // The producer id is content of an announce, not part of its key.
    if is_announce(key) {
        return Some((kind.0, kind.1, first, 0));
    }
    Some(if is_source_of_version_0(key, message) {
        // Behind the block are name and summary. Both are empty for a producer without metadata.
        let is_named = message[SOURCE_TEXT_AT..].iter().any(|byte| *byte != 0);
        (kind.0, kind.1, first, if is_named { NULL_U32 } else { NULL_U32 - 1 })
    } else {
        key
    })
}

fn is_source_of_version_0((schema, template, _, _): MessageKey, message: &[u8]) -> bool {
    const VERSION_AT: usize = MESSAGE_HEADER_LENGTH + DATA_SOURCE_ANNOUNCE_META_VERSION;
    schema == WIRE_SCHEMA_ID
        && template == DATA_SOURCE_ANNOUNCE_TEMPLATE_ID
        && message.len() >= SOURCE_TEXT_AT
        && get_u32(message, VERSION_AT) == 0
}

fn is_announce((schema, template, _, _): MessageKey) -> bool {
    schema == WIRE_SCHEMA_ID && template == SHM_POOL_ANNOUNCE_TEMPLATE_ID
}

fn is_same_except_timestamp(first: &[u8], second: &[u8]) -> bool {
    first.len() == second.len()
        && first.len() >= ANNOUNCE_TIMESTAMP_AT + 8
        && first[..ANNOUNCE_TIMESTAMP_AT] == second[..ANNOUNCE_TIMESTAMP_AT]
        && first[ANNOUNCE_TIMESTAMP_AT + 8..] == second[ANNOUNCE_TIMESTAMP_AT + 8..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::announce::PoolAnnounce;

    fn message(template: u16, first: u32, second: u32, rest: &[u8]) -> Vec<u8> {
        let mut out = vec![0; MESSAGE_HEADER_LENGTH + 8];
        put_message_header(&mut out, 8, template);
        put_u32(&mut out, MESSAGE_HEADER_LENGTH, first);
        put_u32(&mut out, MESSAGE_HEADER_LENGTH + 4, second);
        out.extend(rest);
        out
    }

    fn announce(producer_id: u32, timestamp_ns: u64) -> Vec<u8> {
        PoolAnnounce {
            stream_id: 5,
            producer_id,
            epoch: 1,
            timestamp_ns,
            clock_domain: CLOCK_DOMAIN_MONOTONIC,
            layout_version: 1,
            header_nslots: 8,
            header_slot_bytes: 256,
            pools: Vec::new(),
            header_uri: "shm:file?path=/x".to_owned(),
        }
        .encode()
    }

    #[test]
    fn cache_hits_only_identical_messages() {
        let mut cache = MessageCache::new(1000);
        let first = message(CONSUMER_HELLO_TEMPLATE_ID, 5, 7, b"a");
        assert_eq!(cache.get(&first), None);
        cache.insert(&first, 1);
        assert_eq!(cache.get(&first), Some(&1));
        for second in [
            message(CONSUMER_HELLO_TEMPLATE_ID, 5, 7, b"b"),
            message(CONSUMER_HELLO_TEMPLATE_ID, 5, 7, b"ab"),
            message(CONSUMER_HELLO_TEMPLATE_ID, 5, 8, b"a"),
            message(CONSUMER_HELLO_TEMPLATE_ID, 6, 7, b"a"),
            message(CONSUMER_CONFIG_TEMPLATE_ID, 5, 7, b"a"),
        ] {
            assert_eq!(cache.get(&second), None);
        }
        // Only the last message of a key is cached.
        assert_eq!(cache.insert(&message(CONSUMER_HELLO_TEMPLATE_ID, 5, 7, b"b"), 2), [1]);
        assert_eq!(cache.get(&first), None);
        assert_eq!(cache.clear(), [2]);
        assert_eq!((cache.get(&first), cache.bytes()), (None, 0));
    }

    #[test]
    fn announces_of_driver_and_producer_do_not_evict_each_other() {
        let source = |meta_version, name: &str| {
            crate::wire::metadata::DataSourceAnnounce {
                stream_id: 5,
                producer_id: 9,
                epoch: 1,
                meta_version,
                name: name.into(),
                summary: String::new(),
            }
            .encode()
        };
        let messages = [source(0, "plan"), source(1, "camera"), source(0, "")];
        let mut cache = MessageCache::new(1000);
        for (value, message) in messages.iter().enumerate() {
            assert!(cache.insert(message, value).is_empty());
        }
        for (value, message) in messages.iter().enumerate() {
            assert_eq!(cache.get(message), Some(&value));
        }
        assert_eq!(cache.insert(&source(0, "other plan"), 7), [0]);
    }

    #[test]
    fn announce_hit_ignores_its_timestamp() {
        let mut cache = MessageCache::new(1000);
        cache.insert(&announce(9, 1), 1);
        assert_eq!(cache.get(&announce(9, 2)), Some(&1));
        assert_eq!(cache.get(&announce(0, 2)), None);
        cache.insert(&announce(0, 3), 2);
        assert_eq!(cache.get(&announce(0, 4)), Some(&2));
        // The earlier announce was sent again: it is a change.
        assert_eq!(cache.get(&announce(9, 4)), None);
        let mut longer = announce(0, 5);
        longer.push(0);
        assert_eq!(cache.get(&longer), None);
    }

    #[test]
    fn cache_is_bounded() {
        let mut cache = MessageCache::new(1000);
        for number in 0..500 {
            cache.insert(&message(CONSUMER_HELLO_TEMPLATE_ID, number, 1, &[0; 100]), number);
            assert!(cache.bytes() <= 1000);
            assert_eq!(cache.bytes(), cache.last.values().map(|(bytes, _)| bytes.len()).sum());
        }
        for _ in 0..500 {
            cache.insert(&message(CONSUMER_HELLO_TEMPLATE_ID, 1, 1, &[0; 100]), 1);
        }
        assert_eq!(cache.insert(&[0; 15], 7), [7]);
        assert_eq!(cache.get(&[0; 15]), None);
    }
}
