//! `ReportReader`: decodes the frequent messages of a system in native code, and leaves
//! the others to Python.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple, PyType};
use tensorpool_core::histogram::Summary;
use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::hello::Mode;
use tensorpool_core::wire::layout::NULL_U64;
use tensorpool_core::wire::message_cache::MessageCache;
use tensorpool_core::wire::status::{ConsumerStatus, CountGroup, ProducerStatus, SourceGroup, StatusReport};

type Event = Option<Py<PyAny>>;

/// Decodes the frequent messages of a system in native code, and leaves the others to Python.
///
/// Any thread may call the methods.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct ReportReader {
    consumer_report: Py<PyType>,
    producer_report: Py<PyType>,
    consumer_status: Py<PyType>,
    producer_status: Py<PyType>,
    latency_status: Py<PyType>,
    new_tuple: Py<PyAny>,
    cache: Mutex<MessageCache<Event>>,
}

#[pymethods]
impl ReportReader {
    /// Takes the named tuples to create, and caches up to `max_bytes` of messages.
    #[new]
    fn new(
        py: Python<'_>,
        reports: (Py<PyType>, Py<PyType>),
        status: (Py<PyType>, Py<PyType>, Py<PyType>),
        max_bytes: usize,
    ) -> PyResult<Self> {
        let (consumer_report, producer_report) = reports;
        let (consumer_status, producer_status, latency_status) = status;
        Ok(Self {
            consumer_report,
            producer_report,
            consumer_status,
            producer_status,
            latency_status,
            new_tuple: py.get_type::<PyTuple>().getattr("__new__")?.unbind(),
            cache: Mutex::new(MessageCache::new(max_bytes)),
        })
    }

    /// Returns the events of QoS reports and of cached messages. Any other message is returned unchanged.
    fn read_wire<'py>(
        &self,
        py: Python<'py>,
        messages: Vec<Bound<'py, PyBytes>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut events = Vec::with_capacity(messages.len());
        for message in messages {
            let bytes = message.as_bytes();
            if let Some(event) = self.cached(py, bytes) {
                events.extend(event.map(|report| report.into_bound(py)));
                continue;
            }
            events.push(match ControlMessage::decode(bytes) {
                ControlMessage::QosConsumer(q) => {
                    let is_limited = q.mode == Mode::RateLimited;
                    // 0 is also what a consumer sends that has seen no frame yet.
                    let last_seq = (!matches!(q.last_seq_seen, 0 | NULL_U64)).then_some(q.last_seq_seen);
                    let fields = (
                        q.stream_id,
                        q.consumer_id,
                        q.epoch,
                        last_seq,
                        q.drops_gap,
                        q.drops_late,
                        is_limited,
                    );
                    self.event(py, &self.consumer_report, fields.into_pyobject(py)?)?
                }
                ControlMessage::QosProducer(q) => {
                    let current_seq = (q.current_seq != NULL_U64).then_some(q.current_seq);
                    let fields = (q.stream_id, q.producer_id, q.epoch, current_seq, q.watermark);
                    self.event(py, &self.producer_report, fields.into_pyobject(py)?)?
                }
                _ => message.into_any(),
            });
        }
        PyList::new(py, events)
    }

    /// Returns the events of status reports: of a consumer's report its ledger, and its latency if there was
    /// one in the last interval. A malformed report is None. Any other message is returned unchanged.
    fn read_status<'py>(
        &self,
        py: Python<'py>,
        messages: Vec<Bound<'py, PyBytes>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut events = Vec::with_capacity(messages.len());
        for message in messages {
            match StatusReport::decode_event(message.as_bytes()) {
                StatusReport::Consumer(report) => {
                    events.push(self.event(py, &self.consumer_status, consumer(py, report)?)?);
                    if let Some(fields) = latency(py, &report)? {
                        events.push(self.event(py, &self.latency_status, fields)?);
                    }
                }
                StatusReport::Producer(report) => {
                    events.push(self.event(py, &self.producer_status, producer(py, report)?)?);
                }
                StatusReport::Malformed => events.push(py.None().into_bound(py)),
                StatusReport::Other => events.push(message.into_any()),
            }
        }
        PyList::new(py, events)
    }

    /// Caches the event of a message, or that it has none.
    #[pyo3(signature = (message, event))]
    fn cache(&self, message: &[u8], event: Event) {
        // A dropped object may run code of its own, so not while the lock is held.
        let gone = self.lock().insert(message, event);
        drop(gone);
    }

    /// Empties the cache.
    fn clear(&self) {
        let gone = self.lock().clear();
        drop(gone);
    }

    /// Bytes of the cached messages.
    #[getter(cached_bytes)]
    fn cached_bytes(&self) -> usize {
        self.lock().bytes()
    }
}

