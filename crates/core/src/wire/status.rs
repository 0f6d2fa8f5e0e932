//! Status reports of producers and consumers (schema 921): the value of an event with key `status`. Pure.
//!
//! Decoded without allocation, because a monitor reads thousands of them a second.

use crate::histogram::Summary;
use crate::wire::announce::{put_string, take};
use crate::wire::event;
use crate::wire::layout::*;

/// The key of the event. Its tag is `service:producer:<stream>` or `service:consumer:<stream>`.
pub const KEY: &str = "status";
const PRODUCER_TAG: &str = "service:producer:";
const CONSUMER_TAG: &str = "service:consumer:";

/// More than any endpoint has. A report with more is malformed.
const MAX_REASONS: usize = 64;
pub const MAX_SOURCES: usize = 64;
const MAX_REASON_BYTES: usize = 256;
/// The longest label of a consumer.
pub const MAX_LABEL_BYTES: usize = 64;

// The groups of counts have one layout, so one function encodes and one decodes all of them.
const COUNT_BLOCK_LENGTH: u16 = CONSUMER_STATUS_DROPPED_BLOCK_LENGTH;
const FRAMES_AT: usize = CONSUMER_STATUS_DROPPED_FRAMES;
const _: () = assert!(
    CONSUMER_STATUS_OUTSIDE_BLOCK_LENGTH == COUNT_BLOCK_LENGTH
        && PRODUCER_STATUS_UNPUBLISHED_BLOCK_LENGTH == COUNT_BLOCK_LENGTH
        && PRODUCER_STATUS_DROPPED_BLOCK_LENGTH == COUNT_BLOCK_LENGTH
        && CONSUMER_STATUS_OUTSIDE_FRAMES == FRAMES_AT
        && PRODUCER_STATUS_UNPUBLISHED_FRAMES == FRAMES_AT
        && PRODUCER_STATUS_DROPPED_FRAMES == FRAMES_AT
);

/// Which timestamps a latency starts at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TimeOrigin {
    Nothing = TIME_ORIGIN_NOTHING,
    Publish = TIME_ORIGIN_PUBLISH,
    /// The timestamp of the slot.
    Capture = TIME_ORIGIN_CAPTURE,
    /// Some frames had a publish timestamp, others did not.
    Mixed = TIME_ORIGIN_MIXED,
}

impl TimeOrigin {
    pub const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Publish => Some("publish"),
            Self::Capture => Some("capture"),
            Self::Mixed => Some("mixed"),
        }
    }

    const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            TIME_ORIGIN_NOTHING => Self::Nothing,
            TIME_ORIGIN_PUBLISH => Self::Publish,
            TIME_ORIGIN_CAPTURE => Self::Capture,
            TIME_ORIGIN_MIXED => Self::Mixed,
            _ => return None,
        })
    }
}

/// The ledger of a producer. `C` and `S`: its counts and sources, decoded ([`CountGroup`], [`SourceGroup`]) or to
/// be encoded (slices).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStatus<C, S> {
    pub stream_id: u32,
    pub producer_id: u32,
    pub pid: u32,
    pub is_final: bool,
    pub epoch: u64,
    pub next_seq: u64,
    pub committed: u64,
    pub published: u64,
    pub deferred: u64,
    pub holes: u64,
    pub payload_bytes: u64,
    pub unpublished: C,
    pub dropped: C,
    /// In ascending order.
    pub sources: S,
}

/// The ledger and the latency of a consumer. `C`: its counts, decoded ([`CountGroup`]) or to be encoded (a
/// slice).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerStatus<'a, C> {
    pub stream_id: u32,
    pub consumer_id: u32,
    pub pid: u32,
    pub is_final: bool,
    pub epoch: Option<u64>,
    pub first_seq: Option<u64>,
    pub last_seq: Option<u64>,
    pub span: u64,
    pub received: u64,
    pub polls: u64,
    /// `None`: latency is not reported.
    pub latency: Option<LatencyStatus>,
    pub dropped: C,
    pub outside: C,
    /// What its user calls it. Empty: nothing.
    pub label: &'a str,
}

