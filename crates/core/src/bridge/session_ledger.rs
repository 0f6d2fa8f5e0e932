//! What became of a stream's frames, by the session that they came in. Pure and bounded.
//!
//! A sender's account begins at a place in its session. Whoever heard it later than the frames came has to know
//! which of them were behind that place: so the last ones are noted with where they ended, until that was asked.

use std::collections::VecDeque;

use crate::bridge::assembly::{AssemblyCounters, ChunkOutcome, Loss};

/// Sessions that are remembered, and that a sender's account names; that which was quiet for longest goes first.
pub const MAX_SESSIONS: usize = 16;
/// Frames that may have come since the place that is asked for.
const MAX_NOTED: usize = 1024;

/// Frames, each in one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub delivered: u64,
    pub turned_away: u64,
    pub lost: [u64; Loss::COUNT],
}

impl Counts {
    fn of(counters: &AssemblyCounters) -> Self {
        Self { delivered: counters.delivered, turned_away: counters.turned_away, lost: counters.lost }
    }

    fn add(&mut self, more: &Self) {
        self.delivered += more.delivered;
        self.turned_away += more.turned_away;
        self.lost.iter_mut().zip(more.lost).for_each(|(n, more)| *n += more);
    }

    fn since(&self, before: &Self) -> Self {
        let mut lost = self.lost;
        lost.iter_mut().zip(before.lost).for_each(|(n, before)| *n -= before);
        Self {
            delivered: self.delivered - before.delivered,
            turned_away: self.turned_away - before.turned_away,
            lost,
        }
    }

    /// What a sender's account is held against: frames that never came whole are not among it.
    fn total(&self) -> u64 {
        let lost = Loss::ALL.iter().filter(|why| !why.is_incomplete()).map(|why| self.lost[*why as usize]);
        self.delivered + self.turned_away + lost.sum::<u64>()
    }

    fn undo(&mut self, fate: Fate) {
        match fate {
            Fate::Delivered => self.delivered -= 1,
            Fate::TurnedAway => self.turned_away -= 1,
            Fate::Lost(why) => self.lost[why as usize] -= 1,
        }
    }
}

#[derive(Clone, Copy)]
enum Fate {
    Delivered,
    TurnedAway,
    Lost(Loss),
}

impl Fate {
    fn of(step: ChunkOutcome) -> Option<Self> {
        match step {
            ChunkOutcome::Delivered => Some(Self::Delivered),
            ChunkOutcome::Lost(why) => (!why.is_incomplete()).then_some(Self::Lost(why)),
            ChunkOutcome::TurnedAway => Some(Self::TurnedAway),
            ChunkOutcome::Ignored(_) | ChunkOutcome::Refused(_) | ChunkOutcome::Taken => None,
        }
    }
}

/// The latest frames of a session, each with the position where it was decided.
#[derive(Default)]
struct Notes {
    all: VecDeque<(i64, Fate)>,
    /// Of those up to here nothing is noted any more.
    from: Option<i64>,
    count: u64,
}

struct SessionEntry {
    session: i32,
    /// Up to when another session's turn came.
    counts: Counts,
    notes: Option<Notes>,
}

/// Where an account begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerStart {
    /// What had been counted of that session up to there.
    At(Counts),
    /// Not all up to there has been read yet.
    Ahead,
    /// Too long ago.
    Unknown,
}

/// The sessions of one stream; the last is that which frames come in at the moment.
#[derive(Default)]
pub struct SessionLedger {
    all: Vec<SessionEntry>,
    /// How the tally stood when the present session's turn came.
    since: Counts,
    forgotten: bool,
}

impl SessionLedger {
    /// What is counted from here on is of that session.
    #[inline]
    pub fn set_session(&mut self, session: i32, counters: &AssemblyCounters) {
        if self.all.last().is_none_or(|a| a.session != session) {
            self.change(session, counters);
        }
    }

    #[cold]
    fn change(&mut self, session: i32, counters: &AssemblyCounters) {
        let now = Counts::of(counters);
        let latest = now.since(&self.since);
        if let Some(last) = self.all.last_mut() {
            last.counts.add(&latest);
        }
        self.since = now;
        let entry = match self.all.iter().position(|a| a.session == session) {
            Some(at) => self.all.remove(at),
            None => SessionEntry { session, counts: Counts::default(), notes: Some(Notes::default()) },
        };
        if self.all.len() == MAX_SESSIONS {
            self.all.remove(0);
            self.forgotten = true;
        }
        self.all.push(entry);
    }

    /// What became of a chunk that ended at `position` of the present session.
    #[inline]
    pub fn note(&mut self, step: ChunkOutcome, position: impl FnOnce() -> i64) {
        if step == ChunkOutcome::Taken {
            return;
        }
        let Some(notes) = self.all.last_mut().and_then(|a| a.notes.as_mut()) else { return };
        let Some(fate) = Fate::of(step) else { return };
        if notes.all.len() == MAX_NOTED {
            notes.from = notes.all.pop_front().map(|(at, _)| at);
        }
        notes.all.push_back((position(), fate));
        notes.count += 1;
    }

    fn counts(&self, at: usize, counters: &AssemblyCounters) -> Counts {
        let mut counts = self.all[at].counts.clone();
        if at + 1 == self.all.len() {
            counts.add(&Counts::of(counters).since(&self.since));
        }
        counts
    }

    /// All that was counted of these sessions; false if one of them may have been forgotten.
    pub fn sum(&self, sessions: &[i32], counters: &AssemblyCounters) -> (Counts, bool) {
        let (mut sum, mut known) = (Counts::default(), 0);
        for at in (0..self.all.len()).filter(|at| sessions.contains(&self.all[*at].session)) {
            sum.add(&self.counts(at, counters));
            known += 1;
        }
        (sum, known == sessions.len() || !self.forgotten)
    }

    /// What had been counted of a session at a place in it; `reached`: how far it was read. Once that is known
    /// nothing more is noted of it.
    pub fn ledger_start(
        &mut self,
        session: i32,
        position: i64,
        reached: Option<i64>,
        counters: &AssemblyCounters,
    ) -> LedgerStart {
        if reached.is_none_or(|reached| reached < position) {
            return LedgerStart::Ahead;
        }
        let Some(at) = self.all.iter().position(|a| a.session == session) else {
            self.begin(session, counters);
            return LedgerStart::At(Counts::default());
        };
        let mut counts = self.counts(at, counters);
        let Some(notes) = &mut self.all[at].notes else { return LedgerStart::Unknown };
        if notes.count != counts.total() || notes.from.is_some_and(|from| position < from) {
            // Some were dropped by no chunk of theirs. It is known again from here on.
            *notes = Notes { all: VecDeque::new(), from: reached, count: counts.total() };
            return LedgerStart::Unknown;
        }
        notes
            .all
            .iter()
            .rev()
            .take_while(|(end, _)| *end > position)
            .for_each(|(_, fate)| counts.undo(*fate));
        self.all[at].notes = None;
        LedgerStart::At(counts)
    }

    /// An account begins with the session: nothing is noted of it.
    pub fn begin(&mut self, session: i32, counters: &AssemblyCounters) {
        if let Some(entry) = self.all.iter_mut().find(|a| a.session == session) {
            entry.notes = None;
            return;
        }
        if self.all.is_empty() {
            self.since = Counts::of(counters);
        } else if self.all.len() == MAX_SESSIONS {
            self.all.remove(0);
            self.forgotten = true;
        }
        let before_present = self.all.len().saturating_sub(1);
        self.all.insert(before_present, SessionEntry { session, counts: Counts::default(), notes: None });
    }
}

#[cfg(test)]
mod tests;
