//! A few numbers of one attachment among the media driver's counters, where `AeronStat` sees them.

use crate::aeron::{Client, Counter};
use crate::conductor::handle::Handle;

/// The same type ids as the Python side has: Aeron leaves those from 1000 on to applications.
const COUNTER_TYPE_ID: i32 = 9001;
const GAUGE_TYPE_ID: i32 = 9002;

/// What is shown: its name, its unit, and whether it only ever grows.
pub struct CounterSpec {
    pub name: &'static str,
    pub unit: &'static str,
    pub grows: bool,
}

struct EndpointCounter {
    label: String,
    type_id: i32,
    handle: Handle<Counter>,
    /// There may be no room; it is asked for again when there is another media driver.
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

    /// Asks for what is missing, and takes it as it comes.
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