/// The latency of a consumer in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyStatus {
    pub since: TimeOrigin,
    /// Frames whose timestamps could not be compared.
    pub excluded: u64,
    /// Over the last complete interval.
    pub interval: Summary,
    /// Since the beginning.
    pub total: Summary,
}

/// Counts by reason to be encoded. Those of 0 are left out.
pub type ReasonCounts<'a> = &'a [(&'a str, u64)];

/// A decoded report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusReport<'a> {
    Producer(ProducerStatus<CountGroup<'a>, SourceGroup<'a>>),
    Consumer(ConsumerStatus<'a, CountGroup<'a>>),
    /// A status report that this version cannot read.
    Malformed,
    /// Another message.
    Other,
}

impl ProducerStatus<ReasonCounts<'_>, &[u32]> {
    /// Encodes the event that carries the report.
    pub fn encode_event(&self, wall_ns: u64) -> Vec<u8> {
        event::encode_bytes(&format!("{PRODUCER_TAG}{}", self.stream_id), KEY, &self.encode(), wall_ns)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = block(PRODUCER_STATUS_BLOCK_LENGTH, PRODUCER_STATUS_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, PRODUCER_STATUS_STREAM_ID, self.stream_id);
        put_u32(b, PRODUCER_STATUS_PRODUCER_ID, self.producer_id);
        put_u32(b, PRODUCER_STATUS_PID, self.pid);
        b[PRODUCER_STATUS_IS_FINAL] = u8::from(self.is_final);
        put_u64(b, PRODUCER_STATUS_EPOCH, self.epoch);
        put_u64(b, PRODUCER_STATUS_NEXT_SEQ, self.next_seq);
        put_u64(b, PRODUCER_STATUS_COMMITTED, self.committed);
        put_u64(b, PRODUCER_STATUS_PUBLISHED, self.published);
        put_u64(b, PRODUCER_STATUS_DEFERRED, self.deferred);
        put_u64(b, PRODUCER_STATUS_HOLES, self.holes);
        put_u64(b, PRODUCER_STATUS_PAYLOAD_BYTES, self.payload_bytes);
        put_counts(&mut out, self.unpublished);
        put_counts(&mut out, self.dropped);
        put_group(&mut out, PRODUCER_STATUS_SOURCES_BLOCK_LENGTH, self.sources.len());
        out.extend(self.sources.iter().flat_map(|source| source.to_le_bytes()));
        out
    }
}

impl ConsumerStatus<'_, ReasonCounts<'_>> {
    /// Encodes the event that carries the report.
    pub fn encode_event(&self, wall_ns: u64) -> Vec<u8> {
        event::encode_bytes(&format!("{CONSUMER_TAG}{}", self.stream_id), KEY, &self.encode(), wall_ns)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = block(CONSUMER_STATUS_BLOCK_LENGTH, CONSUMER_STATUS_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, CONSUMER_STATUS_STREAM_ID, self.stream_id);
        put_u32(b, CONSUMER_STATUS_CONSUMER_ID, self.consumer_id);
        put_u32(b, CONSUMER_STATUS_PID, self.pid);
        b[CONSUMER_STATUS_IS_FINAL] = u8::from(self.is_final);
        put_u64(b, CONSUMER_STATUS_EPOCH, self.epoch.unwrap_or(NULL_U64));
        put_u64(b, CONSUMER_STATUS_FIRST_SEQ, self.first_seq.unwrap_or(NULL_U64));
        put_u64(b, CONSUMER_STATUS_LAST_SEQ, self.last_seq.unwrap_or(NULL_U64));
        put_u64(b, CONSUMER_STATUS_SPAN, self.span);
        put_u64(b, CONSUMER_STATUS_RECEIVED, self.received);
        put_u64(b, CONSUMER_STATUS_POLLS, self.polls);
        // All zero without a latency.
        if let Some(latency) = &self.latency {
            b[CONSUMER_STATUS_LATENCY_SINCE] = latency.since as u8;
            put_u64(b, CONSUMER_STATUS_LATENCY_EXCLUDED, latency.excluded);
            put_u64(b, CONSUMER_STATUS_INTERVAL_FRAMES, latency.interval.count);
            put_u64(b, CONSUMER_STATUS_INTERVAL_P50_NS, latency.interval.p50);
            put_u64(b, CONSUMER_STATUS_INTERVAL_P99_NS, latency.interval.p99);
            put_u64(b, CONSUMER_STATUS_INTERVAL_MAX_NS, latency.interval.max);
            put_u64(b, CONSUMER_STATUS_TOTAL_FRAMES, latency.total.count);
            put_u64(b, CONSUMER_STATUS_TOTAL_P50_NS, latency.total.p50);
            put_u64(b, CONSUMER_STATUS_TOTAL_P99_NS, latency.total.p99);
            put_u64(b, CONSUMER_STATUS_TOTAL_MAX_NS, latency.total.max);
        }
        put_counts(&mut out, self.dropped);
        put_counts(&mut out, self.outside);
        put_string(&mut out, self.label);
        out
    }
}

