//! `Join` and `JoinedFrames`: frames of several consumers that belong together, matched without the
//! interpreter.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use tensorpool_core::join::{Basis, Drive, InputCounts, JoinReason, JoinRules, JoinedSet, Select};
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::consumer::FrameRef;
use tensorpool_dataplane::idle::IdleStrategy;
use tensorpool_dataplane::join as plane;
use tensorpool_dataplane::join::{JoinWait, JoinedRun, TimestampSource};

use crate::consumer::Consumer;
use crate::errors;
use crate::frame::Frame;
use crate::joined_batch::JoinedBatch;
use crate::metadata::Origin;
use crate::slot_view::SlotView;
use crate::stats::text_form;
use crate::wait::{deadline, in_slices};

thread_local! {
    /// The set of one poll, reused so that matching does not allocate.
    static SET: RefCell<JoinedSet<FrameRef>> = RefCell::default();
    /// The sets of one poll for several.
    static SETS: RefCell<Vec<JoinedSet<FrameRef>>> = RefCell::default();
}

/// The names of the inputs, shared by all results.
pub struct Inputs {
    pub names: Vec<Py<PyString>>,
    pub stream_ids: Vec<u32>,
    /// Inputs that are windows: their value is a tuple of frames.
    is_window: Vec<bool>,
    pub origins: Vec<Arc<Origin>>,
    pub basis: Basis,
}

impl Inputs {
    fn index(&self, name: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        for (at, known) in self.names.iter().enumerate() {
            let known = known.bind(name.py());
            if known.is(name) || known.as_any().eq(name)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The number of an input. `KeyError` for a name that is none.
    pub fn required(&self, name: &Bound<'_, PyAny>) -> PyResult<usize> {
        match self.index(name)? {
            Some(at) => Ok(at),
            None => {
                let names: Vec<_> = self.names.iter().map(|n| n.bind(name.py()).to_string()).collect();
                Err(PyKeyError::new_err(format!("{}: the inputs are {}", name.repr()?, names.join(", "))))
            }
        }
    }
}

/// One input of a join, as Python gives it.
#[derive(FromPyObject)]
struct InputOptions<'py> {
    name: Bound<'py, PyString>,
    consumer: Bound<'py, Consumer>,
    offset: i64,
    window: Option<u64>,
    publish_time: bool,
}

/// The rules of a join, as Python gives them.
#[derive(FromPyObject)]
struct RuleOptions {
    by: String,
    drive: Option<usize>,
    drive_period_ns: Option<u64>,
    tolerance_ns: u64,
    lateness_ns: u64,
    stale_after_ns: Option<u64>,
    depth: usize,
    idle: String,
    /// "monotonic" or "realtime_synced". None: any clock that all inputs have.
    clock_domain: Option<String>,
}

/// The native part of `tensorpool.Join`: polls several consumers and matches their frames.
///
/// Any thread may use it; each result then goes to one of them. Every method raises `ForkedError` in a forked
/// child. `tensorpool.open().join(...)` creates one.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Join {
    join: Arc<plane::Join>,
    inputs: Arc<Inputs>,
    idle: IdleStrategy,
    fork_guard: ForkGuard,
}

impl Join {
    /// Moves a set into a result.
    fn result(&self, py: Python<'_>, set: &mut JoinedSet<FrameRef>) -> PyResult<JoinedFrames> {
        let (out, inputs) = (set.out, set.len());
        // Nearly all results have one frame of each input, and need no ends.
        let ends = if set.is_one_of_each() { Vec::new() } else { set.ends().to_vec() };
        let mut frames = Vec::with_capacity(ends.last().copied().unwrap_or(inputs));
        let mut input = 0;
        for frame in set.drain() {
            let at = frames.len();
            if ends.is_empty() {
                input = at;
            } else {
                while ends[input] <= at {
                    input += 1;
                }
            }
            let origin = self.inputs.origins[input].clone();
            frames.push(Py::new(py, Frame::new(frame.to_frame(), origin, self.fork_guard))?);
        }
        Ok(JoinedFrames { inputs: self.inputs.clone(), out, frames, ends, fork_guard: self.fork_guard })
    }

