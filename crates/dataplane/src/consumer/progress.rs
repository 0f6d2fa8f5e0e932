//! Partial frames at a consumer that requested progress (wire §10.2.2).
//!
//! The polling thread reads the per-consumer control stream, once it is granted. The conductor reads the
//! shared one and keeps the newest messages until they are polled, so that a slow reader delays no other
//! endpoint of the conductor.

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

use super::{Consumer, ProgressCounters, WaitOutcome};
use crate::aeron::channels::untethered;
use crate::aeron::{AeronError, Client, Subscription};
use crate::conductor::handle::Handle;
use crate::idle::{Idle, IdleStrategy};

/// Messages of the shared stream that wait to be polled. The oldest is dropped first.
const MAX_RECEIVED: usize = 1024;

/// The readable part of a frame that is still being written.
#[derive(Clone)]
pub struct PartialFrame {
    pub mapping: Arc<MappedEpoch>,
    pub slot_ref: SlotRef,
    pub filled: u64,
    pub state: ProgressState,
    /// The rows or columns that may be read. `None` where the layout does not say.
    pub filled_slices: Option<FilledSlices>,
}

#[derive(Default)]
pub(crate) struct ProgressReader {
    /// The granted per-consumer control stream.
    address: Option<StreamAddress>,
    subscription: Handle<Subscription>,
    received: VecDeque<FrameProgress>,
    pub(crate) progress_tracker: ProgressTracker,
}

impl ProgressReader {
    /// True once every handle is ready.
    pub(crate) fn advance(&mut self, client: &Client) -> Result<bool, AeronError> {
        let Some(address) = &self.address else { return Ok(true) };
        self.subscription
            .advance(|| client.add_subscription(&untethered(&address.channel), address.stream_id as i32))?;
        Ok(self.subscription.get().is_some())
    }

    pub(crate) fn disconnect(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn reset(&mut self) {
        self.progress_tracker.reset();
        self.received.clear();
    }

    /// A message of the shared stream. With a per-consumer stream it is ignored (wire §5).
    fn receive(&mut self, message: &FrameProgress) {
        if self.address.is_some() {
            return;
        }
        if self.received.len() == MAX_RECEIVED {
            self.received.pop_front();
        }
        self.received.push_back(*message);
    }

    fn has_messages(&mut self) -> bool {
        !self.received.is_empty() || self.subscription.get().is_some_and(Subscription::has_fragment)
    }

    /// Up to `limit` messages, from either stream.
    fn take(&mut self, stream_id: u32, limit: usize, out: &mut Vec<FrameProgress>) {
        let received = limit.min(self.received.len());
        out.extend(self.received.drain(..received));
        if let Some(subscription) = self.subscription.get() {
            subscription.poll(limit - received, |bytes, _| {
                if let ControlMessage::Progress(message) = ControlMessage::decode(bytes)
                    && message.stream_id == stream_id
                {
                    out.push(message);
                }
            });
        }
    }

    fn on_progress(
        &mut self,
        mapping: Option<&Arc<MappedEpoch>>,
        counters: &ProgressCounters,
        message: &FrameProgress,
    ) -> Option<PartialFrame> {
        let count = |counter: &AtomicU64| _ = counter.fetch_add(1, Ordering::Relaxed);
        count(&counters.received);
        let Some(mapping) = mapping.filter(|m| m.epoch == message.epoch) else {
            count(&counters.late);
            return None;
        };
        let slot = mapping.locate_in_progress(message.seq);
        let outline = slot.as_ref().map(FrameOutline::from).map_err(|drop| *drop);
        let filled = message.payload_bytes_filled;
        match self.progress_tracker.on_progress(message.seq, message.state, filled, outline) {
            ProgressVerdict::New => {
                count(&counters.accepted);
                let slot_ref = slot.ok()?;
                let filled_slices = filled::filled_slices(&slot_ref.info.tensor, filled);
                Some(PartialFrame {
                    mapping: mapping.clone(),
                    slot_ref,
                    filled,
                    state: message.state,
                    filled_slices,
                })
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
    /// Whether it requested progress, and whether that comes on a per-consumer stream.
    pub fn reads_progress(&self) -> (bool, bool) {
        let mut state = self.lock();
        let is_connected =
            |f: &mut Box<ProgressReader>| f.subscription.get().is_some_and(|s| s.is_connected());
        let on_per_consumer = state.reader.progress.as_mut().is_some_and(is_connected);
        (state.reader.progress.is_some(), on_per_consumer)
    }

    /// Reads up to `limit` progress messages, and returns the partial frames that are accepted.
    pub fn poll_progress(&self, limit: usize, out: &mut Vec<PartialFrame>) {
        let mut state = self.lock();
        let reader = &mut state.reader;
        let Some(progress) = &mut reader.progress else { return };
        let (mapping, counters) = (reader.epoch.mapping.as_ref(), &self.counters.progress);
        let mut messages = Vec::new();
        progress.take(self.config.stream_id, limit, &mut messages);
        for message in &messages {
            out.extend(progress.on_progress(mapping, counters, message));
        }
    }

    /// Waits for something to poll. The wait began at `since`, and may be a part of it.
    pub fn wait_progress(&self, timeout: Duration, strategy: IdleStrategy, since: Instant) -> WaitOutcome {
        let deadline = Instant::now() + timeout;
        let mut idle = Idle::since(strategy, since);
        loop {
            if self.is_closed() {
                return WaitOutcome::Closed;
            }
            if self.lock().reader.progress.as_mut().is_some_and(|f| f.has_messages()) {
                return WaitOutcome::Ready;
            }
            if Instant::now() >= deadline {
                return WaitOutcome::TimedOut;
            }
            idle.idle();
        }
    }

    pub(super) fn on_progress_message(&self, message: &FrameProgress) {
        if message.stream_id == self.config.stream_id
            && let Some(progress) = &mut self.state.lock_priority().reader.progress
        {
            progress.receive(message);
        }
    }

    /// Changes the stream that progress is read from.
    pub(super) fn apply_progress_changes(&self, changes: &[hello_state::ConfigChange]) {
        for change in changes {
            if let hello_state::ConfigChange::Control(address) = change
                && let Some(progress) = &mut self.state.lock_priority().reader.progress
            {
                progress.subscription = Handle::None;
                progress.address.clone_from(address);
                self.connected.store(false, Ordering::Relaxed);
            }
        }
    }
}