fn block(block_length: u16, template_id: u16) -> Vec<u8> {
    let mut out = vec![0; MESSAGE_HEADER_LENGTH + usize::from(block_length)];
    put_header_of(&mut out, block_length, template_id, STATUS_SCHEMA_ID, STATUS_SCHEMA_VERSION);
    out
}

fn put_group(out: &mut Vec<u8>, block_length: u16, count: usize) {
    out.extend(block_length.to_le_bytes());
    out.extend((count as u16).to_le_bytes());
}

fn put_counts(out: &mut Vec<u8>, counts: ReasonCounts<'_>) {
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    put_group(out, COUNT_BLOCK_LENGTH, counts.clone().count());
    for (reason, count) in counts {
        out.extend(count.to_le_bytes());
        put_string(out, reason);
    }
}

impl<'a> StatusReport<'a> {
    /// Decodes the event that carries a report. Allocates nothing.
    pub fn decode_event(message: &'a [u8]) -> Self {
        let Some([tag, key, value]) = event::bytes_event(message) else { return Self::Other };
        if key != KEY.as_bytes() {
            return Self::Other;
        }
        let decoded = if tag.starts_with(CONSUMER_TAG.as_bytes()) {
            ConsumerStatus::decode(value).map(Self::Consumer)
        } else if tag.starts_with(PRODUCER_TAG.as_bytes()) {
            ProducerStatus::decode(value).map(Self::Producer)
        } else {
            return Self::Other;
        };
        decoded.unwrap_or(Self::Malformed)
    }
}

impl<'a> ProducerStatus<CountGroup<'a>, SourceGroup<'a>> {
    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (b, mut rest) = split_block(bytes, PRODUCER_STATUS_TEMPLATE_ID, PRODUCER_STATUS_BLOCK_LENGTH)?;
        Some(Self {
            stream_id: get_u32(b, PRODUCER_STATUS_STREAM_ID),
            producer_id: get_u32(b, PRODUCER_STATUS_PRODUCER_ID),
            pid: get_u32(b, PRODUCER_STATUS_PID),
            is_final: boolean(b[PRODUCER_STATUS_IS_FINAL])?,
            epoch: get_u64(b, PRODUCER_STATUS_EPOCH),
            next_seq: get_u64(b, PRODUCER_STATUS_NEXT_SEQ),
            committed: get_u64(b, PRODUCER_STATUS_COMMITTED),
            published: get_u64(b, PRODUCER_STATUS_PUBLISHED),
            deferred: get_u64(b, PRODUCER_STATUS_DEFERRED),
            holes: get_u64(b, PRODUCER_STATUS_HOLES),
            payload_bytes: get_u64(b, PRODUCER_STATUS_PAYLOAD_BYTES),
            unpublished: CountGroup::take(&mut rest)?,
            dropped: CountGroup::take(&mut rest)?,
            sources: SourceGroup::take(&mut rest)?,
        })
    }
}

