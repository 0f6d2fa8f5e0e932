//! `Producer`: offers a copy of an array, or claims a slot to write in place.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::containment::AllowedBases;
use tensorpool_core::shm::copy::Target;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::region::Access;
use tensorpool_core::shm::tensor::item_size;
use tensorpool_core::wire::announce::PoolAnnounce;
use tensorpool_core::wire::driver::Role;
use tensorpool_core::wire::layout::*;
use tensorpool_dataplane::producer as plane;
use tensorpool_dataplane::producer::{FrameStamp, Outcome};

use crate::array_input::{self, ArrayInput};
use crate::arrays;
use crate::conductor::Conductor;
use crate::errors;
use crate::extension::{DeclaredExtension, Extension, ExtensionArguments};
use crate::offer_result::{OfferManyResult, OfferResult};
use crate::options::{Connection, GrantOptions, LeaseOptions, OwnedRegions, ProducerOptions};
use crate::progress::{self, SlotProgress};
use crate::slot::{Slot, TraceLinks};
use crate::stats::{LeaseStatus, ProducerCounters};
use crate::write_check::WriteCheck;

/// The largest power of two that the stride of a pool can have on the wire.
const MAX_STRIDE_BYTES: u64 = 1 << 31;
/// Up to this size the copy ends before another thread could have acquired the interpreter.
const KEEPS_INTERPRETER_BYTES: u64 = 64 << 10;

/// The native part of `tensorpool.Producer`: writes frames into the ring of a stream and publishes their
/// descriptors.
///
/// Several threads may use one producer; it orders their frames. Every method raises `ForkedError` in a
/// forked child. `tensorpool.open().producer(...)` creates one.
#[pyclass(frozen, subclass, module = "tensorpool._native")]
pub struct Producer {
    producer: Arc<plane::Producer>,
    conductor: Py<Conductor>,
    id: u64,
    declared: DeclaredExtension,
    /// Frames get trace ids, and may name the frames that they were made from.
    has_traces: bool,
    /// The outcomes that the user was warned of: one bit each.
    warned: AtomicU8,
    /// Registers the memory of claimed slots with a GPU; set once, for a producer with `device=`.
    device: OnceLock<Py<PyAny>>,
    /// Looks for frames that were changed after their commit; None outside of the development mode.
    write_check: Option<Arc<WriteCheck>>,
    fork_guard: ForkGuard,
}

impl Producer {
    pub fn parts(&self, py: Python<'_>) -> (Arc<plane::Producer>, Py<Conductor>) {
        (self.producer.clone(), self.conductor.clone_ref(py))
    }

    /// The native producer, for other parts of this process.
    pub fn plane(&self, py: Python<'_>) -> PyResult<Arc<plane::Producer>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.producer.clone())
    }

