//! Grants of a producer to its consumers (wire §5, §10.1.2, §10.1.3; decisions 22 and 23). Pure: hellos,
//! orders, QoS reports and the time go in; configs, and per-consumer streams to open or close, come out.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::wire::hello::{ConsumerConfig, ConsumerHello, Mode, ProgressHints, StreamAddress, StreamRequest};
use crate::wire::layout::LAYOUT_VERSION;

/// More consumers than one producer can serve with per-consumer streams. Further ones use the shared stream.
const MAX_CONSUMERS: usize = 4096;

/// How long an address that the media driver refused is not granted. A consumer repeats its request once a
/// period: without a pause the stream would be granted and withdrawn each time.
const REFUSED_NS: u64 = 10_000_000_000;

#[derive(Clone, Debug)]
pub struct GrantPolicy {
    /// Allowed channels of per-consumer streams, as text.
    pub channels: Vec<String>,
    pub descriptor_ids: RangeInclusive<u32>,
    pub control_ids: RangeInclusive<u32>,
    /// A consumer that sends neither hello nor QoS for this long is stale.
    pub stale_ns: u64,
}

/// A change to the per-consumer streams of one consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamChange {
    OpenDescriptors { consumer_id: u32, address: StreamAddress, max_rate_hz: u32 },
    OpenControl { consumer_id: u32, address: StreamAddress },
    SetRate { consumer_id: u32, max_rate_hz: u32 },
    CloseDescriptors { consumer_id: u32 },
    CloseControl { consumer_id: u32 },
}

/// A granted stream whose publication the media driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedStream {
    Descriptors { consumer_id: u32 },
    Control { consumer_id: u32 },
}

#[derive(Clone, Debug)]
struct Grant {
    received_ns: u64,
    /// It maps shared memory of our layout.
    reads_shm: bool,
    supports_progress: bool,
    hints: ProgressHints,
    max_rate_hz: u32,
    mode: Mode,
    descriptor: Option<StreamAddress>,
    control: Option<StreamAddress>,
    /// A supervisor's order, which a later hello does not undo.
    ordered: Option<ConsumerConfig>,
}

#[derive(Debug)]
pub struct ConsumerGrants {
    stream_id: u32,
    policy: GrantPolicy,
    consumers: BTreeMap<u32, Grant>,
    /// Addresses that the media driver refused, and until when they are not granted.
    refused: Vec<(u64, StreamAddress)>,
}

