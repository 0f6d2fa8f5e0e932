//! The matching of the inputs' frames.

use super::input::{Input, InputCounts, JoinReason};
use super::rules::{Basis, Drive, JoinRules, Select};

/// A frame of an input.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<T> {
    pub epoch: u64,
    pub seq: u64,
    /// The timestamp that is joined by; not used by sequence.
    pub timestamp_ns: Option<u64>,
    pub item: T,
}

/// One output: the frames of each input. Reused from output to output.
#[derive(Clone, Debug)]
pub struct JoinedSet<T> {
    /// The sequence or the time of the output; by `Latest` its number.
    pub out: u64,
    frames: Vec<T>,
    ends: Vec<usize>,
}

impl<T> Default for JoinedSet<T> {
    fn default() -> Self {
        Self { out: 0, frames: Vec::new(), ends: Vec::new() }
    }
}

impl<T> JoinedSet<T> {
    /// The frames of an input, oldest first. Empty if the input is absent.
    pub fn frames(&self, input: usize) -> &[T] {
        let start = if input == 0 { 0 } else { self.ends[input - 1] };
        &self.frames[start..self.ends[input]]
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Where the frames of each input end.
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// Whether every input has one frame.
    pub fn is_one_of_each(&self) -> bool {
        self.ends.iter().enumerate().all(|(at, end)| *end == at + 1)
    }

    /// Takes the frames of an output in place of its own.
    pub fn fill(&mut self, output: &Output<'_, T>)
    where
        T: Clone,
    {
        self.clear();
        self.out = output.out;
        for input in 0..output.len() {
            self.frames.extend(output.frames(input).cloned());
            self.ends.push(self.frames.len());
        }
    }

    /// Removes all frames, in the order of the inputs, and returns them.
    pub fn drain(&mut self) -> std::vec::Drain<'_, T> {
        self.ends.clear();
        self.frames.drain(..)
    }

    /// Removes all frames. The memory is kept.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.ends.clear();
    }
}

/// What an output finds at one input.
#[derive(Clone, Copy)]
enum InputMatch {
    /// Entries of the buffer: from, to.
    Range(usize, usize),
    Absent,
}

/// One output where the matcher holds its frames, so that a caller copies only what it keeps.
pub struct Output<'a, T> {
    /// The sequence or the time of the output; by `Latest` its number.
    pub out: u64,
    inputs: &'a [Input<T>],
    found: &'a [InputMatch],
}

impl<'a, T> Output<'a, T> {
    /// The frames of an input, oldest first. None if the input is absent.
    #[inline]
    pub fn frames(&self, input: usize) -> impl Iterator<Item = &'a T> + use<'a, T> {
        let (from, to) = match self.found[input] {
            InputMatch::Range(from, to) => (from, to),
            InputMatch::Absent => (0, 0),
        };
        let held = &self.inputs[input];
        (from..to).filter(|entry| !held.is_lost(*entry)).map(|entry| &held.entries[entry].item)
    }

    /// How many inputs there are, absent ones too.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

/// How an attempt at an output ends.
enum OutputAttempt {
    Joined,
    /// An input has not reached its frame.
    Blocked,
    Dropped(JoinReason),
}

pub struct Matcher<T> {
    rules: JoinRules,
    inputs: Vec<Input<T>>,
    found: Vec<InputMatch>,
    /// The next output of a clock.
    next_tick: Option<u64>,
    /// By `Latest`: a frame of the drive has not been in an output.
    is_due: bool,
    /// Outputs so far.
    outputs: u64,
    /// Outputs of a clock for which an input had no frame.
    missed_ticks: u64,
    /// The input whose timestamps ran backwards, until it is reported.
    rejected: Option<usize>,
}

impl<T: Clone> Matcher<T> {
    /// The rules are valid (`JoinRules::fault`).
    pub fn new(rules: JoinRules, now_ns: u64) -> Self {
        let depth = if rules.basis == Basis::Latest { 1 } else { rules.depth };
        let inputs = rules.inputs.iter().map(|_| Input::new(depth, now_ns)).collect::<Vec<_>>();
        let found = Vec::with_capacity(inputs.len());
        Self {
            rules,
            inputs,
            found,
            next_tick: None,
            is_due: false,
            outputs: 0,
            missed_ticks: 0,
            rejected: None,
        }
    }

    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    pub fn rules(&self) -> &JoinRules {
        &self.rules
    }

