//! Scan of a segment for record batches that have the layout of the one before.

use pyo3::prelude::*;
use tensorpool_core::recording::batch_scan::{Batch, BatchTemplate, PREFIX_BYTES, scan_alike};

use crate::checksum::PinnedBuffer;

/// The fields of `BatchPlace` in Python: start, body, end, rows, first and last sequence, the offsets of the
/// tables of columns and of buffers, and the first batch that describes its tensors identically.
type BatchTuple = (usize, usize, usize, usize, u64, u64, usize, usize, usize);

/// Returns the complete record batches behind the one at offset `model` that differ from it in numbers
/// only.
///
/// Any other batch ends the scan. Each result has the fields of `BatchPlace`: start, body, end, rows, first
/// and last sequence, the offsets of the tables of columns and of buffers, and the first batch that
/// describes its tensors identically.
#[pyfunction]
#[pyo3(signature = (data, model, *, body_bytes_at, rows_at, nodes, buffers, check_at, seq, sources))]
pub fn scan_batches(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    model: usize,
    body_bytes_at: usize,
    rows_at: usize,
    nodes: (usize, usize),
    buffers: (usize, usize),
    check_at: usize,
    seq: usize,
    sources: Vec<usize>,
) -> PyResult<Vec<BatchTuple>> {
    let template = BatchTemplate {
        body_bytes_at,
        rows_at,
        nodes: nodes.0..nodes.1,
        buffers: buffers.0..buffers.1,
        check_at,
        seq,
        sources,
    };
    let pinned = PinnedBuffer::new(data)?;
    let bytes = pinned.bytes();
    let batches = py.detach(|| scan_alike(bytes, model, &template));
    let to_tuple = |b: &Batch| {
        let metadata = b.start + PREFIX_BYTES;
        let tables = (metadata + template.nodes.start, metadata + template.buffers.start);
        (b.start, b.body, b.end, b.rows, b.first_seq, b.last_seq, tables.0, tables.1, b.like)
    };
    Ok(batches.iter().map(to_tuple).collect())
}
