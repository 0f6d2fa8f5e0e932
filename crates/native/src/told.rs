//! What attachments tell of themselves, as fields for those who keep a picture of thousands of them.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tensorpool_core::wire::status::{ConsumerTold, Counts, LatencyTold, ProducerTold};

pub fn consumer<'py>(py: Python<'py>, c: ConsumerTold<'_>) -> PyResult<Bound<'py, PyTuple>> {
    let (dropped, outside) = (counts(py, c.dropped)?, counts(py, c.outside)?);
    let fields = (
        c.stream_id,
        c.consumer_id,
        c.pid,
        c.epoch,
        c.first_seq,
        c.last_seq,
        c.span,
        c.received,
        dropped,
        outside,
        c.looks,
        c.is_final,
    );
    fields.into_pyobject(py)
}

pub fn producer<'py>(py: Python<'py>, p: ProducerTold<'_>) -> PyResult<Bound<'py, PyTuple>> {
    let number = |n: u64| n.into_pyobject(py).map(Bound::into_any).map_err(PyErr::from);
    let fields = [
        number(p.stream_id)?,
        number(p.producer_id)?,
        number(p.pid)?,
        number(p.epoch)?,
        number(p.next_seq)?,
        number(p.committed)?,
        number(p.published)?,
        counts(py, p.unpublished)?.into_any(),
        number(p.deferred)?,
        counts(py, p.dropped)?.into_any(),
        number(p.holes)?,
        number(p.bytes)?,
        PyTuple::new(py, p.sources.iter().collect::<Vec<_>>())?.into_any(),
        p.is_final.into_pyobject(py)?.to_owned().into_any(),
    ];
    PyTuple::new(py, fields)
}

pub fn latency<'py>(py: Python<'py>, l: LatencyTold<'_>) -> PyResult<Bound<'py, PyTuple>> {
    let [count, p50_ns, p99_ns, max_ns] = l.figures;
    (l.stream_id, l.consumer_id, count, p50_ns, p99_ns, max_ns, l.since).into_pyobject(py)
}

fn counts<'py>(py: Python<'py>, found: Counts<'_>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (reason, count) in found.iter() {
        dict.set_item(reason, count)?;
    }
    Ok(dict)
}
