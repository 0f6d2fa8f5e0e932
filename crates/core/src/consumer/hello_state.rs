//! A consumer's state of hello and config (wire §5, §10.1.2, §10.1.3, §11). Pure: when a hello is due, and
//! which streams a config changes.

use crate::wire::fallback_uri::FallbackUri;
use crate::wire::hello::{ConsumerConfig, ConsumerHello, Mode, ProgressHints, StreamAddress, StreamRequest};
use crate::wire::layout::LAYOUT_VERSION;

/// A per-consumer stream that a consumer requests: any id of a range, on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamProposal {
    pub channel: String,
    pub first: u32,
    pub last: u32,
}

/// The golden ratio as a fraction of 2^64. The multiples of neighbouring numbers are far apart.
const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

impl StreamProposal {
    /// A different id for each attempt and each consumer, so that consumers rarely request the same one.
    fn address(&self, consumer_id: u32, attempt: u32) -> StreamAddress {
        let key = u64::from(consumer_id).wrapping_add(u64::from(attempt) << 32);
        let spread = key.wrapping_mul(GOLDEN_RATIO);
        let ids = u64::from(self.last.saturating_sub(self.first)) + 1;
        StreamAddress { channel: self.channel.clone(), stream_id: self.first + ((spread >> 32) % ids) as u32 }
    }
}

/// What a consumer asks for.
#[derive(Clone, Debug, Default)]
pub struct ConsumerRequest {
    pub mode: Mode,
    pub max_rate_hz: u32,
    /// It cannot map the producer's regions: it waits for a config that names a fallback.
    pub is_remote: bool,
    pub supports_progress: bool,
    pub hints: ProgressHints,
    /// Per-consumer streams. `None`: use the shared ones.
    pub descriptor: Option<StreamProposal>,
    pub control: Option<StreamProposal>,
}

/// How often a declined request is repeated with another id.
const MAX_ATTEMPTS: u32 = 8;

/// What a config changes for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigChange {
    /// Read descriptors from this stream. `None`: from the shared stream.
    Descriptors(Option<StreamAddress>),
    /// Read progress from this stream. `None`: from the shared control stream.
    Control(Option<StreamAddress>),
    /// Read frames from this fallback URI instead of shared memory.
    Fallback(String),
    /// Read frames from shared memory again.
    Shm,
    /// The request was declined.
    Declined,
    /// A fallback URI from which no frames can be read (wire §10.1.3): why, and the URI.
    RefusedFallback(String),
}

#[derive(Clone, Debug)]
pub struct HelloState {
    stream_id: u32,
    request: ConsumerRequest,
    period_ns: u64,
    next_hello_ns: u64,
    /// The consumer id that the producer knows.
    consumer_id: Option<u32>,
    granted: Option<StreamAddress>,
    control: Option<StreamAddress>,
    mode: Mode,
    ordered_hz: Option<u32>,
    fallback: Option<String>,
    was_declined: bool,
    attempt: u32,
}