impl<'a> ConsumerStatus<'a, CountGroup<'a>> {
    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (b, mut rest) = split_block(bytes, CONSUMER_STATUS_TEMPLATE_ID, CONSUMER_STATUS_BLOCK_LENGTH)?;
        let optional = |at| Some(get_u64(b, at)).filter(|value| *value != NULL_U64);
        let since = TimeOrigin::from_wire(b[CONSUMER_STATUS_LATENCY_SINCE])?;
        let latency = LatencyStatus {
            since,
            excluded: get_u64(b, CONSUMER_STATUS_LATENCY_EXCLUDED),
            interval: Summary {
                count: get_u64(b, CONSUMER_STATUS_INTERVAL_FRAMES),
                p50: get_u64(b, CONSUMER_STATUS_INTERVAL_P50_NS),
                p99: get_u64(b, CONSUMER_STATUS_INTERVAL_P99_NS),
                max: get_u64(b, CONSUMER_STATUS_INTERVAL_MAX_NS),
            },
            total: Summary {
                count: get_u64(b, CONSUMER_STATUS_TOTAL_FRAMES),
                p50: get_u64(b, CONSUMER_STATUS_TOTAL_P50_NS),
                p99: get_u64(b, CONSUMER_STATUS_TOTAL_P99_NS),
                max: get_u64(b, CONSUMER_STATUS_TOTAL_MAX_NS),
            },
        };
        Some(Self {
            stream_id: get_u32(b, CONSUMER_STATUS_STREAM_ID),
            consumer_id: get_u32(b, CONSUMER_STATUS_CONSUMER_ID),
            pid: get_u32(b, CONSUMER_STATUS_PID),
            is_final: boolean(b[CONSUMER_STATUS_IS_FINAL])?,
            epoch: optional(CONSUMER_STATUS_EPOCH),
            first_seq: optional(CONSUMER_STATUS_FIRST_SEQ),
            last_seq: optional(CONSUMER_STATUS_LAST_SEQ),
            span: get_u64(b, CONSUMER_STATUS_SPAN),
            received: get_u64(b, CONSUMER_STATUS_RECEIVED),
            polls: get_u64(b, CONSUMER_STATUS_POLLS),
            latency: (since != TimeOrigin::Nothing).then_some(latency),
            dropped: CountGroup::take(&mut rest)?,
            outside: CountGroup::take(&mut rest)?,
            label: take_text(&mut rest, MAX_LABEL_BYTES)?,
        })
    }
}

/// The block of a message of that kind, and what follows it. A longer block has a tail to skip.
fn split_block(bytes: &[u8], template_id: u16, block_length: u16) -> Option<(&[u8], &[u8])> {
    let (header, rest) = bytes.split_at_checked(MESSAGE_HEADER_LENGTH)?;
    let length = get_u16(header, MESSAGE_HEADER_BLOCK_LENGTH);
    let is_known = get_u16(header, MESSAGE_HEADER_SCHEMA_ID) == STATUS_SCHEMA_ID
        && get_u16(header, MESSAGE_HEADER_TEMPLATE_ID) == template_id
        && get_u16(header, MESSAGE_HEADER_VERSION) == STATUS_SCHEMA_VERSION
        && length >= block_length;
    if is_known { rest.split_at_checked(usize::from(length)) } else { None }
}

fn boolean(value: u8) -> Option<bool> {
    match value {
        BOOL_FALSE => Some(false),
        BOOL_TRUE => Some(true),
        _ => None,
    }
}

/// Takes the size of a group off the front: the length of an entry's block, and the number of entries.
fn take_group(rest: &mut &[u8], block_length: u16, max: usize) -> Option<(usize, usize)> {
    let size = take(rest, GROUP_SIZE_LENGTH, "group").ok()?;
    let (length, count) = (get_u16(size, 0), usize::from(get_u16(size, 2)));
    (length >= block_length && count <= max).then_some((usize::from(length), count))
}

/// Counts by reason. Validated when the report is decoded, read again by `iter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountGroup<'a> {
    entries: &'a [u8],
    block_length: usize,
}

impl<'a> CountGroup<'a> {
    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let (block_length, count) = take_group(rest, COUNT_BLOCK_LENGTH, MAX_REASONS)?;
        let begin = *rest;
        for _ in 0..count {
            take_count(rest, block_length)?;
        }
        Some(Self { entries: &begin[..begin.len() - rest.len()], block_length })
    }

    pub fn iter(self) -> impl Iterator<Item = (&'a str, u64)> {
        let mut rest = self.entries;
        std::iter::from_fn(move || take_count(&mut rest, self.block_length))
    }
}

