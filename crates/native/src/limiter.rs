//! `StreamLimiter`: the native loop of a rate limiter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::os::time::monotonic_ns;
use tensorpool_dataplane::idle::IdleStrategy;
use tensorpool_dataplane::limiter as plane;
use tensorpool_dataplane::limiter::{LimiterCounters, LimiterStop};

use crate::consumer::Consumer;
use crate::errors;
use crate::producer::Producer;
use crate::wait::bounded;

/// Copies the newest frames of a consumer into the stream of a producer, at most one in `interval_ns`.
///
/// Sequences, capture times, metadata versions and trace ids are kept. 0: every frame.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct StreamLimiter {
    limiter: Mutex<plane::Limiter>,
    counters: Arc<LimiterCounters>,
    idle: IdleStrategy,
    fork_guard: ForkGuard,
}

#[pymethods]
impl StreamLimiter {
    /// Raises `ValueError` for an unknown idle strategy.
    #[new]
    #[pyo3(signature = (consumer, producer, interval_ns, idle = "backoff"))]
    fn new(
        py: Python<'_>,
        consumer: &Bound<'_, Consumer>,
        producer: &Bound<'_, Producer>,
        interval_ns: u64,
        idle: &str,
    ) -> PyResult<Self> {
        let idle = idle.parse().map_err(pyo3::exceptions::PyValueError::new_err)?;
        let counters = Arc::<LimiterCounters>::default();
        let limiter = plane::Limiter::new(
            consumer.get().plane(),
            producer.get().plane(py)?,
            interval_ns,
            counters.clone(),
        );
        Ok(Self { limiter: Mutex::new(limiter), counters, idle, fork_guard: ForkGuard::current() })
    }

    /// Copies frames for `timeout` seconds at most, without the GIL.
    ///
    /// Returns "time", "closed" (the consumer was closed), or "epoch": the source has begun another epoch, and
    /// waits for `set_producer`.
    fn run(&self, py: Python<'_>, timeout: f64) -> PyResult<&'static str> {
        errors::check_fork(py, self.fork_guard)?;
        let until_ns = monotonic_ns().saturating_add(bounded(timeout).as_nanos() as u64);
        let stop = py.detach(|| {
            let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
            limiter.run(until_ns, self.idle)
        });
        Ok(match stop {
            LimiterStop::Time => "time",
            LimiterStop::Epoch => "epoch",
            LimiterStop::Closed => "closed",
        })
    }

    /// Continues with another producer, whose stream has no frames of an earlier epoch of the source.
    fn set_producer(&self, py: Python<'_>, producer: &Bound<'_, Producer>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let producer = producer.get().plane(py)?;
        py.detach(|| self.limiter.lock().unwrap_or_else(PoisonError::into_inner).set_producer(producer));
        Ok(())
    }

    /// Returns the frames that had a place in the rate, by outcome.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        errors::check_fork(py, self.fork_guard)?;
        let counters = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dict = PyDict::new(py);
        dict.set_item("forwarded", get(&counters.forwarded))?;
        dict.set_item("overwritten", get(&counters.overwritten))?;
        dict.set_item("no_pool", get(&counters.no_pool))?;
        dict.set_item("no_slot", get(&counters.no_slot))?;
        dict.set_item("unpublished", get(&counters.unpublished))?;
        Ok(dict)
    }
}
