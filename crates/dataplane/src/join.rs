//! The loop of a join: polls its consumers in turn and matches their frames. Runs on the caller's thread,
//! without the interpreter; allocates nothing per frame once its buffers have grown.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tensorpool_core::join::{Arrival, Basis, InputCounts, JoinRules, JoinedSet, Matcher, Output};
use tensorpool_core::os::time::monotonic_ns;

use crate::consumer::{Consumer, Frame, FramePatterns, FrameRef, RegionRefusal};
use crate::idle::{Idle, IdleStrategy};

/// Messages that one round takes from one input at most, so that no input is far ahead of the others.
const MESSAGES_PER_ROUND: usize = 64;

/// Rounds that are polled at most while the interpreter is held.
const ROUNDS_AT_ONCE: usize = 16;

/// How a consumer is polled: `Consumer::poll_refs`, or `Consumer::try_poll_refs`.
type PollConsumer = fn(&Consumer, usize, &mut FramePatterns, &mut Vec<FrameRef>) -> usize;

/// Which timestamp of a frame is joined by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampSource {
    /// Of the slot: when the source captured the frame.
    Capture,
    /// Of the descriptor: when it was published.
    Publish,
}

/// One stream of a join.
pub struct JoinInput {
    pub consumer: Arc<Consumer>,
    pub timestamp: TimestampSource,
}

/// How a wait for a joined set ended.
#[derive(Debug)]
pub enum JoinWait {
    Ready,
    TimedOut,
    Closed,
    /// The regions of an input were refused.
    Refused(RegionRefusal),
    /// Timestamps of that input ran backwards.
    Backwards(usize),
    /// The timestamps of that input are of another clock than those of the others.
    Clocks(usize),
}

/// Frames of one input that lie one after the other in their ring.
pub struct Run {
    pub first: Frame,
    pub len: usize,
    /// The first frame again, as the join holds it.
    start: FrameRef,
}

impl Run {
    fn from_first(start: &FrameRef) -> Self {
        Self { first: start.to_frame(), len: 1, start: start.clone() }
    }

    /// The sequences of its frames.
    pub fn seqs(&self) -> impl Iterator<Item = u64> + use<> {
        let first = self.first.slot_ref.seq;
        first..first + self.len as u64
    }
}

/// Results, one after the other, whose frames are a run of each input.
#[derive(Default)]
pub struct JoinedRun {
    /// The sequence or the time of each output.
    pub outs: Vec<u64>,
    /// `None` for an input that is absent in all of them.
    pub inputs: Vec<Option<Run>>,
}

impl JoinedRun {
    /// The run of one result, which has at most one frame of each input.
    fn begin(&mut self, set: &JoinedSet<FrameRef>) {
        self.outs.push(set.out);
        self.inputs.extend((0..set.len()).map(|input| set.frames(input).first().map(Run::from_first)));
    }

    /// Appends a result. False, and nothing changed, if its frames do not continue the run.
    fn append(&mut self, output: &Output<'_, FrameRef>) -> bool {
        let continues = |(input, run): (usize, &Option<Run>)| match (run, output.frames(input).next()) {
            (Some(run), Some(frame)) => frame.follows(&run.start, run.len),
            (None, None) => true,
            _ => false,
        };
        if !self.inputs.iter().enumerate().all(continues) {
            return false;
        }
        self.inputs.iter_mut().flatten().for_each(|run| run.len += 1);
        self.outs.push(output.out);
        true
    }
}

/// The clock of an input's timestamps, by its epoch.
#[derive(Clone, Copy, Default)]
struct InputClock {
    epoch: Option<u64>,
    is_realtime: bool,
}

struct State {
    matcher: Matcher<FrameRef>,
    /// The frames of one poll; kept for its memory.
    frames: Vec<FrameRef>,
    /// The layouts of each input's frames.
    patterns: Vec<FramePatterns>,
    clocks: Vec<InputClock>,
    /// The input with another clock, and whether it was reported. Nothing is joined until that changes.
    other_clock: Option<(usize, bool)>,
    /// The result that ended a run, and is the next one. Empty: none.
    held: JoinedSet<FrameRef>,
}

impl State {
    /// The result that ended a run. False if there is none.
    fn take_held(&mut self, set: &mut JoinedSet<FrameRef>) -> bool {
        let is_held = !self.held.is_empty();
        if is_held {
            set.clear();
            std::mem::swap(&mut self.held, set);
        }
        is_held
    }

    /// An input has another epoch, and so perhaps another clock.
    #[cold]
    fn on_epoch(&mut self, at: usize, epoch: u64, is_realtime: bool, required: Option<bool>) {
        self.clocks[at] = InputClock { epoch: Some(epoch), is_realtime };
        if self.matcher.rules().basis != Basis::Time {
            return;
        }
        let known = |clock: &InputClock| clock.epoch.is_some();
        let expected =
            required.or_else(|| self.clocks.iter().find(|clock| known(clock)).map(|clock| clock.is_realtime));
        let other = self.clocks.iter().position(|clock| known(clock) && Some(clock.is_realtime) != expected);
        self.other_clock = other.map(|at| (at, false));
    }
}

