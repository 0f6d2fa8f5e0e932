//! Messages of the control and QoS streams: ConsumerHello, ConsumerConfig, FrameProgress, QosConsumer,
//! QosProducer (wire §10.1.2, §10.1.3, §10.2.2, §10.4). Pure.

use crate::wire::hello::{ConsumerConfig, ConsumerHello, Mode, wire_block, wire_message};
use crate::wire::layout::*;

/// A consumer's QoS report: its ledger in the two drop counters that the message has (wire §15.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QosConsumer {
    pub stream_id: u32,
    pub consumer_id: u32,
    pub epoch: u64,
    pub last_seq_seen: u64,
    pub drops_gap: u64,
    pub drops_late: u64,
    pub mode: Mode,
}

/// A producer's QoS report: the last sequence it wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QosProducer {
    pub stream_id: u32,
    pub producer_id: u32,
    pub epoch: u64,
    pub current_seq: u64,
    pub watermark: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressState {
    Unknown,
    Started,
    Progress,
    Complete,
}

/// How many bytes of a frame are already written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameProgress {
    pub stream_id: u32,
    pub epoch: u64,
    pub seq: u64,
    pub payload_bytes_filled: u64,
    pub state: ProgressState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    Hello(ConsumerHello),
    Config(ConsumerConfig),
    Progress(FrameProgress),
    QosConsumer(QosConsumer),
    QosProducer(QosProducer),
    Other,
    Malformed(&'static str),
}

impl ControlMessage {
    pub fn decode(bytes: &[u8]) -> Self {
        if bytes.len() < MESSAGE_HEADER_LENGTH {
            return Self::Malformed("message header");
        }
        if get_u16(bytes, MESSAGE_HEADER_SCHEMA_ID) != WIRE_SCHEMA_ID {
            return Self::Other;
        }
        let decoded = match get_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID) {
            CONSUMER_HELLO_TEMPLATE_ID => ConsumerHello::decode_body(bytes).map(Self::Hello),
            CONSUMER_CONFIG_TEMPLATE_ID => ConsumerConfig::decode_body(bytes).map(Self::Config),
            FRAME_PROGRESS_TEMPLATE_ID => FrameProgress::decode_body(bytes).map(Self::Progress),
            QOS_CONSUMER_TEMPLATE_ID => QosConsumer::decode_body(bytes).map(Self::QosConsumer),
            QOS_PRODUCER_TEMPLATE_ID => QosProducer::decode_body(bytes).map(Self::QosProducer),
            _ => return Self::Other,
        };
        decoded.unwrap_or_else(Self::Malformed)
    }
}

impl QosConsumer {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire_message(QOS_CONSUMER_BLOCK_LENGTH, QOS_CONSUMER_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, QOS_CONSUMER_STREAM_ID, self.stream_id);
        put_u32(b, QOS_CONSUMER_CONSUMER_ID, self.consumer_id);
        put_u64(b, QOS_CONSUMER_EPOCH, self.epoch);
        put_u64(b, QOS_CONSUMER_LAST_SEQ_SEEN, self.last_seq_seen);
        put_u64(b, QOS_CONSUMER_DROPS_GAP, self.drops_gap);
        put_u64(b, QOS_CONSUMER_DROPS_LATE, self.drops_late);
        b[QOS_CONSUMER_MODE] = self.mode.code();
        out
    }

    fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let (b, _) = wire_block(bytes, QOS_CONSUMER_BLOCK_LENGTH)?;
        Ok(Self {
            stream_id: get_u32(b, QOS_CONSUMER_STREAM_ID),
            consumer_id: get_u32(b, QOS_CONSUMER_CONSUMER_ID),
            epoch: get_u64(b, QOS_CONSUMER_EPOCH),
            last_seq_seen: get_u64(b, QOS_CONSUMER_LAST_SEQ_SEEN),
            drops_gap: get_u64(b, QOS_CONSUMER_DROPS_GAP),
            drops_late: get_u64(b, QOS_CONSUMER_DROPS_LATE),
            mode: Mode::from_code(b[QOS_CONSUMER_MODE]).ok_or("mode")?,
        })
    }
}

