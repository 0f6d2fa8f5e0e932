//! `ReplayRows` and `replay_rows`: publication of recorded frames through producers,
//! without the interpreter.

use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensorpool_core::os::prefetch;
use tensorpool_core::shm::tensor::TensorSpec;
use tensorpool_core::wire::layout::MAX_DIMS;
use tensorpool_dataplane::replay::{ReplayStop, ReplayStream, ReplayWindow, Row, RowTable, replay};

use crate::checksum::PinnedBuffer;
use crate::producer::Producer;
use crate::records::ReplayResult;

/// The rows of one batch of a recording, ready to be published. Keeps the memory of their payloads.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct ReplayRows {
    pinned: PinnedBuffer,
    table: RowTable,
}

#[pymethods]
impl ReplayRows {
    /// Takes columns with one row per frame; `dims` and `strides` have eight numbers each.
    ///
    /// Raises `ValueError` if the columns differ in length, or a payload ends outside the arena.
    #[new]
    #[pyo3(signature = (arena, *, payload_at, payload_bytes, crc32c, dtype, major_order, ndims, dims, strides, timestamp_ns, meta_version, trace_id))]
    fn new(
        arena: &Bound<'_, PyAny>,
        payload_at: PyReadonlyArray1<'_, u64>,
        payload_bytes: PyReadonlyArray1<'_, u64>,
        crc32c: PyReadonlyArray1<'_, u32>,
        dtype: PyReadonlyArray1<'_, i16>,
        major_order: PyReadonlyArray1<'_, i16>,
        ndims: PyReadonlyArray1<'_, u8>,
        dims: PyReadonlyArray2<'_, i32>,
        strides: PyReadonlyArray2<'_, i64>,
        timestamp_ns: PyReadonlyArray1<'_, u64>,
        meta_version: PyReadonlyArray1<'_, u32>,
        trace_id: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<Self> {
        let pinned = PinnedBuffer::new(arena)?;
        let room = pinned.bytes().len();
        let (at, len, crc32c) = (payload_at.as_slice()?, payload_bytes.as_slice()?, crc32c.as_slice()?);
        let (dtype, order, ndims) = (dtype.as_slice()?, major_order.as_slice()?, ndims.as_slice()?);
        let (dims, strides) = (dims.as_slice()?, strides.as_slice()?);
        let (timestamps, versions) = (timestamp_ns.as_slice()?, meta_version.as_slice()?);
        let traces = trace_id.as_slice()?;
        let count = at.len();
        let columns = [len.len(), crc32c.len(), dtype.len(), order.len(), ndims.len(), timestamps.len()];
        let others = [versions.len(), traces.len(), dims.len() / MAX_DIMS, strides.len() / MAX_DIMS];
        if columns.iter().chain(&others).any(|rows| *rows != count) {
            return Err(PyValueError::new_err("columns differ in length"));
        }
        let mut table = RowTable::with_capacity(count);
        for i in 0..count {
            let start = usize::try_from(at[i]).unwrap_or(usize::MAX);
            let size = u32::try_from(len[i]).unwrap_or(u32::MAX);
            if start.checked_add(size as usize).is_none_or(|end| end > room) {
                return Err(PyValueError::new_err("a payload ends outside the arena"));
            }
            let from = i * MAX_DIMS;
            let to = from + usize::from(ndims[i]).min(MAX_DIMS);
            let spec = if usize::from(ndims[i]) > MAX_DIMS {
                None
            } else {
                TensorSpec::from_parts(dtype[i], order[i], &dims[from..to], &strides[from..to], size)
            };
            let row = Row {
                at: start,
                len: size,
                crc32c: crc32c[i],
                timestamp_ns: timestamps[i],
                trace_id: traces[i],
                meta_version: versions[i],
            };
            table.push(row, spec);
        }
        Ok(Self { pinned, table })
    }

    fn __len__(&self) -> usize {
        self.table.len()
    }

    /// Returns the rows whose payload does not match its checksum. Reads all payloads, so that they are in
    /// memory afterwards.
    fn damaged(&self, py: Python<'_>) -> Vec<u32> {
        py.detach(|| self.table.damaged(self.pinned.bytes()))
    }

    /// Loads the payloads into memory, and their pages into the page table, as far as possible.
    fn fetch(&self, py: Python<'_>) {
        py.detach(|| {
            let bytes = self.pinned.bytes();
            if let Some(part) = bytes.get(self.table.extent()) {
                prefetch::prefetch(part);
            }
        });
    }
}

/// `tensorpool.replayer.schedule.NativeStream`.
#[derive(FromPyObject)]
pub struct NativeStream<'py> {
    producer: PyRef<'py, Producer>,
    rows: Py<ReplayRows>,
    shift_ns: u64,
}

/// Publishes a replay window: for each entry a row of a stream, when it is due.
///
/// `streams` are producers with their rows and the time that is added to timestamps. Returns how far it got and
/// why it stopped. Raises `ValueError` for an entry that names no row.
#[pyfunction]
#[pyo3(signature = (streams, *, stream, row, due_ns, start, until_ns))]
pub fn replay_rows<'py>(
    py: Python<'py>,
    streams: Vec<NativeStream<'py>>,
    stream: PyReadonlyArray1<'py, u16>,
    row: PyReadonlyArray1<'py, u32>,
    due_ns: Option<PyReadonlyArray1<'py, i64>>,
    start: usize,
    until_ns: u64,
) -> PyResult<ReplayResult> {
    let (stream, row) = (stream.as_slice()?, row.as_slice()?);
    let due_ns = due_ns.as_ref().map(|due| due.as_slice()).transpose()?;
    if row.len() != stream.len() || due_ns.is_some_and(|due| due.len() != stream.len()) {
        return Err(PyValueError::new_err("columns differ in length"));
    }
    let mut producers = Vec::with_capacity(streams.len());
    for stream in &streams {
        producers.push(stream.producer.plane(py)?);
    }
    let parts: Vec<_> = producers
        .iter()
        .zip(&streams)
        .map(|(producer, stream)| {
            let (rows, shift_ns) = (stream.rows.get(), stream.shift_ns);
            ReplayStream { producer, table: &rows.table, bytes: rows.pinned.bytes(), shift_ns }
        })
        .collect();
    let window = ReplayWindow { stream, row, due_ns };
    let result = py.detach(|| replay(&parts, &window, start, until_ns));
    let (stop, at) = match result.stop {
        ReplayStop::Done => ("done", 0),
        ReplayStop::Time => ("time", 0),
        ReplayStop::NotReady(at) => ("not_ready", at),
        ReplayStop::NoPool(at) => ("no_pool", at),
        ReplayStop::Closed(at) => ("closed", at),
        ReplayStop::Misread(at) => {
            return Err(PyValueError::new_err(format!("entry {} names no row of stream {at}", result.next)));
        }
    };
    Ok(ReplayResult {
        position: result.next,
        stop,
        stream: at,
        nbytes: result.bytes,
        unfit: result.unfit,
        late: result.late,
        late_max_ns: result.late_max_ns,
    })
}