pub struct Join {
    inputs: Vec<JoinInput>,
    /// Whether the clock of all inputs must be the synchronised wall clock. `None`: any, but one.
    is_realtime: Option<bool>,
    state: Mutex<State>,
    closed: AtomicBool,
}

impl Join {
    /// The rules are valid, and there is one for each input.
    pub fn new(inputs: Vec<JoinInput>, rules: JoinRules, is_realtime: Option<bool>) -> Self {
        assert_eq!(inputs.len(), rules.inputs.len(), "a rule for each input");
        let matcher = Matcher::new(rules, monotonic_ns());
        let frames = Vec::with_capacity(MESSAGES_PER_ROUND);
        let clocks = vec![InputClock::default(); inputs.len()];
        let patterns = inputs.iter().map(|_| FramePatterns::default()).collect();
        let held = JoinedSet::default();
        let state = Mutex::new(State { matcher, frames, patterns, clocks, other_clock: None, held });
        Self { inputs, is_realtime, state, closed: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing here panics between two states that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn inputs(&self) -> &[JoinInput] {
        &self.inputs
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.inputs.iter().any(|input| input.consumer.is_closed())
    }

    /// Ends every wait. Frames that are held back are dropped.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            let mut state = self.lock();
            state.matcher.discard();
            state.held.clear();
            state.patterns.iter_mut().for_each(FramePatterns::clear);
        }
    }

    /// The counts of each input, the outputs, and the outputs of a clock that lacked a frame.
    pub fn counts(&self, out: &mut Vec<InputCounts>) -> (u64, u64) {
        let state = self.lock();
        out.extend((0..state.matcher.len()).map(|input| state.matcher.counts(input)));
        (state.matcher.outputs(), state.matcher.missed_ticks())
    }

