//! Descriptors of one stream, read from the shared descriptor stream by a reader that serves many consumers.
//!
//! Every subscription to a stream has an image of every publication on it. A hundred consumers of a hundred
//! producers would poll ten thousand images for each frame. One subscription that distributes descriptors
//! polls a hundred.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tensorpool_core::wire::descriptor::FrameDescriptor;

/// More than any reader may be behind: the slots of older descriptors are overwritten.
const MAX_WAITING: usize = 1024;

#[derive(Default)]
pub struct DescriptorQueue {
    descriptors: Mutex<VecDeque<FrameDescriptor>>,
    waiting: AtomicUsize,
}

impl DescriptorQueue {
    /// Adds a descriptor. A full queue drops its oldest, which the consumer counts as a gap.
    pub fn push(&self, descriptor: FrameDescriptor) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        if descriptors.len() == MAX_WAITING {
            descriptors.pop_front();
        }
        descriptors.push_back(descriptor);
        self.waiting.store(descriptors.len(), Ordering::Release);
    }

    #[inline]
    pub fn next(&self) -> Option<FrameDescriptor> {
        if self.is_empty() {
            return None;
        }
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        let next = descriptors.pop_front();
        self.waiting.store(descriptors.len(), Ordering::Release);
        next
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_is_ordered_and_bounded() {
        let queue = DescriptorQueue::default();
        assert!(queue.next().is_none());
        for seq in 0..MAX_WAITING as u64 + 3 {
            let descriptor = FrameDescriptor {
                stream_id: 1,
                epoch: 1,
                seq,
                timestamp_ns: None,
                meta_version: None,
                trace_id: 0,
            };
            queue.push(descriptor);
        }
        let seqs: Vec<_> = std::iter::from_fn(|| queue.next()).map(|d| d.seq).collect();
        assert_eq!((seqs[0], seqs.len()), (3, MAX_WAITING));
        assert!(queue.is_empty() && seqs.is_sorted());
    }
}
