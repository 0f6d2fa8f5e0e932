//! A consumer's control state: hello, config, phase and QoS reports (wire §5, §10.1.2, §10.4.1). On the
//! conductor's thread.

use std::collections::VecDeque;

use tensorpool_core::consumer::hello_state::{ConfigChange, ConsumerRequest, HelloState};
use tensorpool_core::consumer::phase::{Phase, PhaseState};
use tensorpool_core::wire::control::{ControlMessage, QosConsumer};
use tensorpool_core::wire::hello::{Mode, StreamAddress};

/// Our own reports come back to us. A report equal to one of the last few is ours.
const OWN_REPORTS: usize = 8;

/// A snapshot of a consumer's id, mode, streams and phase.
#[derive(Clone, Debug, Default)]
pub struct ConsumerState {
    pub consumer_id: Option<u32>,
    pub mode: Mode,
    pub descriptors: Option<StreamAddress>,
    /// Whether descriptors are already read from the per-consumer stream.
    pub on_per_consumer: bool,
    pub control: Option<StreamAddress>,
    /// `None`: unknown.
    pub phase: Option<Phase>,
    pub fallback_uri: Option<String>,
    pub declined: bool,
    /// This consumer keeps the rate that it requested, or that was ordered, itself: it reads no per-consumer
    /// stream.
    pub gates_locally: bool,
}

pub struct ConsumerControl {
    hello_state: HelloState,
    /// The rate that was requested. 0: none.
    requested_hz: u32,
    period_ns: u64,
    next_qos_ns: u64,
    reports: VecDeque<QosConsumer>,
    phase_state: PhaseState,
    /// The last consumer id, also while no hellos are sent.
    consumer_id: Option<u32>,
    declined: bool,
}

impl ConsumerControl {
    pub fn new(stream_id: u32, request: ConsumerRequest, period_ns: u64) -> Self {
        let requested_hz = if request.mode == Mode::RateLimited { request.max_rate_hz } else { 0 };
        Self {
            hello_state: HelloState::new(stream_id, request, period_ns),
            requested_hz,
            period_ns,
            next_qos_ns: 0,
            reports: VecDeque::new(),
            phase_state: PhaseState::default(),
            consumer_id: None,
            declined: false,
        }
    }

    /// The consumer's own fallback, for the time without shared memory.
    pub fn set_own_fallback(&mut self, uri: &str) {
        self.phase_state.set_own_fallback(uri);
    }

    /// No regions were announced in time, or none can be mapped at all.
    pub fn on_absent(&mut self) {
        self.phase_state.on_absent();
    }

    /// Whether hellos are sent.
    pub fn sends_hellos(&self) -> bool {
        self.hello_state.consumer_id().is_some()
    }

    /// The fallback URI to read frames from instead of shared memory.
    pub fn fallback_uri(&self) -> Option<&str> {
        self.phase_state.fallback_uri()
    }

    /// The rate that this consumer keeps itself while it reads no per-consumer stream: the one that a supervisor
    /// ordered, or that it requested. 0: none.
    pub fn local_hz(&self) -> u32 {
        self.hello_state.ordered_hz().unwrap_or(self.requested_hz)
    }

    /// A poll may have unmapped the regions since they were mapped. The mode is the one in force: without a
    /// per-consumer stream the producer limits nothing, and the consumer keeps the rate itself.
    pub fn state(&self, is_mapped: bool, on_per_consumer: bool) -> ConsumerState {
        let mut phase_state = self.phase_state.clone();
        if !is_mapped {
            phase_state.on_unmapped();
        }
        ConsumerState {
            consumer_id: self.hello_state.consumer_id(),
            mode: match (on_per_consumer, self.local_hz()) {
                (true, _) => self.hello_state.mode(),
                (false, 0) => Mode::Stream,
                (false, _) => Mode::RateLimited,
            },
            descriptors: self.hello_state.descriptors().cloned(),
            on_per_consumer,
            control: self.hello_state.control().cloned(),
            phase: Some(phase_state.phase()),
            fallback_uri: phase_state.fallback_uri().map(str::to_owned),
            declined: self.declined,
            gates_locally: self.local_hz() > 0 && !on_per_consumer,
        }
    }

    pub fn begin(&mut self, consumer_id: u32) -> Vec<ConfigChange> {
        if self.consumer_id.replace(consumer_id) != Some(consumer_id) {
            self.phase_state.on_new_id();
        }
        self.hello_state.begin(consumer_id)
    }

    /// The regions were mapped or unmapped.
    pub fn on_regions(&mut self, is_mapped: bool) {
        if is_mapped { self.phase_state.on_mapped() } else { self.phase_state.on_unmapped() }
    }

    pub fn on_refused(&mut self) {
        self.phase_state.on_refused();
    }

    /// Requests the same again from the current producer.
    pub fn restart(&mut self) -> Vec<ConfigChange> {
        self.hello_state.consumer_id().map(|id| self.hello_state.begin(id)).unwrap_or_default()
    }

    pub fn end(&mut self) -> Vec<ConfigChange> {
        self.hello_state.end()
    }

    pub fn is_limited(&self) -> bool {
        self.hello_state.mode() == Mode::RateLimited && self.hello_state.descriptors().is_some()
    }

    /// The changes of a message, and whether it shows that another consumer has our id (decision 17).
    pub fn on_control_message(&mut self, message: &ControlMessage) -> (Vec<ConfigChange>, bool) {
        match message {
            ControlMessage::Config(config) => {
                if config.stream_id == self.hello_state.stream_id()
                    && Some(config.consumer_id) == self.hello_state.consumer_id()
                {
                    self.phase_state.on_config(config.use_shm, &config.fallback_uri);
                }
                let changes = self.hello_state.on_config(config);
                for change in &changes {
                    match change {
                        ConfigChange::Declined => self.declined = true,
                        ConfigChange::Descriptors(Some(_)) => self.declined = false,
                        _ => {}
                    }
                }
                (changes, false)
            }
            ControlMessage::QosConsumer(qos) => {
                let is_ours = Some(qos.consumer_id) == self.hello_state.consumer_id();
                let is_current = qos.stream_id == self.hello_state.stream_id();
                (Vec::new(), is_ours && is_current && !self.reports.contains(qos))
            }
            _ => (Vec::new(), false),
        }
    }

    /// Sends a hello if one is due.
    pub fn send_hello(&mut self, now_ns: u64, send: &mut dyn FnMut(&[u8]) -> bool) {
        if let Some(hello) = self.hello_state.due(now_ns)
            && send(&hello.encode())
        {
            self.hello_state.sent(now_ns);
        }
    }

    /// Makes the next QoS report due at once.
    pub fn report_soon(&mut self) {
        self.next_qos_ns = 0;
    }

    pub fn is_report_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_qos_ns && self.hello_state.consumer_id().is_some()
    }

    pub fn report(&mut self, qos: QosConsumer, now_ns: u64, send: &mut dyn FnMut(&[u8]) -> bool) {
        // Stored before it is sent: it may be received at once.
        self.reports.push_back(qos);
        if self.reports.len() > OWN_REPORTS {
            self.reports.pop_front();
        }
        if send(&qos.encode()) {
            self.next_qos_ns = now_ns + self.period_ns;
        }
    }
}
