//! The superblock: the first 64 bytes of every region (wire §7.1). Pure.

use crate::wire::layout::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub magic: u64,
    pub layout_version: u32,
    pub epoch: u64,
    pub stream_id: u32,
    pub region_type: i16,
    pub pool_id: u16,
    pub nslots: u32,
    pub slot_bytes: u32,
    pub stride_bytes: u32,
    pub pid: u64,
    pub start_timestamp_ns: u64,
    pub activity_timestamp_ns: u64,
}

/// What a region must be, according to an announce or an attach response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub layout_version: u32,
    pub epoch: u64,
    pub stream_id: u32,
    pub kind: RegionKind,
    pub nslots: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    HeaderRing,
    PayloadPool { pool_id: u16, stride_bytes: u32 },
}

impl RegionKind {
    /// Bytes of one slot.
    pub fn stride(self) -> u64 {
        match self {
            Self::HeaderRing => HEADER_SLOT_BYTES as u64,
            Self::PayloadPool { stride_bytes, .. } => u64::from(stride_bytes),
        }
    }

    /// Bytes of a region of this kind, superblock included.
    pub fn region_bytes(self, nslots: u32) -> u64 {
        SUPERBLOCK_SIZE as u64 + u64::from(nslots) * self.stride()
    }
}

/// The first field that differs from the announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub field: &'static str,
    pub found: u64,
    pub expected: u64,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.field == "magic" {
            write!(f, "magic is {:#018x}, a region has {:#018x}", self.found, self.expected)
        } else {
            write!(f, "{} is {}, announced was {}", self.field, self.found, self.expected)
        }
    }
}

/// A stride is a power of two and a multiple of 64 (wire §15.22).
pub fn stride_is_valid(stride_bytes: u32) -> bool {
    stride_bytes >= MIN_STRIDE_BYTES && stride_bytes.is_power_of_two()
}

/// The number of slots is a power of two, so that a mask gives the slot of a sequence.
pub fn nslots_is_valid(nslots: u32) -> bool {
    nslots.is_power_of_two()
}

