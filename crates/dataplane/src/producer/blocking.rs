//! Offers for whoever can wait: a replay, unlike a camera, has its next frame tomorrow too.

use std::sync::atomic::Ordering;

use tensorpool_core::shm::tensor::TensorSpec;

use super::{FrameStamp, OfferResult, Producer};

/// Why a frame was not written. Nothing is counted, and nothing was done: it may be offered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockedOn {
    /// A subscriber is behind; it catches up, or is put to rest within milliseconds.
    NoRoom,
    /// There are no regions or no descriptor stream at the moment; they are being asked for.
    NotReady,
    /// It fits no pool of this stream.
    NoPool,
    /// The producer was closed.
    Closed,
}

impl Producer {
    /// As `offer`, but only if the frame can be told of.
    #[inline]
    pub fn offer_blocking(
        &self,
        spec: TensorSpec,
        values_len: u64,
        stamp: FrameStamp,
        fill: impl FnOnce(*mut u8),
    ) -> Result<OfferResult, BlockedOn> {
        let mut state = self.lock();
        if self.closed.load(Ordering::Relaxed) {
            return Err(BlockedOn::Closed);
        }
        let has_pool = state.mapping.as_ref().map(|mapping| mapping.smallest_pool(values_len).is_some());
        let (Some(has_pool), Some(publication)) = (has_pool, state.publication.get()) else {
            return Err(BlockedOn::NotReady);
        };
        if !has_pool {
            return Err(BlockedOn::NoPool);
        }
        // Where nobody listens there is never room, and nobody to wait for.
        if !publication.has_room() && publication.is_connected() {
            return Err(BlockedOn::NoRoom);
        }
        Ok(self.fill_and_publish(&mut state, spec, values_len, stamp, fill))
    }
}
