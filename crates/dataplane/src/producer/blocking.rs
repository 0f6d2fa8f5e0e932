//! Offers that wait for room, for a replay, whose next frame can wait.

use std::sync::atomic::Ordering;

use tensorpool_core::shm::copy::Target;
use tensorpool_core::shm::tensor::TensorSpec;

use super::{FrameStamp, OfferResult, Producer};

/// Why a frame was not written. Nothing is counted and nothing changed: it may be offered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockedOn {
    /// A subscriber is behind. It catches up, or is rested within milliseconds.
    NoRoom,
    /// There are no regions or no descriptor stream at the moment. They are requested.
    NotReady,
    /// It fits no pool of this stream.
    NoPool,
    /// The producer was closed.
    Closed,
}

impl Producer {
    /// As `offer`, but only if its descriptor can be published.
    #[inline]
    pub fn offer_blocking(
        &self,
        spec: TensorSpec,
        values_len: u64,
        stamp: FrameStamp,
        fill: impl FnOnce(&mut Target<'_>),
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
        // Without subscribers there is never room, and no subscriber to wait for.
        if !publication.has_room() && publication.is_connected() {
            return Err(BlockedOn::NoRoom);
        }
        Ok(self.fill_and_publish(&mut state, spec, values_len, stamp, fill))
    }
}
