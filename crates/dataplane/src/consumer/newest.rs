//! Holding back of the newest descriptor, for a rate limiter: older ones are dropped unread, and its frame is
//! located only when it may pass.

use std::sync::atomic::Ordering;

use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::wire::descriptor::FrameDescriptor;

use super::{Consumer, Frame};

/// Polls of one call at most, so that a fast producer cannot hold the caller.
const MAX_POLLS: usize = 64;
const MESSAGES_PER_POLL: usize = 1024;

impl Consumer {
    /// Takes all waiting descriptors and keeps the newest in `held`. The others count as rate-limited.
    /// Returns how many messages were consumed.
    pub fn hold_newest(&self, held: &mut Option<FrameDescriptor>) -> usize {
        let mut total = 0;
        for _ in 0..MAX_POLLS {
            let taken = self.drain(self.lock(), MESSAGES_PER_POLL, |reader, counters, descriptor| {
                reader.settle(counters);
                if held.replace(descriptor).is_some() {
                    counters.drops.add(DropReason::RateLimited, 1);
                }
                counters.is_holding.store(true, Ordering::Relaxed);
            });
            total += taken;
            if taken == 0 {
                break;
            }
        }
        total
    }

    /// The next descriptor, in order.
    pub fn poll_held(&self) -> Option<FrameDescriptor> {
        let mut held = None;
        self.drain_while(self.lock(), MESSAGES_PER_POLL, &mut (), |reader, counters, descriptor, ()| {
            reader.settle(counters);
            held = Some(descriptor);
            counters.is_holding.store(true, Ordering::Relaxed);
            false
        });
        held
    }

    /// The frame of a descriptor that was held back. `None` if its slot was reused meanwhile.
    pub fn accept_held(&self, held: FrameDescriptor) -> Option<Frame> {
        let frame = self.lock().with_fallback_mapping(|reader| {
            self.counters.is_holding.store(false, Ordering::Relaxed);
            reader.accept(&self.counters, &held, &mut ())
        });
        self.counters.record_latency(frame.as_slice());
        frame
    }

    /// Counts a descriptor that was held back and will not pass.
    pub fn drop_held(&self) {
        // A status report takes the same lock: it counts the frame once.
        let _state = self.lock();
        self.counters.is_holding.store(false, Ordering::Relaxed);
        self.counters.drops.add(DropReason::RateLimited, 1);
    }
}