impl QosProducer {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire_message(QOS_PRODUCER_BLOCK_LENGTH, QOS_PRODUCER_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, QOS_PRODUCER_STREAM_ID, self.stream_id);
        put_u32(b, QOS_PRODUCER_PRODUCER_ID, self.producer_id);
        put_u64(b, QOS_PRODUCER_EPOCH, self.epoch);
        put_u64(b, QOS_PRODUCER_CURRENT_SEQ, self.current_seq);
        put_u32(b, QOS_PRODUCER_WATERMARK, self.watermark.unwrap_or(NULL_U32));
        out
    }

    fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let (b, _) = wire_block(bytes, QOS_PRODUCER_BLOCK_LENGTH)?;
        let watermark = get_u32(b, QOS_PRODUCER_WATERMARK);
        Ok(Self {
            stream_id: get_u32(b, QOS_PRODUCER_STREAM_ID),
            producer_id: get_u32(b, QOS_PRODUCER_PRODUCER_ID),
            epoch: get_u64(b, QOS_PRODUCER_EPOCH),
            current_seq: get_u64(b, QOS_PRODUCER_CURRENT_SEQ),
            watermark: (watermark != NULL_U32).then_some(watermark),
        })
    }
}

pub const FRAME_PROGRESS_ENCODED_LENGTH: usize = MESSAGE_HEADER_LENGTH + FRAME_PROGRESS_BLOCK_LENGTH as usize;

impl FrameProgress {
    pub fn encode(&self) -> [u8; FRAME_PROGRESS_ENCODED_LENGTH] {
        let mut out = [0; FRAME_PROGRESS_ENCODED_LENGTH];
        put_message_header(&mut out, FRAME_PROGRESS_BLOCK_LENGTH, FRAME_PROGRESS_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, FRAME_PROGRESS_STREAM_ID, self.stream_id);
        put_u64(b, FRAME_PROGRESS_EPOCH, self.epoch);
        put_u64(b, FRAME_PROGRESS_SEQ, self.seq);
        put_u64(b, FRAME_PROGRESS_PAYLOAD_BYTES_FILLED, self.payload_bytes_filled);
        b[FRAME_PROGRESS_STATE] = match self.state {
            ProgressState::Unknown => FRAME_PROGRESS_STATE_UNKNOWN,
            ProgressState::Started => FRAME_PROGRESS_STATE_STARTED,
            ProgressState::Progress => FRAME_PROGRESS_STATE_PROGRESS,
            ProgressState::Complete => FRAME_PROGRESS_STATE_COMPLETE,
        };
        out
    }

    fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let (b, _) = wire_block(bytes, FRAME_PROGRESS_BLOCK_LENGTH)?;
        let state = match b[FRAME_PROGRESS_STATE] {
            FRAME_PROGRESS_STATE_UNKNOWN => ProgressState::Unknown,
            FRAME_PROGRESS_STATE_STARTED => ProgressState::Started,
            FRAME_PROGRESS_STATE_PROGRESS => ProgressState::Progress,
            FRAME_PROGRESS_STATE_COMPLETE => ProgressState::Complete,
            _ => return Err("state"),
        };
        // A commit word holds 63 bits of the sequence. A larger one would name the slot of another frame.
        if get_u64(b, FRAME_PROGRESS_SEQ) > MAX_SEQ {
            return Err("seq");
        }
        Ok(Self {
            stream_id: get_u32(b, FRAME_PROGRESS_STREAM_ID),
            epoch: get_u64(b, FRAME_PROGRESS_EPOCH),
            seq: get_u64(b, FRAME_PROGRESS_SEQ),
            payload_bytes_filled: get_u64(b, FRAME_PROGRESS_PAYLOAD_BYTES_FILLED),
            state,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> [Vec<u8>; 3] {
        [
            QosConsumer {
                stream_id: 1,
                consumer_id: 2,
                epoch: 3,
                last_seq_seen: 4,
                drops_gap: 5,
                drops_late: 6,
                mode: Mode::RateLimited,
            }
            .encode(),
            QosProducer { stream_id: 1, producer_id: 2, epoch: 3, current_seq: 4, watermark: None }.encode(),
            FrameProgress {
                stream_id: 1,
                epoch: 2,
                seq: 3,
                payload_bytes_filled: 4,
                state: ProgressState::Complete,
            }
            .encode()
            .to_vec(),
        ]
    }

    #[test]
    fn messages_round_trip() {
        let [consumer, producer, progress] = all();
        assert!(
            matches!(ControlMessage::decode(&consumer), ControlMessage::QosConsumer(q) if q.encode() == consumer)
        );
        assert!(
            matches!(ControlMessage::decode(&producer), ControlMessage::QosProducer(q) if q.encode() == producer)
        );
        assert!(
            matches!(ControlMessage::decode(&progress), ControlMessage::Progress(p) if p.encode() == *progress)
        );
    }

    #[test]
    fn every_truncation_is_malformed() {
        for message in all() {
            for len in 0..message.len() {
                assert!(
                    matches!(ControlMessage::decode(&message[..len]), ControlMessage::Malformed(_)),
                    "{len}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 8..120), template in 0u16..14, length in 0u16..60) {
            put_message_header(&mut bytes, length, template);
            let _ = ControlMessage::decode(&bytes);
        }
    }
}
