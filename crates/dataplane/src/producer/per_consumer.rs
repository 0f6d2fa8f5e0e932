//! Per-consumer streams of a producer: descriptors at the requested rate, and progress (wire §5).

use std::sync::atomic::{AtomicU64, Ordering};

use tensorpool_core::producer::grants::{RefusedStream, StreamChange};
use tensorpool_core::producer::rate_gate::RateGate;
use tensorpool_core::wire::descriptor::{FRAME_DESCRIPTOR_ENCODED_LENGTH, FrameDescriptor};
use tensorpool_core::wire::hello::StreamAddress;

use crate::aeron::channels::with_parameter;
use crate::aeron::{Client, ExclusivePublication};
use crate::conductor::handle::Handle;

/// A per-consumer stream carries few descriptors: small terms are enough, and a hundred of them cost 75 MiB.
const PARAMETERS: [&str; 4] = [
    "term-length=256k",
    "untethered-window-limit-timeout=10ms",
    "untethered-linger-timeout=10ms",
    "untethered-resting-timeout=1s",
];

#[derive(Debug, Default)]
pub struct PerConsumerCounters {
    /// Descriptors sent on per-consumer streams.
    pub published: AtomicU64,
    /// Held back because the consumer requested fewer.
    pub limited: AtomicU64,
    /// Not sent: the consumer is behind, or not connected yet.
    pub lost: AtomicU64,
    /// Progress messages, counted per stream.
    pub progress_sent: AtomicU64,
    pub progress_lost: AtomicU64,
}

impl PerConsumerCounters {
    pub fn count_progress(&self, sent: bool) {
        let counter = if sent { &self.progress_sent } else { &self.progress_lost };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

struct PerConsumerStream {
    consumer_id: u32,
    channel: String,
    stream_id: i32,
    publication: Handle<ExclusivePublication>,
    max_rate_hz: u32,
    gate: Option<RateGate>,
}

impl PerConsumerStream {
    fn new(consumer_id: u32, address: &StreamAddress, max_rate_hz: u32) -> Self {
        let channel = PARAMETERS.iter().fold(address.channel.clone(), |c, p| with_parameter(&c, p));
        Self {
            consumer_id,
            channel,
            stream_id: address.stream_id as i32,
            publication: Handle::None,
            max_rate_hz,
            gate: RateGate::new(max_rate_hz),
        }
    }
}

#[derive(Default)]
pub struct PerConsumerStreams {
    descriptors: Vec<PerConsumerStream>,
    control: Vec<PerConsumerStream>,
}

impl PerConsumerStreams {
    pub fn apply(&mut self, change: StreamChange) {
        match change {
            StreamChange::OpenDescriptors { consumer_id, address, max_rate_hz } => {
                self.descriptors.push(PerConsumerStream::new(consumer_id, &address, max_rate_hz));
            }
            StreamChange::OpenControl { consumer_id, address } => {
                self.control.push(PerConsumerStream::new(consumer_id, &address, 0));
            }
            StreamChange::SetRate { consumer_id, max_rate_hz } => {
                for stream in self.descriptors.iter_mut().filter(|l| l.consumer_id == consumer_id) {
                    // An unchanged gate keeps its schedule.
                    if stream.max_rate_hz != max_rate_hz {
                        stream.max_rate_hz = max_rate_hz;
                        stream.gate = RateGate::new(max_rate_hz);
                    }
                }
            }
            StreamChange::CloseDescriptors { consumer_id } => {
                self.descriptors.retain(|l| l.consumer_id != consumer_id);
            }
            StreamChange::CloseControl { consumer_id } => {
                self.control.retain(|l| l.consumer_id != consumer_id)
            }
        }
    }

    /// Requests missing publications, and stores them once they are ready. True once all are ready. Those that
    /// the media driver refuses are added to `refused`.
    pub fn advance(&mut self, client: &Client, refused: &mut Vec<RefusedStream>) -> bool {
        let mut complete = true;
        let mut advance = |stream: &mut PerConsumerStream| {
            let (channel, stream_id) = (&stream.channel, stream.stream_id);
            let result = stream.publication.advance(|| client.add_exclusive_publication(channel, stream_id));
            complete &= stream.publication.get().is_some();
            result.is_err()
        };
        for stream in &mut self.descriptors {
            if advance(stream) {
                refused.push(RefusedStream::Descriptors { consumer_id: stream.consumer_id });
            }
        }
        for stream in &mut self.control {
            if advance(stream) {
                refused.push(RefusedStream::Control { consumer_id: stream.consumer_id });
            }
        }
        complete
    }

    pub fn disconnect(&mut self) {
        for stream in self.descriptors.iter_mut().chain(&mut self.control) {
            stream.publication = Handle::None;
        }
    }

    pub fn clear(&mut self) {
        self.descriptors.clear();
        self.control.clear();
    }

    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Publishes a descriptor on every stream whose rate allows it. True if one of them accepted it.
    #[inline]
    pub fn publish(
        &mut self,
        descriptor: &FrameDescriptor,
        timestamp_ns: u64,
        counters: &PerConsumerCounters,
    ) -> bool {
        let mut taken = false;
        for stream in &mut self.descriptors {
            if stream.gate.as_mut().is_some_and(|gate| !gate.admits(timestamp_ns)) {
                counters.limited.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let sent = stream.publication.get().is_some_and(|p| {
                p.claim(FRAME_DESCRIPTOR_ENCODED_LENGTH, |bytes| descriptor.encode(bytes)).is_ok()
            });
            taken |= sent;
            let counter = if sent { &counters.published } else { &counters.lost };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Publishes a progress message on every control stream. An unsent message is dropped: the next one says
    /// more.
    pub fn publish_progress(&mut self, message: &[u8], counters: &PerConsumerCounters) {
        for stream in &mut self.control {
            let publication = stream.publication.get();
            counters.count_progress(
                publication
                    .is_some_and(|p| p.claim(message.len(), |bytes| bytes.copy_from_slice(message)).is_ok()),
            );
        }
    }
}