impl HelloState {
    pub fn new(stream_id: u32, request: ConsumerRequest, period_ns: u64) -> Self {
        Self {
            stream_id,
            request,
            period_ns,
            next_hello_ns: 0,
            consumer_id: None,
            granted: None,
            control: None,
            mode: Mode::Stream,
            ordered_hz: None,
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

    /// The rate that a supervisor ordered. The consumer keeps it itself while it has no per-consumer
    /// stream.
    pub fn ordered_hz(&self) -> Option<u32> {
        self.ordered_hz
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

    /// A new producer, epoch or id: earlier grants are void.
    pub fn begin(&mut self, consumer_id: u32) -> Vec<ConfigChange> {
        self.next_hello_ns = 0;
        self.consumer_id = Some(consumer_id);
        self.was_declined = false;
        self.attempt = 0;
        self.mode = Mode::Stream;
        self.ordered_hz = None;
        let mut changes = Vec::new();
        if self.granted.take().is_some() {
            changes.push(ConfigChange::Descriptors(None));
        }
        if self.control.take().is_some() {
            changes.push(ConfigChange::Control(None));
        }
        changes
    }

    /// Stops sending hellos until `begin`.
    pub fn end(&mut self) -> Vec<ConfigChange> {
        let changes = self.consumer_id.map(|id| self.begin(id)).unwrap_or_default();
        self.consumer_id = None;
        changes
    }

    /// The hello that is due. The caller calls `sent` once it is sent.
    pub fn due(&self, now_ns: u64) -> Option<ConsumerHello> {
        let consumer_id = self.consumer_id.filter(|_| now_ns >= self.next_hello_ns)?;
        let request_for =
            |granted: &Option<StreamAddress>, request: &Option<StreamProposal>| match (granted, request) {
                (_, None) => StreamRequest::None,
                (Some(address), _) => StreamRequest::At(address.clone()),
                (None, Some(proposal)) => StreamRequest::At(proposal.address(consumer_id, self.attempt)),
            };
        Some(ConsumerHello {
            stream_id: self.stream_id,
            consumer_id,
            supports_shm: !self.request.is_remote,
            supports_progress: self.request.supports_progress,
            mode: self.request.mode,
            max_rate_hz: self.request.max_rate_hz,
            expected_layout_version: LAYOUT_VERSION,
            hints: self.request.hints,
            descriptor: request_for(&self.granted, &self.request.descriptor),
            control: request_for(&self.control, &self.request.control),
        })
    }

    pub fn sent(&mut self, now_ns: u64) {
        self.next_hello_ns = now_ns + self.period_ns;
    }

    pub fn on_config(&mut self, config: &ConsumerConfig) -> Vec<ConfigChange> {
        if config.stream_id != self.stream_id || Some(config.consumer_id) != self.consumer_id {
            return Vec::new();
        }
        let mut changes = Vec::new();
        self.mode = config.mode;
        match (config.max_rate_hz, config.mode) {
            // The producer's answer that it grants no stream: the order stays.
            (None, Mode::Stream) => {}
            // An order. Its end has the rate 0, or leaves the rate to the consumer.
            (hz, mode) => self.ordered_hz = hz.filter(|hz| *hz > 0 && mode == Mode::RateLimited),
        }
        let granted = granted_address(&config.descriptor);
        if granted != self.granted {
            self.granted.clone_from(&granted);
            changes.push(ConfigChange::Descriptors(granted));
        }
        let control = granted_address(&config.control);
        if control != self.control {
            self.control.clone_from(&control);
            changes.push(ConfigChange::Control(control));
        }
        let declined = self.request.descriptor.is_some() && self.granted.is_none();
        let control_declined = self.request.control.is_some() && self.control.is_none();
        if (declined || control_declined) && self.attempt < MAX_ATTEMPTS {
            // The id may belong to another consumer: request another one at once.
            self.attempt += 1;
            self.next_hello_ns = 0;
        } else if declined && !self.was_declined {
            self.was_declined = true;
            changes.push(ConfigChange::Declined);
        }
        self.on_fallback(config, &mut changes);
        changes
    }

    fn on_fallback(&mut self, config: &ConsumerConfig, changes: &mut Vec<ConfigChange>) {
        let uri = (!config.use_shm && !config.fallback_uri.is_empty()).then(|| config.fallback_uri.clone());
        if uri == self.fallback {
            return;
        }
        // An Aeron channel alone is refused too: it does not say where the source's announces come from.
        changes.push(match uri.as_deref().map(|uri| (uri, FallbackUri::parse(uri))) {
            None => ConfigChange::Shm,
            Some((uri, Ok(_))) => ConfigChange::Fallback(uri.to_owned()),
            Some((uri, Err(why))) => ConfigChange::RefusedFallback(format!("{why}: {uri}")),
        });
        self.fallback = uri;
    }
}

fn granted_address(request_for: &StreamRequest) -> Option<StreamAddress> {
    match request_for {
        StreamRequest::At(address) => Some(address.clone()),
        StreamRequest::None | StreamRequest::Invalid => None,
    }
}

#[cfg(test)]
mod tests;
