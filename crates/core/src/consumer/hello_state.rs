//! A consumer's side of hello and config (wire §5, §10.1.2, §10.1.3, §11). Pure: it says when a hello is
//! due, and what an answer means for the streams that it reads.

use crate::wire::hello::{ConsumerConfig, ConsumerHello, Mode, ProgressHints, StreamAddress, StreamRequest};
use crate::wire::layout::LAYOUT_VERSION;

/// A stream of its own that a consumer asks for: some id of a range, on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    pub channel: String,
    pub first: u32,
    pub last: u32,
}

impl Proposal {
    /// Another id at each attempt, and for each consumer: two that ask at once seldom ask for the same.
    fn lane(&self, consumer_id: u32, attempt: u32) -> StreamAddress {
        let spread =
            u64::from(consumer_id).wrapping_add(u64::from(attempt) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let ids = u64::from(self.last.saturating_sub(self.first)) + 1;
        StreamAddress { channel: self.channel.clone(), stream_id: self.first + ((spread >> 32) % ids) as u32 }
    }
}

/// What a consumer would like.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub mode: Mode,
    pub max_rate_hz: u32,
    pub supports_progress: bool,
    pub hints: ProgressHints,
    /// Streams of its own; none: the shared ones are good enough.
    pub descriptor: Option<Proposal>,
    pub control: Option<Proposal>,
}

/// How often a declined request is made again with another id.
const MOST_ATTEMPTS: u32 = 8;

/// What a config changes for the consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Read descriptors from there; none: from the shared stream.
    Descriptors(Option<StreamAddress>),
    /// Take progress from there; none: from the shared control stream.
    Control(Option<StreamAddress>),
    /// Frames come by another way than shared memory.
    Fallback(String),
    /// Back to shared memory.
    Shm,
    /// What was asked for was not granted.
    Declined,
    /// A fallback with a scheme that nobody has defined (wire §10.1.3).
    UnknownFallback(String),
}

#[derive(Clone, Debug)]
pub struct Greeting {
    stream_id: u32,
    wanted: Wanted,
    period_ns: u64,
    next_hello_ns: u64,
    /// Who we are to the producer at the moment.
    consumer_id: Option<u32>,
    granted: Option<StreamAddress>,
    control: Option<StreamAddress>,
    mode: Mode,
    fallback: Option<String>,
    was_declined: bool,
    attempt: u32,
}

impl Greeting {
    pub fn new(stream_id: u32, wanted: Wanted, period_ns: u64) -> Self {
        Self {
            stream_id,
            wanted,
            period_ns,
            next_hello_ns: 0,
            consumer_id: None,
            granted: None,
            control: None,
            mode: Mode::Stream,
            fallback: None,
            was_declined: false,
            attempt: 0,
        }
    }

    pub fn stream_id(&self) -> u32 {
        self.stream_id
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn consumer_id(&self) -> Option<u32> {
        self.consumer_id
    }

    pub fn descriptors(&self) -> Option<&StreamAddress> {
        self.granted.as_ref()
    }

    pub fn control(&self) -> Option<&StreamAddress> {
        self.control.as_ref()
    }

    /// A new producer, a new epoch, or a new id: what was granted by the old one is void.
    pub fn begin(&mut self, consumer_id: u32) -> Vec<Turn> {
        self.next_hello_ns = 0;
        self.consumer_id = Some(consumer_id);
        self.was_declined = false;
        self.attempt = 0;
        self.mode = Mode::Stream;
        let mut turns = Vec::new();
        if self.granted.take().is_some() {
            turns.push(Turn::Descriptors(None));
        }
        if self.control.take().is_some() {
            turns.push(Turn::Control(None));
        }
        turns
    }

    /// Nobody to greet until `begin`.
    pub fn end(&mut self) -> Vec<Turn> {
        let turns = self.consumer_id.map(|id| self.begin(id)).unwrap_or_default();
        self.consumer_id = None;
        turns
    }

    /// The hello that is due. `sent` follows if it was taken.
    pub fn due(&self, now_ns: u64) -> Option<ConsumerHello> {
        let consumer_id = self.consumer_id.filter(|_| now_ns >= self.next_hello_ns)?;
        let asked = |held: &Option<StreamAddress>, wanted: &Option<Proposal>| match (held, wanted) {
            (_, None) => StreamRequest::None,
            (Some(lane), _) => StreamRequest::At(lane.clone()),
            (None, Some(proposal)) => StreamRequest::At(proposal.lane(consumer_id, self.attempt)),
        };
        Some(ConsumerHello {
            stream_id: self.stream_id,
            consumer_id,
            supports_shm: true,
            supports_progress: self.wanted.supports_progress,
            mode: self.wanted.mode,
            max_rate_hz: self.wanted.max_rate_hz,
            expected_layout_version: LAYOUT_VERSION,
            hints: self.wanted.hints,
            descriptor: asked(&self.granted, &self.wanted.descriptor),
            control: asked(&self.control, &self.wanted.control),
        })
    }

    pub fn sent(&mut self, now_ns: u64) {
        self.next_hello_ns = now_ns + self.period_ns;
    }

    pub fn on_config(&mut self, config: &ConsumerConfig) -> Vec<Turn> {
        if config.stream_id != self.stream_id || Some(config.consumer_id) != self.consumer_id {
            return Vec::new();
        }
        let mut turns = Vec::new();
        self.mode = config.mode;
        let granted = lane(&config.descriptor);
        if granted != self.granted {
            self.granted.clone_from(&granted);
            turns.push(Turn::Descriptors(granted));
        }
        let control = lane(&config.control);
        if control != self.control {
            self.control.clone_from(&control);
            turns.push(Turn::Control(control));
        }
        let declined = self.wanted.descriptor.is_some() && self.granted.is_none();
        let is_unheard = self.wanted.control.is_some() && self.control.is_none();
        if (declined || is_unheard) && self.attempt < MOST_ATTEMPTS {
            // The id may have been someone else's: another one, at once.
            self.attempt += 1;
            self.next_hello_ns = 0;
        } else if declined && !self.was_declined {
            self.was_declined = true;
            turns.push(Turn::Declined);
        }
        self.on_fallback(config, &mut turns);
        turns
    }

    fn on_fallback(&mut self, config: &ConsumerConfig, turns: &mut Vec<Turn>) {
        let uri = (!config.use_shm && !config.fallback_uri.is_empty()).then(|| config.fallback_uri.clone());
        if uri == self.fallback {
            return;
        }
        match &uri {
            None => turns.push(Turn::Shm),
            Some(uri) if is_known_fallback(uri) => turns.push(Turn::Fallback(uri.clone())),
            Some(uri) => turns.push(Turn::UnknownFallback(uri.clone())),
        }
        self.fallback = uri;
    }
}

/// Schemes that a frame can come by other than shared memory.
pub fn is_known_fallback(uri: &str) -> bool {
    uri.starts_with("bridge://") || uri.starts_with("aeron:udp?")
}

fn lane(asked: &StreamRequest) -> Option<StreamAddress> {
    match asked {
        StreamRequest::At(lane) => Some(lane.clone()),
        StreamRequest::None | StreamRequest::Invalid => None,
    }
}

#[cfg(test)]
mod tests;
