//! The wait of a driver's agent: it looks for requests without the interpreter, whose duty cycle costs ten times as
//! much.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::announcer::StreamAnnouncer;
use crate::mailbox::Mailbox;
use crate::messages::MessageSubscription;

/// How often it looks. A flood of requests and reports does not end waits more often either.
const PERIOD: Duration = Duration::from_millis(20);

/// Waits for whatever the agent of a driver has to answer. The agent reads it itself.
pub struct RequestWait {
    pub requests: Arc<MessageSubscription>,
    pub commands: Arc<Mailbox>,
    pub announcer: Arc<StreamAnnouncer>,
    interrupted: Mutex<bool>,
    has_changed: Condvar,
}

impl RequestWait {
    pub fn new(
        requests: Arc<MessageSubscription>,
        commands: Arc<Mailbox>,
        announcer: Arc<StreamAnnouncer>,
    ) -> Self {
        let (interrupted, has_changed) = (Mutex::new(false), Condvar::new());
        Self { requests, commands, announcer, interrupted, has_changed }
    }

    /// Waits for `timeout` at most. True if there is something to do.
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            if self.rest(left.min(PERIOD)) || self.has_work() {
                return true;
            }
        }
    }

    /// Ends the present wait and every later one.
    pub fn interrupt(&self) {
        if let Ok(mut interrupted) = self.interrupted.lock() {
            *interrupted = true;
        }
        self.has_changed.notify_all();
    }

    /// True if it was interrupted.
    fn rest(&self, time: Duration) -> bool {
        let Ok(interrupted) = self.interrupted.lock() else { return true };
        self.has_changed
            .wait_timeout_while(interrupted, time, |interrupted| !*interrupted)
            .map_or(true, |(interrupted, _)| *interrupted)
    }

    fn has_work(&self) -> bool {
        // The conductor fills the mailbox too, but rests longer when nothing happens.
        self.commands.receive();
        self.commands.wait(Duration::ZERO) || self.requests.has_message() || self.announcer.has_reports()
    }
}