impl Superblock {
    pub fn new(expected: &Expected, pid: u64, now_ns: u64) -> Self {
        let (region_type, pool_id, slot_bytes, stride_bytes) = match expected.kind {
            RegionKind::HeaderRing => (REGION_TYPE_HEADER_RING, 0, HEADER_SLOT_BYTES as u32, 0),
            RegionKind::PayloadPool { pool_id, stride_bytes } => {
                (REGION_TYPE_PAYLOAD_POOL, pool_id, stride_bytes, stride_bytes)
            }
        };
        Self {
            magic: MAGIC,
            layout_version: expected.layout_version,
            epoch: expected.epoch,
            stream_id: expected.stream_id,
            region_type,
            pool_id,
            nslots: expected.nslots,
            slot_bytes,
            stride_bytes,
            pid,
            start_timestamp_ns: now_ns,
            activity_timestamp_ns: now_ns,
        }
    }

    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        let mut b = [0; SUPERBLOCK_SIZE];
        put_u64(&mut b, SHM_REGION_SUPERBLOCK_MAGIC, self.magic);
        put_u32(&mut b, SHM_REGION_SUPERBLOCK_LAYOUT_VERSION, self.layout_version);
        put_u64(&mut b, SHM_REGION_SUPERBLOCK_EPOCH, self.epoch);
        put_u32(&mut b, SHM_REGION_SUPERBLOCK_STREAM_ID, self.stream_id);
        put_i16(&mut b, SHM_REGION_SUPERBLOCK_REGION_TYPE, self.region_type);
        put_u16(&mut b, SHM_REGION_SUPERBLOCK_POOL_ID, self.pool_id);
        put_u32(&mut b, SHM_REGION_SUPERBLOCK_NSLOTS, self.nslots);
        put_u32(&mut b, SHM_REGION_SUPERBLOCK_SLOT_BYTES, self.slot_bytes);
        put_u32(&mut b, SHM_REGION_SUPERBLOCK_STRIDE_BYTES, self.stride_bytes);
        put_u64(&mut b, SHM_REGION_SUPERBLOCK_PID, self.pid);
        put_u64(&mut b, SHM_REGION_SUPERBLOCK_START_TIMESTAMP_NS, self.start_timestamp_ns);
        put_u64(&mut b, SHM_REGION_SUPERBLOCK_ACTIVITY_TIMESTAMP_NS, self.activity_timestamp_ns);
        b
    }

    pub fn decode(b: &[u8; SUPERBLOCK_SIZE]) -> Self {
        Self {
            magic: get_u64(b, SHM_REGION_SUPERBLOCK_MAGIC),
            layout_version: get_u32(b, SHM_REGION_SUPERBLOCK_LAYOUT_VERSION),
            epoch: get_u64(b, SHM_REGION_SUPERBLOCK_EPOCH),
            stream_id: get_u32(b, SHM_REGION_SUPERBLOCK_STREAM_ID),
            region_type: get_i16(b, SHM_REGION_SUPERBLOCK_REGION_TYPE),
            pool_id: get_u16(b, SHM_REGION_SUPERBLOCK_POOL_ID),
            nslots: get_u32(b, SHM_REGION_SUPERBLOCK_NSLOTS),
            slot_bytes: get_u32(b, SHM_REGION_SUPERBLOCK_SLOT_BYTES),
            stride_bytes: get_u32(b, SHM_REGION_SUPERBLOCK_STRIDE_BYTES),
            pid: get_u64(b, SHM_REGION_SUPERBLOCK_PID),
            start_timestamp_ns: get_u64(b, SHM_REGION_SUPERBLOCK_START_TIMESTAMP_NS),
            activity_timestamp_ns: get_u64(b, SHM_REGION_SUPERBLOCK_ACTIVITY_TIMESTAMP_NS),
        }
    }

    /// Compares with the announce. The caller checks the activity timestamp, which needs the time.
    ///
    /// Two fields that peers write differently are checked leniently: a pool's `slot_bytes` may be its
    /// stride, 0 or null, a ring's `stride_bytes` 0, 256 or null.
    pub fn check(&self, expected: &Expected) -> Result<(), Mismatch> {
        let same = |field, found: u64, expected: u64| {
            if found == expected { Ok(()) } else { Err(Mismatch { field, found, expected }) }
        };
        let either = |field, found: u32, expected: u32| {
            if found == 0 || found == NULL_U32 { Ok(()) } else { same(field, found.into(), expected.into()) }
        };
        same("magic", self.magic, MAGIC)?;
        same("layout_version", self.layout_version.into(), expected.layout_version.into())?;
        same("epoch", self.epoch, expected.epoch)?;
        same("stream_id", self.stream_id.into(), expected.stream_id.into())?;
        match expected.kind {
            RegionKind::HeaderRing => {
                same("region_type", self.region_type as u64, REGION_TYPE_HEADER_RING as u64)?;
                same("pool_id", self.pool_id.into(), 0)?;
                same("nslots", self.nslots.into(), expected.nslots.into())?;
                same("slot_bytes", self.slot_bytes.into(), HEADER_SLOT_BYTES as u64)?;
                either("stride_bytes", self.stride_bytes, HEADER_SLOT_BYTES as u32)
            }
            RegionKind::PayloadPool { pool_id, stride_bytes } => {
                same("region_type", self.region_type as u64, REGION_TYPE_PAYLOAD_POOL as u64)?;
                same("pool_id", self.pool_id.into(), pool_id.into())?;
                same("nslots", self.nslots.into(), expected.nslots.into())?;
                same("stride_bytes", self.stride_bytes.into(), stride_bytes.into())?;
                either("slot_bytes", self.slot_bytes, stride_bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: Expected = Expected {
        layout_version: 1,
        epoch: 77,
        stream_id: 10_000,
        kind: RegionKind::PayloadPool { pool_id: 3, stride_bytes: 4096 },
        nslots: 8,
    };
    const RING: Expected = Expected { kind: RegionKind::HeaderRing, ..POOL };

    #[test]
    fn superblock_round_trips_and_starts_with_magic() {
        let block = Superblock::new(&POOL, 42, 1_000);
        let bytes = block.encode();
        assert_eq!(bytes[..8], [0x31, 0x4D, 0x48, 0x53, 0x4C, 0x50, 0x4F, 0x54]);
        assert_eq!(Superblock::decode(&bytes), block);
    }

    fn field(block: Superblock, expected: &Expected) -> &'static str {
        block.check(expected).expect_err("a mismatch").field
    }

    /// requirement: wire-7.1-1, wire-7.1-2, wire-7.1-3, wire-7.1-4, wire-15.1-1, wire-15.1-2
    #[test]
    fn mismatch_names_the_field() {
        let pool = Superblock::new(&POOL, 1, 1);
        let ring = Superblock::new(&RING, 1, 1);
        assert_eq!(pool.check(&POOL), Ok(()));
        assert_eq!(ring.check(&RING), Ok(()));
        assert_eq!(field(Superblock { magic: 0, ..pool }, &POOL), "magic");
        assert_eq!(field(Superblock { layout_version: 2, ..pool }, &POOL), "layout_version");
        assert_eq!(field(Superblock { epoch: 78, ..pool }, &POOL), "epoch");
        assert_eq!(field(Superblock { stream_id: 9, ..pool }, &POOL), "stream_id");
        assert_eq!(field(Superblock { region_type: 1, ..pool }, &POOL), "region_type");
        assert_eq!(field(Superblock { pool_id: 4, ..pool }, &POOL), "pool_id");
        assert_eq!(field(Superblock { nslots: 16, ..pool }, &POOL), "nslots");
        assert_eq!(field(Superblock { slot_bytes: 1, ..pool }, &POOL), "slot_bytes");
        assert_eq!(field(Superblock { stride_bytes: 64, ..pool }, &POOL), "stride_bytes");
        assert_eq!(field(Superblock { region_type: 2, ..ring }, &RING), "region_type");
        assert_eq!(field(Superblock { pool_id: 1, ..ring }, &RING), "pool_id");
        assert_eq!(field(Superblock { slot_bytes: 0, ..ring }, &RING), "slot_bytes");
        assert_eq!(field(Superblock { stride_bytes: 64, ..ring }, &RING), "stride_bytes");
    }

    #[test]
    fn peer_variants_are_accepted() {
        for slot_bytes in [4096, 0, NULL_U32] {
            assert_eq!(Superblock { slot_bytes, ..Superblock::new(&POOL, 1, 1) }.check(&POOL), Ok(()));
        }
        for stride_bytes in [256, 0, NULL_U32] {
            assert_eq!(Superblock { stride_bytes, ..Superblock::new(&RING, 1, 1) }.check(&RING), Ok(()));
        }
    }

    /// requirement: wire-15.22-9, wire-15.22-10
    #[test]
    fn stride_is_a_power_of_two_from_64() {
        for good in [64, 128, 4096, 1 << 20, 1 << 31] {
            assert!(stride_is_valid(good), "{good}");
        }
        for bad in [0, 1, 32, 63, 65, 96, 192, 4095, 3 << 20, u32::MAX] {
            assert!(!stride_is_valid(bad), "{bad}");
        }
    }

    /// requirement: wire-6-1
    #[test]
    fn region_bytes_are_superblock_and_slots() {
        assert_eq!(RegionKind::HeaderRing.region_bytes(8), 64 + 8 * 256);
        assert_eq!(POOL.kind.region_bytes(8), 64 + 8 * 4096);
    }
}