    /// The trace of a frame: its id, and what to publish about it once it has a sequence.
    ///
    /// Without traces and without `parents`, nothing of this passes through Python.
    #[inline]
    fn trace(
        slf: &Bound<'_, Self>,
        trace_id: u64,
        parents: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(u64, Option<TraceLinks>)> {
        if parents.is_none() && (trace_id != 0 || !slf.get().has_traces) {
            return Ok((trace_id, None));
        }
        Self::trace_from(slf, trace_id, parents)
    }

    fn trace_from(
        slf: &Bound<'_, Self>,
        trace_id: u64,
        parents: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(u64, Option<TraceLinks>)> {
        if !slf.get().has_traces {
            return Err(PyValueError::new_err(format!(
                "this producer has no traces, so its frames cannot name parents; use ctx.producer({}, \
                 traces=True)",
                slf.get().producer.stream_id()
            )));
        }
        let parents = parents.map_or_else(|| PyTuple::empty(slf.py()).into_any(), Clone::clone);
        let (trace_id, linked): (u64, Bound<'_, PyList>) =
            slf.call_method1("_trace_id_from", (parents, trace_id))?.extract()?;
        let links = (!linked.is_empty()).then(|| TraceLinks {
            producer: slf.clone().into_any().unbind(),
            trace_id,
            parents: linked.unbind(),
        });
        Ok((trace_id, links))
    }

    /// The traces of the frames of a batch.
    fn traces(
        slf: &Bound<'_, Self>,
        trace_id: u64,
        parents: Option<&Bound<'_, PyAny>>,
        count: usize,
    ) -> PyResult<BatchTraces> {
        let has_parents = parents.is_some();
        if count == 0 || (!has_parents && (trace_id != 0 || !slf.get().has_traces)) {
            return Ok(BatchTraces::Shared(trace_id));
        }
        // Iterated once for each frame.
        let parents = parents.map(|p| PyTuple::new(slf.py(), p.try_iter()?.collect::<PyResult<Vec<_>>>()?));
        let parents = parents.transpose()?.map(Bound::into_any);
        let first = Self::trace_from(slf, trace_id, parents.as_ref())?;
        // The id of the only parent is that of every frame.
        if first.1.is_none() && has_parents {
            return Ok(BatchTraces::Shared(first.0));
        }
        let others = (1..count).map(|_| Self::trace_from(slf, trace_id, parents.as_ref()));
        Ok(BatchTraces::Each(std::iter::once(Ok(first)).chain(others).collect::<PyResult<_>>()?))
    }

    /// Gets pools that hold `len` bytes before the first frame of a batch, where the user chose none.
    fn fit_pools_before(slf: &Bound<'_, Self>, len: u64) -> PyResult<()> {
        let fits = slf.get().producer.fits_pool(len);
        if fits == Some(false)
            && let Some(fit) = slf.getattr_opt("_fit_pools")?
        {
            fit.call1((len,))?;
        }
        Ok(())
    }

    /// Asks Python to declare a type without a number in the registry. False: it stays refused.
    #[cold]
    fn declare(slf: &Bound<'_, Self>, refused: &PyErr, named: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let value = refused.value(slf.py());
        let dtype = match (value.getattr_opt("dtype")?, named) {
            (Some(dtype), _) => dtype,
            (None, Some(named)) => named.clone(),
            (None, None) => return Ok(false),
        };
        match slf.getattr_opt("_declare_dtype")? {
            Some(declare) => declare.call1((dtype,))?.extract(),
            None => Ok(false),
        }
    }

    /// Asks Python for pools that hold `len` bytes, where the user chose none. True: try again.
    #[cold]
    fn fit_pools(slf: &Bound<'_, Self>, outcome: Outcome, len: u64) -> PyResult<bool> {
        if outcome != Outcome::NoPool {
            return Ok(false);
        }
        let fits = match slf.getattr_opt("_fit_pools")? {
            Some(fit) => fit.call1((len,))?.extract()?,
            None => false,
        };
        if fits {
            slf.get().producer.retract_no_pool();
        }
        Ok(fits)
    }

    /// A frame of `len` bytes is not in the ring: raises that, or warns of a mistake of the user, once.
    #[cold]
    fn on_refused(slf: &Bound<'_, Self>, outcome: Outcome, len: u64, strict: bool) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let message = this.refusal_text(outcome, len);
        if strict {
            return Err(errors::raise(py, "OfferRefused", &message, |f| {
                f.set_item("outcome", outcome.as_str())
            }));
        }
        let bit = 1 << outcome as u8;
        if matches!(outcome, Outcome::NoPool | Outcome::Closed)
            && this.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0
            && let Some(warn) = slf.getattr_opt("_warn_refused")?
        {
            warn.call1((message,))?;
        }
        Ok(())
    }

    /// Warns of frames that were changed after their commit. `all`: looks at all of them.
    #[cold]
    fn warn_changed(slf: &Bound<'_, Self>, check: &WriteCheck, all: bool) -> PyResult<()> {
        for seq in slf.py().detach(|| check.take_changed(all)) {
            if let Some(warn) = slf.getattr_opt("_warn_changed")? {
                warn.call1((seq,))?;
            }
        }
        Ok(())
    }

    /// Why there is no slot for a frame of `len` bytes, and what to do.
    fn refusal_text(&self, outcome: Outcome, len: u64) -> String {
        let stream_id = self.producer.stream_id();
        match outcome {
            Outcome::NoPool if len > MAX_STRIDE_BYTES => format!(
                "a frame of {len} bytes is larger than any pool of stream {stream_id} can be ({}); split it",
                size_literal(MAX_STRIDE_BYTES)
            ),
            Outcome::NoPool => {
                let fit = size_literal(len.next_power_of_two());
                format!(
                    "a frame of {len} bytes fits no pool of stream {stream_id}; use ctx.producer({stream_id}, \
                     pools=[\"{fit}\"])"
                )
            }
            Outcome::SlotClaimed => format!(
                "the next slot of stream {stream_id} is still claimed; commit or abandon it first, or use a \
                 larger nslots"
            ),
            Outcome::Detached => {
                format!("stream {stream_id} has no lease at the moment; it is being asked for again")
            }
            _ => format!(
                "the producer of stream {stream_id} is closed; open another with ctx.producer({stream_id})"
            ),
        }
    }

    /// The registry number of a type to claim, how it is carried, and the version that declares it.
    fn element(
        slf: &Bound<'_, Self>,
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<(i16, u32, Option<Arc<Extension>>)> {
        let py = slf.py();
        for is_retry in [false, true] {
            let (version, extension) = slf.get().declared.now();
            match (arrays::parse_dtype(py, dtype), extension) {
                (Ok(plain), Some(e)) if e.carrier == plain => return Err(array_input::mistakable(py, &e)),
                (Ok(plain), _) => return Ok((plain, version, None)),
                (Err(_), Some(e)) if e.is_called(dtype) => return Ok((e.carrier, version, Some(e))),
                (Err(error), _) if is_retry || !Self::declare(slf, &error, Some(dtype))? => {
                    return Err(error);
                }
                (Err(_), _) => {}
            }
        }
        Err(PyValueError::new_err("the element type changed meanwhile; claim again"))
    }
}

#[pymethods]
impl Producer {
    /// Adds a producer to the connection's conductor. With `owned_regions` it maps and announces regions that
    /// this process created. With `lease` it writes into a driver's regions.
    ///
    /// Raises `RegionRejected` if a region is invalid, `ValueError` unless exactly one of the two is given.
    #[new]
    #[pyo3(signature = (connection, stream_id, options, *, descriptor_channel, descriptor_stream_id, grants, owned_regions = None, lease = None))]
    fn new(
        connection: Connection<'_>,
        stream_id: u32,
        options: ProducerOptions,
        descriptor_channel: String,
        descriptor_stream_id: i32,
        grants: GrantOptions,
        owned_regions: Option<OwnedRegions>,
        lease: Option<LeaseOptions>,
    ) -> PyResult<Self> {
        let conductor = &connection.conductor;
        let py = conductor.py();
        let (control_channel, shared_control) = conductor.get().control();
        let config = plane::Config {
            stream_id,
            descriptor_channel,
            descriptor_stream_id,
            publish_timestamps: options.publish_timestamps,
            clock: conductor.get().clock(),
            announce: None,
            announce_period_ns: connection.announce_period_ns,
            qos_period_ns: connection.report_period_ns,
            control_channel,
            control_stream_id: options.control_stream_id.unwrap_or(shared_control),
            dedicated_control_stream: options.control_stream_id,
            dedicated_qos_stream: options.qos_stream_id,
            progress_limits: grants.progress_limits(),
            policy: grants.policy(),
            prefault: options.prefault,
            has_copy_thread: options.copy_threads > 1,
        };
        let producer = match (owned_regions, lease) {
            (Some(owned), None) => {
                let bases = AllowedBases::new([&owned.base_dir])?;
                let regions =
                    PoolAnnounce { clock_domain: config.clock.domain(), ..owned.announce(stream_id) };
                let mapping = py
                    .detach(|| MappedEpoch::open(&regions, &bases, Access::Write))
                    .map_err(|e| errors::region(py, &e))?;
                let config = plane::Config { announce: Some(regions), ..config };
                py.detach(|| plane::Producer::new(config, Arc::new(mapping)))
            }
            (None, Some(lease)) => {
                let (hugepages, node) = (options.require_hugepages, options.numa_node);
                let lease = lease.for_endpoint(&connection, stream_id, Role::Producer, hugepages, node)?;
                plane::Producer::leased(config, lease)
            }
            _ => return Err(PyValueError::new_err("a producer has either regions of its own or a lease")),
        };
        let producer = Arc::new(producer);
        let id = conductor.get().add(py, producer.clone())?;
        Ok(Self {
            producer,
            conductor: conductor.clone().unbind(),
            id,
            declared: DeclaredExtension::default(),
            has_traces: options.traces,
            warned: AtomicU8::new(0),
            device: OnceLock::new(),
            write_check: WriteCheck::in_dev_mode(py)?,
            fork_guard: ForkGuard::current(),
        })
    }

    /// Sets the metadata version of the frames that follow, and the element type that their carrier stands
    /// for.
    #[pyo3(signature = (meta_version, extension = None))]
    fn describe(
        &self,
        py: Python<'_>,
        meta_version: u32,
        extension: Option<ExtensionArguments<'_>>,
    ) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.declared.set(meta_version, extension.map(Extension::new).transpose()?);
        Ok(())
    }

    /// The metadata version of the next frame. 0: none.
    #[getter]
    fn meta_version(&self, py: Python<'_>) -> PyResult<u32> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.declared.now().0)
    }

    /// Returns the state of the lease: its ids, how often it was granted, refused and ended, and why there
    /// is none (`code`, `message`). None for a producer that owns its regions.
    fn lease(&self, py: Python<'_>) -> PyResult<Option<LeaseStatus>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(LeaseStatus::from_lease(py, self.producer.lease()))
    }

    /// Returns the lease, and requests none until `resume_lease`, so that the driver can take another layout.
    ///
    /// Frames that are offered meanwhile are refused as "detached". Returns False for a producer that owns its
    /// regions. Any thread may call this.
    fn suspend_lease(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.producer.suspend_lease()))
    }

    /// Requests a lease again after `suspend_lease`. Any thread may call this.
    fn resume_lease(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.producer.resume_lease();
        Ok(())
    }

    /// Copies an array into the next slot and publishes it. Never waits for a consumer.
    ///
    /// `array` is a numpy array, or an object with the buffer protocol or DLPack, also in the memory of a GPU
    /// (the extra `cuda`). `timestamp_ns` is the
    /// time of the source; without it, it is the time of the commit. `dtype` names the element type: that
    /// of the array, or for elements of one byte also another such type ("bytes", "bool"). `meta_version`
    /// and `trace_id` replace those of the producer. `parents` are the frames, or their trace ids, that this
    /// one was made from, also beside a `trace_id`; only a producer with `traces=True` takes them.
    /// `keep_strides` keeps the padding between the rows of an array that is not contiguous: one copy of its
    /// memory, where else rows are copied one by one. Rows from a GPU are always packed, so that
    /// `keep_strides` of padded ones is refused. Any thread may call this; large arrays are copied without
    /// the GIL.
    ///
    /// Returns an outcome that is true if the frame was published; a frame that cannot be published is
    /// counted. The first frame that fits no pool, and the first after `close`, causes an `OfferWarning`.
    /// The first frame of a producer that was opened without `pools` gets a pool that it fits, where the
    /// driver allows it. `strict=True` raises `OfferRefused` where `claim` raises `ClaimRefused`: if no
    /// pool is large enough, the slot is still claimed, there is no lease, or the producer is closed.
    ///
    /// Raises `UnsupportedDtype` for an element type that frames cannot carry, `TypeError` for an object
    /// without such memory or with another `dtype`, `ValueError` for more than eight dimensions, and for
    /// `parents` without traces.
    ///
    ///     result = producer.offer(image)
    ///     if not result:
    ///         print(result.outcome)
    #[pyo3(signature = (array, *, timestamp_ns = None, dtype = None, meta_version = None, trace_id = 0, parents = None, keep_strides = false, strict = false))]
    fn offer<'py>(
        slf: &Bound<'py, Self>,
        array: &Bound<'py, PyAny>,
        timestamp_ns: Option<u64>,
        dtype: Option<&Bound<'py, PyAny>>,
        meta_version: Option<u32>,
        trace_id: u64,
        parents: Option<&Bound<'py, PyAny>>,
        keep_strides: bool,
        strict: bool,
    ) -> PyResult<OfferResult> {
        let py = slf.py();
        let this = slf.get();
        errors::check_fork(py, this.fork_guard)?;
        if let Some(check) = &this.write_check {
            Self::warn_changed(slf, check, false)?;
        }
        if array_input::is_on_device(array)? {
            let options = (array, timestamp_ns, dtype, meta_version, trace_id, parents, keep_strides, strict);
            let result = slf.call_method1(intern!(py, "_offer_from_device"), options)?;
            return Ok(result.cast_into::<OfferResult>()?.get().clone());
        }
        let (trace_id, links) = Self::trace(slf, trace_id, parents)?;
        let (mut version, extension) = this.declared.now();
        let mut input = match ArrayInput::new(array, dtype, extension.as_deref()) {
            Ok(input) => input,
            Err(error) => {
                if !Self::declare(slf, &error, None)? {
                    return Err(error);
                }
                let (later, extension) = this.declared.now();
                version = later;
                ArrayInput::new(array, dtype, extension.as_deref())?
            }
        };
        if keep_strides {
            input.keep_strides()?;
        }
        let stamp = FrameStamp { timestamp_ns, meta_version: meta_version.unwrap_or(version), trace_id };
        let (memory, spec, len) = (input.memory(), input.spec, input.values_len);
        // SAFETY: the source is held, and offer hands out a slot of at least `len` bytes.
        let fill = |target: &mut Target<'_>| unsafe { memory.copy_to(target) };
        let immediate = if len <= KEEPS_INTERPRETER_BYTES {
            this.producer.try_offer(spec, len, stamp, fill)
        } else {
            None
        };
        let mut result =
            immediate.unwrap_or_else(|| py.detach(|| this.producer.offer(spec, len, stamp, fill)));
        if result.seq.is_none() && Self::fit_pools(slf, result.outcome, len)? {
            result = py.detach(|| this.producer.offer(spec, len, stamp, fill));
        }
        if result.seq.is_none() {
            Self::on_refused(slf, result.outcome, len, strict)?;
        }
        if let (Some(links), Some(epoch), Some(seq)) = (links, result.epoch, result.seq) {
            links.publish(py, epoch, seq)?;
        }
        Ok(OfferResult::new(result))
    }

