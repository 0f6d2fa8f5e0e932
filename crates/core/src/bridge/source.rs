//! What a receiver knows of a source from its forwarded announces, and what it makes of headers (bridge §6, §8).
//! Pure. Freshness is judged by the time of receipt: the source's clock is another host's.

use crate::bridge::assembly::{Ignored, Loss};
use crate::shm::slot::{self, SlotInfo};
use crate::wire::announce::PoolAnnounce;
use crate::wire::layout::*;

/// A source's pool, as far as chunks are judged by it.
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
    /// Older than what is known, or of a layout that is not.
    Ignored,
}

/// One mapping's source.
#[derive(Debug)]
pub struct SourceState {
    announced: Option<SourceLayout>,
    announced_ns: u64,
    /// A chunk spoke of a later epoch: until the next announce there is nothing to believe (bridge §8).
    ahead: bool,
    /// How long an epoch stands without being announced before a lower one is believed.
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

    /// Whether chunks of that epoch are taken. `Err((why, true))`: all that is in flight is to be dropped.
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

    /// Judges the header of a frame by the slot's own rules and by the source's pools.
    pub fn validate_header(
        &self,
        header: &[u8; HEADER_SLOT_BYTES],
        seq: u64,
        payload_length: u32,
    ) -> Result<SlotInfo, Loss> {
        if get_u64(header, SLOT_HEADER_SEQ_COMMIT) >> 1 != seq {
            return Err(Loss::Seq);
        }
        // The source's slot is its own affair.
        let index = get_u32(header, SLOT_HEADER_PAYLOAD_SLOT);
        let info = slot::decode(header, index).map_err(Loss::of_header)?;
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

/// The header as the destination has it: its own pool and slot, all else as it came. The commit word is left out.
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
