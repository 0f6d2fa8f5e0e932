//! The ledger of a received stream, by the Aeron session that its frames arrived in. Pure and bounded.
//!
//! A sender's ledger begins at a position of its session. A receiver that learns the position later than the
//! frames arrived must know which frames are behind it. So the last frames are noted with the position where
//! they ended, until the position is known.

use std::collections::VecDeque;

use crate::bridge::assembly::{AssemblyCounters, ChunkOutcome, Loss};

/// Sessions kept, and sessions that a sender's ledger names. The one that was idle longest is evicted first.
pub const MAX_SESSIONS: usize = 16;
/// Frames that may have come since the requested position.
const MAX_NOTED: usize = 1024;

/// Frame counts. Each frame is in one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    pub delivered: u64,
    pub not_ready: u64,
    pub lost: [u64; Loss::COUNT],
}

impl SessionCounts {
    fn from_counters(counters: &AssemblyCounters) -> Self {
        Self { delivered: counters.delivered, not_ready: counters.not_ready, lost: counters.lost }
    }

    fn add(&mut self, more: &Self) {
        self.delivered += more.delivered;
        self.not_ready += more.not_ready;
        self.lost.iter_mut().zip(more.lost).for_each(|(n, more)| *n += more);
    }

    fn since(&self, before: &Self) -> Self {
        let mut lost = self.lost;
        lost.iter_mut().zip(before.lost).for_each(|(n, before)| *n -= before);
        Self {
            delivered: self.delivered - before.delivered,
            not_ready: self.not_ready - before.not_ready,
            lost,
        }
    }

    /// The total to compare with a sender's ledger. Frames that never arrived completely are not part of it.
    fn total(&self) -> u64 {
        let lost = Loss::ALL.iter().filter(|why| !why.is_incomplete()).map(|why| self.lost[*why as usize]);
        self.delivered + self.not_ready + lost.sum::<u64>()
    }

    fn undo(&mut self, outcome: FrameOutcome) {
        match outcome {
            FrameOutcome::Delivered => self.delivered -= 1,
            FrameOutcome::NotReady => self.not_ready -= 1,
            FrameOutcome::Lost(why) => self.lost[why as usize] -= 1,
        }
    }
}

#[derive(Clone, Copy)]
enum FrameOutcome {
    Delivered,
    NotReady,
    Lost(Loss),
}

impl FrameOutcome {
    fn from_chunk_outcome(step: ChunkOutcome) -> Option<Self> {
        match step {
            ChunkOutcome::Delivered => Some(Self::Delivered),
            ChunkOutcome::Lost(why) => (!why.is_incomplete()).then_some(Self::Lost(why)),
            ChunkOutcome::NotReady => Some(Self::NotReady),
            ChunkOutcome::Ignored(_) | ChunkOutcome::Refused(_) | ChunkOutcome::Taken => None,
        }
    }
}

/// The latest frames of a session, each with the position where its outcome was decided.
#[derive(Default)]
struct RecentOutcomes {
    all: VecDeque<(i64, FrameOutcome)>,
    /// Frames up to this position are no longer noted.
    from: Option<i64>,
    count: u64,
}

struct SessionEntry {
    session: i32,
    /// Counts up to the last change to another session.
    counts: SessionCounts,
    notes: Option<RecentOutcomes>,
}

/// Where a ledger begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerStart {
    /// The counts of that session up to there.
    At(SessionCounts),
    /// The session has not been read up to there yet.
    Ahead,
    /// Too long ago.
    Unknown,
}

/// The sessions of one stream. The last is the current one.
#[derive(Default)]
pub struct SessionLedger {
    all: Vec<SessionEntry>,
    /// The counters when the current session began.
    since: SessionCounts,
    forgotten: bool,
}

impl SessionLedger {
    /// Counts from here on belong to that session.
    #[inline]
    pub fn set_session(&mut self, session: i32, counters: &AssemblyCounters) {
        if self.all.last().is_none_or(|a| a.session != session) {
            self.change(session, counters);
        }
    }

    #[cold]
    fn change(&mut self, session: i32, counters: &AssemblyCounters) {
        let now = SessionCounts::from_counters(counters);
        let latest = now.since(&self.since);
        if let Some(last) = self.all.last_mut() {
            last.counts.add(&latest);
        }
        self.since = now;
        let entry = match self.all.iter().position(|a| a.session == session) {
            Some(at) => self.all.remove(at),
            None => SessionEntry {
                session,
                counts: SessionCounts::default(),
                notes: Some(RecentOutcomes::default()),
            },
        };
        if self.all.len() == MAX_SESSIONS {
            self.all.remove(0);
            self.forgotten = true;
        }
        self.all.push(entry);
    }

    /// Notes the outcome of a chunk that ended at `position` of the current session.
    #[inline]
    pub fn note(&mut self, step: ChunkOutcome, position: impl FnOnce() -> i64) {
        if step == ChunkOutcome::Taken {
            return;
        }
        let Some(notes) = self.all.last_mut().and_then(|a| a.notes.as_mut()) else { return };
        let Some(outcome) = FrameOutcome::from_chunk_outcome(step) else { return };
        if notes.all.len() == MAX_NOTED {
            notes.from = notes.all.pop_front().map(|(at, _)| at);
        }
        notes.all.push_back((position(), outcome));
        notes.count += 1;
    }

    fn counts(&self, at: usize, counters: &AssemblyCounters) -> SessionCounts {
        let mut counts = self.all[at].counts.clone();
        if at + 1 == self.all.len() {
            counts.add(&SessionCounts::from_counters(counters).since(&self.since));
        }
        counts
    }

    /// The counts of these sessions. False if one of them may have been evicted.
    pub fn sum(&self, sessions: &[i32], counters: &AssemblyCounters) -> (SessionCounts, bool) {
        let (mut sum, mut known) = (SessionCounts::default(), 0);
        for at in (0..self.all.len()).filter(|at| sessions.contains(&self.all[*at].session)) {
            sum.add(&self.counts(at, counters));
            known += 1;
        }
        (sum, known == sessions.len() || !self.forgotten)
    }

    /// The counts of a session at a position in it. `reached`: how far it was read. Once the counts are
    /// known, no more frames of it are noted.
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
            return LedgerStart::At(SessionCounts::default());
        };
        let mut counts = self.counts(at, counters);
        let Some(notes) = &mut self.all[at].notes else { return LedgerStart::Unknown };
        if notes.count != counts.total() || notes.from.is_some_and(|from| position < from) {
            // Some frames were dropped without a chunk of theirs. The ledger is exact again from here on.
            *notes = RecentOutcomes { all: VecDeque::new(), from: reached, count: counts.total() };
            return LedgerStart::Unknown;
        }
        notes
            .all
            .iter()
            .rev()
            .take_while(|(end, _)| *end > position)
            .for_each(|(_, outcome)| counts.undo(*outcome));
        self.all[at].notes = None;
        LedgerStart::At(counts)
    }

    /// A ledger begins with the session: no frames of it are noted.
    pub fn begin(&mut self, session: i32, counters: &AssemblyCounters) {
        if let Some(entry) = self.all.iter_mut().find(|a| a.session == session) {
            entry.notes = None;
            return;
        }
        if self.all.is_empty() {
            self.since = SessionCounts::from_counters(counters);
        } else if self.all.len() == MAX_SESSIONS {
            self.all.remove(0);
            self.forgotten = true;
        }
        let before_present = self.all.len().saturating_sub(1);
        self.all
            .insert(before_present, SessionEntry { session, counts: SessionCounts::default(), notes: None });
    }
}

#[cfg(test)]
mod tests;
