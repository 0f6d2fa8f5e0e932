//! A mailbox: the messages of a shared event stream that are for this receiver. Polled on the conductor's
//! thread.
//!
//! The conductor polls even while the interpreter is busy, so that a slow service neither delays senders nor
//! misses its messages. The subscription stays tethered: a process that is stopped for a moment misses no
//! command, and senders wait for it, at most until the media driver times it out. Foreign messages are
//! recognised by their first bytes, before the assembler and before any allocation. The number of kept
//! messages is bounded: beyond it the oldest are dropped and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use tensorpool_core::wire::event::{TagFilter, TagMatch};

use crate::aeron::channels::tethered;
use crate::aeron::fragment_filter::FragmentFilter;
use crate::aeron::{AeronError, Assembler, Client, Header, Subscription};
use crate::conductor::handle::Handle;
use crate::conductor::{Endpoint, Tick};

/// Fragments polled in one duty cycle: far more than a stream carries in that time.
const FRAGMENTS_A_ROUND: usize = 65_536;
const MAX_MESSAGES: usize = 65_536;
const MAX_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub struct Counters {
    pub kept: AtomicU64,
    pub foreign: AtomicU64,
    pub unreadable: AtomicU64,
    pub overflowed: AtomicU64,
}

#[derive(Default)]
struct FilteredSubscription {
    subscription: Handle<Subscription>,
    assembler: Option<Assembler>,
    fragment_filter: FragmentFilter,
    departures: u64,
}

#[derive(Default)]
struct MessageQueue {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    closed: bool,
}

pub struct Mailbox {
    channel: String,
    stream_id: i32,
    filter: TagFilter,
    filtered: Mutex<FilteredSubscription>,
    queue: Mutex<MessageQueue>,
    arrived: Condvar,
    counters: Counters,
}

impl Mailbox {
    pub fn new(channel: String, stream_id: i32, filter: TagFilter) -> Self {
        Self {
            channel,
            stream_id,
            filter,
            filtered: Mutex::default(),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            counters: Counters::default(),
        }
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Waits until there is a message, for `timeout` at most. True if there is one.
    pub fn wait(&self, timeout: Duration) -> bool {
        let Ok(queue) = self.queue.lock() else { return false };
        let waited = self.arrived.wait_timeout_while(queue, timeout, |k| k.messages.is_empty() && !k.closed);
        waited.is_ok_and(|(queue, _)| !queue.messages.is_empty())
    }

    /// Up to `limit` messages, oldest first. Waits up to `timeout` for the first.
    pub fn take(&self, limit: usize, timeout: Duration) -> Vec<Vec<u8>> {
        if !timeout.is_zero() && !self.wait(timeout) {
            return Vec::new();
        }
        let Ok(mut queue) = self.queue.lock() else { return Vec::new() };
        let count = limit.min(queue.messages.len());
        let taken: Vec<_> = queue.messages.drain(..count).collect();
        queue.bytes -= taken.iter().map(Vec::len).sum::<usize>();
        taken
    }

    pub fn is_ready(&self) -> bool {
        self.filtered.lock().is_ok_and(|mut e| e.subscription.get().is_some())
    }

    pub fn is_connected(&self) -> bool {
        self.filtered.lock().is_ok_and(|mut e| e.subscription.get().is_some_and(|s| s.is_connected()))
    }

    pub fn is_closed(&self) -> bool {
        self.queue.lock().map_or(true, |k| k.closed)
    }

    fn push(&self, message: &[u8]) {
        let Ok(mut queue) = self.queue.lock() else { return };
        while queue.messages.len() >= MAX_MESSAGES || queue.bytes + message.len() > MAX_BYTES {
            self.counters.overflowed.fetch_add(1, Ordering::Relaxed);
            let Some(oldest) = queue.messages.pop_front() else { return };
            queue.bytes -= oldest.len();
        }
        self.counters.kept.fetch_add(1, Ordering::Relaxed);
        queue.bytes += message.len();
        queue.messages.push_back(message.to_vec());
        self.arrived.notify_all();
    }

    /// Whether a message is for us, by its first fragment.
    fn is_ours(&self, bytes: &[u8]) -> bool {
        match self.filter.match_message(bytes) {
            TagMatch::Ours => true,
            TagMatch::Foreign => {
                self.counters.foreign.fetch_add(1, Ordering::Relaxed);
                false
            }
            TagMatch::Unreadable => {
                self.counters.unreadable.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }
}

impl Endpoint for Mailbox {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let Ok(mut filtered) = self.filtered.lock() else { return Ok(()) };
        if filtered.assembler.is_none() {
            filtered.assembler = Some(Assembler::new()?);
        }
        filtered.subscription.advance(|| client.add_subscription(&tethered(&self.channel), self.stream_id))
    }

    fn disconnect(&self) {
        if let Ok(mut filtered) = self.filtered.lock() {
            *filtered = FilteredSubscription::default();
        }
    }

    fn close(&self) {
        self.disconnect();
        if let Ok(mut queue) = self.queue.lock() {
            queue.closed = true;
        }
        self.arrived.notify_all();
    }

    fn do_work(&self, tick: &Tick<'_>) {
        // Events of one subject come one after the other.
        if self.receive() {
            tick.is_active.set(true);
        }
    }
}

impl Mailbox {
    /// Reads the stream and keeps what is for us. True if there was anything. The conductor calls it in every
    /// duty cycle; a thread that is about to wait longer than that may call it too.
    pub fn receive(&self) -> bool {
        let mut has_received = false;
        let Ok(mut filtered) = self.filtered.lock() else { return false };
        let FilteredSubscription { subscription, assembler, fragment_filter, departures } = &mut *filtered;
        if let (Some(subscription), Some(assembler)) = (subscription.get(), assembler) {
            let gone = subscription.images().departures();
            if std::mem::replace(departures, gone) != gone {
                // The assembler keeps a buffer for every session it ever saw. A new one drops those of closed
                // sessions.
                if fragment_filter.settle(subscription.images())
                    && let Ok(fresh) = Assembler::new()
                {
                    *assembler = fresh;
                }
            }
            let is_wanted =
                |bytes: &[u8], header: Header| fragment_filter.wants(header, || self.is_ours(bytes));
            assembler.poll_some(subscription, FRAGMENTS_A_ROUND, is_wanted, |message, _| {
                has_received = true;
                self.push(message);
            });
        }
        has_received
    }
}
