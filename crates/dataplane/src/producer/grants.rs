//! What a producer has granted, and the answers that are still to be sent.

use std::collections::{BTreeMap, VecDeque};

use tensorpool_core::producer::grants::{ConsumerGrants, GrantPolicy, StreamChange};
use tensorpool_core::producer::readers::Readers;
use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::driver::{DriverMessage, Role};
use tensorpool_core::wire::hello::{ConsumerConfig, ProgressHints};

/// How often those who fell silent are looked for.
const LOOK_NS: u64 = 100_000_000;
/// Answers that wait; a flood of hellos costs the oldest.
const MOST_ANSWERS: usize = 4096;

pub struct Wishing {
    stream_id: u32,
    wishes: ConsumerGrants,
    readers: Readers,
    answers: VecDeque<ConsumerConfig>,
    /// What was said to whom last: our own words come back to us, and are no order of a supervisor's.
    said: BTreeMap<u32, ConsumerConfig>,
    next_look_ns: u64,
}

impl Wishing {
    pub fn new(stream_id: u32, policy: GrantPolicy) -> Self {
        Self {
            stream_id,
            readers: Readers::new(policy.stale_ns),
            wishes: ConsumerGrants::new(stream_id, policy),
            answers: VecDeque::new(),
            said: BTreeMap::new(),
            next_look_ns: 0,
        }
    }

    pub fn on_control_message(&mut self, message: &ControlMessage, now_ns: u64) -> Vec<StreamChange> {
        match message {
            ControlMessage::Hello(hello) => {
                let Some((answer, changes)) = self.wishes.on_hello(hello, now_ns) else {
                    return Vec::new();
                };
                if self.answers.len() == MOST_ANSWERS {
                    self.answers.pop_front();
                }
                self.answers.push_back(answer);
                changes
            }
            ControlMessage::Config(sequencer)
                if sequencer.stream_id == self.stream_id
                    && self.said.get(&sequencer.consumer_id) != Some(sequencer) =>
            {
                self.wishes.on_order(sequencer, now_ns)
            }
            ControlMessage::QosConsumer(qos) => {
                self.wishes.on_qos(qos.stream_id, qos.consumer_id, now_ns);
                if qos.stream_id == self.stream_id {
                    self.readers.on_qos(qos.consumer_id, qos.epoch, now_ns);
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A consumer whose lease has ended has left.
    pub fn on_driver_message(&mut self, message: &DriverMessage) -> Vec<StreamChange> {
        match message {
            DriverMessage::Revoked(r)
                if r.lease.role == Role::Consumer && r.lease.stream_id == self.stream_id =>
            {
                self.said.remove(&r.lease.client_id);
                self.readers.on_leave(r.lease.client_id);
                self.wishes.on_leave(r.lease.client_id)
            }
            _ => Vec::new(),
        }
    }

    pub fn on_tick(&mut self, now_ns: u64) -> Vec<StreamChange> {
        if now_ns < self.next_look_ns {
            return Vec::new();
        }
        self.next_look_ns = now_ns + LOOK_NS;
        let changes = self.wishes.on_tick(now_ns);
        for change in &changes {
            if let StreamChange::CloseDescriptors { consumer_id }
            | StreamChange::CloseControl { consumer_id } = change
            {
                self.said.remove(consumer_id);
            }
        }
        changes
    }

    pub fn send(&mut self, send: &mut dyn FnMut(&[u8]) -> bool) {
        while let Some(answer) = self.answers.front() {
            // Before it is sent: it may be heard at once.
            self.said.insert(answer.consumer_id, answer.clone());
            if !send(&answer.encode()) {
                return;
            }
            self.answers.pop_front();
        }
    }

    pub fn progress(&self) -> Option<ProgressHints> {
        self.wishes.progress()
    }

    pub fn wants_shared_progress(&self) -> bool {
        self.wishes.wants_shared_progress()
    }

    /// How many have mapped this epoch, by what they say.
    pub fn readers(&self, epoch: u64, now_ns: u64) -> usize {
        self.readers.of(epoch, now_ns)
    }

    pub fn consumers(&self) -> usize {
        self.wishes.len()
    }
}
