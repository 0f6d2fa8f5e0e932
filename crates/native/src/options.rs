//! Options of endpoints, read by attribute from the dataclasses of `tensorpool.client`. A new option is a field
//! there, a field of the same name here, and its use.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensorpool_core::consumer::hello_state::{ConsumerRequest, StreamProposal};
use tensorpool_core::lease::attachment;
use tensorpool_core::producer::grants::GrantPolicy;
use tensorpool_core::producer::progress_schedule::ProgressLimits;
use tensorpool_core::shm::create::{EpochSpec, PoolSpec};
use tensorpool_core::wire::announce::{AnnouncedPool, PoolAnnounce};
use tensorpool_core::wire::driver::{Revision, Role};
use tensorpool_core::wire::hello::{Mode, ProgressHints};
use tensorpool_core::wire::layout::*;
use tensorpool_dataplane::lease::random_id;

use crate::conductor::Conductor;

/// `tensorpool.transport.ConnectionOptions`, as far as the conductor uses them.
#[derive(FromPyObject)]
pub struct ConnectionOptions {
    pub aeron_dir: String,
    pub embed_media_driver: bool,
    pub aeron_dir_mode: u32,
    pub media_driver_idle: String,
    pub allowed_base_dirs: Vec<PathBuf>,
    pub stream_ids: StreamIds,
    pub driver_timeout_s: f64,
    pub announce_period_ns: u64,
    pub network_dir: Option<String>,
    pub is_realtime_synced: bool,
}

/// `tensorpool.transport.StreamIds`, as far as the conductor uses them.
#[derive(FromPyObject)]
pub struct StreamIds {
    pub control: i32,
    pub announce: i32,
    pub qos: i32,
    pub control_channel: String,
    pub qos_channel: String,
}

/// `tensorpool.transport.Connection`.
#[derive(FromPyObject)]
pub struct Connection<'py> {
    pub conductor: Bound<'py, Conductor>,
    pub announce_period_ns: u64,
    pub report_period_ns: u64,
}

/// `tensorpool.client.ProducerOptions`, as far as the native producer uses them.
#[derive(FromPyObject)]
pub struct ProducerOptions {
    pub publish_timestamps: bool,
    pub prefault: bool,
    pub require_hugepages: bool,
    pub numa_node: Option<u32>,
    pub copy_threads: u32,
    pub control_stream_id: Option<i32>,
    pub qos_stream_id: Option<i32>,
    pub traces: bool,
}

/// `tensorpool.client.ConsumerOptions`, as far as the native consumer uses them.
#[derive(FromPyObject)]
pub struct ConsumerOptions {
    pub policy: String,
    pub idle: String,
    pub max_outstanding_seq_gap: u64,
    pub supports_shm: bool,
    pub control_stream_id: Option<i32>,
    pub qos_stream_id: Option<i32>,
    pub min_interval_ns: Option<u64>,
}

/// A channel and a range of stream ids.
type Range = (String, u32, u32);

/// `tensorpool.client.options.ConsumerRequest`.
#[derive(FromPyObject)]
pub struct RequestOptions {
    rate_limited: bool,
    max_rate_hz: u32,
    supports_progress: bool,
    progress_interval_us: Option<u32>,
    progress_bytes_delta: Option<u32>,
    progress_major_delta_units: Option<u32>,
    descriptor: Option<Range>,
    control: Option<Range>,
}

impl RequestOptions {
    pub fn request(self) -> ConsumerRequest {
        let proposal = |range: Option<Range>| {
            range.map(|(channel, first, last)| StreamProposal { channel, first, last })
        };
        ConsumerRequest {
            mode: if self.rate_limited { Mode::RateLimited } else { Mode::Stream },
            max_rate_hz: self.max_rate_hz,
            is_remote: false,
            supports_progress: self.supports_progress,
            hints: ProgressHints {
                interval_us: self.progress_interval_us,
                bytes_delta: self.progress_bytes_delta,
                major_delta_units: self.progress_major_delta_units,
            },
            descriptor: proposal(self.descriptor),
            control: proposal(self.control),
        }
    }
}

/// `tensorpool.client.options.GrantPolicy`.
#[derive(FromPyObject)]
pub struct GrantOptions {
    channels: Vec<String>,
    descriptor_ids: (u32, u32),
    control_ids: (u32, u32),
    stale_ns: u64,
    progress_interval_us: u32,
    progress_bytes: u32,
}

impl GrantOptions {
    pub fn progress_limits(&self) -> ProgressLimits {
        ProgressLimits { interval_us: self.progress_interval_us, bytes_delta: self.progress_bytes }
    }

    pub fn policy(self) -> GrantPolicy {
        GrantPolicy {
            channels: self.channels,
            descriptor_ids: self.descriptor_ids.0..=self.descriptor_ids.1,
            control_ids: self.control_ids.0..=self.control_ids.1,
            stale_ns: self.stale_ns,
        }
    }
}

/// `tensorpool.client.LeaseOptions`.
#[derive(FromPyObject)]
pub struct LeaseOptions {
    revision: u8,
    tries_other_revision: bool,
    keepalive_ns: u64,
    attach_timeout_ns: u64,
    retry_ns: u64,
}

