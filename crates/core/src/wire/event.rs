//! Filter and encoding of `EventMessage` (service §5). Pure.
//!
//! A service receives every command to every other service, so a message for another one must cost next to
//! nothing.

use crate::wire::layout::*;

/// Whether a message is for this receiver, decided by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagMatch {
    Ours,
    Foreign,
    /// Not an event, or an event that this version cannot read.
    Unreadable,
}

/// The accepted tags: each is complete, or a prefix if it ends in `*`. Without tags every event is accepted.
#[derive(Clone, Debug, Default)]
pub struct TagFilter {
    tags: Vec<(Box<[u8]>, bool)>,
    /// The upper half of the accepted correlation ids: a client reads only answers to its own requests.
    correlation_high: Option<u32>,
}

impl TagFilter {
    pub fn new(tags: impl IntoIterator<Item = String>) -> Self {
        let parse = |tag: String| match tag.strip_suffix('*') {
            Some(start) => (start.as_bytes().into(), true),
            None => (tag.into_bytes().into(), false),
        };
        Self { tags: tags.into_iter().map(parse).collect(), correlation_high: None }
    }

    /// Accepts only events whose correlation id has this upper half.
    pub fn answers_to(mut self, correlation_high: Option<u32>) -> Self {
        self.correlation_high = correlation_high;
        self
    }

    fn is_answer(&self, bytes: &[u8]) -> bool {
        let high = MESSAGE_HEADER_LENGTH + EVENT_MESSAGE_CORRELATION_ID + 4;
        self.correlation_high.is_none_or(|expected| get_u32(bytes, high) == expected)
    }

    /// Matches a message, or its first fragment. Allocates nothing.
    #[inline]
    pub fn match_message(&self, bytes: &[u8]) -> TagMatch {
        match tag_of(bytes) {
            None => TagMatch::Unreadable,
            Some(_) if !self.is_answer(bytes) => TagMatch::Foreign,
            Some(tag) if self.tags.is_empty() || self.tags.iter().any(|t| matches(t, tag)) => TagMatch::Ours,
            Some(_) => TagMatch::Foreign,
        }
    }
}

fn matches((expected, is_start): &(Box<[u8]>, bool), tag: &[u8]) -> bool {
    if *is_start { tag.starts_with(expected) } else { **expected == *tag }
}

/// The tag of an event, which follows its block.
fn tag_of(bytes: &[u8]) -> Option<&[u8]> {
    split_text(data_after_block(bytes)?).map(|(tag, _)| tag)
}

/// Tag, key and value of an event whose value has the format BYTES.
pub fn bytes_event(bytes: &[u8]) -> Option<[&[u8]; 3]> {
    let (tag, rest) = split_text(data_after_block(bytes)?)?;
    if bytes[MESSAGE_HEADER_LENGTH + EVENT_MESSAGE_FORMAT] != FORMAT_BYTES as u8 {
        return None;
    }
    let (key, rest) = split_text(rest)?;
    let (value, _) = split_text(rest)?;
    Some([tag, key, value])
}

/// The bytes after the block of an event.
fn data_after_block(bytes: &[u8]) -> Option<&[u8]> {
    let header = bytes.get(..MESSAGE_HEADER_LENGTH)?;
    if get_u16(header, MESSAGE_HEADER_SCHEMA_ID) != SERVICE_SCHEMA_ID
        || get_u16(header, MESSAGE_HEADER_TEMPLATE_ID) != EVENT_MESSAGE_TEMPLATE_ID
    {
        return None;
    }
    let block = get_u16(header, MESSAGE_HEADER_BLOCK_LENGTH);
    if block < EVENT_MESSAGE_BLOCK_LENGTH {
        return None;
    }
    bytes.get(MESSAGE_HEADER_LENGTH + usize::from(block)..)
}

/// Splits length-prefixed data from what follows it.
fn split_text(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = get_u32(data.get(..4)?, 0) as usize;
    data.get(4..)?.split_at_checked(length)
}

