//! Counters of one endpoint in the media driver's counters file, visible to `AeronStat`.

use crate::aeron::{Client, Counter};
use crate::conductor::handle::Handle;

/// The same type ids as in Python. Aeron leaves ids from 1000 on to applications.
const COUNTER_TYPE_ID: i32 = 9001;
const GAUGE_TYPE_ID: i32 = 9002;

/// Name and unit of a counter, and whether it only grows.
pub struct CounterSpec {
    pub name: &'static str,
    pub unit: &'static str,
    pub grows: bool,
}

struct EndpointCounter {
    label: String,
    type_id: i32,
    handle: Handle<Counter>,
    /// The counters file may be full. The counter is added again with the next media driver.
    is_refused: bool,
}

#[derive(Default)]
pub struct EndpointCounters {
    counters: Vec<EndpointCounter>,
}

impl EndpointCounters {
    pub fn new(endpoint: &str, specs: &[CounterSpec]) -> Self {
        let counter = |s: &CounterSpec| EndpointCounter {
            label: format!("tensorpool: {endpoint} {} ({})", s.name, s.unit),
            type_id: if s.grows { COUNTER_TYPE_ID } else { GAUGE_TYPE_ID },
            handle: Handle::None,
            is_refused: false,
        };
        Self { counters: specs.iter().map(counter).collect() }
    }

    /// Requests missing counters, and stores them once they are ready.
    pub fn advance(&mut self, client: &Client) {
        for counter in self.counters.iter_mut().filter(|g| !g.is_refused) {
            let EndpointCounter { label, type_id, .. } = counter;
            match counter.handle.advance(|| client.add_counter(*type_id, label)) {
                Err(error) if !error.is_temporary() => counter.is_refused = true,
                _ => {}
            }
        }
    }

    pub fn set(&mut self, values: &[u64]) {
        for (counter, value) in self.counters.iter_mut().zip(values) {
            if let Some(handle) = counter.handle.get() {
                handle.set(i64::try_from(*value).unwrap_or(i64::MAX));
            }
        }
    }

    pub fn disconnect(&mut self) {
        for counter in &mut self.counters {
            (counter.handle, counter.is_refused) = (Handle::None, false);
        }
    }
}