    pub fn counts(&self, input: usize) -> InputCounts {
        self.inputs[input].counts
    }

    pub fn outputs(&self) -> u64 {
        self.outputs
    }

    /// Outputs of a clock that were dropped because an input had no frame.
    pub fn missed_ticks(&self) -> u64 {
        self.missed_ticks
    }

    /// Whether an input can take frames without losing earlier ones.
    pub fn has_room(&self, input: usize) -> bool {
        let input = &self.inputs[input];
        self.rules.basis == Basis::Latest || input.entries.len() < self.rules.depth
    }

    /// Whether `take_rejected` has an input to report.
    pub fn has_rejected(&self) -> bool {
        self.rejected.is_some()
    }

    /// The input whose timestamps ran backwards since the last call.
    pub fn take_rejected(&mut self) -> Option<usize> {
        self.rejected.take()
    }

    /// Drops all frames that are held back. The ledger then has no pending frames.
    pub fn discard(&mut self) {
        for input in &mut self.inputs {
            input.clear(JoinReason::Discarded);
        }
    }

    /// Takes a frame of an input. Frames of one input come in the order of their stream.
    pub fn push(&mut self, at: usize, arrival: Arrival<T>, now_ns: u64) {
        let input = &mut self.inputs[at];
        input.counts.received += 1;
        input.seen_ns = now_ns;
        let key = match self.rules.basis {
            Basis::Time => arrival.timestamp_ns,
            _ => Some(arrival.seq),
        };
        let Some(key) = key else { return input.drop_new(JoinReason::NoTimestamp) };
        if input.epoch != Some(arrival.epoch) {
            input.epoch = Some(arrival.epoch);
            input.is_rejected = false;
            // Times continue from epoch to epoch; sequences begin again.
            if self.rules.basis != Basis::Time || input.newest.is_some_and(|newest| key < newest) {
                input.clear(JoinReason::Epoch);
                input.newest = None;
                self.on_restart(at);
            }
        }
        let input = &mut self.inputs[at];
        if self.rules.basis == Basis::Latest {
            input.clear(JoinReason::Superseded);
            self.is_due |= matches!(self.rules.drive, Drive::Any) || self.rules.drive == Drive::Input(at);
        } else if input.is_rejected || input.newest.is_some_and(|newest| key < newest) {
            if self.rules.basis == Basis::Time && !std::mem::replace(&mut input.is_rejected, true) {
                self.rejected = Some(at);
            }
            return input.drop_new(JoinReason::Backwards);
        }
        input.push(key, arrival.item);
        if self.rules.basis != Basis::Latest && self.rules.drive != Drive::Input(at) {
            self.forget(at);
        }
    }

    /// The keys of an input began again. If the outputs begin again with them, what was held back for the
    /// earlier ones is of no use.
    #[cold]
    fn on_restart(&mut self, at: usize) {
        match self.rules.drive {
            _ if self.rules.basis == Basis::Latest => {}
            Drive::Input(drive) if drive == at => {
                for input in &mut self.inputs {
                    input.clear(JoinReason::Epoch);
                }
            }
            Drive::Clock { .. } => self.next_tick = None,
            Drive::Input(_) | Drive::Any => {}
        }
    }

    /// As `next_output`, with a copy of the frames in `set`, which is empty if there is no output.
    pub fn next_set(
        &mut self,
        now_ns: u64,
        is_valid: impl FnMut(&T) -> bool,
        set: &mut JoinedSet<T>,
    ) -> bool {
        set.clear();
        self.next_output(now_ns, is_valid, |output| set.fill(&output))
    }

