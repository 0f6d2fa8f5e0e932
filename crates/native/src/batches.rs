//! Scan of a segment for record batches that have the layout of the one before.

use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use tensorpool_core::recording::batch_scan::{BatchTemplate, PREFIX_BYTES, scan_alike};

use crate::checksum::PinnedBuffer;

/// A `range` of Python.
#[derive(FromPyObject)]
struct Span {
    start: usize,
    stop: usize,
}

/// `tensorpool.recording.segment_file.BatchTemplate`.
#[derive(FromPyObject)]
pub struct TemplateOptions {
    body_bytes_at: usize,
    rows_at: usize,
    nodes: Span,
    buffers: Span,
    check_at: usize,
    seq_buffer: usize,
    tensor_buffers: Vec<usize>,
}

/// Returns the complete record batches behind the one at offset `model` that differ from it in numbers
/// only.
///
/// Any other batch ends the scan. Each result is a `location`, a named tuple: start, body, end, rows, first
/// and last sequence, the offsets of the tables of columns and of buffers, and the first batch that
/// describes its tensors identically.
#[pyfunction]
pub fn scan_batches<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    model: usize,
    template: TemplateOptions,
    location: &Bound<'py, PyType>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let template = BatchTemplate {
        body_bytes_at: template.body_bytes_at,
        rows_at: template.rows_at,
        nodes: template.nodes.start..template.nodes.stop,
        buffers: template.buffers.start..template.buffers.stop,
        check_at: template.check_at,
        seq: template.seq_buffer,
        sources: template.tensor_buffers,
    };
    let pinned = PinnedBuffer::new(data)?;
    let bytes = pinned.bytes();
    let batches = py.detach(|| scan_alike(bytes, model, &template));
    // Without the Python constructor of the named tuple: a segment may have very many batches.
    let new_tuple = py.get_type::<PyTuple>().getattr("__new__")?;
    batches
        .iter()
        .map(|b| {
            let metadata = b.start + PREFIX_BYTES;
            let (nodes_at, buffers_at) = (metadata + template.nodes.start, metadata + template.buffers.start);
            let fields =
                (b.start, b.body, b.end, b.rows, b.first_seq, b.last_seq, nodes_at, buffers_at, b.like);
            new_tuple.call1((location, fields.into_pyobject(py)?))
        })
        .collect()
}