    fn wait_until(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        set: &mut JoinedSet<FrameRef>,
    ) -> PyResult<Option<JoinWait>> {
        // A slice of the wait is a shared closure; the lock is never contended.
        let shared = Mutex::new(set);
        in_slices(py, deadline, |left| {
            let mut set = shared.lock().unwrap_or_else(PoisonError::into_inner);
            match self.join.wait(left, self.idle, &mut set) {
                JoinWait::TimedOut => None,
                ended => Some(ended),
            }
        })
    }

    /// Waits for a result, which the next call takes. False if there is none.
    fn wait_ready(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<bool> {
        let ended = in_slices(py, deadline, |left| match self.join.wait_ready(left, self.idle) {
            JoinWait::TimedOut => None,
            ended => Some(ended),
        })?;
        let is_ready = matches!(ended, Some(JoinWait::Ready));
        ended.and_then(|end| self.failure(py, end)).map_or(Ok(is_ready), Err)
    }

    /// The error of a wait that ended with one.
    fn failure(&self, py: Python<'_>, end: JoinWait) -> Option<PyErr> {
        match end {
            JoinWait::Refused(r) => Some(errors::refused(py, &r.message, r.reason, &r.uri)),
            JoinWait::Backwards(input) => Some(self.rejected(py, input, "backwards")),
            JoinWait::Clocks(input) => Some(self.rejected(py, input, "clock_domain")),
            JoinWait::Ready | JoinWait::TimedOut | JoinWait::Closed => None,
        }
    }

    fn rejected(&self, py: Python<'_>, input: usize, reason: &str) -> PyErr {
        let stream_id = self.inputs.stream_ids[input];
        let name = self.inputs.names[input].bind(py).to_string_lossy().into_owned();
        let why = match reason {
            "clock_domain" => {
                "are of another clock than those of the other inputs, so they cannot be joined by time; \
                let all producers use one [aeron] clock_domain"
            }
            _ => {
                "ran backwards, so it cannot be joined by time until its next epoch; let its producer give \
                growing timestamps"
            }
        };
        let message = format!(
            "timestamps of input {name:?} (stream {stream_id}) {why}, or join by=\"sequence\" or by=\"latest\""
        );
        errors::raise(py, "JoinRejected", &message, |f| {
            f.set_item("reason", reason)?;
            f.set_item("input", name)?;
            f.set_item("stream_id", stream_id)
        })
    }
}

#[pymethods]
impl Join {
    /// Joins the frames of `inputs` by `rules`, which are objects with the fields of `tensorpool.client.join`.
    ///
    /// Raises `ValueError` for rules that are not valid.
    #[new]
    fn new(py: Python<'_>, inputs: Vec<InputOptions<'_>>, rules: RuleOptions) -> PyResult<Self> {
        let idle = rules.idle.parse().map_err(PyValueError::new_err)?;
        let basis = match rules.by.as_str() {
            "sequence" => Basis::Sequence,
            "time" => Basis::Time,
            "latest" => Basis::Latest,
            other => {
                let message = format!("by {other:?}: use \"sequence\", \"time\" or \"latest\"");
                return Err(PyValueError::new_err(message));
            }
        };
        let drive = match (rules.drive, rules.drive_period_ns) {
            (Some(input), _) => Drive::Input(input),
            (None, Some(period_ns)) => Drive::Clock { period_ns },
            (None, None) => Drive::Any,
        };
        let select = |input: &InputOptions<'_>| match input.window {
            Some(n) => Select::Window(n),
            None => Select::Offset(input.offset),
        };
        let join_rules = JoinRules {
            basis,
            inputs: inputs.iter().map(select).collect(),
            drive,
            tolerance_ns: rules.tolerance_ns,
            lateness_ns: rules.lateness_ns,
            stale_after_ns: rules.stale_after_ns,
            depth: rules.depth,
        };
        if let Some(fault) = join_rules.fault() {
            return Err(PyValueError::new_err(fault));
        }
        let mut shared = Inputs {
            names: Vec::new(),
            stream_ids: Vec::new(),
            is_window: Vec::new(),
            origins: Vec::new(),
            basis,
        };
        let mut planes = Vec::with_capacity(inputs.len());
        for input in inputs {
            let (consumer, origin) = input.consumer.get().join_parts();
            shared.names.push(input.name.unbind());
            shared.stream_ids.push(consumer.stream_id());
            shared.is_window.push(input.window.is_some() && basis != Basis::Latest);
            shared.origins.push(origin);
            let timestamp =
                if input.publish_time { TimestampSource::Publish } else { TimestampSource::Capture };
            planes.push(plane::JoinInput { consumer, timestamp });
        }
        let is_realtime = rules.clock_domain.map(|domain| domain == "realtime_synced");
        let join = py.detach(|| Arc::new(plane::Join::new(planes, join_rules, is_realtime)));
        Ok(Self { join, inputs: Arc::new(shared), idle, fork_guard: ForkGuard::current() })
    }

