//! Messages between a client and the SHM driver (driver §4, appendix A). Pure.
//!
//! Requests are encoded here, responses and notices decoded. Both revisions of the attach messages have the
//! same ids; the block length distinguishes them.

use crate::wire::announce::{AnnouncedPool, PoolAnnounce, take, take_pools, take_string};
use crate::wire::layout::*;

/// The form of the attach messages that a client sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revision {
    #[default]
    First,
    Second,
}

impl Revision {
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    pub const fn number(self) -> u8 {
        match self {
            Self::First => 1,
            Self::Second => 2,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Producer,
    Consumer,
}

impl Role {
    pub const fn code(self) -> u8 {
        match self {
            Self::Producer => ROLE_PRODUCER,
            Self::Consumer => ROLE_CONSUMER,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            ROLE_PRODUCER => Some(Self::Producer),
            ROLE_CONSUMER => Some(Self::Consumer),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    pub correlation_id: i64,
    pub stream_id: u32,
    pub client_id: u32,
    pub role: Role,
    /// Whether the driver may create the stream if it does not exist.
    pub may_create: bool,
    pub require_hugepages: bool,
    /// The NUMA node for new regions, or null. Only the second revision has it.
    pub desired_node: u32,
}

fn message(block_length: u16, template_id: u16) -> Vec<u8> {
    let mut out = vec![0; MESSAGE_HEADER_LENGTH + usize::from(block_length)];
    put_header_of(&mut out, block_length, template_id, DRIVER_SCHEMA_ID, DRIVER_SCHEMA_VERSION);
    out
}

impl AttachRequest {
    pub fn encode(&self, revision: Revision) -> Vec<u8> {
        let length = match revision {
            Revision::First => SHM_ATTACH_REQUEST_BLOCK_LENGTH,
            Revision::Second => SHM_ATTACH_REQUEST_R2_BLOCK_LENGTH,
        };
        let mut out = message(length, SHM_ATTACH_REQUEST_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u64(b, SHM_ATTACH_REQUEST_CORRELATION_ID, self.correlation_id as u64);
        put_u32(b, SHM_ATTACH_REQUEST_STREAM_ID, self.stream_id);
        put_u32(b, SHM_ATTACH_REQUEST_CLIENT_ID, self.client_id);
        b[SHM_ATTACH_REQUEST_ROLE] = self.role.code();
        put_u32(b, SHM_ATTACH_REQUEST_EXPECTED_LAYOUT_VERSION, LAYOUT_VERSION);
        let mode =
            if self.may_create { PUBLISH_MODE_EXISTING_OR_CREATE } else { PUBLISH_MODE_REQUIRE_EXISTING };
        match revision {
            Revision::First => {
                b[SHM_ATTACH_REQUEST_MAX_DIMS] = 0;
                b[SHM_ATTACH_REQUEST_PUBLISH_MODE] = mode;
                b[SHM_ATTACH_REQUEST_REQUIRE_HUGEPAGES] = if self.require_hugepages { 1 } else { NULL_U8 };
            }
            Revision::Second => {
                b[SHM_ATTACH_REQUEST_R2_PUBLISH_MODE] = mode;
                b[SHM_ATTACH_REQUEST_R2_HUGEPAGES_POLICY] = if self.require_hugepages {
                    HUGEPAGES_POLICY_HUGEPAGES
                } else {
                    HUGEPAGES_POLICY_UNSPECIFIED
                };
                put_u32(b, SHM_ATTACH_REQUEST_R2_DESIRED_NODE_ID, self.desired_node);
            }
        }
        out
    }
}

/// The fields that identify a lease in every message about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseKey {
    pub lease_id: u64,
    pub stream_id: u32,
    pub client_id: u32,
    pub role: Role,
}

impl LeaseKey {
    pub fn encode_keepalive(&self, now_ns: u64) -> Vec<u8> {
        let mut out = message(SHM_LEASE_KEEPALIVE_BLOCK_LENGTH, SHM_LEASE_KEEPALIVE_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u64(b, SHM_LEASE_KEEPALIVE_LEASE_ID, self.lease_id);
        put_u32(b, SHM_LEASE_KEEPALIVE_STREAM_ID, self.stream_id);
        put_u32(b, SHM_LEASE_KEEPALIVE_CLIENT_ID, self.client_id);
        b[SHM_LEASE_KEEPALIVE_ROLE] = self.role.code();
        put_u64(b, SHM_LEASE_KEEPALIVE_CLIENT_TIMESTAMP_NS, now_ns);
        out
    }

    pub fn encode_detach(&self, correlation_id: i64) -> Vec<u8> {
        let mut out = message(SHM_DETACH_REQUEST_BLOCK_LENGTH, SHM_DETACH_REQUEST_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u64(b, SHM_DETACH_REQUEST_CORRELATION_ID, correlation_id as u64);
        put_u64(b, SHM_DETACH_REQUEST_LEASE_ID, self.lease_id);
        put_u32(b, SHM_DETACH_REQUEST_STREAM_ID, self.stream_id);
        put_u32(b, SHM_DETACH_REQUEST_CLIENT_ID, self.client_id);
        b[SHM_DETACH_REQUEST_ROLE] = self.role.code();
        out
    }
}

/// A decoded attach response. Nothing in it is validated yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachResponse {
    pub revision: Revision,
    pub correlation_id: i64,
    pub code: i32,
    pub lease_id: u64,
    pub lease_expiry_ns: u64,
    pub stream_id: u32,
    pub epoch: u64,
    pub layout_version: u32,
    pub header_nslots: u32,
    pub header_slot_bytes: u16,
    /// Null in the second revision, which has no such field.
    pub max_dims: u8,
    /// The NUMA node of the regions, or null. Only the second revision has it.
    pub node_id: u32,
    pub pools: Vec<AnnouncedPool>,
    pub header_uri: String,
    pub error_message: String,
}

impl AttachResponse {
    /// The required field that an OK response lacks, if any (driver §4.2).
    pub fn missing(&self) -> Option<&'static str> {
        let checks = [
            (self.lease_id == NULL_U64, "leaseId"),
            (self.stream_id == NULL_U32, "streamId"),
            (self.epoch == NULL_U64, "epoch"),
            (self.layout_version == NULL_U32, "layoutVersion"),
            (self.header_nslots == NULL_U32, "headerNslots"),
            (self.header_slot_bytes == NULL_U16, "headerSlotBytes"),
            (self.revision == Revision::First && self.max_dims == NULL_U8, "maxDims"),
            (self.header_uri.is_empty(), "headerRegionUri"),
            (self.pools.is_empty(), "payloadPools"),
            (self.pools.iter().any(|p| p.uri.is_empty()), "payloadPools.regionUri"),
            (self.pools.iter().any(|p| p.pool_id == NULL_U16), "payloadPools.poolId"),
            (self.pools.iter().any(|p| p.nslots != self.header_nslots), "payloadPools.poolNslots"),
            (self.pools.iter().any(|p| p.stride_bytes == NULL_U32), "payloadPools.strideBytes"),
        ];
        checks.into_iter().find(|(is_missing, _)| *is_missing).map(|(_, name)| name)
    }

    /// The regions in the form of an announce.
    pub fn regions(&self, now_ns: u64) -> PoolAnnounce {
        PoolAnnounce {
            stream_id: self.stream_id,
            producer_id: 0,
            epoch: self.epoch,
            timestamp_ns: now_ns,
            clock_domain: CLOCK_DOMAIN_MONOTONIC,
            layout_version: self.layout_version,
            header_nslots: self.header_nslots,
            header_slot_bytes: self.header_slot_bytes,
            pools: self.pools.clone(),
            header_uri: self.header_uri.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    Detached,
    Expired,
    Revoked,
}

impl RevokeReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Detached => "detached",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRevoked {
    pub lease: LeaseKey,
    pub reason: RevokeReason,
    pub message: String,
}

/// Why a driver ended (driver §4.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownReason {
    Normal,
    Admin,
    Error,
}

impl ShutdownReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Admin => "admin",
            Self::Error => "error",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverMessage {
    Attached(AttachResponse),
    Revoked(LeaseRevoked),
    Shutdown {
        reason: ShutdownReason,
        message: String,
    },
    /// A message for another receiver, or of another protocol.
    Other,
    Malformed(&'static str),
}

impl DriverMessage {
    pub fn decode(bytes: &[u8]) -> Self {
        if bytes.len() < MESSAGE_HEADER_LENGTH {
            return Self::Malformed("message header");
        }
        if get_u16(bytes, MESSAGE_HEADER_SCHEMA_ID) != DRIVER_SCHEMA_ID {
            return Self::Other;
        }
        if get_u16(bytes, MESSAGE_HEADER_VERSION) < DRIVER_SCHEMA_VERSION {
            return Self::Malformed("version");
        }
        let decoded = match get_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID) {
            SHM_ATTACH_RESPONSE_TEMPLATE_ID => attach_response(bytes),
            SHM_LEASE_REVOKED_TEMPLATE_ID => lease_revoked(bytes),
            SHM_DRIVER_SHUTDOWN_TEMPLATE_ID => shutdown(bytes),
            _ => return Self::Other,
        };
        decoded.unwrap_or_else(Self::Malformed)
    }
}

/// Splits a message into its block, of at least the known length, and the bytes after it.
fn block(bytes: &[u8], known: u16) -> Result<(&[u8], &[u8]), &'static str> {
    let length = get_u16(bytes, MESSAGE_HEADER_BLOCK_LENGTH);
    let mut rest = &bytes[MESSAGE_HEADER_LENGTH..];
    let b = take(&mut rest, usize::from(length), "block")?;
    if length < known { Err("block") } else { Ok((b, rest)) }
}

fn attach_response(bytes: &[u8]) -> Result<DriverMessage, &'static str> {
    let (b, mut rest) = block(bytes, SHM_ATTACH_RESPONSE_BLOCK_LENGTH)?;
    let second = b.len() == usize::from(SHM_ATTACH_RESPONSE_R2_BLOCK_LENGTH);
    let pools = take_pools(&mut rest)?;
    Ok(DriverMessage::Attached(AttachResponse {
        revision: if second { Revision::Second } else { Revision::First },
        correlation_id: get_u64(b, SHM_ATTACH_RESPONSE_CORRELATION_ID) as i64,
        code: get_i32(b, SHM_ATTACH_RESPONSE_CODE),
        lease_id: get_u64(b, SHM_ATTACH_RESPONSE_LEASE_ID),
        lease_expiry_ns: get_u64(b, SHM_ATTACH_RESPONSE_LEASE_EXPIRY_TIMESTAMP_NS),
        stream_id: get_u32(b, SHM_ATTACH_RESPONSE_STREAM_ID),
        epoch: get_u64(b, SHM_ATTACH_RESPONSE_EPOCH),
        layout_version: get_u32(b, SHM_ATTACH_RESPONSE_LAYOUT_VERSION),
        header_nslots: get_u32(b, SHM_ATTACH_RESPONSE_HEADER_NSLOTS),
        header_slot_bytes: get_u16(b, SHM_ATTACH_RESPONSE_HEADER_SLOT_BYTES),
        max_dims: if second { NULL_U8 } else { b[SHM_ATTACH_RESPONSE_MAX_DIMS] },
        node_id: if second { get_u32(b, SHM_ATTACH_RESPONSE_R2_NODE_ID) } else { NULL_U32 },
        pools,
        header_uri: take_string(&mut rest, "headerRegionUri")?,
        error_message: take_string(&mut rest, "errorMessage")?,
    }))
}

fn lease_revoked(bytes: &[u8]) -> Result<DriverMessage, &'static str> {
    let (b, mut rest) = block(bytes, SHM_LEASE_REVOKED_BLOCK_LENGTH)?;
    let lease = LeaseKey {
        lease_id: get_u64(b, SHM_LEASE_REVOKED_LEASE_ID),
        stream_id: get_u32(b, SHM_LEASE_REVOKED_STREAM_ID),
        client_id: get_u32(b, SHM_LEASE_REVOKED_CLIENT_ID),
        role: Role::from_code(b[SHM_LEASE_REVOKED_ROLE]).ok_or("role")?,
    };
    // An unknown reason makes the whole message invalid (driver §4.9).
    let reason = match b[SHM_LEASE_REVOKED_REASON] {
        LEASE_REVOKE_REASON_DETACHED => RevokeReason::Detached,
        LEASE_REVOKE_REASON_EXPIRED => RevokeReason::Expired,
        LEASE_REVOKE_REASON_REVOKED => RevokeReason::Revoked,
        _ => return Err("reason"),
    };
    Ok(DriverMessage::Revoked(LeaseRevoked {
        lease,
        reason,
        message: take_string(&mut rest, "errorMessage")?,
    }))
}

fn shutdown(bytes: &[u8]) -> Result<DriverMessage, &'static str> {
    let (b, mut rest) = block(bytes, SHM_DRIVER_SHUTDOWN_BLOCK_LENGTH)?;
    let reason = match b[SHM_DRIVER_SHUTDOWN_REASON] {
        SHUTDOWN_REASON_NORMAL => ShutdownReason::Normal,
        SHUTDOWN_REASON_ADMIN => ShutdownReason::Admin,
        SHUTDOWN_REASON_ERROR => ShutdownReason::Error,
        _ => return Err("reason"),
    };
    Ok(DriverMessage::Shutdown { reason, message: take_string(&mut rest, "errorMessage")? })
}

pub const fn code_str(code: i32) -> &'static str {
    match code {
        RESPONSE_CODE_OK => "OK",
        RESPONSE_CODE_UNSUPPORTED => "UNSUPPORTED",
        RESPONSE_CODE_INVALID_PARAMS => "INVALID_PARAMS",
        RESPONSE_CODE_REJECTED => "REJECTED",
        RESPONSE_CODE_INTERNAL_ERROR => "INTERNAL_ERROR",
        _ => "unknown code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAME: LeaseKey = LeaseKey { lease_id: 7, stream_id: 10_000, client_id: 42, role: Role::Producer };

    pub fn revoked(role: u8, reason: u8) -> Vec<u8> {
        let mut out = message(SHM_LEASE_REVOKED_BLOCK_LENGTH, SHM_LEASE_REVOKED_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        put_u64(b, SHM_LEASE_REVOKED_LEASE_ID, 7);
        put_u32(b, SHM_LEASE_REVOKED_STREAM_ID, 10_000);
        put_u32(b, SHM_LEASE_REVOKED_CLIENT_ID, 42);
        b[SHM_LEASE_REVOKED_ROLE] = role;
        b[SHM_LEASE_REVOKED_REASON] = reason;
        out.extend([2, 0, 0, 0, b'n', b'o']);
        out
    }

    /// requirement: driver-4.9-8
    #[test]
    fn revocation_with_an_unknown_reason_or_role_is_malformed() {
        let DriverMessage::Revoked(decoded) = DriverMessage::decode(&revoked(ROLE_PRODUCER, 2)) else {
            panic!("not read")
        };
        assert_eq!(
            (decoded.lease, decoded.reason, decoded.message.as_str()),
            (NAME, RevokeReason::Expired, "no")
        );
        for reason in [0, 4, 255] {
            assert_eq!(
                DriverMessage::decode(&revoked(ROLE_PRODUCER, reason)),
                DriverMessage::Malformed("reason")
            );
        }
        assert_eq!(DriverMessage::decode(&revoked(3, 1)), DriverMessage::Malformed("role"));
    }

    #[test]
    fn request_revisions_have_their_own_length() {
        let request = AttachRequest {
            correlation_id: -1,
            stream_id: 1,
            client_id: 2,
            role: Role::Consumer,
            may_create: false,
            require_hugepages: false,
            desired_node: NULL_U32,
        };
        let (first, second) = (request.encode(Revision::First), request.encode(Revision::Second));
        assert_eq!((first.len(), second.len()), (32, 35));
        assert_eq!((first[8 + 22], first[8 + 23]), (PUBLISH_MODE_REQUIRE_EXISTING, NULL_U8));
        assert_eq!((second[8 + 21], second[8 + 22]), (PUBLISH_MODE_REQUIRE_EXISTING, 0));
    }

    #[test]
    fn every_truncation_of_a_notice_is_malformed() {
        let bytes = revoked(ROLE_CONSUMER, 1);
        for len in 0..bytes.len() {
            assert!(matches!(DriverMessage::decode(&bytes[..len]), DriverMessage::Malformed(_)), "{len}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..300),
            template in 0u16..9,
            length in prop_oneof![Just(51u16), Just(54), Just(26), Just(9), any::<u16>()],
        ) {
            put_header_of(&mut bytes, length, template, DRIVER_SCHEMA_ID, DRIVER_SCHEMA_VERSION);
            let _ = DriverMessage::decode(&bytes);
        }
    }
}