    /// Attempts outputs in order until one succeeds, and passes that to `emit`. False if none is ready.
    /// `is_valid` says whether a frame's slot still holds it; a frame is checked right before its output.
    pub fn next_output(
        &mut self,
        now_ns: u64,
        mut is_valid: impl FnMut(&T) -> bool,
        mut emit: impl FnMut(Output<'_, T>),
    ) -> bool {
        if self.rules.basis == Basis::Latest {
            return self.next_latest(now_ns, is_valid, &mut emit);
        }
        while let Some(out) = self.next_out(now_ns) {
            let drive = match self.rules.drive {
                Drive::Input(at) => Some(at),
                _ => None,
            };
            let attempt = match out {
                Ok(out) => self.attempt(out, drive, now_ns, &mut is_valid),
                Err(reason) => OutputAttempt::Dropped(reason),
            };
            let reason = match attempt {
                OutputAttempt::Blocked => return false,
                OutputAttempt::Joined => None,
                OutputAttempt::Dropped(reason) => Some(reason),
            };
            if let (None, Ok(out)) = (reason, out) {
                self.use_found(out, &mut emit);
            }
            match drive {
                Some(at) => self.inputs[at].decide(reason),
                None => self.on_tick(reason.is_some()),
            }
            for at in 0..self.inputs.len() {
                self.forget(at);
            }
            if reason.is_none() {
                return true;
            }
        }
        false
    }

    /// The output to attempt next: of the oldest undecided frame of the drive, or of the clock. `None`: none
    /// yet. `Err`: there cannot be one.
    fn next_out(&mut self, now_ns: u64) -> Option<Result<u64, JoinReason>> {
        match self.rules.drive {
            Drive::Input(at) => {
                let input = &self.inputs[at];
                let key = input.entries.get(input.decided)?.key;
                Some(match self.rules.output_of(at, key) {
                    Some(out) => Ok(out),
                    None => Err(JoinReason::Unmatched),
                })
            }
            Drive::Clock { period_ns } => {
                if self.next_tick.is_none() {
                    self.next_tick = self.first_tick(period_ns, now_ns);
                }
                self.next_tick.map(Ok)
            }
            Drive::Any => None,
        }
    }

    /// The first multiple of the period for which every input has frames.
    fn first_tick(&self, period_ns: u64, now_ns: u64) -> Option<u64> {
        let mut first = None;
        for (at, input) in self.inputs.iter().enumerate() {
            let Some(entry) = input.entries.front() else {
                if self.is_stale(at, now_ns) {
                    continue;
                }
                return None;
            };
            let out = match self.rules.inputs[at] {
                Select::Offset(_) => self.rules.output_of(at, entry.key).unwrap_or(0),
                Select::Window(n) => entry.key.saturating_add(n),
            };
            first = first.max(Some(out));
        }
        let ticks = first?.div_ceil(period_ns);
        ticks.checked_mul(period_ns)
    }

    /// The tick is decided: the next one, or where there is a gap, the first one after it.
    fn on_tick(&mut self, missed: bool) {
        let Drive::Clock { period_ns } = self.rules.drive else { return };
        self.missed_ticks += u64::from(missed);
        let Some(next) = self.next_tick.and_then(|tick| tick.checked_add(period_ns)) else {
            self.next_tick = None;
            return;
        };
        let gap_end = self.inputs.iter().enumerate().filter_map(|(at, input)| {
            // All frames of the input are later than the tick: no tick before the oldest finds one, and the
            // input is not behind, so it cannot be absent either.
            let oldest = input.entries.front()?.key;
            match self.rules.inputs[at] {
                Select::Offset(_) => {
                    self.rules.output_of(at, oldest).map(|out| out.saturating_sub(self.rules.tolerance_ns))
                }
                Select::Window(_) => Some(oldest),
            }
        });
        let gap_end = gap_end.max().unwrap_or(0).max(next);
        let after_gap = gap_end.div_ceil(period_ns).checked_mul(period_ns).unwrap_or(next);
        let skipped = if missed { after_gap } else { next };
        self.missed_ticks += (skipped - next) / period_ns;
        self.next_tick = Some(skipped);
    }

    /// Whether an input has not been seen for so long that outputs no longer wait for it.
    pub fn is_stale(&self, at: usize, now_ns: u64) -> bool {
        let seen_ns = self.inputs[at].seen_ns;
        self.rules.stale_after_ns.is_some_and(|limit| now_ns.saturating_sub(seen_ns) > limit)
    }

    /// Looks for the frames of an output at every input, and checks them. They are in `found` then.
    fn attempt(
        &mut self,
        out: u64,
        drive: Option<usize>,
        now_ns: u64,
        is_valid: &mut impl FnMut(&T) -> bool,
    ) -> OutputAttempt {
        self.found.clear();
        // Readiness first, so that a blocked output changes nothing. An output that no input has reached is
        // blocked even if all are stale: a clock would otherwise run ahead of the frames without end.
        let (mut is_blocked, mut is_reached) = (false, false);
        for at in 0..self.inputs.len() {
            let Some((_, to)) = self.rules.needed(at, out) else {
                return OutputAttempt::Dropped(JoinReason::Unmatched);
            };
            let reached = self.inputs[at].newest.map(|newest| match self.rules.basis {
                Basis::Time => newest.saturating_add(self.rules.lateness_ns),
                _ => newest,
            });
            let is_behind = reached.is_none_or(|reached| reached < to);
            is_reached |= !is_behind;
            is_blocked |= is_behind && !self.is_stale(at, now_ns);
        }
        if is_blocked || !is_reached {
            return OutputAttempt::Blocked;
        }
        let mut lacks = None;
        for at in 0..self.inputs.len() {
            let Some(needed) = self.rules.needed(at, out) else { continue };
            let found = match drive {
                Some(drive) if drive == at && matches!(self.rules.inputs[at], Select::Offset(_)) => {
                    let decided = self.inputs[at].decided;
                    Some((decided, decided + 1))
                }
                _ => self.find(at, needed),
            };
            let is_behind = self.inputs[at].newest.is_none_or(|newest| newest < needed.1);
            match found {
                Some((from, to)) => self.found.push(InputMatch::Range(from, to)),
                None if is_behind && self.is_stale(at, now_ns) => self.found.push(InputMatch::Absent),
                None => {
                    self.inputs[at].counts.lacking += 1;
                    lacks = Some(JoinReason::Missing);
                }
            }
        }
        if let Some(reason) = lacks {
            return OutputAttempt::Dropped(reason);
        }
        match self.validate(drive, is_valid) {
            Some(reason) => OutputAttempt::Dropped(reason),
            None => OutputAttempt::Joined,
        }
    }

    /// The entries of an input for an output.
    fn find(&self, at: usize, (from, to): (u64, u64)) -> Option<(usize, usize)> {
        let input = &self.inputs[at];
        match (self.rules.inputs[at], self.rules.basis) {
            (Select::Offset(_), Basis::Time) => {
                let nearest = input.nearest(to, self.rules.tolerance_ns)?;
                Some((nearest, nearest + 1))
            }
            (Select::Offset(_), _) => {
                // Nearly always the oldest, because earlier ones were forgotten.
                let is_oldest = input.entries.front().is_some_and(|entry| entry.key == to);
                let first = if is_oldest { 0 } else { input.index_of_first_at_least(to) };
                input.entries.get(first).filter(|entry| entry.key == to)?;
                Some((first, first + 1))
            }
            (Select::Window(_), _) => {
                let first = input.index_of_first_at_least(from);
                let end = input.entries.partition_point(|entry| entry.key <= to);
                (first < end).then_some((first, end))
            }
        }
    }

    /// Checks the slots of the frames in `found`, once. Returns why the output is dropped.
    fn validate(
        &mut self,
        drive: Option<usize>,
        is_valid: &mut impl FnMut(&T) -> bool,
    ) -> Option<JoinReason> {
        let mut fault = None;
        for at in 0..self.found.len() {
            let InputMatch::Range(from, to) = self.found[at] else { continue };
            let mut whole = 0;
            for entry in from..to {
                if is_valid(&self.inputs[at].entries[entry].item) {
                    whole += 1;
                } else {
                    self.inputs[at].mark_lost(entry);
                }
            }
            // Single frames of a window may be missing.
            if whole == 0 {
                let own = drive == Some(at);
                self.inputs[at].counts.lacking += u64::from(!own);
                fault = match fault {
                    Some(JoinReason::Overwritten) => fault,
                    _ if own => Some(JoinReason::Overwritten),
                    _ => Some(JoinReason::PartnerOverwritten),
                };
            }
        }
        fault
    }

    /// The frames in `found` are in an output.
    fn use_found(&mut self, out: u64, emit: &mut impl FnMut(Output<'_, T>)) {
        self.outputs += 1;
        for at in 0..self.found.len() {
            let input = &mut self.inputs[at];
            match self.found[at] {
                InputMatch::Absent => input.counts.absent += 1,
                InputMatch::Range(from, to) => {
                    for entry in from..to {
                        if !input.is_lost(entry) {
                            input.mark_used(entry);
                        }
                    }
                }
            }
        }
        emit(Output { out, inputs: &self.inputs, found: &self.found });
    }

    /// Removes frames of an input that no later output can need.
    fn forget(&mut self, at: usize) {
        let lowest = match self.rules.drive {
            Drive::Input(drive) => {
                let input = &self.inputs[drive];
                let next = input.entries.get(input.decided).map(|entry| entry.key).or(input.newest);
                let Some(next) = next.and_then(|key| self.rules.output_of(drive, key)) else { return };
                next
            }
            Drive::Clock { .. } => match self.next_tick {
                Some(tick) => tick,
                None => return,
            },
            Drive::Any => return,
        };
        let is_drive = self.rules.drive == Drive::Input(at);
        match (self.rules.inputs[at], self.rules.basis) {
            (Select::Offset(_), _) if is_drive => {
                while self.inputs[at].decided > 0 {
                    self.inputs[at].pop(JoinReason::Unmatched);
                }
            }
            (Select::Offset(offset), basis) => {
                let key = lowest.saturating_add_signed(offset);
                match basis {
                    Basis::Time => self.inputs[at].forget_farther(key, self.rules.tolerance_ns),
                    _ => self.inputs[at].forget_before(key),
                }
            }
            (Select::Window(n), Basis::Sequence) => {
                self.inputs[at].forget_before(lowest.saturating_add(1).saturating_sub(n));
            }
            (Select::Window(n), _) => self.inputs[at].forget_before(lowest.saturating_sub(n)),
        }
    }

    /// The newest frame of each input, if the drive is due and each has one in its current epoch.
    fn next_latest(
        &mut self,
        now_ns: u64,
        mut is_valid: impl FnMut(&T) -> bool,
        emit: &mut impl FnMut(Output<'_, T>),
    ) -> bool {
        let clock = match self.rules.drive {
            Drive::Clock { period_ns } => Some(period_ns),
            _ => None,
        };
        let is_due = match clock {
            Some(_) => self.next_tick.is_none_or(|tick| now_ns >= tick),
            None => self.is_due,
        };
        if !is_due {
            return false;
        }
        self.found.clear();
        for at in 0..self.inputs.len() {
            let is_drive = self.rules.drive == Drive::Input(at);
            if !is_drive && self.is_stale(at, now_ns) {
                self.found.push(InputMatch::Absent);
            } else if self.inputs[at].entries.is_empty() {
                return false;
            } else {
                self.found.push(InputMatch::Range(0, 1));
            }
        }
        if self.found.iter().all(|found| matches!(found, InputMatch::Absent)) {
            return false;
        }
        // The tick is used up, with an output or without.
        self.is_due = false;
        if let Some(period_ns) = clock {
            let on_schedule = self.next_tick.unwrap_or(now_ns).saturating_add(period_ns);
            self.next_tick = Some(if on_schedule > now_ns { on_schedule } else { now_ns + period_ns });
        }
        if self.validate(None, &mut is_valid).is_some() {
            for input in &mut self.inputs {
                if input.entries.front().is_some_and(|_| input.is_lost(0)) {
                    input.pop(JoinReason::Overwritten);
                }
            }
            return false;
        }
        self.use_found(self.outputs, emit);
        true
    }
}
