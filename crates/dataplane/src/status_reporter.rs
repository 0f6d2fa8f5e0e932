//! Status reporter of a producer or consumer: counters in the media driver (decision 39), and on the status
//! stream its status report, with a consumer's latency, for which QoS has no fields (wire §10.4.1). On the
//! conductor's thread, so that a busy interpreter delays nothing.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorpool_core::consumer::latency::LatencyReport;
use tensorpool_core::os::time::realtime_ns;
use tensorpool_core::wire::status::{LatencyStatus, MAX_SOURCES};

use crate::aeron::{AeronError, Client, Publication};
use crate::conductor::handle::Handle;
use crate::conductor::{Endpoint, Tick};
use crate::consumer::Consumer;
use crate::endpoint_counters::{CounterSpec, EndpointCounters};
use crate::producer::Producer;

const CONSUMER_COUNTERS: [CounterSpec; 4] = [
    CounterSpec { name: "received", unit: "frames", grows: true },
    CounterSpec { name: "dropped", unit: "frames", grows: true },
    CounterSpec { name: "latency p50", unit: "ns", grows: false },
    CounterSpec { name: "latency p99", unit: "ns", grows: false },
];
const PRODUCER_COUNTERS: [CounterSpec; 2] = [
    CounterSpec { name: "published", unit: "frames", grows: true },
    CounterSpec { name: "unpublished", unit: "frames", grows: true },
];

/// The endpoint that is reported.
pub enum Subject {
    Consumer(Arc<Consumer>),
    Producer(Arc<Producer>),
}

impl Subject {
    fn describe(&self) -> (&'static str, u32, &'static [CounterSpec]) {
        match self {
            Self::Consumer(consumer) => ("consumer", consumer.stream_id(), &CONSUMER_COUNTERS),
            Self::Producer(producer) => ("producer", producer.stream_id(), &PRODUCER_COUNTERS),
        }
    }
}

pub struct Config {
    /// Channel and stream id of the status stream. `None`: nothing is published.
    pub status: Option<(String, i32)>,
    pub reports_status: bool,
    /// Whether a consumer's report has its latency.
    pub reports_latency: bool,
    pub shows_counters: bool,
    /// What the user calls a consumer. Empty: nothing.
    pub label: String,
    /// How often a producer's counters are updated. Those of a consumer follow its intervals.
    pub period_ns: u64,
}

struct State {
    publication: Handle<Publication>,
    endpoint_counters: EndpointCounters,
    /// The consumer's last reported interval.
    reported_intervals: u64,
    next_ns: u64,
    is_closed: bool,
    /// The last id of the endpoint.
    last_id: Option<u32>,
    /// Streams that a producer's frames are made from.
    sources: Vec<u32>,
}

pub struct StatusReporter {
    config: Config,
    subject: Subject,
    state: Mutex<State>,
}

impl StatusReporter {
    pub fn new(config: Config, subject: Subject) -> Self {
        let (role, stream_id, specs) = subject.describe();
        let endpoint_counters = if config.shows_counters {
            EndpointCounters::new(&format!("{role}/{stream_id}@{}", std::process::id()), specs)
        } else {
            EndpointCounters::default()
        };
        let state = State {
            publication: Handle::None,
            endpoint_counters,
            reported_intervals: 0,
            next_ns: 0,
            is_closed: false,
            last_id: None,
            sources: Vec::new(),
        };
        Self { config, subject, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The producer's frames are also made from those of that stream.
    pub fn add_source(&self, stream_id: u32) {
        let mut state = self.lock();
        if state.sources.len() < MAX_SOURCES
            && let Err(index) = state.sources.binary_search(&stream_id)
        {
            state.sources.insert(index, stream_id);
        }
    }

    fn publish_status(&self, state: &mut State, wall_ns: u64, is_final: bool) {
        let Some(publication) =
            state.publication.get().filter(|p| self.config.reports_status && p.is_connected())
        else {
            return;
        };
        let status = match &self.subject {
            Subject::Consumer(consumer) => {
                let report = self.config.reports_latency.then(|| consumer.counters().latency.report());
                consumer.status_event(
                    &mut state.last_id,
                    report.map(to_wire),
                    &self.config.label,
                    is_final,
                    wall_ns,
                )
            }
            Subject::Producer(producer) => {
                producer.status_event(&mut state.last_id, &state.sources, is_final, wall_ns)
            }
        };
        if let Some(status) = status {
            // An unsent report is dropped: the next one comes soon.
            let _ = publication.offer(&status);
        }
    }

    fn report_consumer(&self, consumer: &Consumer, state: &mut State, tick: &Tick<'_>) {
        let counters = consumer.counters();
        let intervals = counters.latency.intervals();
        if intervals == state.reported_intervals {
            return;
        }
        state.reported_intervals = intervals;
        let report = counters.latency.report();
        let received = counters.received.load(Ordering::Relaxed);
        let dropped = counters.drops.in_span();
        state.endpoint_counters.set(&[received, dropped, report.last.p50, report.last.p99]);
        self.publish_status(state, tick.now.realtime_ns, false);
    }

    fn report_producer(&self, producer: &Producer, state: &mut State, tick: &Tick<'_>) {
        if tick.now.monotonic_ns < state.next_ns {
            return;
        }
        state.next_ns = tick.now.monotonic_ns + self.config.period_ns;
        let c = producer.counters();
        let lost = [&c.back_pressured, &c.not_connected, &c.closed];
        let unpublished = lost.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        state.endpoint_counters.set(&[c.published.load(Ordering::Relaxed), unpublished]);
        self.publish_status(state, tick.now.realtime_ns, false);
    }
}

fn to_wire(report: LatencyReport) -> LatencyStatus {
    let LatencyReport { since, life, last, left_out } = report;
    LatencyStatus { since, excluded: left_out, interval: last, total: life }
}

impl Endpoint for StatusReporter {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let mut state = self.lock();
        if state.is_closed {
            return Ok(());
        }
        state.endpoint_counters.advance(client);
        match &self.config.status {
            Some((channel, stream_id)) => {
                state.publication.advance(|| client.add_publication(channel, *stream_id))
            }
            None => Ok(()),
        }
    }

    fn disconnect(&self) {
        let mut state = self.lock();
        state.publication = Handle::None;
        state.endpoint_counters.disconnect();
    }

    fn close(&self) {
        {
            let mut state = self.lock();
            state.is_closed = true;
            // The final report: nothing is counted from here on.
            self.publish_status(&mut state, realtime_ns(), true);
        }
        self.disconnect();
    }

    fn do_work(&self, tick: &Tick<'_>) {
        let mut state = self.lock();
        match &self.subject {
            Subject::Consumer(consumer) => self.report_consumer(consumer, &mut state, tick),
            Subject::Producer(producer) => self.report_producer(producer, &mut state, tick),
        }
    }
}
