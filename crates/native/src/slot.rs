//! `Slot`: a claimed slot, written in place and then committed or abandoned.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::tensor::TensorSpec;
use tensorpool_dataplane::producer as plane;
use tensorpool_dataplane::producer::FrameStamp;

use crate::arrays;
use crate::errors;
use crate::extension::Extension;
use crate::mapped_pools::MappedPools;
use crate::offer_result::OfferResult;
use crate::progress::SlotProgress;
use crate::stream_commits::{PendingCommit, StreamCommit, StreamCommits};
use crate::write_check::{WriteCheck, WrittenFrame};

/// Keeps a mapping alive for arrays over its memory.
#[pyclass(frozen, module = "tensorpool._native")]
struct MappingOwner(#[allow(dead_code)] Arc<MappedEpoch>);

/// The traces that a frame was made from, published once the frame has its sequence.
pub struct TraceLinks {
    pub producer: Py<PyAny>,
    pub trace_id: u64,
    pub parents: Py<PyList>,
}

impl TraceLinks {
    /// Publishes them for the frame `seq`.
    pub fn publish(&self, py: Python<'_>, epoch: u64, seq: u64) -> PyResult<()> {
        let Self { producer, trace_id, parents } = self;
        producer.call_method1(py, "_publish_links", (epoch, seq, *trace_id, parents.bind(py)))?;
        Ok(())
    }
}

struct SlotState {
    claim: Option<plane::Claim>,
    stamp: FrameStamp,
    /// Its progress, if it was claimed with progress.
    meter: Option<SlotProgress>,
    array: Option<Py<PyAny>>,
    result: Option<plane::OfferResult>,
    /// The outcome of a commit that a CUDA stream makes.
    stream_result: Option<Arc<OnceLock<plane::OfferResult>>>,
    links: Option<TraceLinks>,
}

/// A claimed slot of a producer, written in place and then committed or abandoned.
///
///     with producer.claim((480, 640), "uint16") as slot:
///         camera.read_into(slot.array)  # an exception abandons the slot
///
/// The end of the block commits the slot; an exception that leaves it abandons the slot. A slot that is
/// dropped without either is abandoned. Descriptors are published in the order of the claims, so an open
/// slot holds back those behind it. Any thread may use it. Every method raises `ForkedError` in a forked
/// child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Slot {
    producer: Arc<plane::Producer>,
    /// Epoch and sequence, which are known after the claim ended, too.
    key: (u64, u64),
    spec: TensorSpec,
    extension: Option<Arc<Extension>>,
    state: Mutex<SlotState>,
    write_check: Option<Arc<WriteCheck>>,
    fork_guard: ForkGuard,
}

impl Slot {
    pub fn new(
        producer: Arc<plane::Producer>,
        claim: plane::Claim,
        spec: TensorSpec,
        stamp: FrameStamp,
        meter: Option<SlotProgress>,
        extension: Option<Arc<Extension>>,
        links: Option<TraceLinks>,
        write_check: Option<Arc<WriteCheck>>,
        fork_guard: ForkGuard,
    ) -> Self {
        let key = (claim.mapping().epoch, claim.seq);
        let claim = Some(claim);
        let state = Mutex::new(SlotState {
            claim,
            stamp,
            meter,
            array: None,
            result: None,
            stream_result: None,
            links,
        });
        Self { producer, key, spec, extension, state, write_check, fork_guard }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn raise(&self, py: Python<'_>, to: impl FnOnce(u64) -> u64) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let mut state = self.state();
        let SlotState { claim, meter, .. } = &mut *state;
        let claim = claim.as_ref().ok_or_else(|| ended(py))?;
        let meter = meter.as_mut().ok_or_else(|| {
            PyValueError::new_err("this slot was claimed without progress; use claim(..., progress=\"rows\")")
        })?;
        let bytes = meter.raise_to(to(meter.filled()))?;
        self.producer.advance(claim, bytes);
        Ok(())
    }

    /// The state as text. A forked child cannot know it: there a thread that does not exist may hold the lock.
    fn state_text(&self) -> Cow<'static, str> {
        if !self.fork_guard.is_owner() {
            return "of the parent process".into();
        }
        let state = self.state();
        match (&state.claim, &state.meter, state.result) {
            (Some(_), Some(meter), _) => format!("open filled={}", meter.filled()).into(),
            (Some(_), None, _) => "open".into(),
            (None, _, Some(result)) => result.outcome.as_str().into(),
            (None, _, None) => match &state.stream_result {
                Some(result) => result.get().map_or("waits for its stream", |r| r.outcome.as_str()).into(),
                None => "abandoned".into(),
            },
        }
    }