impl ReportReader {
    fn lock(&self) -> MutexGuard<'_, MessageCache<Event>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cached(&self, py: Python<'_>, bytes: &[u8]) -> Option<Event> {
        self.lock().get(bytes).map(|event| event.as_ref().map(|report| report.clone_ref(py)))
    }

    /// Creates a named tuple without calling its Python constructor, because there are thousands a second.
    fn event<'py>(
        &self,
        py: Python<'py>,
        kind: &Py<PyType>,
        fields: Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.new_tuple.bind(py).call1((kind, fields))
    }
}

fn consumer<'py>(py: Python<'py>, c: ConsumerStatus<'_, CountGroup<'_>>) -> PyResult<Bound<'py, PyTuple>> {
    let (dropped, outside) = (counts(py, c.dropped)?, counts(py, c.outside)?);
    let number = |n: u64| n.into_pyobject(py).map(Bound::into_any).map_err(PyErr::from);
    let optional = |n: Option<u64>| n.into_pyobject(py).map(Bound::into_any).map_err(PyErr::from);
    let fields = [
        number(c.stream_id.into())?,
        number(c.consumer_id.into())?,
        number(c.pid.into())?,
        optional(c.epoch)?,
        optional(c.first_seq)?,
        optional(c.last_seq)?,
        number(c.span)?,
        number(c.received)?,
        dropped.into_any(),
        outside.into_any(),
        number(c.polls)?,
        c.is_final.into_pyobject(py)?.to_owned().into_any(),
        c.label.into_pyobject(py)?.into_any(),
    ];
    PyTuple::new(py, fields)
}

fn producer<'py>(
    py: Python<'py>,
    p: ProducerStatus<CountGroup<'_>, SourceGroup<'_>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let number = |n: u64| n.into_pyobject(py).map(Bound::into_any).map_err(PyErr::from);
    let fields = [
        number(p.stream_id.into())?,
        number(p.producer_id.into())?,
        number(p.pid.into())?,
        number(p.epoch)?,
        number(p.next_seq)?,
        number(p.committed)?,
        number(p.published)?,
        counts(py, p.unpublished)?.into_any(),
        number(p.deferred)?,
        counts(py, p.dropped)?.into_any(),
        number(p.holes)?,
        number(p.payload_bytes)?,
        PyTuple::new(py, p.sources.iter().collect::<Vec<_>>())?.into_any(),
        p.is_final.into_pyobject(py)?.to_owned().into_any(),
    ];
    PyTuple::new(py, fields)
}

/// None without frames in the last interval. A final report repeats an interval that was reported.
fn latency<'py>(
    py: Python<'py>,
    c: &ConsumerStatus<'_, CountGroup<'_>>,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let Some(latency) = c.latency.filter(|l| l.interval.count > 0 && !c.is_final) else { return Ok(None) };
    let Summary { count, p50, p99, max } = latency.interval;
    (c.stream_id, c.consumer_id, count, p50, p99, max, latency.since.as_str()).into_pyobject(py).map(Some)
}

fn counts<'py>(py: Python<'py>, events: CountGroup<'_>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (reason, count) in events.iter() {
        dict.set_item(reason, count)?;
    }
    Ok(dict)
}
