//! One counter of ours in the media driver's counters file, visible to `AeronStat` and our tools.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::aeron::{AeronError, Client, Counter, MAX_LABEL_BYTES};
use crate::conductor::handle::Handle;
use crate::conductor::{Endpoint, Tick};

/// Any thread counts without a lock. The conductor copies the value in its next duty cycle. After the loss of
/// a media driver the counter is added again and keeps its value.
pub struct CounterEndpoint {
    label: String,
    type_id: i32,
    value: AtomicI64,
    state: Mutex<Handle<Counter>>,
    failure: Mutex<Option<AeronError>>,
}

impl CounterEndpoint {
    /// `label` is truncated to what Aeron keeps, between two characters.
    pub fn new(label: &str, type_id: i32, value: i64) -> Self {
        let end = (0..=label.len().min(MAX_LABEL_BYTES)).rev().find(|end| label.is_char_boundary(*end));
        Self {
            label: label[..end.unwrap_or(0)].to_owned(),
            type_id,
            value: AtomicI64::new(value),
            state: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    // Relaxed: the conductor's load in `do_work` may be one duty cycle late, and nothing depends on the
    // order.
    #[inline]
    pub fn add(&self, n: i64) {
        self.value.fetch_add(n, Ordering::Relaxed);
    }

    #[inline]
    pub fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    /// Its id among the media driver's counters, while it has one.
    pub fn id(&self) -> Option<i32> {
        self.state.lock().ok()?.get().map(|counter| counter.id())
    }

    /// Why the media driver refused it, if it did: the counters file may be full.
    pub fn failure(&self) -> Option<AeronError> {
        self.failure.lock().ok()?.clone()
    }
}

impl Endpoint for CounterEndpoint {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let (Ok(mut state), Ok(mut failure)) = (self.state.lock(), self.failure.lock()) else {
            return Ok(());
        };
        // A refusal lasts until there is another media driver. Repeating the request each duty cycle would
        // not help.
        if failure.is_some() {
            return Ok(());
        }
        match state.advance(|| client.add_counter(self.type_id, &self.label)) {
            // The command queue is full for the moment. The next duty cycle repeats the request.
            Err(error) if error.is_temporary() => Ok(()),
            Err(error) => {
                *failure = Some(error.clone());
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn disconnect(&self) {
        if let Ok(mut state) = self.state.lock() {
            *state = Handle::None;
        }
        if let Ok(mut failure) = self.failure.lock() {
            *failure = None;
        }
    }

    fn close(&self) {
        self.disconnect();
    }

    fn do_work(&self, _tick: &Tick<'_>) {
        if let Ok(mut state) = self.state.lock()
            && let Some(counter) = state.get()
        {
            counter.set(self.value());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_label_is_truncated_between_characters() {
        let label = format!("x{}", "é".repeat(300));
        let counter = CounterEndpoint::new(&label, 9001, 0);
        assert_eq!(counter.label(), format!("x{}", "é".repeat(189)));
        assert_eq!(CounterEndpoint::new("short", 9001, 0).label(), "short");
    }

    #[test]
    fn counter_works_without_a_media_driver() {
        let counter = CounterEndpoint::new("c", 9001, 5);
        counter.add(3);
        assert_eq!(counter.value(), 8);
        counter.set(-1);
        assert_eq!((counter.value(), counter.id()), (-1, None));
    }
}
