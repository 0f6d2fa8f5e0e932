//! Frames that are still filling, as a consumer that asked for it sees them (wire §10.2.2).
//!
//! Its own control stream, once granted, is read by whoever polls; the shared one is heard by the conductor,
//! which keeps the newest words until they are asked for, so that a slow reader holds up nobody there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tensorpool_core::consumer::hello_state;
use tensorpool_core::consumer::progress_tracker::{FrameOutline, ProgressTracker, ProgressVerdict};
use tensorpool_core::shm::epoch::{MappedEpoch, SlotRef};
use tensorpool_core::shm::filled::{self, FilledSlices};
use tensorpool_core::wire::control::{ControlMessage, FrameProgress, ProgressState};
use tensorpool_core::wire::hello::StreamAddress;

use super::reader::Reader;
use super::{Consumer, ProgressCounters, Waited};
use crate::aeron::channels::untethered;
use crate::aeron::{AeronError, Client, Subscription};
use crate::conductor::handle::Handle;
use crate::idle::{Idle, Strategy};

/// Words of the shared stream that wait to be asked for; the oldest goes first.
const MOST_HEARD: usize = 1024;

/// So much of a frame is there.
#[derive(Clone)]
pub struct Part {
    pub mapping: Arc<MappedEpoch>,
    pub located: SlotRef,
    pub filled: u64,
    pub state: ProgressState,
    /// The rows, or columns, that may be read; none where the layout does not say.
    pub filled_slices: Option<FilledSlices>,
}

#[derive(Default)]
pub(crate) struct Following {
    /// The stream of its own that was granted.
    lane: Option<StreamAddress>,
    subscription: Handle<Subscription>,
    heard: VecDeque<FrameProgress>,
    pub(crate) progress_tracker: ProgressTracker,
}

impl Following {
    /// True once nothing is missing.
    pub(crate) fn advance(&mut self, client: &Client) -> Result<bool, AeronError> {
        let Some(lane) = &self.lane else { return Ok(true) };
        self.subscription
            .advance(|| client.add_subscription(&untethered(&lane.channel), lane.stream_id as i32))?;
        Ok(self.subscription.get().is_some())
    }

    pub(crate) fn disconnect(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn reset(&mut self) {
        self.progress_tracker.reset();
        self.heard.clear();
    }

    /// A word on the shared stream; with a stream of its own, that one is listened to instead (wire §5).
    fn hear(&mut self, said: &FrameProgress) {
        if self.lane.is_some() {
            return;
        }
        if self.heard.len() == MOST_HEARD {
            self.heard.pop_front();
        }
        self.heard.push_back(*said);
    }

    fn has_words(&mut self) -> bool {
        !self.heard.is_empty() || self.subscription.get().is_some_and(Subscription::has_fragment)
    }

    /// Up to `limit` words, from wherever they come.
    fn take(&mut self, stream_id: u32, limit: usize, out: &mut Vec<FrameProgress>) {
        let heard = limit.min(self.heard.len());
        out.extend(self.heard.drain(..heard));
        if let Some(subscription) = self.subscription.get() {
            subscription.poll(limit - heard, |bytes, _| {
                if let ControlMessage::Progress(said) = ControlMessage::decode(bytes)
                    && said.stream_id == stream_id
                {
                    out.push(said);
                }
            });
        }
    }
}

impl Reader {
    fn believe(&mut self, counters: &ProgressCounters, said: &FrameProgress) -> Option<Part> {
        let count = |counter: &AtomicU64| _ = counter.fetch_add(1, Ordering::Relaxed);
        count(&counters.heard);
        let following = self.following.as_mut()?;
        let Some(mapping) = self.mapping.as_ref().filter(|m| m.epoch == said.epoch) else {
            count(&counters.late);
            return None;
        };
        let slot = mapping.locate_in_progress(said.seq);
        let outline = slot.as_ref().map(FrameOutline::from).map_err(|drop| *drop);
        let filled = said.payload_bytes_filled;
        match following.progress_tracker.on_progress(said.seq, said.state, filled, outline) {
            ProgressVerdict::New => {
                count(&counters.news);
                let located = slot.ok()?;
                let filled_slices = filled::filled_slices(&located.info.tensor, filled);
                Some(Part { mapping: mapping.clone(), located, filled, state: said.state, filled_slices })
            }
            ProgressVerdict::Repeated => None,
            ProgressVerdict::Late => {
                count(&counters.late);
                None
            }
            ProgressVerdict::Backwards => {
                count(&counters.backwards);
                None
            }
            ProgressVerdict::Invalid => {
                count(&counters.refused);
                None
            }
        }
    }
}

impl Consumer {
    /// Whether it asked for progress, and whether that comes on a stream of its own.
    pub fn follows(&self) -> (bool, bool) {
        let mut state = self.lock();
        let own = |f: &mut Box<Following>| f.subscription.get().is_some_and(|s| s.is_connected());
        let on_per_consumer = state.following.as_mut().is_some_and(own);
        (state.following.is_some(), on_per_consumer)
    }

    /// Takes up to `limit` words about frames that are filling, and gives those that are believed.
    pub fn poll_progress(&self, limit: usize, out: &mut Vec<Part>) {
        let mut state = self.lock();
        let mut words = Vec::new();
        if let Some(following) = &mut state.following {
            following.take(self.config.stream_id, limit, &mut words);
        }
        for said in &words {
            out.extend(state.believe(&self.counters.progress, said));
        }
    }

    /// Waits for something to poll.
    pub fn wait_progress(&self, timeout: Duration, strategy: Strategy) -> Waited {
        let deadline = Instant::now() + timeout;
        let mut idle = Idle::new(strategy);
        loop {
            if self.is_closed() {
                return Waited::Closed;
            }
            if self.lock().following.as_mut().is_some_and(|f| f.has_words()) {
                return Waited::Ready;
            }
            if Instant::now() >= deadline {
                return Waited::TimedOut;
            }
            idle.idle();
        }
    }

    pub(super) fn hear_progress(&self, said: &FrameProgress) {
        if said.stream_id == self.config.stream_id
            && let Some(following) = &mut self.state.lock_priority().following
        {
            following.hear(said);
        }
    }

    /// Where progress comes from, from here on.
    pub(super) fn apply_progress_changes(&self, changes: &[hello_state::ConfigChange]) {
        for change in changes {
            if let hello_state::ConfigChange::Control(lane) = change
                && let Some(following) = &mut self.state.lock_priority().following
            {
                following.subscription = Handle::None;
                following.lane.clone_from(lane);
                self.connected.store(false, Ordering::Relaxed);
            }
        }
    }
}
