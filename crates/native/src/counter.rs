//! `AeronCounter`: one counter of the media driver; `read_counters`: all of them.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::aeron;
use tensorpool_dataplane::counter::CounterEndpoint;

use crate::conductor::Conductor;
use crate::errors;
use crate::records::CounterReading;

/// One counter of the media driver, which Aeron's tools show.
///
/// It keeps its value when the media driver restarts. Any thread may call the methods. All of them raise
/// `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct AeronCounter {
    counter: Arc<CounterEndpoint>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl AeronCounter {
    /// Requests a counter with that label, type id and first value.
    #[new]
    #[pyo3(signature = (conductor, label, type_id, value = 0))]
    fn new(conductor: &Bound<'_, Conductor>, label: &str, type_id: i32, value: i64) -> PyResult<Self> {
        let counter = Arc::new(CounterEndpoint::new(label, type_id, value));
        let id = conductor.get().add(conductor.py(), counter.clone())?;
        Ok(Self { counter, conductor: conductor.clone().unbind(), id, fork_guard: ForkGuard::current() })
    }

    /// Adds `n`. Other processes see it after the conductor's next duty cycle.
    fn add(&self, py: Python<'_>, n: i64) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.counter.add(n);
        Ok(())
    }

    /// Sets the value. Other processes see it after the conductor's next duty cycle.
    fn set(&self, py: Python<'_>, value: i64) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.counter.set(value);
        Ok(())
    }

    /// The value in this process.
    #[getter]
    fn value(&self, py: Python<'_>) -> PyResult<i64> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.counter.value())
    }

    /// The label that Aeron's tools show.
    #[getter]
    fn label(&self) -> &str {
        self.counter.label()
    }

    /// Its id among the media driver's counters. None while it has none.
    #[getter]
    fn counter_id(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.counter.id()))
    }

    /// Why the media driver refused the counter. None if it did not.
    #[getter]
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.counter.failure().map(|e| e.to_string()))
    }

    /// Removes the counter from the media driver.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}

/// Returns every counter of the media driver in `aeron_dir`.
///
/// Raises `MediaDriverError` if there is no media driver.
#[pyfunction]
pub fn read_counters(py: Python<'_>, aeron_dir: String) -> PyResult<Vec<CounterReading>> {
    match py.detach(|| aeron::read_counters(&aeron_dir)) {
        Ok(counters) => Ok(counters
            .into_iter()
            .map(|c| CounterReading {
                counter_id: c.id,
                type_id: c.type_id,
                value: c.value,
                label: c.label,
                key: PyBytes::new(py, &c.key).unbind(),
            })
            .collect()),
        Err(error) => {
            let message = format!(
                "cannot read the counters of a media driver in {aeron_dir}: {error}; \
                 start one, or check aeron_dir"
            );
            Err(errors::raise(py, "MediaDriverError", &message, |f| f.set_item("aeron_dir", aeron_dir)))
        }
    }
}
