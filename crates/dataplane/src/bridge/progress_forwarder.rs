//! Forwarded words on frames that fill (bridge §9): each is said again here once that much has arrived here, with
//! the local epoch. Words come before the chunks, since a frame is sent when it is complete: so they wait a while.

use std::collections::VecDeque;

use tensorpool_core::wire::control::{FrameProgress, ProgressState};

const MAX_WAITING: usize = 32;

#[derive(Default)]
pub(super) struct Echo {
    waiting: VecDeque<(FrameProgress, u64)>,
    /// The frame that went out last: its last word may come after it.
    delivered: Option<(u64, u32)>,
    pub due: Vec<FrameProgress>,
    pub dropped: u64,
}

impl Echo {
    pub fn clear(&mut self) {
        self.dropped += self.waiting.len() as u64;
        self.waiting.clear();
        self.delivered = None;
    }

    /// It is said at once if its frame is out, waits if that is still to come, and is too late for all before it.
    pub fn on_word(&mut self, word: FrameProgress, now_ns: u64) {
        if let Some((seq, length)) = self.delivered
            && word.seq <= seq
        {
            if word.seq == seq && word.payload_bytes_filled <= u64::from(length) {
                self.due.push(word);
            } else {
                self.dropped += 1;
            }
            return;
        }
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back((word, now_ns));
    }

    #[inline]
    pub fn advanced(&mut self, seq: u64, prefix: u32) {
        if self.waiting.is_empty() {
            return;
        }
        let is_due = |word: &FrameProgress| {
            word.seq == seq
                && word.payload_bytes_filled <= u64::from(prefix)
                && word.state != ProgressState::Complete
        };
        self.release(is_due);
    }

    pub fn delivered(&mut self, seq: u64, length: u32) {
        self.delivered = Some((seq, length));
        if self.waiting.is_empty() {
            return;
        }
        self.release(|word| word.seq == seq && word.payload_bytes_filled <= u64::from(length));
        let before = self.waiting.len();
        self.waiting.retain(|(word, _)| word.seq > seq);
        self.dropped += (before - self.waiting.len()) as u64;
    }

    fn release(&mut self, is_due: impl Fn(&FrameProgress) -> bool) {
        let due = &mut self.due;
        self.waiting.retain(|(word, _)| {
            let is_due = is_due(word);
            if is_due {
                due.push(*word);
            }
            !is_due
        });
    }

    /// Words about frames that never came.
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

    fn word(seq: u64, filled: u64, state: ProgressState) -> FrameProgress {
        FrameProgress { stream_id: 1, epoch: 1, seq, payload_bytes_filled: filled, state }
    }

    /// requirement: bridge-9-4, bridge-9-7
    #[test]
    fn a_word_waits_for_its_bytes_and_no_longer_than_they_may_take() {
        let mut echo = Echo::default();
        let (part, whole) = (word(3, 100, ProgressState::Progress), word(3, 200, ProgressState::Complete));
        echo.on_word(part, 0);
        echo.on_word(whole, 0);
        echo.on_word(word(9, 5, ProgressState::Started), 0);
        echo.advanced(3, 99);
        assert!(echo.due.is_empty());
        echo.advanced(3, 200);
        assert_eq!(echo.due, [part], "the last word waits for the commit");
        echo.delivered(3, 200);
        assert_eq!(echo.due, [part, whole]);
        echo.on_tick(11, 10);
        assert_eq!(echo.dropped, 1, "a frame that never came");
        echo.on_word(word(2, 5, ProgressState::Progress), 12);
        assert_eq!(echo.dropped, 2, "a frame that is over");
        echo.on_word(whole, 12);
        assert_eq!(echo.due.len(), 3, "the last word of the last frame may come late");
        for seq in 4..100 {
            echo.on_word(word(seq, 5, ProgressState::Started), 12);
        }
        assert_eq!(echo.waiting.len(), MAX_WAITING);
    }
}