/// Encodes an event that answers no request, with a value of the format BYTES, for the status stream.
pub fn encode_bytes(tag: &str, key: &str, value: &[u8], wall_ns: u64) -> Vec<u8> {
    let mut out = vec![0; MESSAGE_HEADER_LENGTH + usize::from(EVENT_MESSAGE_BLOCK_LENGTH)];
    put_header_of(
        &mut out,
        EVENT_MESSAGE_BLOCK_LENGTH,
        EVENT_MESSAGE_TEMPLATE_ID,
        SERVICE_SCHEMA_ID,
        SERVICE_SCHEMA_VERSION,
    );
    let b = &mut out[MESSAGE_HEADER_LENGTH..];
    put_u64(b, EVENT_MESSAGE_TIMESTAMP_NS, wall_ns);
    b[EVENT_MESSAGE_FORMAT] = FORMAT_BYTES as u8;
    put_u32(b, EVENT_MESSAGE_REF_STREAM_ID, NULL_U32);
    put_u64(b, EVENT_MESSAGE_REF_EPOCH, NULL_U64);
    put_u64(b, EVENT_MESSAGE_REF_SEQ, NULL_U64);
    put_u64(b, EVENT_MESSAGE_TRACE_ID, 0);
    for data in [tag.as_bytes(), key.as_bytes(), value] {
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_bytes_are_an_event_with_a_tag() {
        let mut event = encode_bytes("service:consumer:5", "status", b"\xff\0", 7);
        assert_eq!(tag_of(&event), Some(&b"service:consumer:5"[..]));
        let block = &event[MESSAGE_HEADER_LENGTH..];
        assert_eq!((get_u64(block, EVENT_MESSAGE_TIMESTAMP_NS), block[EVENT_MESSAGE_FORMAT]), (7, 13));
        assert!(event.ends_with(b"\x06\0\0\0status\x02\0\0\0\xff\0"));
        let fields: [&[u8]; 3] = [b"service:consumer:5", b"status", b"\xff\0"];
        assert_eq!(bytes_event(&event), Some(fields));
        for end in 0..event.len() {
            assert_eq!(bytes_event(&event[..end]), None);
        }
        event[MESSAGE_HEADER_LENGTH + EVENT_MESSAGE_FORMAT] -= 1;
        assert_eq!(bytes_event(&event), None);
    }

    fn event(tag: &str) -> Vec<u8> {
        let mut b = vec![0; MESSAGE_HEADER_LENGTH + usize::from(EVENT_MESSAGE_BLOCK_LENGTH)];
        put_u16(&mut b, MESSAGE_HEADER_BLOCK_LENGTH, EVENT_MESSAGE_BLOCK_LENGTH);
        put_u16(&mut b, MESSAGE_HEADER_TEMPLATE_ID, EVENT_MESSAGE_TEMPLATE_ID);
        put_u16(&mut b, MESSAGE_HEADER_SCHEMA_ID, SERVICE_SCHEMA_ID);
        put_u16(&mut b, MESSAGE_HEADER_VERSION, SERVICE_SCHEMA_VERSION);
        for part in [tag, "key", "value"] {
            b.extend((part.len() as u32).to_le_bytes());
            b.extend(part.as_bytes());
        }
        b
    }

    /// requirement: service-5-3
    #[test]
    fn filter_matches_the_exact_tag() {
        let filter = TagFilter::new(["service:recorder".to_owned(), "service:recorder:2".to_owned()]);
        assert_eq!(filter.match_message(&event("service:recorder")), TagMatch::Ours);
        assert_eq!(filter.match_message(&event("service:recorder:2")), TagMatch::Ours);
        for tag in ["service:recorder:1", "service:record", "service:recorder2", "Service:recorder", ""] {
            assert_eq!(filter.match_message(&event(tag)), TagMatch::Foreign, "{tag}");
        }
        assert_eq!(TagFilter::default().match_message(&event("service:anyone")), TagMatch::Ours);
    }

    #[test]
    fn filter_matches_own_correlation_ids() {
        let filter = TagFilter::default().answers_to(Some(7));
        let mut answer = event("service:x");
        assert_eq!(filter.match_message(&answer), TagMatch::Foreign);
        put_u64(&mut answer, MESSAGE_HEADER_LENGTH + EVENT_MESSAGE_CORRELATION_ID, 7 << 32 | 5);
        assert_eq!(filter.match_message(&answer), TagMatch::Ours);
    }

    #[test]
    fn filter_star_matches_any_suffix() {
        let filter = TagFilter::new(["service:recorder:*".to_owned()]);
        assert_eq!(filter.match_message(&event("service:recorder:7")), TagMatch::Ours);
        assert_eq!(filter.match_message(&event("service:recorder")), TagMatch::Foreign);
    }

    /// requirement: service-5-2
    #[test]
    fn other_schemas_and_truncations_are_unreadable() {
        let filter = TagFilter::default();
        let complete = event("service:x");
        let tag_ends = MESSAGE_HEADER_LENGTH + 48 + 4 + 9;
        for len in 0..tag_ends {
            assert_eq!(filter.match_message(&complete[..len]), TagMatch::Unreadable, "{len}");
        }
        assert_eq!(filter.match_message(&complete[..tag_ends]), TagMatch::Ours);
        for at in [MESSAGE_HEADER_SCHEMA_ID, MESSAGE_HEADER_TEMPLATE_ID] {
            let mut other = complete.clone();
            other[at] ^= 1;
            assert_eq!(filter.match_message(&other), TagMatch::Unreadable);
        }
        let mut too_long = complete;
        put_u32(&mut too_long, MESSAGE_HEADER_LENGTH + 48, u32::MAX);
        assert_eq!(filter.match_message(&too_long), TagMatch::Unreadable);
    }
}
