//! The transitions of a source over streams of this process, driven by random events. The reader above it is
//! the real one, so that what counts is what a consumer delivers.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::shm::create::PoolSpec;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::wire::descriptor::{FRAME_DESCRIPTOR_ENCODED_LENGTH, FrameDescriptor};

use super::super::counters::Counters;
use super::super::reader::{RateLimit, Reader};
use super::super::state::State;
use super::*;

const EPOCH: u64 = 7;
const NSLOTS: u64 = 1024;

#[derive(Default)]
struct StreamLog {
    waiting: VecDeque<u64>,
    /// Published while the stream was polled: after the poll, and before the next check.
    arriving: VecDeque<u64>,
    is_closed: bool,
    is_gone: bool,
}

/// A stream whose two ends are in this test. Its drop is its close.
struct FakeStream(Rc<RefCell<StreamLog>>);

impl Drop for FakeStream {
    fn drop(&mut self) {
        self.0.borrow_mut().is_closed = true;
    }
}

fn descriptor(seq: u64) -> FrameDescriptor {
    FrameDescriptor { stream_id: 1, epoch: EPOCH, seq, timestamp_ns: None, meta_version: None, trace_id: 0 }
}

impl Stream for FakeStream {
    type Header = ();

    fn is_connected(&self) -> bool {
        true
    }

    fn has_fragment(&mut self) -> bool {
        let log = self.0.borrow();
        assert!(!log.is_closed && !log.is_gone, "a closed stream is looked at");
        !log.waiting.is_empty()
    }

    fn poll_while<F: FnMut(&[u8], ()) -> bool>(&mut self, limit: usize, mut f: F) -> usize {
        let mut taken = 0;
        while taken < limit {
            let next = {
                let mut log = self.0.borrow_mut();
                assert!(!log.is_closed && !log.is_gone, "a closed stream is polled");
                log.waiting.pop_front()
            };
            let Some(seq) = next else { break };
            taken += 1;
            let mut bytes = [0; FRAME_DESCRIPTOR_ENCODED_LENGTH];
            descriptor(seq).encode(&mut bytes);
            if !f(&bytes, ()) {
                break;
            }
        }
        let mut log = self.0.borrow_mut();
        let arriving = std::mem::take(&mut log.arriving);
        log.waiting.extend(arriving);
        taken
    }

    fn skip_while<F: FnMut(&[u8]) -> bool>(&mut self, limit: usize, mut f: F) -> usize {
        let mut log = self.0.borrow_mut();
        assert!(!log.is_closed && !log.is_gone, "descriptors of a closed stream are skipped");
        for _ in 0..limit {
            let Some(seq) = log.waiting.front() else { break };
            let mut bytes = [0; FRAME_DESCRIPTOR_ENCODED_LENGTH];
            descriptor(*seq).encode(&mut bytes);
            if !f(&bytes) {
                break;
            }
            log.waiting.pop_front();
        }
        1
    }

    fn session_id(_: ()) -> i32 {
        1
    }

    fn departures(&self) -> u64 {
        0
    }

    fn joined_ns(&self, _: i32) -> Option<u64> {
        Some(1)
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// A frame. `late`: its descriptor reaches a stream that is being polled after that poll.
    Publish {
        late: bool,
    },
    Subscribe,
    Grant,
    Connect,
    Withdraw,
    Queue,
    Poll(usize),
    // From here on descriptors may be left behind.
    ConnectLimited,
    Expire,
    Fallback,
    FallbackEnds,
    Disconnect,
    Close,
}

fn keeping() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => any::<bool>().prop_map(|late| Event::Publish { late }),
        3 => Just(Event::Subscribe),
        2 => Just(Event::Grant),
        3 => Just(Event::Connect),
        1 => Just(Event::Withdraw),
        1 => Just(Event::Queue),
        6 => (1usize..6).prop_map(Event::Poll),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => keeping(),
        1 => Just(Event::ConnectLimited),
        1 => Just(Event::Expire),
        1 => Just(Event::Fallback),
        1 => Just(Event::FallbackEnds),
        1 => Just(Event::Disconnect),
    ]
}

/// The producer's side of all streams, and the consumer's.
struct Harness {
    state: State<FakeStream>,
    counters: Counters,
    mapping: Arc<MappedEpoch>,
    /// Every stream that was ever opened, and whether the producer publishes on it still.
    streams: Vec<(Rc<RefCell<StreamLog>>, bool)>,
    granted: Option<usize>,
    queue: Option<Arc<DescriptorQueue>>,
    ring: Option<Arc<PrivateRing>>,
    next_seq: u64,
    /// The sequences that were published on a stream or queue that the source holds.
    receivable: BTreeSet<u64>,
    delivered: Vec<u64>,
    is_closed: bool,
}