    /// Returns the results that are ready, at most `limit`, without waiting.
    ///
    /// Raises `JoinRejected` if there are none because timestamps that are joined by ran backwards, or are of
    /// different clocks, `RegionRejected` if the regions of an input were rejected.
    #[pyo3(signature = (limit = 64))]
    fn poll<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyList>> {
        errors::check_fork(py, self.fork_guard)?;
        let mut sets = SETS.with_borrow_mut(std::mem::take);
        let mut ended = None;
        // What has arrived is read at once, because releasing the interpreter takes longer.
        let mut count = self.join.try_take(limit, 0, &mut sets);
        if count == 0 && limit > 0 {
            let mut set = sets.pop().unwrap_or_default();
            // A rejection is raised by a call that has no results to return.
            ended = py.detach(|| self.join.poll(&mut set));
            let is_ready = matches!(ended, Some(JoinWait::Ready));
            sets.insert(0, set);
            if is_ready {
                count = self.join.try_take(limit, 1, &mut sets);
            }
        }
        let results = sets[..count].iter_mut().map(|set| Bound::new(py, self.result(py, set)?));
        let list = results.collect::<PyResult<Vec<_>>>().and_then(|results| PyList::new(py, results));
        sets.iter_mut().for_each(JoinedSet::clear);
        SETS.with_borrow_mut(|kept| *kept = sets);
        ended.and_then(|end| self.failure(py, end)).map_or(list, Err)
    }

    /// Returns the next result. None if there was none within `timeout` seconds, or the join was closed.
    ///
    /// `timeout` of None waits without end, 0 does not wait. Releases the GIL while it polls; Ctrl-C ends the
    /// wait. Raises `RegionRejected` if the regions of an input were rejected, `JoinRejected` if timestamps
    /// that are joined by ran backwards, `ValueError` for a negative timeout.
    #[pyo3(signature = (timeout = None))]
    fn receive_or_none(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<JoinedFrames>> {
        errors::check_fork(py, self.fork_guard)?;
        let deadline = deadline(timeout)?;
        let mut set = SET.with_borrow_mut(std::mem::take);
        // What has arrived is read at once, because releasing the interpreter takes longer.
        let ended = if self.join.try_next(&mut set) {
            Ok(Some(JoinWait::Ready))
        } else {
            self.wait_until(py, deadline, &mut set)
        };
        let result = match ended {
            Err(error) => Err(error),
            Ok(Some(JoinWait::Ready)) => self.result(py, &mut set).map(Some),
            Ok(ended) => ended.and_then(|end| self.failure(py, end)).map_or(Ok(None), Err),
        };
        set.clear();
        SET.with_borrow_mut(|kept| *kept = set);
        result
    }

    /// Returns the results that are ready, at most `limit`, as one array for each input, without waiting and
    /// without a copy. None if there are none.
    ///
    /// A batch ends early where the frames of an input do not lie one after the other: at the end of a ring, at
    /// a gap, at another epoch, layout or metadata version. The next batch begins there. Releases the GIL.
    /// Raises as `poll`, and `ValueError` for a join with windows.
    #[pyo3(signature = (limit = 1024))]
    fn poll_batch(&self, py: Python<'_>, limit: usize) -> PyResult<Option<JoinedBatch>> {
        errors::check_fork(py, self.fork_guard)?;
        if self.inputs.is_window.contains(&true) {
            return Err(PyValueError::new_err(
                "results with windows do not form batches; use poll() or receive()",
            ));
        }
        let mut set = SET.with_borrow_mut(std::mem::take);
        let mut run = JoinedRun::default();
        let ended = py.detach(|| self.join.poll_run(limit, &mut set, &mut run));
        set.clear();
        SET.with_borrow_mut(|kept| *kept = set);
        match ended {
            Some(end) => self.failure(py, end).map_or(Ok(None), Err),
            None if run.outs.is_empty() => Ok(None),
            None => Ok(Some(JoinedBatch::new(self.inputs.clone(), run, self.fork_guard))),
        }
    }

    /// As `poll_batch`, but waits up to `timeout` seconds for the first result. None: without end.
    #[pyo3(signature = (limit = 1024, timeout = None))]
    fn take_or_none(
        &self,
        py: Python<'_>,
        limit: usize,
        timeout: Option<f64>,
    ) -> PyResult<Option<JoinedBatch>> {
        let deadline = deadline(timeout)?;
        loop {
            if let Some(batch) = self.poll_batch(py, limit)? {
                return Ok(Some(batch));
            }
            // Another thread may take what this one has waited for.
            if !self.wait_ready(py, deadline)? {
                return Ok(None);
            }
        }
    }

    /// Waits up to `timeout` seconds for a result, and takes none. False on timeout and when the join is closed.
    ///
    /// `timeout` of None waits without end. Releases the GIL; Ctrl-C ends the wait. Raises as `receive_or_none`.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        self.wait_ready(py, deadline(timeout)?)
    }

