//! Publisher of a producer's metadata (wire §10.3). On the conductor's thread, so that a busy interpreter
//! delays nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::producer::metadata_schedule::{MetadataSchedule, Periods, ProducerIdentity};
use tensorpool_core::wire::control::ControlMessage;

use crate::aeron::{AeronError, Client, MessageSender};
use crate::conductor::{Endpoint, Tick};
use crate::producer::Producer;

/// How often the producer's epoch is read, which takes its lock.
const IDENTITY_CHECK_NS: u64 = 20_000_000;

struct State {
    sender: MessageSender,
    schedule: MetadataSchedule,
    identity: Option<ProducerIdentity>,
    next_check_ns: u64,
    closed: bool,
}

pub struct MetadataPublisher {
    channel: String,
    stream_id: i32,
    producer: Arc<Producer>,
    state: Mutex<State>,
}

impl MetadataPublisher {
    pub fn new(channel: String, stream_id: i32, producer: Arc<Producer>, periods: Periods) -> Self {
        let schedule = MetadataSchedule::new(producer.stream_id(), periods);
        let sender = MessageSender::default();
        let state = State { sender, schedule, identity: None, next_check_ns: 0, closed: false };
        Self { channel, stream_id, producer, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes at once, if there is a subscriber: before any frame that refers to it. False: the first
    /// message is not an announce.
    pub fn put(&self, announce: Vec<u8>, meta: Vec<u8>) -> bool {
        let mut state = self.lock();
        let put = state.schedule.put(announce, meta);
        self.send_due(&mut state, monotonic_ns());
        put
    }

    /// Announces the producer without metadata, until there is some.
    pub fn put_undescribed(&self) {
        self.lock().schedule.put_undescribed();
    }

    pub fn put_blob(&self, blob_type: u32, version: u32, bytes: Vec<u8>) {
        self.lock().schedule.put_blob(blob_type, version, bytes);
    }

    pub fn take_blob(&self, blob_type: u32) -> bool {
        self.lock().schedule.take_blob(blob_type)
    }

    pub fn is_ready(&self) -> bool {
        self.lock().sender.is_ready()
    }

    /// The longest message that the stream accepts. `None` while there is no publication.
    pub fn max_message_length(&self) -> Option<usize> {
        self.lock().sender.max_message_length()
    }

    fn send_due(&self, state: &mut State, now_ns: u64) {
        let State { sender, schedule, identity, next_check_ns, .. } = state;
        if !sender.is_connected() {
            return;
        }
        if schedule.is_due(now_ns) || now_ns >= *next_check_ns {
            *identity = self.producer.identity();
            *next_check_ns = now_ns + IDENTITY_CHECK_NS;
        }
        if let Some(identity) = *identity {
            schedule.send_due(now_ns, identity, &mut |message| sender.offer(message).is_ok());
        }
    }
}

impl Endpoint for MetadataPublisher {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let mut state = self.lock();
        if state.closed {
            return Ok(());
        }
        state.sender.advance(client, &self.channel, self.stream_id)
    }

    fn disconnect(&self) {
        self.lock().sender.disconnect();
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.sender.disconnect();
    }

    fn uses_control_streams(&self) -> bool {
        true
    }

    fn dedicated_control_stream(&self) -> Option<i32> {
        self.producer.dedicated_control_stream()
    }

    fn on_control_message(&self, message: &ControlMessage, tick: &Tick<'_>) {
        if let ControlMessage::Hello(hello) = message
            && hello.stream_id == self.producer.stream_id()
        {
            self.lock().schedule.on_hello(hello.consumer_id, tick.now.monotonic_ns);
        }
    }

    fn do_work(&self, tick: &Tick<'_>) {
        self.send_due(&mut self.lock(), tick.now.monotonic_ns);
    }
}