    /// As `poll`, without waiting for a lock that another thread holds, so that the interpreter need not be
    /// released for it. False if there is nothing, or something that `poll` reports.
    pub fn try_next(&self, set: &mut JoinedSet<FrameRef>) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        if self.is_closed() {
            return false;
        }
        set.clear();
        state.take_held(set)
            || self.try_outputs(&mut state, |output| {
                set.fill(output);
                false
            })
    }

    /// Takes the results that are ready to the sets from `sets[count]` on, up to `limit` in all, and returns how
    /// many there are then. Waits for no lock.
    pub fn try_take(&self, limit: usize, mut count: usize, sets: &mut Vec<JoinedSet<FrameRef>>) -> usize {
        let Ok(mut state) = self.state.try_lock() else { return count };
        if self.is_closed() || count >= limit {
            return count;
        }
        if !state.held.is_empty() {
            state.take_held(nth(sets, count));
            count += 1;
        }
        if count < limit {
            self.try_outputs(&mut state, |output| {
                nth(sets, count).fill(output);
                count += 1;
                count < limit
            });
        }
        count
    }

    /// Passes the results that are ready to `emit`, until it returns false. False if there were none.
    fn try_outputs(&self, state: &mut State, mut emit: impl FnMut(&Output<'_, FrameRef>) -> bool) -> bool {
        let mut has_any = false;
        for _ in 0..ROUNDS_AT_ONCE {
            // Once for each round, not for each result.
            let now_ns = monotonic_ns();
            self.poll_stale(state, now_ns, Consumer::try_poll_refs);
            if state.other_clock.is_some() {
                break;
            }
            let mut continues = true;
            while continues
                && state
                    .matcher
                    .next_output(now_ns, FrameRef::is_unchanged, |output| continues = emit(&output))
            {
                has_any = true;
            }
            // A rejection comes before the frames after it.
            if !continues
                || state.matcher.has_rejected()
                || !self.poll_inputs(state, now_ns, Consumer::try_poll_refs)
            {
                break;
            }
        }
        has_any
    }

    /// Appends the results that are ready to `run`, which is empty, as long as the frames of each input lie one
    /// after the other: the result that does not continue the run is the next one. What there is in place of
    /// results, if there are none.
    pub fn poll_run(
        &self,
        limit: usize,
        set: &mut JoinedSet<FrameRef>,
        run: &mut JoinedRun,
    ) -> Option<JoinWait> {
        let mut state = self.lock();
        // What is to be reported is not taken by a call that has results to return: only the first one may be
        // in place of a result.
        match self.step(&mut state, set) {
            Some(JoinWait::Ready) => run.begin(set),
            end => return end.or_else(|| self.take_refused()),
        }
        if limit > 1 {
            set.clear();
            self.try_outputs(&mut state, |output| {
                let is_continued = run.append(output);
                if !is_continued {
                    set.fill(output);
                }
                is_continued && run.outs.len() < limit
            });
            std::mem::swap(&mut state.held, set);
        }
        None
    }

    /// The next joined set, without waiting. `None` if none is ready.
    pub fn poll(&self, set: &mut JoinedSet<FrameRef>) -> Option<JoinWait> {
        self.step(&mut self.lock(), set).or_else(|| self.take_refused())
    }

    fn take_refused(&self) -> Option<JoinWait> {
        self.inputs.iter().find_map(|input| input.consumer.take_refused()).map(JoinWait::Refused)
    }

    /// Waits for the next joined set.
    pub fn wait(&self, timeout: Duration, strategy: IdleStrategy, set: &mut JoinedSet<FrameRef>) -> JoinWait {
        self.wait_until(timeout, strategy, |state| self.step(state, set))
    }

    /// Waits until there is a joined set, which the next call takes.
    pub fn wait_ready(&self, timeout: Duration, strategy: IdleStrategy) -> JoinWait {
        let mut set = JoinedSet::default();
        self.wait_until(timeout, strategy, |state| {
            let end = self.step(state, &mut set);
            // The step has taken what was held.
            std::mem::swap(&mut state.held, &mut set);
            end
        })
    }

    fn wait_until(
        &self,
        timeout: Duration,
        strategy: IdleStrategy,
        mut step: impl FnMut(&mut State) -> Option<JoinWait>,
    ) -> JoinWait {
        let deadline = Instant::now() + timeout;
        let mut idle = Idle::new(strategy);
        loop {
            if let Some(end) = step(&mut self.lock()) {
                return end;
            }
            if let Some(refused) = self.take_refused() {
                return refused;
            }
            if Instant::now() >= deadline {
                return JoinWait::TimedOut;
            }
            idle.idle();
        }
    }

    /// Matches and polls until there is a set, or nothing to poll.
    fn step(&self, state: &mut State, set: &mut JoinedSet<FrameRef>) -> Option<JoinWait> {
        loop {
            if self.is_closed() {
                return Some(JoinWait::Closed);
            }
            if state.take_held(set) {
                return Some(JoinWait::Ready);
            }
            let now_ns = monotonic_ns();
            self.poll_stale(state, now_ns, Consumer::poll_refs);
            match &mut state.other_clock {
                Some((_, true)) => {}
                Some((input, reported)) => {
                    *reported = true;
                    return Some(JoinWait::Clocks(*input));
                }
                None => {
                    if state.matcher.next_set(now_ns, FrameRef::is_unchanged, set) {
                        return Some(JoinWait::Ready);
                    }
                }
            }
            if let Some(input) = state.matcher.take_rejected() {
                return Some(JoinWait::Backwards(input));
            }
            if !self.poll_inputs(state, now_ns, Consumer::poll_refs) {
                return None;
            }
        }
    }

    /// Polls the inputs that outputs would no longer wait for: what has arrived of them may not have been read,
    /// because frames of the others were held back.
    fn poll_stale(&self, state: &mut State, now_ns: u64, poll: PollConsumer) {
        for (at, input) in self.inputs.iter().enumerate() {
            if state.matcher.is_stale(at, now_ns) {
                self.poll_input(state, at, input, now_ns, poll);
            }
        }
    }

    /// Polls each input once. An input without room waits while others deliver: it is ahead of them. False if
    /// there was nothing to poll.
    fn poll_inputs(&self, state: &mut State, now_ns: u64, poll: PollConsumer) -> bool {
        let mut has_polled = false;
        let mut is_full = false;
        for (at, input) in self.inputs.iter().enumerate() {
            if state.matcher.has_room(at) {
                has_polled |= self.poll_input(state, at, input, now_ns, poll);
            } else {
                is_full = true;
            }
        }
        if is_full && !has_polled {
            for (at, input) in self.inputs.iter().enumerate() {
                if !state.matcher.has_room(at) {
                    has_polled |= self.poll_input(state, at, input, now_ns, poll);
                }
            }
        }
        has_polled
    }

    fn poll_input(
        &self,
        state: &mut State,
        at: usize,
        input: &JoinInput,
        now_ns: u64,
        poll: PollConsumer,
    ) -> bool {
        let State { frames, patterns, .. } = state;
        let taken = poll(&input.consumer, MESSAGES_PER_ROUND, &mut patterns[at], frames);
        // Nearly all polls give frames of one epoch.
        if let Some(epoch) = state.frames.last().map(FrameRef::epoch)
            && state.clocks[at].epoch != Some(epoch)
        {
            let is_realtime = input.consumer.counters().latency.is_realtime();
            state.on_epoch(at, epoch, is_realtime, self.is_realtime);
        }
        let State { matcher, frames, .. } = state;
        for frame in frames.drain(..) {
            let timestamp_ns = match input.timestamp {
                TimestampSource::Capture => Some(frame.timestamp_ns),
                TimestampSource::Publish => frame.publish_timestamp_ns,
            };
            let arrival = Arrival { epoch: frame.epoch(), seq: frame.seq, timestamp_ns, item: frame };
            matcher.push(at, arrival, now_ns);
        }
        taken > 0
    }
}

/// The set at an index, or a new one behind the last.
fn nth(sets: &mut Vec<JoinedSet<FrameRef>>, at: usize) -> &mut JoinedSet<FrameRef> {
    if at == sets.len() {
        sets.push(JoinedSet::default());
    }
    &mut sets[at]
}