impl ConsumerGrants {
    pub fn new(stream_id: u32, policy: GrantPolicy) -> Self {
        Self { stream_id, policy, consumers: BTreeMap::new(), refused: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.consumers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.consumers.is_empty()
    }

    /// Whether a hello of this consumer was received, and it is not stale since.
    pub fn contains(&self, consumer_id: u32) -> bool {
        self.consumers.contains_key(&consumer_id)
    }

    /// The config that answers a hello, and the changes. `None`: for another stream.
    pub fn on_hello(
        &mut self,
        hello: &ConsumerHello,
        now_ns: u64,
    ) -> Option<(ConsumerConfig, Vec<StreamChange>)> {
        if hello.stream_id != self.stream_id {
            return None;
        }
        let known = self.consumers.remove(&hello.consumer_id);
        if known.is_none() && self.consumers.len() >= MAX_CONSUMERS {
            return Some((self.config_for(hello.consumer_id, None), Vec::new()));
        }
        let (old_descriptor, old_control, ordered) = match known {
            Some(consumer) => (consumer.descriptor, consumer.control, consumer.ordered),
            None => (None, None, None),
        };
        let fits = hello.supports_shm && matches!(hello.expected_layout_version, 0 | LAYOUT_VERSION);
        let requested = if fits { &hello.descriptor } else { &StreamRequest::None };
        let descriptor = self.grant(requested, &self.policy.descriptor_ids);
        let requested = if fits && hello.supports_progress { &hello.control } else { &StreamRequest::None };
        let control =
            self.grant(requested, &self.policy.control_ids).filter(|l| Some(l) != descriptor.as_ref());
        let mut consumer = Grant {
            received_ns: now_ns,
            reads_shm: fits,
            supports_progress: hello.supports_progress,
            hints: hello.hints,
            max_rate_hz: hello.max_rate_hz,
            mode: hello.mode,
            descriptor,
            control,
            ordered,
        };
        if let Some(ordered) = &consumer.ordered {
            consumer.mode = ordered.mode;
            if ordered.descriptor != StreamRequest::None {
                // An order cannot open a disallowed stream either.
                consumer.descriptor = self.grant(&ordered.descriptor, &self.policy.descriptor_ids);
            }
        }
        let id = hello.consumer_id;
        let changes = changes(id, old_descriptor.as_ref(), old_control.as_ref(), &consumer);
        let answer = self.config_for(id, Some(&consumer));
        self.consumers.insert(id, consumer);
        Some((answer, changes))
    }

    /// Adopts a supervisor's config of one of our consumers, so that a later hello does not undo it.
    pub fn on_order(&mut self, order: &ConsumerConfig, now_ns: u64) -> Vec<StreamChange> {
        if order.stream_id != self.stream_id {
            return Vec::new();
        }
        let Some(consumer) = self.consumers.get(&order.consumer_id) else {
            return Vec::new();
        };
        let mut fresh = Grant { ordered: Some(order.clone()), mode: order.mode, ..consumer.clone() };
        fresh.received_ns = fresh.received_ns.max(now_ns);
        let requested = &order.descriptor;
        if let StreamRequest::At(address) = requested
            && fresh.descriptor.as_ref() != Some(address)
        {
            fresh.descriptor = self.grant(requested, &self.policy.descriptor_ids);
        }
        let changes =
            changes(order.consumer_id, consumer.descriptor.as_ref(), consumer.control.as_ref(), &fresh);
        self.consumers.insert(order.consumer_id, fresh);
        changes
    }

    /// A QoS report keeps a consumer fresh too.
    pub fn on_qos(&mut self, stream_id: u32, consumer_id: u32, now_ns: u64) {
        if stream_id == self.stream_id
            && let Some(consumer) = self.consumers.get_mut(&consumer_id)
        {
            consumer.received_ns = now_ns;
        }
    }

    /// Closes the streams of stale consumers.
    pub fn on_tick(&mut self, now_ns: u64) -> Vec<StreamChange> {
        self.refused.retain(|(until_ns, _)| now_ns < *until_ns);
        let stale_ns = self.policy.stale_ns;
        let mut closed = Vec::new();
        self.consumers.retain(|id, consumer| {
            let is_fresh = now_ns.saturating_sub(consumer.received_ns) <= stale_ns;
            if !is_fresh {
                close(*id, consumer, &mut closed);
            }
            is_fresh
        });
        closed
    }

    /// The consumer left, or its lease ended.
    pub fn on_leave(&mut self, consumer_id: u32) -> Vec<StreamChange> {
        let mut closed = Vec::new();
        if let Some(consumer) = self.consumers.remove(&consumer_id) {
            close(consumer_id, &consumer, &mut closed);
        }
        closed
    }

    /// Withdraws a stream that the media driver refused. The config informs the consumer, and the address is
    /// not granted again for a while. `None`: no such stream is granted.
    pub fn on_refused(
        &mut self,
        refused: RefusedStream,
        now_ns: u64,
    ) -> Option<(ConsumerConfig, Vec<StreamChange>)> {
        let (RefusedStream::Descriptors { consumer_id } | RefusedStream::Control { consumer_id }) = refused;
        let consumer = self.consumers.get_mut(&consumer_id)?;
        let (address, change) = match refused {
            RefusedStream::Descriptors { .. } => {
                (consumer.descriptor.take()?, StreamChange::CloseDescriptors { consumer_id })
            }
            RefusedStream::Control { .. } => {
                (consumer.control.take()?, StreamChange::CloseControl { consumer_id })
            }
        };
        self.refused.push((now_ns + REFUSED_NS, address));
        let consumer = self.consumers.get(&consumer_id);
        Some((self.config_for(consumer_id, consumer), vec![change]))
    }

    /// The smallest progress hints of all consumers that ask for progress. `None` if there is none.
    pub fn progress(&self) -> Option<ProgressHints> {
        let smallest = |a: Option<u32>, b: Option<u32>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.consumers.values().filter(|w| w.supports_progress).map(|w| w.hints).reduce(|a, b| {
            ProgressHints {
                interval_us: smallest(a.interval_us, b.interval_us),
                bytes_delta: smallest(a.bytes_delta, b.bytes_delta),
                major_delta_units: smallest(a.major_delta_units, b.major_delta_units),
            }
        })
    }

    /// Whether a consumer without a per-consumer control stream asks for progress: then it is sent on the
    /// shared stream.
    pub fn wants_shared_progress(&self) -> bool {
        self.consumers.values().any(|w| w.supports_progress && w.control.is_none())
    }

    /// Grants an address on an allowed channel, with a free id of the range.
    fn grant(&self, requested: &StreamRequest, ids: &RangeInclusive<u32>) -> Option<StreamAddress> {
        let address = requested_address(requested)?;
        let taken = |l: &Option<StreamAddress>| l.as_ref() == Some(&address);
        let is_free = !self.consumers.values().any(|w| taken(&w.descriptor) || taken(&w.control));
        let is_refused = self.refused.iter().any(|(_, refused)| *refused == address);
        let is_allowed = self.policy.channels.contains(&address.channel) && ids.contains(&address.stream_id);
        (is_allowed && is_free && !is_refused).then_some(address)
    }

    fn config_for(&self, consumer_id: u32, consumer: Option<&Grant>) -> ConsumerConfig {
        let ordered = consumer.and_then(|w| w.ordered.as_ref());
        let requested = |address: Option<&StreamAddress>| {
            address.map_or(StreamRequest::None, |l| StreamRequest::At(l.clone()))
        };
        let descriptor = consumer.and_then(|w| w.descriptor.as_ref());
        ConsumerConfig {
            stream_id: self.stream_id,
            consumer_id,
            use_shm: ordered.map_or(consumer.is_none_or(|w| w.reads_shm), |o| o.use_shm),
            mode: consumer.map_or(Mode::Stream, mode_in_force),
            max_rate_hz: None,
            fallback_uri: ordered.map(|o| o.fallback_uri.clone()).unwrap_or_default(),
            descriptor: requested(descriptor),
            control: requested(consumer.and_then(|w| w.control.as_ref())),
        }
    }
}

fn requested_address(requested: &StreamRequest) -> Option<StreamAddress> {
    match requested {
        StreamRequest::At(address) => Some(address.clone()),
        StreamRequest::None | StreamRequest::Invalid => None,
    }
}

fn rate_of(consumer: &Grant) -> u32 {
    match consumer.mode {
        Mode::RateLimited => {
            consumer.ordered.as_ref().and_then(|o| o.max_rate_hz).unwrap_or(consumer.max_rate_hz)
        }
        Mode::Stream => 0,
    }
}

/// The mode that the producer applies, which may differ from the requested one: a supervisor that reads of a
/// limit that is not in force would not try another stream. Only a per-consumer stream with a rate limits.
fn mode_in_force(consumer: &Grant) -> Mode {
    if consumer.descriptor.is_some() && rate_of(consumer) > 0 { Mode::RateLimited } else { Mode::Stream }
}

fn changes(
    id: u32,
    descriptor: Option<&StreamAddress>,
    control: Option<&StreamAddress>,
    consumer: &Grant,
) -> Vec<StreamChange> {
    let mut changes = Vec::new();
    if descriptor != consumer.descriptor.as_ref() {
        if descriptor.is_some() {
            changes.push(StreamChange::CloseDescriptors { consumer_id: id });
        }
        if let Some(address) = &consumer.descriptor {
            let max_rate_hz = rate_of(consumer);
            changes.push(StreamChange::OpenDescriptors {
                consumer_id: id,
                address: address.clone(),
                max_rate_hz,
            });
        }
    } else if descriptor.is_some() {
        changes.push(StreamChange::SetRate { consumer_id: id, max_rate_hz: rate_of(consumer) });
    }
    if control != consumer.control.as_ref() {
        if control.is_some() {
            changes.push(StreamChange::CloseControl { consumer_id: id });
        }
        if let Some(address) = &consumer.control {
            changes.push(StreamChange::OpenControl { consumer_id: id, address: address.clone() });
        }
    }
    changes
}

fn close(id: u32, consumer: &Grant, closed: &mut Vec<StreamChange>) {
    if consumer.descriptor.is_some() {
        closed.push(StreamChange::CloseDescriptors { consumer_id: id });
    }
    if consumer.control.is_some() {
        closed.push(StreamChange::CloseControl { consumer_id: id });
    }
}

#[cfg(test)]
mod tests;
