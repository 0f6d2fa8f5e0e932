//! State of a bridge source at a receiver: its layout from forwarded announces, and the validation of headers
//! (bridge §6, §8). Pure. Freshness is measured by the time of receipt, because the source's clock is another
//! host's.

use crate::bridge::assembly::{Ignored, Loss};
use crate::shm::slot::{self, SlotInfo};
use crate::wire::announce::PoolAnnounce;
use crate::wire::layout::*;

/// A pool of the source, as far as chunks are checked against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePool {
    pub pool_id: u16,
    pub stride_bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLayout {
    pub epoch: u64,
    pub nslots: u32,
    pub pools: Vec<SourcePool>,
}

/// What an announce means to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnounceEffect {
    /// Another epoch: a boundary.
    NewEpoch,
    Same,
    /// A lower epoch than the current one, or an unknown layout.
    Ignored,
}

/// The source of one mapping.
#[derive(Debug)]
pub struct SourceState {
    announced: Option<SourceLayout>,
    announced_ns: u64,
    /// A chunk carried a later epoch: no chunk is accepted until the next announce (bridge §8).
    ahead: bool,
    /// How long an epoch stays valid without announces before a lower one is accepted.
    stale_ns: u64,
}

impl SourceState {
    pub fn new(stale_ns: u64) -> Self {
        Self { announced: None, announced_ns: 0, ahead: false, stale_ns }
    }

    pub fn announced(&self) -> Option<&SourceLayout> {
        self.announced.as_ref()
    }

    pub fn on_announce(&mut self, announce: &PoolAnnounce, now_ns: u64) -> AnnounceEffect {
        if announce.layout_version != LAYOUT_VERSION || announce.header_nslots == 0 {
            return AnnounceEffect::Ignored;
        }
        let known = self.announced.as_ref().map(|a| a.epoch);
        if known.is_some_and(|epoch| announce.epoch < epoch)
            && now_ns.saturating_sub(self.announced_ns) <= self.stale_ns
        {
            return AnnounceEffect::Ignored;
        }
        self.announced_ns = now_ns;
        self.ahead = false;
        if known == Some(announce.epoch) {
            return AnnounceEffect::Same;
        }
        let pools = announce.pools.iter();
        self.announced = Some(SourceLayout {
            epoch: announce.epoch,
            nslots: announce.header_nslots,
            pools: pools.map(|p| SourcePool { pool_id: p.pool_id, stride_bytes: p.stride_bytes }).collect(),
        });
        AnnounceEffect::NewEpoch
    }

    /// Whether chunks of that epoch are accepted. `Err((why, true))`: all assemblies in flight are to be
    /// dropped.
    #[inline]
    pub fn admit(&mut self, epoch: u64) -> Result<(), (Ignored, bool)> {
        let Some(announced) = &self.announced else {
            return Err((Ignored::Unannounced, false));
        };
        if epoch > announced.epoch {
            let is_first = !std::mem::replace(&mut self.ahead, true);
            return Err((Ignored::UnknownEpoch, is_first));
        }
        if epoch < announced.epoch || self.ahead {
            return Err((Ignored::OldEpoch, false));
        }
        Ok(())
    }

    /// Validates the header of a frame by the rules of a slot and by the source's pools.
    pub fn validate_header(
        &self,
        header: &[u8; HEADER_SLOT_BYTES],
        seq: u64,
        payload_length: u32,
    ) -> Result<SlotInfo, Loss> {
        if get_u64(header, SLOT_HEADER_SEQ_COMMIT) >> 1 != seq {
            return Err(Loss::Seq);
        }
        // The slot index is the source's, so it is not checked.
        let index = get_u32(header, SLOT_HEADER_PAYLOAD_SLOT);
        let info = slot::decode(header, index).map_err(Loss::from_drop_reason)?;
        if info.values_len_bytes != payload_length {
            return Err(Loss::ValuesLen);
        }
        let pools = self.announced.as_ref().map_or(&[][..], |a| &a.pools);
        let pool = pools.iter().find(|p| p.pool_id == info.pool_id).ok_or(Loss::PoolId)?;
        if payload_length > pool.stride_bytes {
            return Err(Loss::SourceStride);
        }
        Ok(info)
    }
}

/// The header for the destination: its own pool and slot, everything else unchanged. The commit word is 0.
pub fn local_header(
    header: &[u8; HEADER_SLOT_BYTES],
    pool_id: u16,
    payload_slot: u32,
) -> [u8; HEADER_SLOT_BYTES] {
    let mut local = *header;
    put_u64(&mut local, SLOT_HEADER_SEQ_COMMIT, 0);
    put_u16(&mut local, SLOT_HEADER_POOL_ID, pool_id);
    put_u32(&mut local, SLOT_HEADER_PAYLOAD_SLOT, payload_slot);
    local
}

#[cfg(test)]
mod tests;