    /// Returns the counts of each input, by name, the number of results, and of results of a clock that lacked a
    /// frame.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, u64, u64)> {
        errors::check_fork(py, self.fork_guard)?;
        let mut counts = Vec::with_capacity(self.inputs.names.len());
        let (results, missed) = py.detach(|| self.join.counts(&mut counts));
        let dict = PyDict::new(py);
        for (name, counts) in self.inputs.names.iter().zip(&counts) {
            dict.set_item(name, Bound::new(py, JoinCounts::from_counts(py, counts)?)?)?;
        }
        Ok((dict, results, missed))
    }

    /// Whether the join, or a consumer of it, was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.join.is_closed()
    }

    /// Ends every wait. Frames that are held back are dropped, and results stay readable.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.join.close());
        Ok(())
    }
}

/// Frames of several streams that belong together: one result of a join.
///
///     with joined:  # raises FrameOverwritten at the end if a slot was reused
///         difference = joined["left"].array - joined["right"].array
///
/// Nothing is copied: each frame is a view of its slot, as those of a consumer. Iteration yields the frames.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct JoinedFrames {
    inputs: Arc<Inputs>,
    out: u64,
    frames: Vec<Py<Frame>>,
    /// Where the frames of each input end. Empty: one frame of each.
    ends: Vec<usize>,
    fork_guard: ForkGuard,
}

impl JoinedFrames {
    fn frames_at(&self, at: usize) -> &[Py<Frame>] {
        if self.ends.is_empty() {
            return &self.frames[at..=at];
        }
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.frames[start..self.ends[at]]
    }

    fn value<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyAny>> {
        let frames = self.frames_at(at);
        if self.inputs.is_window[at] {
            return Ok(PyTuple::new(py, frames.iter().map(|frame| frame.bind(py)))?.into_any());
        }
        Ok(match frames.first() {
            Some(frame) => frame.bind(py).clone().into_any(),
            None => py.None().into_bound(py),
        })
    }
}

impl SlotView for JoinedFrames {
    /// Its number among the frames of all inputs.
    type Overwritten = usize;

    fn fork_guard(&self) -> ForkGuard {
        self.fork_guard
    }

    fn first_overwritten(&self) -> Option<usize> {
        let mut first = None;
        for (at, frame) in self.frames.iter().enumerate() {
            if !frame.get().check() {
                first.get_or_insert(at);
            }
        }
        first
    }

    fn overwritten_error(&self, py: Python<'_>, at: usize) -> PyErr {
        self.frames[at].get().overwritten(py)
    }
}

