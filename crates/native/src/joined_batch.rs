//! `JoinedBatch`: results of a join whose frames lie one after the other in their rings, as one array for each
//! input, without a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use tensorpool_core::join::Basis;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::wire::layout::MAX_DIMS;
use tensorpool_dataplane::join::{JoinedRun, Run};

use crate::join::Inputs;
use crate::slot_view::{SlotView, frame_overwritten};
use crate::stats::text_form;
use crate::{arrays, errors};

/// Results of a join as one array for each input: read-only views of shared memory, which the producers may
/// reuse at any time.
///
///     with batch:  # raises FrameOverwritten at the end if a slot was reused
///         differences = batch["left"].mean(axis=1) - batch["right"].mean(axis=1)
///
/// Nothing is copied: the frames of each input lie one after the other in its ring, and are of one epoch, layout
/// and metadata version. Any thread may use a batch.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct JoinedBatch {
    inputs: Arc<Inputs>,
    run: JoinedRun,
    /// Frames of each input that were already moved from received to late.
    late: Vec<AtomicU64>,
    fork_guard: ForkGuard,
}

impl JoinedBatch {
    pub fn new(inputs: Arc<Inputs>, run: JoinedRun, fork_guard: ForkGuard) -> Self {
        let late = run.inputs.iter().map(|_| AtomicU64::new(0)).collect();
        Self { inputs, run, late, fork_guard }
    }

    fn outs_if(&self, py: Python<'_>, basis: Basis) -> Option<Py<PyArray1<u64>>> {
        (self.inputs.basis == basis).then(|| PyArray1::from_slice(py, &self.run.outs).unbind())
    }

    fn run_of(&self, name: &Bound<'_, PyAny>) -> PyResult<(usize, Option<&Run>)> {
        let at = self.inputs.required(name)?;
        Ok((at, self.run.inputs[at].as_ref()))
    }
}

impl SlotView for JoinedBatch {
    /// Its input and its sequence.
    type Overwritten = (usize, u64);

    fn fork_guard(&self) -> ForkGuard {
        self.fork_guard
    }

    fn first_overwritten(&self) -> Option<(usize, u64)> {
        let mut first = None;
        for (at, run) in self.run.inputs.iter().enumerate() {
            let Some(run) = run else { continue };
            let mut overwritten = 0;
            for seq in run.seqs().filter(|seq| !run.first.mapping.is_unchanged(*seq)) {
                overwritten += 1;
                first.get_or_insert((at, seq));
            }
            // A frame that was overwritten stays so: the number only grows.
            let before = self.late[at].fetch_max(overwritten, Ordering::Relaxed);
            for _ in before..overwritten {
                self.inputs.origins[at].counters.received_to_late();
            }
        }
        first
    }

    fn overwritten_error(&self, py: Python<'_>, (at, seq): (usize, u64)) -> PyErr {
        let stream_id = self.inputs.stream_ids[at];
        let epoch = self.run.inputs[at].as_ref().map(|run| run.first.mapping.epoch);
        let message = format!(
            "frame {seq} of stream {stream_id} was overwritten while its batch was used; take fewer results at \
             once, or give the stream more slots"
        );
        frame_overwritten(py, stream_id, epoch, seq, &message)
    }
}

#[pymethods]
impl JoinedBatch {
    /// Returns the frames of an input as a read-only array, whose first axis counts the results. None if the
    /// input is absent.
    ///
    /// Raises `KeyError` for a name that is no input.
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let this = slf.get();
        errors::check_fork(slf.py(), this.fork_guard)?;
        let (at, Some(run)) = this.run_of(name)? else { return Ok(None) };
        let (mapping, slot) = (&run.first.mapping, &run.first.slot_ref);
        let tensor = &slot.info.tensor;
        let n = usize::from(tensor.ndims);
        let (mut shape, mut strides) = ([0i32; MAX_DIMS + 1], [0i64; MAX_DIMS + 1]);
        (shape[0], strides[0]) = (run.len as i32, i64::from(mapping.pool_stride(slot.pool)));
        shape[1..=n].copy_from_slice(tensor.shape());
        strides[1..=n].copy_from_slice(&tensor.strides[..n]);
        let (shape, strides, data) = (&shape[..=n], &strides[..=n], mapping.payload(slot.pool, slot.seq));
        // SAFETY: locate held the extent of each frame against its slot, and the slots follow each other; the
        // batch itself is the base, and it holds the mapping.
        let array =
            unsafe { arrays::view(data, tensor.dtype, shape, strides, false, slf.clone().into_any()) }?;
        let (epoch, version) = (mapping.epoch, slot.info.meta_version);
        let extended = this.inputs.origins[at].extended(slf.py(), epoch, version, tensor)?;
        Ok(Some(match extended.as_ref().and_then(|view| view.extension.as_ref()) {
            Some(extension) => extension.view(&array)?,
            None => array,
        }))
    }

    /// Number of results.
    fn __len__(&self) -> usize {
        self.run.outs.len()
    }

    /// The names of all inputs, absent ones too.
    #[getter]
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inputs.names.iter().map(|name| name.bind(py)))
    }

    /// The names of inputs without frames: not seen for `stale_after` seconds.
    #[getter]
    fn absent<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let names = self.inputs.names.iter().zip(&self.run.inputs);
        let absent: Vec<_> = names.filter(|(_, run)| run.is_none()).map(|(name, _)| name.bind(py)).collect();
        PyTuple::new(py, absent)
    }

    /// Returns the sequences of an input's frames, as uint64. None if the input is absent.
    ///
    /// Raises `KeyError` for a name that is no input.
    fn seqs_of(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyArray1<u64>>>> {
        let (_, run) = self.run_of(name)?;
        Ok(run.map(|run| PyArray1::from_iter(py, run.seqs()).unbind()))
    }

    /// The sequence of each output, as uint64. None unless joined by sequence.
    #[getter]
    fn seqs(&self, py: Python<'_>) -> Option<Py<PyArray1<u64>>> {
        self.outs_if(py, Basis::Sequence)
    }

    /// The time of each output in ns, as uint64. None unless joined by time.
    #[getter]
    fn timestamps_ns(&self, py: Python<'_>) -> Option<Py<PyArray1<u64>>> {
        self.outs_if(py, Basis::Time)
    }

    /// Returns whether all slots still hold these frames, so that everything read so far was of them.
    fn valid(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_valid(py)
    }

    /// Returns the batch.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        errors::check_fork(slf.py(), slf.get().fork_guard)?;
        Ok(slf.clone())
    }

    /// Raises `FrameOverwritten` if a slot was reused, unless another exception leaves the block.
    #[pyo3(signature = (exc_type, exc, traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: Option<&Bound<'_, PyAny>>,
        exc: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let _ = (exc, traceback);
        self.end_block(py, exc_type.is_some())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let fields = PyDict::new(py);
        fields.set_item("results", self.run.outs.len())?;
        for (name, run) in self.inputs.names.iter().zip(&self.run.inputs) {
            let seqs = run.as_ref().map(|run| {
                let first = run.first.slot_ref.seq;
                PyString::new(py, &format!("{first}..{}", first + run.len as u64 - 1))
            });
            fields.set_item(name, seqs)?;
        }
        text_form("JoinedBatch", &fields)
    }
}
