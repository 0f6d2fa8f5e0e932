//! `Reporter`: what a producer or consumer tells those who watch, off the interpreter.

use std::sync::Arc;

use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::status_reporter as plane;
use tensorpool_dataplane::status_reporter::Subject;

use crate::conductor::Conductor;
use crate::consumer::Consumer;
use crate::errors;
use crate::producer::Producer;

/// Of whom is told.
#[derive(FromPyObject)]
enum Told<'py> {
    Consumer(Bound<'py, Consumer>),
    Producer(Bound<'py, Producer>),
}

#[pyclass(frozen, module = "tensorpool._native")]
pub struct Reporter {
    inner: Arc<plane::StatusReporter>,
    conductor: Py<Conductor>,
    id: u64,
    fork_guard: ForkGuard,
}

#[pymethods]
impl Reporter {
    /// `status`: channel and stream id on which is told what is: a consumer's latency, the account; `counters`:
    /// whether a few numbers stand among the media driver's.
    #[new]
    #[pyo3(signature = (of, *, status, latency, account, counters, period_ns))]
    fn new(
        py: Python<'_>,
        of: Told<'_>,
        status: Option<(String, i32)>,
        latency: bool,
        account: bool,
        counters: bool,
        period_ns: u64,
    ) -> PyResult<Self> {
        let (subject, conductor) = match of {
            Told::Consumer(consumer) => {
                let (consumer, conductor) = consumer.get().parts(py);
                (Subject::Consumer(consumer), conductor)
            }
            Told::Producer(producer) => {
                let (producer, conductor) = producer.get().parts(py);
                (Subject::Producer(producer), conductor)
            }
        };
        let config = plane::Config {
            status,
            reports_latency: latency,
            reports_status: account,
            shows_counters: counters,
            period_ns,
        };
        let inner = Arc::new(plane::StatusReporter::new(config, subject));
        let id = conductor.get().add(py, inner.clone())?;
        Ok(Self { inner, conductor, id, fork_guard: ForkGuard::current() })
    }

    /// The producer's frames are made from those of that stream, too: told with its account.
    fn note_source(&self, stream_id: u32) {
        self.inner.add_source(stream_id);
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}