#[pymethods]
impl JoinedFrames {
    /// Returns the frame of an input: None if it is absent, a tuple of frames, oldest first, for a window.
    ///
    /// Raises `KeyError` for a name that is no input.
    fn __getitem__<'py>(&self, py: Python<'py>, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.value(py, self.inputs.required(name)?)
    }

    /// Whether an input has a frame in this result.
    fn __contains__(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.inputs.index(name)?.is_some_and(|at| !self.frames_at(at).is_empty()))
    }

    /// Number of frames.
    fn __len__(&self) -> usize {
        self.frames.len()
    }

    /// Iterates over the frames, in the order of the inputs: what `offer(…, parents=joined)` reads.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.frames(py)?.try_iter()?.into_any())
    }

    /// All frames, in the order of the inputs.
    #[getter]
    fn frames<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.frames.iter().map(|frame| frame.bind(py)))
    }

    /// The names of all inputs, absent ones too.
    #[getter]
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inputs.names.iter().map(|name| name.bind(py)))
    }

    /// Returns name and frame (for a window, frames) of each input, absent ones with None.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)>> {
        let names = self.inputs.names.iter().enumerate();
        names.map(|(at, name)| Ok((name.bind(py).clone(), self.value(py, at)?))).collect()
    }

    /// The names of inputs without a frame: not seen for `stale_after` seconds.
    #[getter]
    fn absent<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let names = self.inputs.names.iter().enumerate();
        let absent = names.filter(|(at, _)| self.frames_at(*at).is_empty()).map(|(_, name)| name.bind(py));
        PyTuple::new(py, absent.collect::<Vec<_>>())
    }

    /// The sequence of the output. None unless joined by sequence.
    #[getter]
    fn seq(&self) -> Option<u64> {
        (self.inputs.basis == Basis::Sequence).then_some(self.out)
    }

    /// The time of the output, in ns. None unless joined by time.
    #[getter]
    fn timestamp_ns(&self) -> Option<u64> {
        (self.inputs.basis == Basis::Time).then_some(self.out)
    }

    /// Returns whether all slots still hold these frames, so that everything read so far was of them.
    fn valid(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_valid(py)
    }

    /// Returns the result.
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
        for (at, name) in self.inputs.names.iter().enumerate() {
            let seqs: Vec<u64> = self.frames_at(at).iter().map(|frame| frame.get().frame_seq()).collect();
            match seqs[..] {
                [seq] if !self.inputs.is_window[at] => fields.set_item(name, seq)?,
                _ if self.frames_at(at).is_empty() => fields.set_item(name, py.None())?,
                _ => fields.set_item(name, seqs)?,
            }
        }
        text_form("JoinedFrames", &fields)
    }
}

/// What became of the frames of one input: `received == joined + sum(drops) + pending`.
#[pyclass(frozen, get_all, module = "tensorpool._native")]
pub struct JoinCounts {
    /// Frames that the join received.
    pub received: u64,
    /// Frames that are in one result or more.
    pub joined: u64,
    /// Frames that are in none, by reason.
    pub drops: Py<PyDict>,
    /// Frames that are held back until other inputs have reached them.
    pub pending: u64,
    /// Results that were dropped because this input had no frame for them.
    pub lacking: u64,
    /// Results in which this input was absent.
    pub absent: u64,
}

impl JoinCounts {
    fn from_counts(py: Python<'_>, counts: &InputCounts) -> PyResult<Self> {
        let drops = PyDict::new(py);
        for reason in JoinReason::ALL {
            drops.set_item(reason.as_str(), counts.dropped(reason))?;
        }
        let InputCounts { received, joined, pending, lacking, absent, .. } = *counts;
        Ok(Self { received, joined, drops: drops.unbind(), pending, lacking, absent })
    }
}

#[pymethods]
impl JoinCounts {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let fields = PyDict::new(py);
        fields.set_item("received", self.received)?;
        fields.set_item("joined", self.joined)?;
        fields.set_item("drops", &self.drops)?;
        fields.set_item("pending", self.pending)?;
        fields.set_item("lacking", self.lacking)?;
        fields.set_item("absent", self.absent)?;
        text_form("JoinCounts", &fields)
    }
}
