//! `ShmPoolAnnounce`: which regions and which epoch a stream has (wire §10.1.1). Pure.

use crate::wire::layout::*;

/// More pools than any stream uses. A larger count is rejected before anything is allocated.
pub const MAX_POOLS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedPool {
    pub pool_id: u16,
    pub nslots: u32,
    pub stride_bytes: u32,
    pub uri: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolAnnounce {
    pub stream_id: u32,
    pub producer_id: u32,
    pub epoch: u64,
    pub timestamp_ns: u64,
    pub clock_domain: u8,
    pub layout_version: u32,
    pub header_nslots: u32,
    pub header_slot_bytes: u16,
    pub pools: Vec<AnnouncedPool>,
    pub header_uri: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    Announce(PoolAnnounce),
    Other,
    Malformed(&'static str),
}

pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Takes `n` bytes off the front. The error names the part that was truncated.
pub(crate) fn take<'a>(bytes: &mut &'a [u8], n: usize, what: &'static str) -> Result<&'a [u8], &'static str> {
    let (head, rest) = bytes.split_at_checked(n).ok_or(what)?;
    *bytes = rest;
    Ok(head)
}

pub(crate) fn take_string(bytes: &mut &[u8], what: &'static str) -> Result<String, &'static str> {
    let len = get_u32(take(bytes, 4, what)?, 0) as usize;
    let text = take(bytes, len, what)?;
    if !text.is_ascii() {
        return Err(what);
    }
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Decodes the group `payloadPools`, which an attach response has too.
pub(crate) fn take_pools(rest: &mut &[u8]) -> Result<Vec<AnnouncedPool>, &'static str> {
    let group = take(rest, GROUP_SIZE_LENGTH, "payloadPools")?;
    let entry_length = usize::from(get_u16(group, 0));
    let count = usize::from(get_u16(group, 2));
    if entry_length < usize::from(SHM_POOL_ANNOUNCE_PAYLOAD_POOLS_BLOCK_LENGTH)
        || count > MAX_POOLS
        || count * (entry_length + 4) > rest.len()
    {
        return Err("payloadPools");
    }
    let mut pools = Vec::with_capacity(count);
    for _ in 0..count {
        let entry = take(rest, entry_length, "payloadPools")?;
        pools.push(AnnouncedPool {
            pool_id: get_u16(entry, SHM_POOL_ANNOUNCE_PAYLOAD_POOLS_POOL_ID),
            nslots: get_u32(entry, SHM_POOL_ANNOUNCE_PAYLOAD_POOLS_POOL_NSLOTS),
            stride_bytes: get_u32(entry, SHM_POOL_ANNOUNCE_PAYLOAD_POOLS_STRIDE_BYTES),
            uri: take_string(rest, "payloadPools.regionUri")?,
        });
    }
    Ok(pools)
}

impl PoolAnnounce {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; MESSAGE_HEADER_LENGTH + usize::from(SHM_POOL_ANNOUNCE_BLOCK_LENGTH)];
        put_message_header(&mut out, SHM_POOL_ANNOUNCE_BLOCK_LENGTH, SHM_POOL_ANNOUNCE_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u32(b, SHM_POOL_ANNOUNCE_STREAM_ID, self.stream_id);
        put_u32(b, SHM_POOL_ANNOUNCE_PRODUCER_ID, self.producer_id);
        put_u64(b, SHM_POOL_ANNOUNCE_EPOCH, self.epoch);
        put_u64(b, SHM_POOL_ANNOUNCE_ANNOUNCE_TIMESTAMP_NS, self.timestamp_ns);
        b[SHM_POOL_ANNOUNCE_ANNOUNCE_CLOCK_DOMAIN] = self.clock_domain;
        put_u32(b, SHM_POOL_ANNOUNCE_LAYOUT_VERSION, self.layout_version);
        put_u32(b, SHM_POOL_ANNOUNCE_HEADER_NSLOTS, self.header_nslots);
        put_u16(b, SHM_POOL_ANNOUNCE_HEADER_SLOT_BYTES, self.header_slot_bytes);
        out.extend(SHM_POOL_ANNOUNCE_PAYLOAD_POOLS_BLOCK_LENGTH.to_le_bytes());
        out.extend((self.pools.len() as u16).to_le_bytes());
        for pool in &self.pools {
            out.extend(pool.pool_id.to_le_bytes());
            out.extend(pool.nslots.to_le_bytes());
            out.extend(pool.stride_bytes.to_le_bytes());
            put_string(&mut out, &pool.uri);
        }
        put_string(&mut out, &self.header_uri);
        out
    }

    pub fn decode(bytes: &[u8]) -> Decoded {
        if bytes.len() < MESSAGE_HEADER_LENGTH {
            return Decoded::Malformed("message header");
        }
        if get_u16(bytes, MESSAGE_HEADER_SCHEMA_ID) != WIRE_SCHEMA_ID
            || get_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID) != SHM_POOL_ANNOUNCE_TEMPLATE_ID
        {
            return Decoded::Other;
        }
        match Self::decode_body(bytes) {
            Ok(announce) => Decoded::Announce(announce),
            Err(what) => Decoded::Malformed(what),
        }
    }

    fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let block_length = usize::from(get_u16(bytes, MESSAGE_HEADER_BLOCK_LENGTH));
        if get_u16(bytes, MESSAGE_HEADER_VERSION) < WIRE_SCHEMA_VERSION {
            return Err("version");
        }
        let mut rest = &bytes[MESSAGE_HEADER_LENGTH..];
        let b = take(&mut rest, block_length, "block")?;
        if block_length < usize::from(SHM_POOL_ANNOUNCE_BLOCK_LENGTH) {
            return Err("block");
        }
        let clock_domain = b[SHM_POOL_ANNOUNCE_ANNOUNCE_CLOCK_DOMAIN];
        if clock_domain != CLOCK_DOMAIN_MONOTONIC && clock_domain != CLOCK_DOMAIN_REALTIME_SYNCED {
            return Err("announceClockDomain");
        }
        let pools = take_pools(&mut rest)?;
        Ok(Self {
            stream_id: get_u32(b, SHM_POOL_ANNOUNCE_STREAM_ID),
            producer_id: get_u32(b, SHM_POOL_ANNOUNCE_PRODUCER_ID),
            epoch: get_u64(b, SHM_POOL_ANNOUNCE_EPOCH),
            timestamp_ns: get_u64(b, SHM_POOL_ANNOUNCE_ANNOUNCE_TIMESTAMP_NS),
            clock_domain,
            layout_version: get_u32(b, SHM_POOL_ANNOUNCE_LAYOUT_VERSION),
            header_nslots: get_u32(b, SHM_POOL_ANNOUNCE_HEADER_NSLOTS),
            header_slot_bytes: get_u16(b, SHM_POOL_ANNOUNCE_HEADER_SLOT_BYTES),
            pools,
            header_uri: take_string(&mut rest, "headerRegionUri")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn announce() -> PoolAnnounce {
        let pool = |id: u16| AnnouncedPool {
            pool_id: id,
            nslots: 8,
            stride_bytes: 64 << id,
            uri: format!("shm:file?path=/dev/shm/{id}"),
        };
        PoolAnnounce {
            stream_id: 10_000,
            producer_id: 42,
            epoch: u64::MAX - 1,
            timestamp_ns: 5,
            clock_domain: CLOCK_DOMAIN_MONOTONIC,
            layout_version: 1,
            header_nslots: 8,
            header_slot_bytes: 256,
            pools: vec![pool(1), pool(2)],
            header_uri: "shm:file?path=/dev/shm/h".into(),
        }
    }

    #[test]
    fn announce_round_trips() {
        let a = announce();
        assert_eq!(PoolAnnounce::decode(&a.encode()), Decoded::Announce(a));
    }

    #[test]
    fn every_truncation_is_malformed() {
        let bytes = announce().encode();
        for len in 0..bytes.len() {
            assert!(matches!(PoolAnnounce::decode(&bytes[..len]), Decoded::Malformed(_)), "{len}");
        }
    }

    #[test]
    fn wrong_pool_count_is_refused_before_allocation() {
        let mut bytes = announce().encode();
        let group = MESSAGE_HEADER_LENGTH + usize::from(SHM_POOL_ANNOUNCE_BLOCK_LENGTH);
        put_u16(&mut bytes, group + 2, 65_535);
        assert_eq!(PoolAnnounce::decode(&bytes), Decoded::Malformed("payloadPools"));
    }

    #[test]
    fn unknown_clock_domain_is_refused() {
        let mut bytes = announce().encode();
        bytes[MESSAGE_HEADER_LENGTH + SHM_POOL_ANNOUNCE_ANNOUNCE_CLOCK_DOMAIN] = 3;
        assert_eq!(PoolAnnounce::decode(&bytes), Decoded::Malformed("announceClockDomain"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), ours in any::<bool>()) {
            if ours && bytes.len() >= MESSAGE_HEADER_LENGTH {
                put_message_header(&mut bytes, SHM_POOL_ANNOUNCE_BLOCK_LENGTH, SHM_POOL_ANNOUNCE_TEMPLATE_ID);
            }
            let _ = PoolAnnounce::decode(&bytes);
        }
    }
}