impl Harness {
    fn new() -> Self {
        let pools = [PoolSpec { pool_id: 1, stride_bytes: 64 }];
        let mapping = Arc::new(MappedEpoch::anonymous(1, EPOCH, NSLOTS as u32, &pools, 1 << 20).unwrap());
        let mut reader = Reader::new(1_000, 1 << 20);
        reader.follow_epoch(&Counters::default(), EPOCH, NSLOTS, None);
        reader.epoch.mapping = Some(mapping.clone());
        Self {
            state: State::new(reader),
            counters: Counters::default(),
            mapping,
            streams: Vec::new(),
            granted: None,
            queue: None,
            ring: None,
            next_seq: 0,
            receivable: BTreeSet::new(),
            delivered: Vec::new(),
            is_closed: false,
        }
    }

    fn open(&mut self) -> FakeStream {
        let log = Rc::new(RefCell::new(StreamLog::default()));
        self.streams.push((log.clone(), true));
        FakeStream(log)
    }

    fn is_requested(&self) -> bool {
        self.state.source.next.is_some()
    }

    /// The name of the state, and the states that a test has to reach and to leave.
    fn state_name(&self) -> &'static str {
        let source = &self.state.source;
        match (&source.fallback, &source.current, source.draining.is_empty()) {
            (Some(_), _, _) => "fallback",
            (None, DescriptorSource::Opening(_), true) => "opening",
            (None, DescriptorSource::Opening(_), false) => "opening, draining",
            (None, DescriptorSource::Shared(_), true) if source.next.is_some() => "shared, connecting",
            (None, DescriptorSource::Shared(_), true) => "shared",
            (None, DescriptorSource::Shared(_), false) => "shared, draining",
            (None, DescriptorSource::Queue(_), true) => "queue",
            (None, DescriptorSource::Queue(_), false) => "queue, draining",
            (None, DescriptorSource::PerConsumer { .. }, true) => "per-consumer",
            (None, DescriptorSource::PerConsumer { .. }, false) => "per-consumer, draining",
            (None, DescriptorSource::Closed, _) => "closed",
        }
    }

    const STATES: [&str; 10] = [
        "fallback",
        "opening",
        "opening, draining",
        "shared, connecting",
        "shared",
        "shared, draining",
        "queue",
        "queue, draining",
        "per-consumer",
        "per-consumer, draining",
    ];

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Publish { late } => {
                let (seq, mut is_held) = (self.next_seq, false);
                self.next_seq += 1;
                for (log, publishes) in &self.streams {
                    let mut log = log.borrow_mut();
                    if *publishes && !log.is_closed {
                        let late = late || !log.arriving.is_empty();
                        if late {
                            log.arriving.push_back(seq)
                        } else {
                            log.waiting.push_back(seq)
                        }
                        is_held = true;
                    }
                }
                if let Some(queue) = &self.queue {
                    queue.push(descriptor(seq));
                    is_held = true;
                }
                if let Some(ring) = &self.ring {
                    ring.push(self.mapping.clone(), descriptor(seq));
                }
                if is_held {
                    self.receivable.insert(seq);
                }
            }
            Event::Subscribe => {
                if matches!(self.state.source.current, DescriptorSource::Opening(_)) {
                    let stream = self.open();
                    self.state.source.on_subscribed(stream);
                }
            }
            Event::Grant => {
                let address = StreamAddress { channel: "aeron:ipc".to_owned(), stream_id: 5 };
                self.state.on_descriptors(Some(address));
            }
            Event::Connect | Event::ConnectLimited => {
                if !self.is_requested() {
                    return;
                }
                let limited = matches!(event, Event::ConnectLimited);
                let stream = self.open();
                // One grant at a time: the producer publishes no longer on the one before.
                if let Some(before) = self.granted.replace(self.streams.len() - 1) {
                    self.streams[before].1 = false;
                }
                self.state.reader.overlaps |= self.state.source.on_connected(stream, limited).overlaps();
                self.state.reader.rate_limit.on_config(limited, true);
            }
            Event::Withdraw => {
                if let Some(before) = self.granted.take() {
                    self.streams[before].1 = false;
                }
                self.state.on_descriptors(None);
                self.state.reader.rate_limit = RateLimit::Off;
            }
            Event::Queue => {
                if self.queue.is_none() {
                    let queue = Arc::new(DescriptorQueue::default());
                    self.queue = Some(queue.clone());
                    self.state.on_queue(queue);
                }
            }
            Event::Poll(limit) => self.poll(limit),
            Event::Expire => {
                if let Some(oldest) = self.state.source.draining.front_mut() {
                    oldest.until = Instant::now();
                }
            }
            Event::Fallback => {
                if self.ring.is_none() {
                    let ring = Arc::new(PrivateRing::new(1, 1 << 20));
                    self.ring = Some(ring.clone());
                    self.state.reader.overlaps |= self.state.source.on_fallback(ring).overlaps();
                }
            }
            Event::FallbackEnds => {
                self.ring = None;
                if let Some(switch) = self.state.source.on_fallback_ended() {
                    self.state.reader.overlaps |= switch.overlaps();
                }
            }
            Event::Disconnect => {
                // Before the call: after it the streams are gone.
                self.streams.iter().for_each(|(log, _)| log.borrow_mut().is_gone = true);
                self.state.reader.overlaps |= self.state.source.on_disconnected().overlaps();
                self.granted = None;
                self.streams.iter_mut().for_each(|(_, publishes)| *publishes = false);
            }
            Event::Close => {
                self.state.source.close();
                self.is_closed = true;
            }
        }
    }

    fn poll(&mut self, limit: usize) {
        let delivered = &mut self.delivered;
        self.state.drain_while(1, &self.counters, limit, &mut (), |_, _, d, ()| {
            delivered.push(d.seq);
            true
        });
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert!(
            self.delivered.is_sorted_by(|a, b| a < b),
            "twice or out of order: {:?}",
            self.delivered
        );
        for reason in [DropReason::Duplicate, DropReason::Regressed] {
            prop_assert_eq!(self.counters.drops.get(reason), 0, "{}", reason.as_str());
        }
        let span = self.counters.span.load(Ordering::Relaxed);
        prop_assert_eq!(span, self.delivered.len() as u64 + self.counters.drops.in_span());
        let open = self.streams.iter().filter(|(log, _)| !log.borrow().is_closed).count();
        prop_assert!(open <= 1 + MAX_DRAINING, "{} streams are open", open);
        prop_assert!(!self.is_closed || open == 0, "closed, and a stream is open");
        let gone = self.streams.iter().any(|(log, _)| log.borrow().is_gone && !log.borrow().is_closed);
        prop_assert!(!gone, "a stream of a media driver that is gone is kept");
        Ok(())
    }

    /// Reads everything that can be read.
    fn read_all(&mut self) {
        self.apply(&Event::Subscribe);
        for _ in 0..20 {
            self.poll(1 << 10);
        }
    }
}

