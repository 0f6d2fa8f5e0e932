//! What a producer grants its consumers (wire §5, §10.1.2, §10.1.3; decisions 22 and 23). Pure: hellos,
//! configurations, signs of life and the time go in; answers, and lanes to open or close, come out.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::wire::hello::{ConsumerConfig, ConsumerHello, Mode, ProgressHints, StreamAddress, StreamRequest};
use crate::wire::layout::LAYOUT_VERSION;

/// More consumers than one producer could serve with streams of their own; the rest share one.
const MOST_CONSUMERS: usize = 4096;

#[derive(Clone, Debug)]
pub struct Policy {
    /// Channels that a lane may be on, as they are written.
    pub channels: Vec<String>,
    pub descriptor_ids: RangeInclusive<u32>,
    pub control_ids: RangeInclusive<u32>,
    /// A consumer that gives no sign of life for so long has left.
    pub stale_ns: u64,
}

/// What is to be done with the lanes of one consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    OpenDescriptors { consumer_id: u32, lane: StreamAddress, max_rate_hz: u32 },
    OpenControl { consumer_id: u32, lane: StreamAddress },
    SetRate { consumer_id: u32, max_rate_hz: u32 },
    CloseDescriptors { consumer_id: u32 },
    CloseControl { consumer_id: u32 },
}

#[derive(Clone, Debug)]
struct Wish {
    heard_ns: u64,
    /// It can read our regions: it maps shared memory, of our layout.
    reads_shm: bool,
    supports_progress: bool,
    hints: ProgressHints,
    max_rate_hz: u32,
    mode: Mode,
    descriptor: Option<StreamAddress>,
    control: Option<StreamAddress>,
    /// A supervisor has spoken: a later hello does not undo it.
    ordered: Option<ConsumerConfig>,
}

#[derive(Debug)]
pub struct Wishes {
    stream_id: u32,
    policy: Policy,
    consumers: BTreeMap<u32, Wish>,
}

impl Wishes {
    pub fn new(stream_id: u32, policy: Policy) -> Self {
        Self { stream_id, policy, consumers: BTreeMap::new() }
    }

    pub fn len(&self) -> usize {
        self.consumers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.consumers.is_empty()
    }

    /// The answer to a hello, and what it changes. None: not for us.
    pub fn on_hello(&mut self, hello: &ConsumerHello, now_ns: u64) -> Option<(ConsumerConfig, Vec<Change>)> {
        if hello.stream_id != self.stream_id {
            return None;
        }
        let known = self.consumers.remove(&hello.consumer_id);
        if known.is_none() && self.consumers.len() >= MOST_CONSUMERS {
            return Some((self.answer(hello.consumer_id, None), Vec::new()));
        }
        let (had_descriptor, had_control, ordered) = match known {
            Some(wish) => (wish.descriptor, wish.control, wish.ordered),
            None => (None, None, None),
        };
        let fits = hello.supports_shm && matches!(hello.expected_layout_version, 0 | LAYOUT_VERSION);
        let asked = if fits { &hello.descriptor } else { &StreamRequest::None };
        let descriptor = self.grant(asked, &self.policy.descriptor_ids);
        let asked = if fits && hello.supports_progress { &hello.control } else { &StreamRequest::None };
        let control = self.grant(asked, &self.policy.control_ids).filter(|l| Some(l) != descriptor.as_ref());
        let mut wish = Wish {
            heard_ns: now_ns,
            reads_shm: fits,
            supports_progress: hello.supports_progress,
            hints: hello.hints,
            max_rate_hz: hello.max_rate_hz,
            mode: hello.mode,
            descriptor,
            control,
            ordered,
        };
        if let Some(ordered) = &wish.ordered {
            wish.mode = ordered.mode;
            if ordered.descriptor != StreamRequest::None {
                // An order is as little a reason to open what is not allowed as a request.
                wish.descriptor = self.grant(&ordered.descriptor, &self.policy.descriptor_ids);
            }
        }
        let id = hello.consumer_id;
        let changes = changes(id, had_descriptor.as_ref(), had_control.as_ref(), &wish);
        let answer = self.answer(id, Some(&wish));
        self.consumers.insert(id, wish);
        Some((answer, changes))
    }

    /// A supervisor tells one of our consumers what to do: taken over, so that a later hello does not undo it.
    pub fn on_order(&mut self, order: &ConsumerConfig, now_ns: u64) -> Vec<Change> {
        if order.stream_id != self.stream_id {
            return Vec::new();
        }
        let Some(wish) = self.consumers.get(&order.consumer_id) else {
            return Vec::new();
        };
        let mut fresh = Wish { ordered: Some(order.clone()), mode: order.mode, ..wish.clone() };
        fresh.heard_ns = fresh.heard_ns.max(now_ns);
        let asked = &order.descriptor;
        if let StreamRequest::At(lane) = asked
            && fresh.descriptor.as_ref() != Some(lane)
        {
            fresh.descriptor = self.grant(asked, &self.policy.descriptor_ids);
        }
        let changes = changes(order.consumer_id, wish.descriptor.as_ref(), wish.control.as_ref(), &fresh);
        self.consumers.insert(order.consumer_id, fresh);
        changes
    }

