//! A received frame: read-only memory of a slot that may be overwritten, and the check that it was not.

use std::borrow::Cow;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::consumer as plane;

use crate::mapped_pools::MappedPools;
use crate::metadata::{MetadataView, Origin};
use crate::slot_view::{SlotView, frame_overwritten};
use crate::{arrays, errors};

/// A received frame: read-only views of one slot in shared memory, which the producer may reuse at any
/// time.
///
///     with frame:  # raises FrameOverwritten at the end if the slot was reused
///         total = frame.array.sum()
///
/// Nothing is copied. Check after the use, with `with frame:` or `valid()`, that the producer has not
/// overwritten the slot meanwhile, or take a `copy()`. A frame keeps its regions mapped; it stays readable
/// after its consumer was closed. It also supports DLPack (`torch.from_dlpack(frame)`) and the buffer
/// protocol. Any thread may use it. In a forked child `array`, `valid`, `copy` and `meta` raise
/// `ForkedError`.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Frame {
    frame: plane::Frame,
    origin: Arc<Origin>,
    /// It was already moved from received to late.
    counted_late: AtomicBool,
    fork_guard: ForkGuard,
}

impl Frame {
    pub fn new(frame: plane::Frame, origin: Arc<Origin>, fork_guard: ForkGuard) -> Self {
        Self { frame, origin, counted_late: AtomicBool::new(false), fork_guard }
    }

    /// Whether the slot still holds the frame. If not, it counts as late, once.
    pub fn check(&self) -> bool {
        let holds = self.frame.mapping.is_unchanged(self.frame.slot_ref.seq);
        if !holds && !self.counted_late.swap(true, Ordering::Relaxed) {
            self.origin.counters.received_to_late();
        }
        holds
    }

    pub fn overwritten(&self, py: Python<'_>) -> PyErr {
        let (stream_id, epoch, seq) =
            (self.frame.mapping.stream_id, self.frame.mapping.epoch, self.frame.slot_ref.seq);
        let message = match self.frame.mapping.lost_reason() {
            Some(why) => {
                format!("frame {seq} of stream {stream_id} was lost: {why}; wait for the next epoch")
            }
            None => format!(
                "frame {seq} of stream {stream_id} was overwritten while it was used; \
                 work faster, copy first, or give the stream more slots"
            ),
        };
        frame_overwritten(py, stream_id, Some(epoch), seq, &message)
    }

    pub fn frame_seq(&self) -> u64 {
        self.frame.slot_ref.seq
    }

    /// Its state as text. Not `check`: to print a frame is no use of it, and counts nothing.
    fn state(&self) -> &'static str {
        match self.fork_guard.is_owner() {
            true if self.frame.mapping.is_unchanged(self.frame.slot_ref.seq) => "valid",
            true => "overwritten",
            false => "of the parent process",
        }
    }

    fn data(&self) -> *mut u8 {
        self.frame.mapping.payload(self.frame.slot_ref.pool, self.frame.slot_ref.seq)
    }

    /// Epoch and metadata version.
    fn version(&self) -> (u64, u32) {
        (self.frame.mapping.epoch, self.frame.slot_ref.info.meta_version)
    }

    /// The metadata of its version.
    #[inline]
    fn metadata_view(&self, py: Python<'_>) -> PyResult<Option<Arc<MetadataView>>> {
        let (epoch, version) = self.version();
        self.origin.view(py, epoch, version)
    }

    /// The version that declares another element type than the header.
    fn extended(&self, py: Python<'_>) -> PyResult<Option<Arc<MetadataView>>> {
        // A forked child cannot read metadata: there the header's type applies.
        if !self.fork_guard.is_owner() {
            return Ok(None);
        }
        let (epoch, version) = self.version();
        self.origin.extended(py, epoch, version, &self.frame.slot_ref.info.tensor)
    }

    /// The array with its declared type.
    fn with_declared_type<'py>(&self, array: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.extended(array.py())?.as_ref().and_then(|s| s.extension.as_ref()) {
            Some(extension) => extension.view(&array),
            None => Ok(array),
        }
    }
}

impl SlotView for Frame {
    type Overwritten = ();

    fn fork_guard(&self) -> ForkGuard {
        self.fork_guard
    }

    fn first_overwritten(&self) -> Option<()> {
        (!self.check()).then_some(())
    }

    fn overwritten_error(&self, py: Python<'_>, (): ()) -> PyErr {
        self.overwritten(py)
    }
}

#[pymethods]
impl Frame {
    /// The stream of the frame.
    #[getter]
    fn stream_id(&self) -> u32 {
        self.frame.mapping.stream_id
    }

    /// The epoch of the frame. With `seq` it identifies the frame within its stream.
    #[getter]
    fn epoch(&self) -> u64 {
        self.frame.mapping.epoch
    }

    /// The number of the frame within its epoch.
    #[getter]
    fn seq(&self) -> u64 {
        self.frame.slot_ref.seq
    }

    /// The timestamp of the slot in ns: the one that the producer gave, or else the time of the commit on
    /// the producer's monotonic clock.
    #[getter]
    fn timestamp_ns(&self) -> u64 {
        self.frame.slot_ref.info.timestamp_ns
    }