fn take_count<'a>(rest: &mut &'a [u8], block_length: usize) -> Option<(&'a str, u64)> {
    let count = get_u64(take(rest, block_length, "frames").ok()?, FRAMES_AT);
    let reason = take_text(rest, MAX_REASON_BYTES)?;
    (count > 0).then_some((reason, count))
}

/// Takes an ASCII text with its length before it off the front.
fn take_text<'a>(rest: &mut &'a [u8], max_bytes: usize) -> Option<&'a str> {
    let length = get_u32(take(rest, 4, "length").ok()?, 0) as usize;
    let text = take(rest, length, "text").ok()?;
    let is_valid = length <= max_bytes && text.is_ascii();
    str::from_utf8(text).ok().filter(|_| is_valid)
}

/// Stream ids in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceGroup<'a> {
    entries: &'a [u8],
    block_length: usize,
}

impl<'a> SourceGroup<'a> {
    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let (block_length, count) = take_group(rest, PRODUCER_STATUS_SOURCES_BLOCK_LENGTH, MAX_SOURCES)?;
        let entries = take(rest, count * block_length, "sources").ok()?;
        let sources = Self { entries, block_length };
        sources.iter().is_sorted_by(|a, b| a < b).then_some(sources)
    }

    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        let entries = self.entries.chunks_exact(self.block_length);
        entries.map(|entry| get_u32(entry, PRODUCER_STATUS_SOURCES_STREAM_ID))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: LatencyStatus = LatencyStatus {
        since: TimeOrigin::Mixed,
        excluded: 3,
        interval: Summary { count: 1, p50: 2, p99: 3, max: 4 },
        total: Summary { count: 5, p50: 6, p99: 7, max: 8 },
    };
    const CONSUMER: ConsumerStatus<'_, ReasonCounts<'_>> = ConsumerStatus {
        stream_id: 5,
        consumer_id: 7,
        pid: 8,
        is_final: true,
        epoch: Some(1),
        first_seq: None,
        last_seq: Some(u64::MAX - 1),
        span: 10,
        received: 8,
        polls: 4,
        latency: Some(LATENCY),
        dropped: &[("late", 1), ("skipped", 0), ("gap", 2)],
        outside: &[],
        label: "viewer",
    };
    const PRODUCER: ProducerStatus<ReasonCounts<'_>, &[u32]> = ProducerStatus {
        stream_id: 5,
        producer_id: 7,
        pid: 8,
        is_final: false,
        epoch: 1,
        next_seq: 20,
        committed: 19,
        published: 16,
        deferred: 1,
        holes: 2,
        payload_bytes: 99,
        unpublished: &[("closed", 2)],
        dropped: &[("no_pool", 4), ("abandoned", 5)],
        sources: &[3, 4, 9],
    };

    #[test]
    fn consumer_status_round_trips() {
        let message = CONSUMER.encode_event(1);
        let StatusReport::Consumer(report) = StatusReport::decode_event(&message) else { panic!("other") };
        assert_eq!((report.stream_id, report.consumer_id, report.pid, report.polls), (5, 7, 8, 4));
        assert_eq!((report.epoch, report.first_seq, report.last_seq), (Some(1), None, Some(u64::MAX - 1)));
        assert_eq!((report.span, report.received, report.is_final), (10, 8, true));
        assert_eq!(report.latency, Some(LATENCY));
        assert_eq!(report.dropped.iter().collect::<Vec<_>>(), [("late", 1), ("gap", 2)]);
        assert_eq!((report.outside.iter().count(), report.label), (0, "viewer"));
        let silent = ConsumerStatus { latency: None, ..CONSUMER }.encode_event(1);
        assert!(
            matches!(StatusReport::decode_event(&silent), StatusReport::Consumer(c) if c.latency.is_none())
        );
    }

    #[test]
    fn producer_status_round_trips() {
        let message = PRODUCER.encode_event(1);
        let StatusReport::Producer(report) = StatusReport::decode_event(&message) else { panic!("other") };
        assert_eq!((report.stream_id, report.producer_id, report.pid, report.is_final), (5, 7, 8, false));
        assert_eq!((report.epoch, report.next_seq, report.committed, report.published), (1, 20, 19, 16));
        assert_eq!((report.deferred, report.holes, report.payload_bytes), (1, 2, 99));
        assert_eq!(report.unpublished.iter().collect::<Vec<_>>(), [("closed", 2)]);
        assert_eq!(report.dropped.iter().collect::<Vec<_>>(), [("no_pool", 4), ("abandoned", 5)]);
        assert_eq!(report.sources.iter().collect::<Vec<_>>(), [3, 4, 9]);
    }

    /// The event of `value` with the tag of a consumer.
    fn consumer_event(value: &[u8]) -> Vec<u8> {
        event::encode_bytes("service:consumer:5", KEY, value, 1)
    }

    #[test]
    fn truncated_reports_are_malformed() {
        let value = CONSUMER.encode();
        for end in 0..value.len() {
            let message = consumer_event(&value[..end]);
            assert_eq!(StatusReport::decode_event(&message), StatusReport::Malformed, "{end}");
        }
        let value = PRODUCER.encode();
        for end in 0..value.len() {
            let message = event::encode_bytes("service:producer:5", KEY, &value[..end], 1);
            assert_eq!(StatusReport::decode_event(&message), StatusReport::Malformed, "{end}");
        }
    }

    #[test]
    fn invalid_fields_are_malformed() {
        let value = CONSUMER.encode();
        let group = MESSAGE_HEADER_LENGTH + usize::from(CONSUMER_STATUS_BLOCK_LENGTH);
        let first_reason = group + GROUP_SIZE_LENGTH + usize::from(COUNT_BLOCK_LENGTH) + 4;
        for (at, byte) in [
            (MESSAGE_HEADER_BLOCK_LENGTH, CONSUMER_STATUS_BLOCK_LENGTH as u8 - 1),
            (MESSAGE_HEADER_TEMPLATE_ID, PRODUCER_STATUS_TEMPLATE_ID as u8),
            (MESSAGE_HEADER_SCHEMA_ID, 0),
            (MESSAGE_HEADER_VERSION, 2),
            (MESSAGE_HEADER_LENGTH + CONSUMER_STATUS_IS_FINAL, 2),
            (MESSAGE_HEADER_LENGTH + CONSUMER_STATUS_LATENCY_SINCE, 4),
            (group, 7),
            (group + 2, 65),
            (group + GROUP_SIZE_LENGTH, 0),
            (first_reason, 0xff),
        ] {
            let mut other = value.clone();
            assert_ne!(other[at], byte, "{at}");
            other[at] = byte;
            let message = consumer_event(&other);
            assert_eq!(StatusReport::decode_event(&message), StatusReport::Malformed, "{at}");
        }
        let label = "l".repeat(MAX_LABEL_BYTES + 1);
        let long = ConsumerStatus { label: &label, ..CONSUMER }.encode_event(1);
        assert_eq!(StatusReport::decode_event(&long), StatusReport::Malformed);
        let unsorted = ProducerStatus { sources: [4, 4].as_slice(), ..PRODUCER }.encode_event(1);
        assert_eq!(StatusReport::decode_event(&unsorted), StatusReport::Malformed);
    }

    #[test]
    fn longer_blocks_are_read_up_to_their_known_length() {
        let mut value = CONSUMER.encode();
        let end = MESSAGE_HEADER_LENGTH + usize::from(CONSUMER_STATUS_BLOCK_LENGTH);
        value.splice(end..end, [0x5a; 3]);
        put_u16(&mut value, MESSAGE_HEADER_BLOCK_LENGTH, CONSUMER_STATUS_BLOCK_LENGTH + 3);
        let message = consumer_event(&value);
        let StatusReport::Consumer(report) = StatusReport::decode_event(&message) else { panic!("other") };
        assert_eq!(report.dropped.iter().collect::<Vec<_>>(), [("late", 1), ("gap", 2)]);
    }

    #[test]
    fn other_tags_and_keys_are_other_messages() {
        let value = CONSUMER.encode();
        for (tag, key) in [("service:consumer", KEY), ("service:camera:5", KEY), ("service:consumer:5", "x")]
        {
            let message = event::encode_bytes(tag, key, &value, 1);
            assert_eq!(StatusReport::decode_event(&message), StatusReport::Other);
        }
        assert_eq!(StatusReport::decode_event(b""), StatusReport::Other);
    }
}