    /// QoS is a sign of life too.
    pub fn on_qos(&mut self, stream_id: u32, consumer_id: u32, now_ns: u64) {
        if stream_id == self.stream_id
            && let Some(wish) = self.consumers.get_mut(&consumer_id)
        {
            wish.heard_ns = now_ns;
        }
    }

    /// Those who have left: their lanes are closed.
    pub fn on_tick(&mut self, now_ns: u64) -> Vec<Change> {
        let stale_ns = self.policy.stale_ns;
        let mut closed = Vec::new();
        self.consumers.retain(|id, wish| {
            let is_current = now_ns.saturating_sub(wish.heard_ns) <= stale_ns;
            if !is_current {
                close(*id, wish, &mut closed);
            }
            is_current
        });
        closed
    }

    /// The consumer says that it leaves, or its lease has ended.
    pub fn on_leave(&mut self, consumer_id: u32) -> Vec<Change> {
        let mut closed = Vec::new();
        if let Some(wish) = self.consumers.remove(&consumer_id) {
            close(consumer_id, &wish, &mut closed);
        }
        closed
    }

    /// What the media driver refused is granted no longer; the consumer is told at its next hello.
    pub fn on_refused(&mut self, consumer_id: u32) {
        if let Some(wish) = self.consumers.get_mut(&consumer_id) {
            wish.descriptor = None;
        }
    }

    /// Whether anyone wants to hear of progress, and how often: the smallest of what was asked for.
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

    /// Whether someone without a control lane of its own wants progress: it goes out on the shared stream.
    pub fn wants_shared_progress(&self) -> bool {
        self.consumers.values().any(|w| w.supports_progress && w.control.is_none())
    }

    /// A lane on a channel that is allowed, with an id of our range that nobody else has.
    fn grant(&self, asked: &StreamRequest, ids: &RangeInclusive<u32>) -> Option<StreamAddress> {
        let lane = lane_of(asked)?;
        let taken = |l: &Option<StreamAddress>| l.as_ref() == Some(&lane);
        let is_free = !self.consumers.values().any(|w| taken(&w.descriptor) || taken(&w.control));
        (self.policy.channels.contains(&lane.channel) && ids.contains(&lane.stream_id) && is_free)
            .then_some(lane)
    }

    fn answer(&self, consumer_id: u32, wish: Option<&Wish>) -> ConsumerConfig {
        let ordered = wish.and_then(|w| w.ordered.as_ref());
        let asked =
            |lane: Option<&StreamAddress>| lane.map_or(StreamRequest::None, |l| StreamRequest::At(l.clone()));
        let descriptor = wish.and_then(|w| w.descriptor.as_ref());
        // Without a lane of its own nothing limits its rate.
        let mode = match wish {
            Some(w) if descriptor.is_some() || ordered.is_some() => w.mode,
            _ => Mode::Stream,
        };
        ConsumerConfig {
            stream_id: self.stream_id,
            consumer_id,
            use_shm: ordered.map_or(wish.is_none_or(|w| w.reads_shm), |o| o.use_shm),
            mode,
            max_rate_hz: None,
            fallback_uri: ordered.map(|o| o.fallback_uri.clone()).unwrap_or_default(),
            descriptor: asked(descriptor),
            control: asked(wish.and_then(|w| w.control.as_ref())),
        }
    }
}

fn lane_of(asked: &StreamRequest) -> Option<StreamAddress> {
    match asked {
        StreamRequest::At(lane) => Some(lane.clone()),
        StreamRequest::None | StreamRequest::Invalid => None,
    }
}

fn rate_of(wish: &Wish) -> u32 {
    match wish.mode {
        Mode::RateLimited => wish.ordered.as_ref().and_then(|o| o.max_rate_hz).unwrap_or(wish.max_rate_hz),
        Mode::Stream => 0,
    }
}

fn changes(
    id: u32,
    descriptor: Option<&StreamAddress>,
    control: Option<&StreamAddress>,
    wish: &Wish,
) -> Vec<Change> {
    let mut changes = Vec::new();
    if descriptor != wish.descriptor.as_ref() {
        if descriptor.is_some() {
            changes.push(Change::CloseDescriptors { consumer_id: id });
        }
        if let Some(lane) = &wish.descriptor {
            let max_rate_hz = rate_of(wish);
            changes.push(Change::OpenDescriptors { consumer_id: id, lane: lane.clone(), max_rate_hz });
        }
    } else if descriptor.is_some() {
        changes.push(Change::SetRate { consumer_id: id, max_rate_hz: rate_of(wish) });
    }
    if control != wish.control.as_ref() {
        if control.is_some() {
            changes.push(Change::CloseControl { consumer_id: id });
        }
        if let Some(lane) = &wish.control {
            changes.push(Change::OpenControl { consumer_id: id, lane: lane.clone() });
        }
    }
    changes
}

fn close(id: u32, wish: &Wish, closed: &mut Vec<Change>) {
    if wish.descriptor.is_some() {
        closed.push(Change::CloseDescriptors { consumer_id: id });
    }
    if wish.control.is_some() {
        closed.push(Change::CloseControl { consumer_id: id });
    }
}

#[cfg(test)]
mod tests;
