//! `Producer`: offers a copy of an array, or claims a slot to write in place.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::shm::containment::AllowedBases;
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
use crate::extension::{Declared, Extension, Given};
use crate::offer_result::OfferResult;
use crate::options::{Connection, GrantOptions, LeaseOptions, OwnedRegions, ProducerOptions};
use crate::progress::{self, Meter};
use crate::slot::{Slot, TraceLinks};
use crate::stats::{LeaseStatus, ProducerCounters};

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
    declared: Declared,
    /// Frames get trace ids, and may name the frames that they were made from.
    has_traces: bool,
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
        if trace_id != 0 {
            return Ok((trace_id, None));
        }
        let parents = parents.map_or_else(|| PyTuple::empty(slf.py()).into_any(), Clone::clone);
        let (trace_id, linked): (u64, Bound<'_, PyList>) =
            slf.call_method1("_trace_id_from", (parents,))?.extract()?;
        let links = (!linked.is_empty()).then(|| TraceLinks {
            producer: slf.clone().into_any().unbind(),
            trace_id,
            parents: linked.unbind(),
        });
        Ok((trace_id, links))
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
            own_control_stream: options.control_stream_id,
            own_qos_stream: options.qos_stream_id,
            progress_limits: grants.progress_limits(),
            policy: grants.policy(),
            prefault: options.prefault,
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
                let lease = lease.of(&connection, stream_id, Role::Producer, hugepages, node)?;
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
            declared: Declared::default(),
            has_traces: options.traces,
            fork_guard: ForkGuard::current(),
        })
    }

    /// Sets the metadata version of the frames that follow, and the element type that their carrier stands
    /// for.
    #[pyo3(signature = (meta_version, extension = None))]
    fn describe(&self, py: Python<'_>, meta_version: u32, extension: Option<Given<'_>>) -> PyResult<()> {
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
        Ok(LeaseStatus::of(py, self.producer.lease()))
    }

    /// Copies an array into the next slot and publishes it. Never waits for a consumer.
    ///
    /// `array` is a numpy array, or an object with the buffer protocol or DLPack. `timestamp_ns` is the
    /// time of the source; without it, it is the time of the commit. `dtype` names the element type: that
    /// of the array, or for elements of one byte also another such type ("bytes", "bool"). `meta_version`
    /// and `trace_id` replace those of the producer. `parents` are the frames, or their trace ids, that this
    /// one was made from; only a producer with `traces=True` takes them. `keep_strides` keeps the padding
    /// between the rows of an array that is not contiguous: one copy of its memory, where else rows are
    /// copied one by one. Returns an outcome that is true if the frame was
    /// published; a frame that cannot be published is counted, and raises nothing. Any thread may call
    /// this; large arrays are copied without the GIL.
    ///
    /// Raises `UnsupportedDtype` for an element type that frames cannot carry, `TypeError` for an object
    /// without such memory or with another `dtype`, `ValueError` for more than eight dimensions, and for
    /// `parents` without traces.
    ///
    ///     result = producer.offer(image)
    ///     if not result:
    ///         print(result.outcome)
    #[pyo3(signature = (array, *, timestamp_ns = None, dtype = None, meta_version = None, trace_id = 0, parents = None, keep_strides = false))]
    fn offer<'py>(
        slf: &Bound<'py, Self>,
        array: &Bound<'py, PyAny>,
        timestamp_ns: Option<u64>,
        dtype: Option<&Bound<'py, PyAny>>,
        meta_version: Option<u32>,
        trace_id: u64,
        parents: Option<&Bound<'py, PyAny>>,
        keep_strides: bool,
    ) -> PyResult<OfferResult> {
        let py = slf.py();
        let this = slf.get();
        errors::check_fork(py, this.fork_guard)?;
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
        let fill = |dst| unsafe { memory.copy_to(dst) };
        let immediate = if len <= KEEPS_INTERPRETER_BYTES {
            this.producer.try_offer(spec, len, stamp, fill)
        } else {
            None
        };
        let result = immediate.unwrap_or_else(|| py.detach(|| this.producer.offer(spec, len, stamp, fill)));
        if let (Some(links), Some(seq)) = (links, result.seq)
            && let Some(epoch) = py.detach(|| this.producer.epoch())
        {
            links.publish(py, epoch, seq)?;
        }
        Ok(OfferResult::new(result))
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
    fn claim(
        slf: &Bound<'_, Self>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        order: &str,
        strides: Option<Vec<i64>>,
        progress: Option<&str>,
        timestamp_ns: Option<u64>,
        meta_version: Option<u32>,
        trace_id: u64,
        parents: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Slot> {
        let py = slf.py();
        let this = slf.get();
        errors::check_fork(py, this.fork_guard)?;
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
        let claim = match in_unit {
            None => py.detach(|| this.producer.claim(spec, len)),
            Some((spec, stride, _)) => {
                py.detach(|| this.producer.claim_with_progress(spec, len, stride, stamp))
            }
        };
        let meter = in_unit.map(|(spec, stride, unit)| Meter::new(unit, stride, &spec, len));
        let claim = claim.map_err(|outcome| {
            let message = match outcome {
                Outcome::NoPool => {
                    format!("{len} bytes fit no pool of this stream; configure a larger pool")
                }
                Outcome::SlotClaimed => {
                    "the next slot is still claimed; commit or abandon it first".to_owned()
                }
                Outcome::Detached => {
                    "there is no lease at the moment; it is being asked for again".to_owned()
                }
                _ => "the producer is closed".to_owned(),
            };
            errors::raise(py, "ClaimRefused", &message, |f| f.set_item("outcome", outcome.as_str()))
        })?;
        Ok(Slot::new(this.producer.clone(), claim, spec, stamp, meter, extension, links, this.fork_guard))
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
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        self.conductor.get().remove(py, self.id);
        Ok(())
    }
}
