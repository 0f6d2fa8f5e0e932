//! Grants of a producer and the configs that are still to be sent (wire §5). On the conductor's thread.

use std::collections::{BTreeMap, VecDeque};

use tensorpool_core::producer::grants::{ConsumerGrants, GrantPolicy, RefusedStream, StreamChange};
use tensorpool_core::producer::readers::Readers;
use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::driver::{DriverMessage, Role};
use tensorpool_core::wire::hello::{ConsumerConfig, ProgressHints};

/// How often stale consumers are removed.
const STALE_CHECK_NS: u64 = 100_000_000;
/// Configs that wait to be sent. A flood of hellos drops the oldest.
const MAX_CONFIGS: usize = 4096;

pub struct GrantSender {
    stream_id: u32,
    grants: ConsumerGrants,
    readers: Readers,
    configs: VecDeque<ConsumerConfig>,
    /// The last config sent to each consumer. Our own configs come back to us, and must not count as orders
    /// of a supervisor.
    sent_configs: BTreeMap<u32, ConsumerConfig>,
    next_check_ns: u64,
}

impl GrantSender {
    pub fn new(stream_id: u32, policy: GrantPolicy) -> Self {
        Self {
            stream_id,
            readers: Readers::new(policy.stale_ns),
            grants: ConsumerGrants::new(stream_id, policy),
            configs: VecDeque::new(),
            sent_configs: BTreeMap::new(),
            next_check_ns: 0,
        }
    }

    /// Whether this is a hello of a consumer of our stream that is not known yet.
    pub fn is_first_hello(&self, message: &ControlMessage) -> bool {
        matches!(message, ControlMessage::Hello(hello)
            if hello.stream_id == self.stream_id && !self.grants.contains(hello.consumer_id))
    }

    pub fn on_control_message(&mut self, message: &ControlMessage, now_ns: u64) -> Vec<StreamChange> {
        match message {
            ControlMessage::Hello(hello) => {
                let Some((config, changes)) = self.grants.on_hello(hello, now_ns) else {
                    return Vec::new();
                };
                self.queue_config(config);
                changes
            }
            ControlMessage::Config(order)
                if order.stream_id == self.stream_id
                    && self.sent_configs.get(&order.consumer_id) != Some(order) =>
            {
                self.grants.on_order(order, now_ns)
            }
            ControlMessage::QosConsumer(qos) => {
                self.grants.on_qos(qos.stream_id, qos.consumer_id, now_ns);
                if qos.stream_id == self.stream_id {
                    self.readers.on_qos(qos.consumer_id, qos.epoch, now_ns);
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn queue_config(&mut self, config: ConsumerConfig) {
        if self.configs.len() == MAX_CONFIGS {
            self.configs.pop_front();
        }
        self.configs.push_back(config);
    }

    /// Withdraws a stream that the media driver refused. The consumer gets a config at once: until then it
    /// waits for frames on a stream without a publication.
    pub fn on_refused(&mut self, refused: RefusedStream, now_ns: u64) -> Vec<StreamChange> {
        let Some((config, changes)) = self.grants.on_refused(refused, now_ns) else {
            return Vec::new();
        };
        self.queue_config(config);
        changes
    }

    /// A consumer whose lease has ended has left.
    pub fn on_driver_message(&mut self, message: &DriverMessage) -> Vec<StreamChange> {
        match message {
            DriverMessage::Revoked(r)
                if r.lease.role == Role::Consumer && r.lease.stream_id == self.stream_id =>
            {
                self.sent_configs.remove(&r.lease.client_id);
                self.readers.on_leave(r.lease.client_id);
                self.grants.on_leave(r.lease.client_id)
            }
            _ => Vec::new(),
        }
    }

    pub fn on_tick(&mut self, now_ns: u64) -> Vec<StreamChange> {
        if now_ns < self.next_check_ns {
            return Vec::new();
        }
        self.next_check_ns = now_ns + STALE_CHECK_NS;
        let changes = self.grants.on_tick(now_ns);
        for change in &changes {
            if let StreamChange::CloseDescriptors { consumer_id }
            | StreamChange::CloseControl { consumer_id } = change
            {
                self.sent_configs.remove(consumer_id);
            }
        }
        changes
    }

    pub fn send(&mut self, send: &mut dyn FnMut(&[u8]) -> bool) {
        while let Some(config) = self.configs.front() {
            // Stored before it is sent: it may be received at once.
            self.sent_configs.insert(config.consumer_id, config.clone());
            if !send(&config.encode()) {
                return;
            }
            self.configs.pop_front();
        }
    }

    pub fn progress(&self) -> Option<ProgressHints> {
        self.grants.progress()
    }

    pub fn wants_shared_progress(&self) -> bool {
        self.grants.wants_shared_progress()
    }

    /// How many consumers have mapped this epoch, by their QoS reports.
    pub fn readers(&self, epoch: u64, now_ns: u64) -> usize {
        self.readers.count(epoch, now_ns)
    }

    pub fn consumers(&self) -> usize {
        self.grants.len()
    }
}