    /// When the descriptor was published, in ns. None unless the producer publishes timestamps.
    #[getter]
    fn publish_timestamp_ns(&self) -> Option<u64> {
        self.frame.publish_timestamp_ns
    }

    /// The metadata version that applies to the frame. 0: none.
    #[getter]
    fn meta_version(&self) -> u32 {
        self.frame.slot_ref.info.meta_version
    }

    /// The attributes of the frame's metadata version. None while they are unknown, and where there are
    /// none.
    ///
    /// The first frame of an epoch waits up to 0.1 s for them, once.
    #[getter]
    fn meta(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.metadata_view(py)?.map(|s| s.mapping.clone_ref(py)))
    }

    /// The trace id that the frame carries. None if it carries none.
    #[getter]
    fn trace_id(&self) -> Option<u64> {
        (self.frame.trace_id != 0).then_some(self.frame.trace_id)
    }

    /// Number of bytes of the payload.
    #[getter]
    fn nbytes(&self) -> u32 {
        self.frame.slot_ref.info.values_len_bytes
    }

    /// The shape of the tensor.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let shape = self.frame.slot_ref.info.tensor.shape();
        let extended = self.extended(py)?;
        let is_pair = extended.as_ref().and_then(|s| s.extension.as_ref()).is_some_and(|e| e.pair);
        PyTuple::new(py, if is_pair { &shape[..shape.len() - 1] } else { shape })
    }

    /// The numpy dtype of `array`.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(extension) = self.extended(py)?.as_ref().and_then(|s| s.extension.as_ref()) {
            return Ok(extension.dtype(py));
        }
        let name = match arrays::dtype_name(self.frame.slot_ref.info.tensor.dtype) {
            "bytes" | "bit" => "uint8",
            other => other,
        };
        py.import("numpy")?.getattr("dtype")?.call1((name,))
    }

    /// The name of the element type: that of the dtype, or "bytes" or "bit", which numpy shows as uint8.
    #[getter]
    fn element_type(&self, py: Python<'_>) -> PyResult<Cow<'static, str>> {
        let extended = self.extended(py)?;
        Ok(match extended.as_ref().and_then(|s| s.extension.as_ref()) {
            Some(extension) => extension.name().to_owned().into(),
            None => arrays::dtype_name(self.frame.slot_ref.info.tensor.dtype).into(),
        })
    }

    /// The payload as a read-only numpy array, without a copy.
    ///
    /// The array is a view of shared memory: its values change if the producer overwrites the slot. Check
    /// `valid()` after the use, or use `with frame:`. The array keeps the frame alive.
    ///
    ///     with frame:
    ///         brightest = frame.array.max()
    #[getter]
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        errors::check_fork(slf.py(), this.fork_guard)?;
        let tensor = &this.frame.slot_ref.info.tensor;
        let n = usize::from(tensor.ndims);
        // SAFETY: locate held the extent against the payload and the payload against the pool; the
        // frame itself is the base, and it holds the mapping.
        let array = unsafe {
            arrays::view(
                this.data(),
                tensor.dtype,
                tensor.shape(),
                &tensor.strides[..n],
                false,
                slf.clone().into_any(),
            )
        }?;
        this.with_declared_type(array)
    }

    /// Returns whether the slot still holds this frame, so that everything read so far was of this frame.
    ///
    /// Call it after the use. False is final: the frame is then counted as `late` instead of received.
    ///
    ///     total = frame.array.sum()
    ///     if frame.valid():
    ///         report(total)
    fn valid(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_valid(py)
    }

    /// Returns a writable copy of the payload, which no producer can change.
    ///
    /// The copy is checked before it is returned. Releases the GIL while it copies. Raises
    /// `FrameOverwritten` if the producer reused the slot before or during the copy.
    ///
    ///     image = frame.copy()
    ///     image -= background
    fn copy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        errors::check_fork(py, this.fork_guard)?;
        let slot_ref = &this.frame.slot_ref;
        let (memory, data) = arrays::private(py, slot_ref.info.values_len_bytes as usize)?;
        // SAFETY: the new array has exactly the payload's length, and no other code has a reference to it.
        let is_unchanged = py.detach(|| unsafe { this.frame.mapping.copy_out(slot_ref, data as *mut u8) });
        if !is_unchanged {
            this.check();
            return Err(this.overwritten(py));
        }
        let tensor = &slot_ref.info.tensor;
        let strides = &tensor.strides[..usize::from(tensor.ndims)];
        // SAFETY: locate held the extent of shape and strides against this length.
        let array =
            unsafe { arrays::view(data as *mut u8, tensor.dtype, tensor.shape(), strides, true, memory) }?;
        this.with_declared_type(array)
    }

    /// Begins a copy of the payload to the device of the consumer, and returns a `tensorpool.cuda.DeviceFrame`.
    ///
    /// The copy runs beside the caller. The `DeviceFrame` waits for its end, and for the proof that the
    /// producer did not reuse the slot meanwhile, where its array is used first. `stream` is the CUDA stream
    /// that the array will be used on: an object of torch, CuPy or NVIDIA's bindings, or its address.
    ///
    /// Raises `ValueError` if the consumer was created without `device="cuda:0"`.
    ///
    ///     image = torch.from_dlpack(frame.to_device())
    #[pyo3(signature = (stream = None))]
    fn to_device<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        errors::check_fork(py, this.fork_guard)?;
        let device = this.origin.device.get().ok_or_else(|| {
            PyValueError::new_err(format!(
                "the consumer of this frame has no device; use ctx.consumer({}, device=\"cuda:0\")",
                this.frame.mapping.stream_id
            ))
        })?;
        device.bind(py).call_method1("copy_frame", (slf, stream))
    }

    /// Returns the pools that the frame lies in, as they are mapped into this process.
    fn mapped_pools(&self, py: Python<'_>) -> PyResult<MappedPools> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(MappedPools::new(self.frame.mapping.clone()))
    }

    /// Returns the frame.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        errors::check_fork(slf.py(), slf.get().fork_guard)?;
        Ok(slf.clone())
    }

    /// Raises `FrameOverwritten` if the producer reused the slot, unless another exception leaves the
    /// block.
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

    /// Returns a DLPack capsule: of `array`, or of a `copy()` of it, or with `dl_device` of a copy on a GPU.
    ///
    /// It is a copy with `copy=True`, and for a caller that cannot take read-only memory: one that does not
    /// pass `max_version=(1, 0)` or later, as JAX. Raises `BufferError` if such a caller passes
    /// `copy=False`, `FrameOverwritten` if the producer reused the slot before or during the copy.
    ///
    ///     image = torch.from_dlpack(frame)    # a view: check frame.valid() after the use
    ///     image = jax.numpy.from_dlpack(frame)    # a copy
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i64, i64)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        const CUDA: i64 = 2;
        let py = slf.py();
        let kwargs = PyDict::new(py);
        kwargs.set_item("stream", stream)?;
        if let Some(device) = dl_device {
            kwargs.set_item("dl_device", device)?;
        }
        if dl_device.is_some_and(|(kind, _)| kind == CUDA) {
            if copy == Some(false) {
                return Err(PyBufferError::new_err(
                    "a frame is in shared memory: a GPU can be given only a copy",
                ));
            }
            kwargs.set_item("max_version", max_version)?;
            return Self::to_device(slf, stream)?.call_method("__dlpack__", (), Some(&kwargs));
        }
        let takes_read_only = max_version.is_some_and(|(major, _)| major >= 1);
        let array = match copy {
            Some(false) if !takes_read_only => {
                return Err(PyBufferError::new_err(
                    "a frame is read-only, which a caller without DLPack 1.0 cannot know; leave copy=False \
                     out, or pass max_version=(1, 0)",
                ));
            }
            Some(true) => Self::copy(slf)?,
            _ if !takes_read_only => Self::copy(slf)?,
            _ => Self::array(slf)?,
        };
        // A copy was made above, where one was asked for. No name without need: numpy before 2.1 has neither.
        if copy == Some(false) {
            kwargs.set_item("copy", false)?;
        }
        if takes_read_only {
            kwargs.set_item("max_version", max_version)?;
        }
        array.call_method("__dlpack__", (), Some(&kwargs))
    }

    /// Returns the DLPack device: the CPU.
    fn __dlpack_device__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::array(slf)?.call_method0("__dlpack_device__")
    }

    /// # Safety
    /// Called by the interpreter with a writable `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        errors::check_fork(slf.py(), this.fork_guard)?;
        if flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err(
                "a frame is read-only; use frame.copy() for memory of your own",
            ));
        }
        // numpy refuses what the layout cannot give (one run of an F-ordered frame, say). The view holds
        // the array, the array the frame, the frame the mapping.
        let array = Self::array(&slf)?;
        // SAFETY: `view` is the interpreter's own, writable and not in use.
        if unsafe { ffi::PyObject_GetBuffer(array.as_ptr(), view, flags) } != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    /// Returns the facts of the frame as an HTML table, for notebooks.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let rows = [
            ("stream", self.stream_id().to_string()),
            ("epoch", self.epoch().to_string()),
            ("seq", self.seq().to_string()),
            ("shape", self.shape(py)?.repr()?.to_string()),
            ("dtype", self.element_type(py)?.into_owned()),
            ("bytes", self.nbytes().to_string()),
            ("timestamp_ns", self.timestamp_ns().to_string()),
            ("meta_version", self.meta_version().to_string()),
            ("state", self.state().to_owned()),
        ];
        let cells = rows.map(|(name, value)| format!("<tr><th>{name}</th><td>{value}</td></tr>"));
        Ok(format!("<table>{}</table>", cells.concat()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "<Frame stream={} epoch={} seq={} shape={} dtype={} {}>",
            self.frame.mapping.stream_id,
            self.frame.mapping.epoch,
            self.frame.slot_ref.seq,
            self.shape(py)?.repr()?,
            self.element_type(py)?,
            self.state()
        ))
    }
}
