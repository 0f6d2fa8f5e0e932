//! Streams of consumers' own: descriptors at the rate that each asked for, and progress (wire §5).

use std::sync::atomic::{AtomicU64, Ordering};

use tensorpool_core::producer::grants::StreamChange;
use tensorpool_core::producer::rate_gate::RateGate;
use tensorpool_core::wire::descriptor::{FRAME_DESCRIPTOR_ENCODED_LENGTH, FrameDescriptor};
use tensorpool_core::wire::hello::StreamAddress;

use crate::aeron::channels::with_parameter;
use crate::aeron::{Client, ExclusivePublication};
use crate::conductor::handle::Handle;

/// A lane carries one consumer's descriptors: small terms do, and a hundred of them cost little.
const PARAMETERS: [&str; 4] = [
    "term-length=1m",
    "untethered-window-limit-timeout=10ms",
    "untethered-linger-timeout=10ms",
    "untethered-resting-timeout=1s",
];

#[derive(Debug, Default)]
pub struct LaneCounters {
    /// Descriptors that went out on lanes.
    pub published: AtomicU64,
    /// Held back because the consumer asked for fewer.
    pub limited: AtomicU64,
    /// Not taken: the consumer is behind, or not there yet.
    pub lost: AtomicU64,
    /// Words about frames that were still filling, to each who hears them.
    pub progress_sent: AtomicU64,
    pub progress_lost: AtomicU64,
}

impl LaneCounters {
    pub fn told(&self, taken: bool) {
        let counter = if taken { &self.progress_sent } else { &self.progress_lost };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

struct OwnLane {
    consumer_id: u32,
    channel: String,
    stream_id: i32,
    publication: Handle<ExclusivePublication>,
    max_rate_hz: u32,
    gate: Option<RateGate>,
}

impl OwnLane {
    fn new(consumer_id: u32, lane: &StreamAddress, max_rate_hz: u32) -> Self {
        let channel = PARAMETERS.iter().fold(lane.channel.clone(), |c, p| with_parameter(&c, p));
        Self {
            consumer_id,
            channel,
            stream_id: lane.stream_id as i32,
            publication: Handle::None,
            max_rate_hz,
            gate: RateGate::new(max_rate_hz),
        }
    }
}

#[derive(Default)]
pub struct Lanes {
    descriptors: Vec<OwnLane>,
    control: Vec<OwnLane>,
}

impl Lanes {
    pub fn apply(&mut self, change: StreamChange) {
        match change {
            StreamChange::OpenDescriptors { consumer_id, address, max_rate_hz } => {
                self.descriptors.push(OwnLane::new(consumer_id, &address, max_rate_hz));
            }
            StreamChange::OpenControl { consumer_id, address } => {
                self.control.push(OwnLane::new(consumer_id, &address, 0));
            }
            StreamChange::SetRate { consumer_id, max_rate_hz } => {
                for lane in self.descriptors.iter_mut().filter(|l| l.consumer_id == consumer_id) {
                    // A gate that is as it should be keeps its beat.
                    if lane.max_rate_hz != max_rate_hz {
                        lane.max_rate_hz = max_rate_hz;
                        lane.gate = RateGate::new(max_rate_hz);
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

    /// Asks for what is missing, and takes it as it comes. True once nothing is missing.
    pub fn advance(&mut self, client: &Client) -> bool {
        let mut complete = true;
        for lane in self.descriptors.iter_mut().chain(&mut self.control) {
            let (channel, stream_id) = (&lane.channel, lane.stream_id);
            // A refusal is asked again later; until then the consumer hears nothing on it.
            let _ = lane.publication.advance(|| client.add_exclusive_publication(channel, stream_id));
            complete &= lane.publication.get().is_some();
        }
        complete
    }

    pub fn disconnect(&mut self) {
        for lane in self.descriptors.iter_mut().chain(&mut self.control) {
            lane.publication = Handle::None;
        }
    }

    pub fn clear(&mut self) {
        self.descriptors.clear();
        self.control.clear();
    }

    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// One descriptor to everyone with a lane whose rate allows it. True if someone took it.
    #[inline]
    pub fn publish(
        &mut self,
        descriptor: &FrameDescriptor,
        timestamp_ns: u64,
        counters: &LaneCounters,
    ) -> bool {
        let mut taken = false;
        for lane in &mut self.descriptors {
            if lane.gate.as_mut().is_some_and(|gate| !gate.admits(timestamp_ns)) {
                counters.limited.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let sent = lane.publication.get().is_some_and(|p| {
                p.claim(FRAME_DESCRIPTOR_ENCODED_LENGTH, |bytes| descriptor.encode(bytes)).is_ok()
            });
            taken |= sent;
            let counter = if sent { &counters.published } else { &counters.lost };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// One progress message to everyone with a control lane. What is not taken is lost: the next says more.
    pub fn tell(&mut self, message: &[u8], counters: &LaneCounters) {
        for lane in &mut self.control {
            let publication = lane.publication.get();
            counters.told(
                publication
                    .is_some_and(|p| p.claim(message.len(), |bytes| bytes.copy_from_slice(message)).is_ok()),
            );
        }
    }
}