/// Runs the events, and returns the changes of state.
fn run(harness: &mut Harness, events: &[Event]) -> Result<BTreeSet<[&'static str; 2]>, TestCaseError> {
    let mut changes = BTreeSet::new();
    for event in events {
        let before = harness.state_name();
        harness.apply(event);
        harness.check()?;
        if harness.state_name() != before {
            changes.insert([before, harness.state_name()]);
        }
    }
    Ok(changes)
}

#[test]
fn changes_of_the_source_deliver_every_descriptor_once_in_order() {
    let events = prop::collection::vec(keeping(), 0..120);
    let mut runner = TestRunner::new(Config { cases: 2_000, failure_persistence: None, ..Config::default() });
    let runs = runner.run(&events, |events| {
        let mut harness = Harness::new();
        // More changes between two polls than streams are kept would leave descriptors behind, on purpose.
        let mut kept: Vec<Event> = Vec::new();
        for event in events {
            let is_change = matches!(event, Event::Connect | Event::Queue | Event::Withdraw);
            kept.push(event);
            if is_change {
                kept.extend([Event::Poll(2), Event::Subscribe, Event::Poll(1 << 10), Event::Poll(1 << 10)]);
            }
        }
        run(&mut harness, &kept)?;
        harness.read_all();
        harness.check()?;
        let Some(first) = harness.delivered.first() else { return Ok(()) };
        let expected: Vec<u64> = harness.receivable.range(first..).copied().collect();
        prop_assert_eq!(&harness.delivered, &expected);
        Ok(())
    });
    runs.unwrap();
}

#[test]
fn every_state_of_the_source_is_reached_and_left_in_order() {
    let events = prop::collection::vec(any_event(), 0..200);
    let seen = RefCell::new(BTreeSet::new());
    let mut runner = TestRunner::new(Config { cases: 2_000, failure_persistence: None, ..Config::default() });
    let runs = runner.run(&events, |events| {
        let mut harness = Harness::new();
        seen.borrow_mut().extend(run(&mut harness, &events)?);
        harness.apply(&Event::Close);
        let delivered = harness.delivered.len();
        for event in &events {
            harness.apply(event);
            harness.check()?;
        }
        prop_assert_eq!(harness.delivered.len(), delivered, "a closed source delivers");
        prop_assert_eq!(harness.state_name(), "closed");
        Ok(())
    });
    runs.unwrap();
    let seen = seen.into_inner();
    for state in Harness::STATES {
        assert!(seen.iter().any(|[_, to]| *to == state), "{state} is not reached");
        assert!(seen.iter().any(|[from, _]| *from == state), "{state} is not left");
    }
}