    /// The result of a frame of `nbytes` that got no slot for the reason `outcome`. Used for tensors of a GPU.
    ///
    /// Warns as `offer` does, or raises `OfferRefused` if `strict`. Raises `ValueError` for an unknown outcome.
    fn _refuse(slf: &Bound<'_, Self>, outcome: &str, nbytes: u64, strict: bool) -> PyResult<OfferResult> {
        let known = [Outcome::NoPool, Outcome::SlotClaimed, Outcome::Detached, Outcome::Closed];
        let Some(outcome) = known.into_iter().find(|o| o.as_str() == outcome) else {
            return Err(PyValueError::new_err(format!(
                "{outcome:?} is no outcome of a frame without a slot"
            )));
        };
        Self::on_refused(slf, outcome, nbytes, strict)?;
        Ok(OfferResult::new(plane::OfferResult { outcome, seq: None, epoch: None }))
    }

    /// Publishes each item of the first axis of `array` as a frame, in order. Never waits for a consumer.
    ///
    /// For small frames at a high rate: the frames are written and published natively, without the GIL and
    /// without an object for each. It does the same as a loop of `offer`: every frame has its sequence, its time
    /// and its outcome, and counts in the ledger. `array` of shape (1000, 32) becomes 1000 frames of shape (32,);
    /// of shape (1000,), frames of one element each. It may have any strides. `timestamps_ns` are the times of the
    /// source, one for each frame; without them, all have the time of the offer. `dtype`, `meta_version`,
    /// `trace_id` and `parents` are as for `offer`, and apply to every frame. Any thread may call this; frames of
    /// other threads may come between.
    ///
    /// A ring holds its newest `nslots` frames. Of a batch with more, consumers get what they read meanwhile.
    ///
    /// Returns how many frames were published, and the outcomes of the others. `strict=True` raises
    /// `OfferRefused` at the first frame that cannot be written; those before it are published. The first frame of
    /// a producer that was opened without `pools` gets a pool that it fits, where the driver allows it.
    ///
    /// Raises `UnsupportedDtype`, `TypeError` and `ValueError` as `offer` does, `ValueError` also for an array
    /// without a first axis and for another number of `timestamps_ns`.
    ///
    ///     block = digitizer.read((1000, 32))
    ///     result = producer.offer_many(block)
    ///     lost += result.count - result.published
    #[pyo3(signature = (array, *, timestamps_ns = None, dtype = None, meta_version = None, trace_id = 0, parents = None, strict = false))]
    fn offer_many<'py>(
        slf: &Bound<'py, Self>,
        array: &Bound<'py, PyAny>,
        timestamps_ns: Option<&Bound<'py, PyAny>>,
        dtype: Option<&Bound<'py, PyAny>>,
        meta_version: Option<u32>,
        trace_id: u64,
        parents: Option<&Bound<'py, PyAny>>,
        strict: bool,
    ) -> PyResult<OfferManyResult> {
        let py = slf.py();
        let this = slf.get();
        errors::check_fork(py, this.fork_guard)?;
        let (mut version, mut extension) = this.declared.now();
        let input = match ArrayInput::new(array, dtype, extension.as_deref()) {
            Ok(input) => input,
            Err(_) if array_input::is_on_device(array)? => {
                return Err(PyTypeError::new_err(
                    "the tensor lies in the memory of a GPU; offer_many copies from the host: offer each item, or \
                     copy the tensor first",
                ));
            }
            Err(error) => {
                if !Self::declare(slf, &error, None)? {
                    return Err(error);
                }
                (version, extension) = this.declared.now();
                ArrayInput::new(array, dtype, extension.as_deref())?
            }
        };
        if array_input::is_scalar(array)? {
            return Err(PyValueError::new_err("a single number has no first axis; use offer"));
        }
        let is_pair = extension.is_some_and(|e| e.pair && e.carrier == input.spec.dtype);
        let items = input.items(is_pair)?;
        let (spec, len, count) = (items.spec, items.values_len, items.count);
        let times = timestamps_ns.map(|times| array_input::timestamps(times, count)).transpose()?;
        let traces = Self::traces(slf, trace_id, parents, count)?;
        let meta_version = meta_version.unwrap_or(version);
        if count > 0 {
            Self::fit_pools_before(slf, len)?;
        }
        let mut written = Vec::new();
        let batch = py.detach(|| {
            let stamp = |index: usize| FrameStamp {
                timestamp_ns: times.as_ref().map(|times| times[index]),
                meta_version,
                trace_id: traces.id(index),
            };
            // SAFETY: the source is held, and offer hands out a slot of at least `len` bytes.
            let fill = |index, target: &mut Target<'_>| unsafe { items.copy_to(index, target) };
            this.producer.offer_many(spec, len, count, stamp, fill, |index, result| {
                if traces.has_links()
                    && let (Some(epoch), Some(seq)) = (result.epoch, result.seq)
                {
                    written.push((index, epoch, seq));
                }
                !(strict && result.seq.is_none())
            })
        });
        for (index, epoch, seq) in written {
            traces.publish(py, index, epoch, seq)?;
        }
        if let Some((outcome, _)) = batch.refused {
            Self::on_refused(slf, outcome, len, strict)?;
        }
        Ok(OfferManyResult::new(count, batch))
    }

    /// Claims the next slot, to be written in place. Never waits.
    ///
    /// The slot is published by `commit`, or at the end of `with`. Frames that are offered meanwhile are
    /// published after it. `order` is "C" or "F". `strides` are the bytes from one element to the next along
    /// each dimension, as a frame grabber writes padded rows by DMA: (1024, 1) for rows of 640 bytes that
    /// begin at every 1024th. Consumers get an array with these strides. `progress` of "rows", "columns" or
    /// "bytes" lets consumers read the frame while it is written: see `Slot.advance`. `parents` are as for
    /// `offer`, and are published with the commit. Any thread may call this.
    ///
    /// Raises `ClaimRefused` where an offer would be dropped: no pool is large enough, the slot is still
    /// claimed, there is no lease, or the producer is closed. Raises `UnsupportedDtype` or `ValueError` for
    /// a tensor that a frame cannot carry, `ValueError` for `parents` without traces.
    ///
    ///     with producer.claim((480, 640), "uint16") as slot:
    ///         camera.read_into(slot.array)
    #[pyo3(signature = (shape, dtype, *, order = "C", strides = None, progress = None, timestamp_ns = None, meta_version = None, trace_id = 0, parents = None))]
    fn claim<'py>(
        slf: &Bound<'py, Self>,
        shape: &Bound<'py, PyAny>,
        dtype: &Bound<'py, PyAny>,
        order: &str,
        strides: Option<Vec<i64>>,
        progress: Option<&str>,
        timestamp_ns: Option<u64>,
        meta_version: Option<u32>,
        trace_id: u64,
        parents: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Slot>> {
        let py = slf.py();
        let this = slf.get();
        errors::check_fork(py, this.fork_guard)?;
        if let Some(check) = &this.write_check {
            Self::warn_changed(slf, check, false)?;
        }
        let (trace_id, links) = Self::trace(slf, trace_id, parents)?;
        let major_order = match order {
            "C" => MAJOR_ORDER_ROW,
            "F" => MAJOR_ORDER_COLUMN,
            other => {
                return Err(PyValueError::new_err(format!("order {other:?}: use \"C\" or \"F\"")));
            }
        };
        let (mut n, mut shape) = arrays::parse_shape(shape)?;
        let (dtype, version, extension) = Self::element(slf, dtype)?;
        if extension.as_ref().is_some_and(|e| e.pair) {
            if order == "F" {
                return Err(PyValueError::new_err("pairs of numbers lie side by side: use order \"C\""));
            }
            *shape.get_mut(n).ok_or_else(|| arrays::too_many(n + 1))? = 2;
            n += 1;
        }
        let mut spec = arrays::spec(dtype, major_order, &shape[..n])?;
        let mut len = spec.values_len().ok_or_else(|| PyValueError::new_err("the tensor is too large"))?;
        if let Some(mut strides) = strides {
            if extension.as_ref().is_some_and(|e| e.pair) {
                strides.push(item_size(dtype).map_or(1, i64::from));
            }
            (spec, _, len) =
                spec.with_strides(&strides).ok_or_else(|| array_input::refused_strides(&strides))?;
        }
        let in_unit = progress.map(|unit| progress::in_unit(spec, unit)).transpose()?;
        let stamp = FrameStamp { timestamp_ns, meta_version: meta_version.unwrap_or(version), trace_id };
        let try_claim = || match in_unit {
            None => py.detach(|| this.producer.claim(spec, len)),
            Some((spec, stride, _)) => {
                py.detach(|| this.producer.claim_with_progress(spec, len, stride, stamp))
            }
        };
        let mut claim = try_claim();
        if let Err(outcome) = &claim
            && Self::fit_pools(slf, *outcome, len)?
        {
            claim = try_claim();
        }
        let meter = in_unit.map(|(spec, stride, unit)| SlotProgress::new(unit, stride, &spec, len));
        let claim = claim.map_err(|outcome| {
            let message = this.refusal_text(outcome, len);
            errors::raise(py, "ClaimRefused", &message, |f| f.set_item("outcome", outcome.as_str()))
        })?;
        let write_check = this.write_check.clone();
        let slot = Slot::new(
            this.producer.clone(),
            claim,
            spec,
            stamp,
            meter,
            extension,
            links,
            write_check,
            this.fork_guard,
        );
        let slot = Bound::new(py, slot)?;
        if let Some(device) = this.device.get() {
            device.bind(py).call_method1("register_slot", (&slot,))?;
        }
        Ok(slot)
    }

    /// Sets what registers the memory of claimed slots with a GPU. Raises `ValueError` if it was set before.
    fn set_device(&self, py: Python<'_>, device: Py<PyAny>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let set = self.device.set(device);
        set.map_err(|_| PyValueError::new_err("this producer has a device already"))
    }

    /// The stream that this producer writes.
    #[getter]
    fn stream_id(&self) -> u32 {
        self.producer.stream_id()
    }

    /// The epoch that frames are written to. None while there is no lease.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.producer.epoch()))
    }

    /// The sequence of the next frame.
    #[getter]
    fn next_seq(&self, py: Python<'_>) -> PyResult<u64> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.producer.next_seq()))
    }

    /// Whether a consumer subscribes to the descriptor stream.
    #[getter]
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.producer.is_connected()))
    }

    /// Whether the publication of descriptors exists.
    #[getter]
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.producer.is_ready()))
    }

    /// Returns the number of frames by outcome, of holes and of bytes, and counters of per-consumer
    /// streams.
    ///
    /// `tensorpool.Producer.ledger` gives the frames as one object.
    fn counters(&self, py: Python<'_>) -> PyResult<ProducerCounters> {
        errors::check_fork(py, self.fork_guard)?;
        Ok((&*self.producer).into())
    }

    /// Whether a consumer asks for progress, and progress can be sent.
    #[getter]
    fn has_progress_consumers(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.producer.has_progress_consumers())
    }

    /// Returns how many consumers sent a hello, and how many of them have a per-consumer descriptor stream.
    fn consumers(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.producer.consumers()))
    }

    /// Returns how many consumers have mapped the current epoch, by their QoS reports.
    fn readers(&self, py: Python<'_>) -> PyResult<usize> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.producer.readers()))
    }

    /// Stops publishing, returns the lease and unmaps the regions.
    ///
    /// Frames that were received stay readable. Later offers return "closed". Any thread may call this,
    /// more than once.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        errors::check_fork(py, this.fork_guard)?;
        // Before the regions are unmapped. A warning that is an error does not keep the producer open.
        let checked = this.write_check.as_ref().map_or(Ok(()), |check| Self::warn_changed(slf, check, true));
        this.conductor.get().remove(py, this.id);
        checked
    }
}

/// The trace ids of a batch.
enum BatchTraces {
    /// All frames have this one.
    Shared(u64),
    /// Each frame has its own, and may have links to publish.
    Each(Vec<(u64, Option<TraceLinks>)>),
}

impl BatchTraces {
    fn id(&self, index: usize) -> u64 {
        match self {
            Self::Shared(id) => *id,
            Self::Each(traces) => traces[index].0,
        }
    }

    fn has_links(&self) -> bool {
        matches!(self, Self::Each(traces) if traces.first().is_some_and(|(_, links)| links.is_some()))
    }

    fn publish(&self, py: Python<'_>, index: usize, epoch: u64, seq: u64) -> PyResult<()> {
        match self {
            Self::Each(traces) => {
                traces[index].1.as_ref().map_or(Ok(()), |links| links.publish(py, epoch, seq))
            }
            Self::Shared(_) => Ok(()),
        }
    }
}

/// A size as users write it: "8MiB".
fn size_literal(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let fit = units.into_iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
    fit.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}
