//! A few numbers of one attachment among the media driver's counters, where `AeronStat` sees them.

use crate::aeron::{Client, Counter};
use crate::conductor::handle::Handle;

/// The same type ids as the Python side has: Aeron leaves those from 1000 on to applications.
const COUNTER_TYPE_ID: i32 = 9001;
const GAUGE_TYPE_ID: i32 = 9002;

/// What is shown: its name, its unit, and whether it only ever grows.
pub struct Shown {
    pub name: &'static str,
    pub unit: &'static str,
    pub grows: bool,
}

struct Gauge {
    label: String,
    type_id: i32,
    handle: Handle<Counter>,
    /// There may be no room; it is asked for again when there is another media driver.
    is_refused: bool,
}

#[derive(Default)]
pub struct Gauges {
    gauges: Vec<Gauge>,
}

impl Gauges {
    pub fn new(who: &str, shown: &[Shown]) -> Self {
        let gauge = |s: &Shown| Gauge {
            label: format!("tensorpool: {who} {} ({})", s.name, s.unit),
            type_id: if s.grows { COUNTER_TYPE_ID } else { GAUGE_TYPE_ID },
            handle: Handle::None,
            is_refused: false,
        };
        Self { gauges: shown.iter().map(gauge).collect() }
    }

    /// Asks for what is missing, and takes it as it comes.
    pub fn advance(&mut self, client: &Client) {
        for gauge in self.gauges.iter_mut().filter(|g| !g.is_refused) {
            let Gauge { label, type_id, .. } = gauge;
            match gauge.handle.advance(|| client.add_counter(*type_id, label)) {
                Err(error) if !error.is_temporary() => gauge.is_refused = true,
                _ => {}
            }
        }
    }

    pub fn set(&mut self, values: &[u64]) {
        for (gauge, value) in self.gauges.iter_mut().zip(values) {
            if let Some(counter) = gauge.handle.get() {
                counter.set(i64::try_from(*value).unwrap_or(i64::MAX));
            }
        }
    }

    pub fn disconnect(&mut self) {
        for gauge in &mut self.gauges {
            (gauge.handle, gauge.is_refused) = (Handle::None, false);
        }
    }
}