impl LeaseOptions {
    /// The options of one endpoint's lease. Only a producer may create a stream.
    pub fn for_endpoint(
        self,
        connection: &Connection<'_>,
        stream_id: u32,
        role: Role,
        require_hugepages: bool,
        numa_node: Option<u32>,
    ) -> PyResult<attachment::LeaseOptions> {
        let revision = match self.revision {
            1 => Revision::First,
            2 => Revision::Second,
            other => return Err(PyValueError::new_err(format!("attach revision {other}: use 1 or 2"))),
        };
        Ok(attachment::LeaseOptions {
            stream_id,
            role,
            revision,
            tries_other_revision: self.tries_other_revision,
            may_create: role == Role::Producer,
            require_hugepages,
            desired_node: numa_node.unwrap_or(NULL_U32),
            keepalive_ns: self.keepalive_ns,
            announce_period_ns: connection.announce_period_ns,
            attach_timeout_ns: self.attach_timeout_ns,
            retry_ns: self.retry_ns,
        })
    }
}

/// `tensorpool.transport.StreamAddress`.
#[derive(FromPyObject)]
pub struct StreamAddress {
    pub channel: String,
    pub stream_id: i32,
}

/// `tensorpool.transport.media_driver.MediaDriverOptions`.
#[derive(FromPyObject)]
pub struct MediaDriverOptions {
    pub aeron_dir: String,
    pub lock_path: PathBuf,
    pub dedicated_threads: bool,
    pub idle_strategy: String,
    pub ipc_term_length: u64,
    pub dir_mode: u32,
    pub driver_timeout_ms: u64,
    pub udp: bool,
}

/// `tensorpool.driver.agent.AnnouncerOptions`.
#[derive(FromPyObject)]
pub struct AnnouncerOptions {
    pub period_ns: u64,
    pub stall_ns: u64,
    pub base_dirs: Vec<PathBuf>,
    pub lock_memory: bool,
}

/// `tensorpool.bridge.BridgeSettings`, as far as the native ends of a bridge use them.
#[derive(FromPyObject)]
pub struct BridgeSettings {
    pub mtu_bytes: Option<u32>,
    pub chunk_bytes: Option<u32>,
    pub max_chunk_bytes: u32,
    pub max_payload_bytes: u32,
    pub assembly_timeout_ms: u64,
    pub integrity: bool,
    pub forward_traces: bool,
    pub key_max_age_ns: u64,
    pub idle: String,
}

/// `tensorpool.bridge.receiver.ReceiverLimits`.
#[derive(FromPyObject)]
pub struct ReceiverLimits {
    pub chunk_bytes: u32,
    pub fits_session_mtu: bool,
    pub silence_ns: u64,
}

/// `tensorpool.shm.EpochSpec`.
#[derive(FromPyObject)]
pub struct EpochOptions {
    base: PathBuf,
    user: String,
    namespace: String,
    stream_id: u32,
    epoch: u64,
    nslots: u32,
    pools: Vec<PoolOptions>,
    access: RegionAccess,
    prefault: bool,
}

/// `tensorpool.shm.RegionAccess`.
#[derive(FromPyObject)]
struct RegionAccess {
    dir_mode: u32,
    file_mode: u32,
    group: Option<u32>,
    require_hugepages: bool,
}

/// `tensorpool.shm.PoolSpec`.
#[derive(FromPyObject)]
pub struct PoolOptions {
    pool_id: u16,
    stride_bytes: u32,
}

impl PoolOptions {
    pub fn spec(self) -> PoolSpec {
        PoolSpec { pool_id: self.pool_id, stride_bytes: self.stride_bytes }
    }
}

impl EpochOptions {
    pub fn spec(self) -> EpochSpec {
        let RegionAccess { dir_mode, file_mode, group, require_hugepages } = self.access;
        EpochSpec {
            base: self.base,
            user: self.user,
            namespace: self.namespace,
            stream_id: self.stream_id,
            epoch: self.epoch,
            nslots: self.nslots,
            pools: self.pools.into_iter().map(PoolOptions::spec).collect(),
            require_hugepages,
            prefault: self.prefault,
            dir_mode,
            file_mode,
            group,
        }
    }
}

/// `tensorpool.client.OwnedRegions`: regions that this process created.
#[derive(FromPyObject)]
pub struct OwnedRegions {
    pub base_dir: PathBuf,
    files: EpochFiles,
}

/// `tensorpool.shm.EpochFiles`.
#[derive(FromPyObject)]
pub struct EpochFiles {
    epoch: u64,
    nslots: u32,
    header_uri: String,
    pools: Vec<PoolFile>,
}

/// `tensorpool.shm.PoolFile`.
#[derive(FromPyObject)]
struct PoolFile {
    pool_id: u16,
    stride_bytes: u32,
    uri: String,
}

impl EpochFiles {
    /// The announce of these regions.
    pub fn announce(self, stream_id: u32, producer_id: u32) -> PoolAnnounce {
        let Self { epoch, nslots, header_uri, pools } = self;
        let pools = pools.into_iter().map(|PoolFile { pool_id, stride_bytes, uri }| AnnouncedPool {
            pool_id,
            nslots,
            stride_bytes,
            uri,
        });
        PoolAnnounce {
            stream_id,
            producer_id,
            epoch,
            timestamp_ns: 0,
            clock_domain: CLOCK_DOMAIN_MONOTONIC,
            layout_version: LAYOUT_VERSION,
            header_nslots: nslots,
            header_slot_bytes: HEADER_SLOT_BYTES as u16,
            pools: pools.collect(),
            header_uri,
        }
    }
}

impl OwnedRegions {
    /// The announce of these regions, with a new producer id.
    pub fn announce(self, stream_id: u32) -> PoolAnnounce {
        self.files.announce(stream_id, random_id())
    }
}