    /// Takes the claim, and makes the array that was given out read-only.
    fn end(&self, py: Python<'_>) -> PyResult<Option<plane::Claim>> {
        errors::check_fork(py, self.fork_guard)?;
        let (claim, array) = {
            let mut state = self.state();
            (state.claim.take(), state.array.take())
        };
        if let Some(array) = array {
            array.bind(py).call_method1("setflags", (false,))?;
        }
        Ok(claim)
    }
}

#[pymethods]
impl Slot {
    /// The memory of the slot as a writable numpy array, in the shape and dtype of the claim.
    ///
    /// Its first values are those of an earlier frame. After `commit` or `abandon` the array is read-only:
    /// keep no views of it, because they stay writable. `python -X dev` warns of frames that were changed
    /// through one (`FrameChangedWarning`). Raises `ClosedError` if it is first used after that.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        errors::check_fork(py, self.fork_guard)?;
        if let Some(array) = &self.state().array {
            return Ok(array.bind(py).clone());
        }
        let (data, mapping) = {
            let state = self.state();
            let claim = state.claim.as_ref().ok_or_else(|| ended(py))?;
            (claim.payload(), claim.mapping().clone())
        };
        let n = usize::from(self.spec.ndims);
        let pin = Bound::new(py, MappingOwner(mapping))?.into_any();
        let strides = self.spec.resolved_strides().unwrap_or_default();
        // SAFETY: the claim's slot holds the whole tensor with its padding, and the pin holds the mapping.
        let array =
            unsafe { arrays::view(data, self.spec.dtype, &self.spec.dims[..n], &strides[..n], true, pin)? };
        let array = match &self.extension {
            Some(extension) => extension.view(&array)?,
            None => array,
        };
        self.state().array = Some(array.clone().unbind());
        Ok(array)
    }

    /// The sequence that the frame will have. Raises `ClosedError` once the slot is committed or abandoned.
    #[getter]
    fn seq(&self, py: Python<'_>) -> PyResult<u64> {
        errors::check_fork(py, self.fork_guard)?;
        self.state().claim.as_ref().map(|c| c.seq).ok_or_else(|| ended(py))
    }

    /// The outcome of the committed frame. None while the slot is open, and after it was abandoned.
    #[getter]
    fn result(&self, py: Python<'_>) -> PyResult<Option<OfferResult>> {
        errors::check_fork(py, self.fork_guard)?;
        let state = self.state();
        let by_stream = || state.stream_result.as_ref().and_then(|result| result.get().copied());
        Ok(state.result.or_else(by_stream).map(OfferResult::new))
    }

    /// The address of the payload in this process. Raises `ClosedError` once the slot is committed or abandoned.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<usize> {
        errors::check_fork(py, self.fork_guard)?;
        self.state().claim.as_ref().map(|c| c.payload() as usize).ok_or_else(|| ended(py))
    }

    /// The epoch that the slot belongs to.
    #[getter]
    fn epoch(&self) -> u64 {
        self.key.0
    }

    /// Returns the pools that the slot lies in, as they are mapped into this process.
    ///
    /// Raises `ClosedError` once the slot is committed or abandoned.
    fn mapped_pools(&self, py: Python<'_>) -> PyResult<MappedPools> {
        errors::check_fork(py, self.fork_guard)?;
        let mapping = self.state().claim.as_ref().map(|c| c.mapping().clone()).ok_or_else(|| ended(py))?;
        Ok(MappedPools::new(mapping))
    }

    /// Publishes the frame when the CUDA stream `stream` has done everything that was given to it before.
    ///
    /// Returns at once: neither the caller, nor the interpreter, nor the stream waits. `result` is None until
    /// the frame is published, shortly after the stream has got there. `stream` is an object of torch, CuPy or
    /// NVIDIA's bindings, or its address. The array becomes read-only, and later slots are published after
    /// this one.
    ///
    /// Raises `ClosedError` if the slot was committed or abandoned already, `ValueError` for a slot with
    /// `parents`.
    ///
    ///     slot = producer.claim(image.shape, "uint8")
    ///     torch.from_numpy(slot.array).copy_(image, non_blocking=True)
    ///     slot.commit_after(torch.cuda.current_stream())
    fn commit_after(slf: &Bound<'_, Self>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        slf.py().import("tensorpool.cuda")?.call_method1("commit_after", (slf, stream))?;
        Ok(())
    }

    /// Ends the slot in favour of a commit that a CUDA stream makes. Used by `commit_after`.
    fn commit_by_stream(&self, py: Python<'_>, commits: &StreamCommits) -> PyResult<StreamCommit> {
        if self.state().links.is_some() {
            return Err(PyValueError::new_err(
                "a slot with parents cannot be committed by a stream; wait for the stream and use commit()",
            ));
        }
        let claim = self.end(py)?.ok_or_else(|| ended(py))?;
        let result = Arc::new(OnceLock::new());
        let stamp = {
            let mut state = self.state();
            state.stream_result = Some(result.clone());
            state.stamp
        };
        commits.add(py, PendingCommit { producer: self.producer.clone(), claim, stamp, result })
    }

    /// Reports that `count` more rows, columns or bytes are written, so that consumers may read them.
    ///
    /// The unit is that of `claim(..., progress=...)`. Messages are sent at most at the pace that consumers
    /// asked for, so calls are cheap. Never waits.
    ///
    /// Raises `ValueError` if the slot was claimed without progress or has fewer units, `ClosedError` once
    /// it is committed or abandoned.
    ///
    ///     with producer.claim((480, 640), "uint16", progress="rows") as slot:
    ///         for row in range(480):
    ///             camera.read_row_into(slot.array[row])
    ///             slot.advance()
    #[pyo3(signature = (count = 1))]
    fn advance(&self, py: Python<'_>, count: u64) -> PyResult<()> {
        self.raise(py, |filled| filled.saturating_add(count))
    }

    /// Reports that `total` rows, columns or bytes are written from the start, as a DMA engine counts them.
    ///
    /// Raises as `advance` does, and `ValueError` if the total is less than before.
    fn advance_to(&self, py: Python<'_>, total: u64) -> PyResult<()> {
        self.raise(py, |_| total)
    }

    /// How many rows, columns or bytes are written. None for a slot that was claimed without progress.
    #[getter]
    fn filled(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.state().meter.as_ref().map(SlotProgress::filled))
    }

    /// Sets the timestamp of the frame, in place of the one of the claim or of the time of the commit.
    fn set_timestamp_ns(&self, py: Python<'_>, value: u64) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.state().stamp.timestamp_ns = Some(value);
        Ok(())
    }

    /// Publishes the frame and returns its outcome. The array becomes read-only.
    ///
    /// The outcome is "deferred" while an older slot is open. Raises `ClosedError` if the slot was
    /// committed or abandoned already.
    ///
    ///     slot = producer.claim((480, 640), "uint16")
    ///     camera.read_into(slot.array)
    ///     result = slot.commit()
    fn commit(&self, py: Python<'_>) -> PyResult<OfferResult> {
        let claim = self.end(py)?.ok_or_else(|| ended(py))?;
        let stamp = self.state().stamp;
        let offered = py.detach(|| {
            let written = self.write_check.as_ref().map(|check| (check, WrittenFrame::new(&claim)));
            let offered = self.producer.commit_claim(&claim, stamp);
            if let (Some((check, frame)), Some(_)) = (written, offered.seq) {
                check.add(frame);
            }
            offered
        });
        let links = {
            let mut state = self.state();
            state.result = Some(offered);
            state.links.take()
        };
        if let (Some(links), Some(seq)) = (links, offered.seq) {
            links.publish(py, self.key.0, seq)?;
        }
        Ok(OfferResult::new(offered))
    }

    /// Gives up the slot: no frame is published. Does nothing if it was committed or abandoned already.
    ///
    /// The sequence is used again if no newer slot was claimed; else consumers see a gap, counted as a
    /// hole.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(claim) = self.end(py)? {
            py.detach(|| self.producer.abandon_claim(&claim));
        }
        Ok(())
    }

    /// Returns the slot.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        errors::check_fork(slf.py(), slf.get().fork_guard)?;
        Ok(slf.clone())
    }

    /// Commits the slot if it is open, or abandons it if an exception leaves the block.
    #[pyo3(signature = (exc_type, exc, traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: Option<&Bound<'_, PyAny>>,
        exc: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let _ = (exc, traceback);
        // An exception that leaves the block is not replaced, in a forked child either.
        if exc_type.is_some() && !self.fork_guard.is_owner() {
            return Ok(false);
        }
        let is_open = self.state().claim.is_some();
        if exc_type.is_some() {
            self.abandon(py)?;
        } else if is_open {
            self.commit(py)?;
        }
        Ok(false)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shape = &self.spec.dims[..usize::from(self.spec.ndims)];
        let (shape, dtype) = match &self.extension {
            Some(e) if e.pair => (&shape[..shape.len() - 1], e.name()),
            Some(e) => (shape, e.name()),
            None => (shape, arrays::dtype_name(self.spec.dtype)),
        };
        Ok(format!(
            "<Slot stream={} epoch={} seq={} shape={} dtype={dtype} {}>",
            self.producer.stream_id(),
            self.key.0,
            self.key.1,
            PyTuple::new(py, shape)?.repr()?,
            self.state_text()
        ))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.fork_guard.is_owner()
            && let Ok(state) = self.state.get_mut()
            && let Some(claim) = state.claim.take()
        {
            self.producer.abandon_claim(&claim);
        }
    }
}

#[cold]
fn ended(py: Python<'_>) -> PyErr {
    errors::plain(py, "ClosedError", "this slot was committed or abandoned already; claim another one")
}
