//! Events of a connection in order, for any thread that reads them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Kept for a late reader. Older ones are dropped and counted.
const CAPACITY: usize = 1024;

#[derive(Clone, Debug)]
pub struct Event {
    pub kind: &'static str,
    pub at_ns: u64,
    pub stream_id: Option<u32>,
    pub epoch: Option<u64>,
    pub detail: String,
}

#[derive(Debug, Default)]
pub struct Events {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    closed: bool,
}

impl Events {
    pub fn push(&self, event: Event) {
        if let Ok(mut queue) = self.queue.lock() {
            if queue.events.len() == CAPACITY {
                queue.events.pop_front();
            }
            queue.events.push_back(event);
        }
        self.arrived.notify_all();
    }

    /// The next event, or `None` after `timeout` or once closed.
    pub fn next(&self, timeout: Duration) -> Option<Event> {
        let queue = self.queue.lock().ok()?;
        let (mut queue, _) =
            self.arrived.wait_timeout_while(queue, timeout, |q| q.events.is_empty() && !q.closed).ok()?;
        queue.events.pop_front()
    }

    pub fn close(&self) {
        if let Ok(mut queue) = self.queue.lock() {
            queue.closed = true;
        }
        self.arrived.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        self.queue.lock().map_or(true, |q| q.closed)
    }
}
