//! Forwarding of FrameProgress at a receiver (bridge §9): each message is published here, with the local
//! epoch, once its bytes have arrived. A frame is sent when it is complete, so progress comes before the
//! chunks and waits for them.

use std::collections::VecDeque;

use tensorpool_core::wire::control::{FrameProgress, ProgressState};

const MAX_WAITING: usize = 32;

#[derive(Default)]
pub(super) struct ProgressForwarder {
    waiting: VecDeque<(FrameProgress, u64)>,
    /// The last delivered frame: its last progress message may come later.
    delivered: Option<(u64, u32)>,
    pub due: Vec<FrameProgress>,
    pub dropped: u64,
}

impl ProgressForwarder {
    pub fn clear(&mut self) {
        self.dropped += self.waiting.len() as u64;
        self.waiting.clear();
        self.delivered = None;
    }

    /// Publishes a message at once if its frame is delivered, keeps it if its frame is still to come, and
    /// drops it for earlier frames.
    pub fn on_progress(&mut self, progress: FrameProgress, now_ns: u64) {
        if let Some((seq, length)) = self.delivered
            && progress.seq <= seq
        {
            if progress.seq == seq && progress.payload_bytes_filled <= u64::from(length) {
                self.due.push(progress);
            } else {
                self.dropped += 1;
            }
            return;
        }
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back((progress, now_ns));
    }

    #[inline]
    pub fn advanced(&mut self, seq: u64, prefix: u32) {
        if self.waiting.is_empty() {
            return;
        }
        let is_due = |progress: &FrameProgress| {
            progress.seq == seq
                && progress.payload_bytes_filled <= u64::from(prefix)
                && progress.state != ProgressState::Complete
        };
        self.release(is_due);
    }

    pub fn delivered(&mut self, seq: u64, length: u32) {
        self.delivered = Some((seq, length));
        if self.waiting.is_empty() {
            return;
        }
        self.release(|progress| progress.seq == seq && progress.payload_bytes_filled <= u64::from(length));
        let before = self.waiting.len();
        self.waiting.retain(|(progress, _)| progress.seq > seq);
        self.dropped += (before - self.waiting.len()) as u64;
    }

    fn release(&mut self, is_due: impl Fn(&FrameProgress) -> bool) {
        let due = &mut self.due;
        self.waiting.retain(|(progress, _)| {
            let is_due = is_due(progress);
            if is_due {
                due.push(*progress);
            }
            !is_due
        });
    }

    /// Drops messages of frames that never came.
    pub fn on_tick(&mut self, now_ns: u64, timeout_ns: u64) {
        while self.waiting.front().is_some_and(|(_, at)| now_ns.saturating_sub(*at) > timeout_ns) {
            self.waiting.pop_front();
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(seq: u64, filled: u64, state: ProgressState) -> FrameProgress {
        FrameProgress { stream_id: 1, epoch: 1, seq, payload_bytes_filled: filled, state }
    }

    /// requirement: bridge-9-4, bridge-9-7
    #[test]
    fn progress_waits_for_its_bytes_until_the_timeout() {
        let mut progress_forwarder = ProgressForwarder::default();
        let (part, complete) =
            (progress(3, 100, ProgressState::Progress), progress(3, 200, ProgressState::Complete));
        progress_forwarder.on_progress(part, 0);
        progress_forwarder.on_progress(complete, 0);
        progress_forwarder.on_progress(progress(9, 5, ProgressState::Started), 0);
        progress_forwarder.advanced(3, 99);
        assert!(progress_forwarder.due.is_empty());
        progress_forwarder.advanced(3, 200);
        assert_eq!(progress_forwarder.due, [part], "the complete message waits for the commit");
        progress_forwarder.delivered(3, 200);
        assert_eq!(progress_forwarder.due, [part, complete]);
        progress_forwarder.on_tick(11, 10);
        assert_eq!(progress_forwarder.dropped, 1, "a frame that never came");
        progress_forwarder.on_progress(progress(2, 5, ProgressState::Progress), 12);
        assert_eq!(progress_forwarder.dropped, 2, "a frame that is over");
        progress_forwarder.on_progress(complete, 12);
        assert_eq!(progress_forwarder.due.len(), 3, "the complete message of the last frame may come late");
        for seq in 4..100 {
            progress_forwarder.on_progress(progress(seq, 5, ProgressState::Started), 12);
        }
        assert_eq!(progress_forwarder.waiting.len(), MAX_WAITING);
    }
}
