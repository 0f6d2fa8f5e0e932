//! `StatusReporter`: publishes the status of a producer or consumer, on the conductor's
//! thread.

use std::sync::Arc;

use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::status_reporter as plane;
use tensorpool_dataplane::status_reporter::Subject;

use crate::conductor::Conductor;
use crate::consumer::Consumer;
use crate::errors;
use crate::producer::Producer;

/// The endpoint that is reported.
#[derive(FromPyObject)]
enum ReportSubject<'py> {
    Consumer(Bound<'py, Consumer>),
    Producer(Bound<'py, Producer>),
}

/// Publishes the status report of a producer or consumer and updates its counters, on the conductor's
/// thread.
///
/// Any thread may call the methods.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct StatusReporter {
    reporter: Arc<plane::StatusReporter>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl StatusReporter {
    /// Reports every `period_ns`; a consumer at the end of each interval of its latency.
    ///
    /// `status`: channel and stream id of the status stream. `ledger`: whether the status report is published
    /// there. `latency`: whether a consumer's report has its latency. `counters`: whether counters are added
    /// to the media driver's. `label`: what the user calls a consumer; ASCII, at most 64 characters.
    #[new]
    #[pyo3(signature = (of, *, status, latency, ledger, counters, period_ns, label = ""))]
    fn new(
        py: Python<'_>,
        of: ReportSubject<'_>,
        status: Option<(String, i32)>,
        latency: bool,
        ledger: bool,
        counters: bool,
        period_ns: u64,
        label: &str,
    ) -> PyResult<Self> {
        let (subject, conductor) = match of {
            ReportSubject::Consumer(consumer) => {
                let (consumer, conductor) = consumer.get().parts(py);
                (Subject::Consumer(consumer), conductor)
            }
            ReportSubject::Producer(producer) => {
                let (producer, conductor) = producer.get().parts(py);
                (Subject::Producer(producer), conductor)
            }
        };
        let config = plane::Config {
            status,
            reports_status: ledger,
            reports_latency: latency,
            shows_counters: counters,
            label: label.to_owned(),
            period_ns,
        };
        let reporter = Arc::new(plane::StatusReporter::new(config, subject));
        let id = conductor.get().add(py, reporter.clone())?;
        Ok(Self { reporter, conductor, id, fork_guard: ForkGuard::current() })
    }

    /// Adds a stream that the producer's frames are made from to its status report.
    fn add_source(&self, stream_id: u32) {
        self.reporter.add_source(stream_id);
    }

    /// Publishes the final report and ends. Raises `ForkedError` in a forked child.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}
