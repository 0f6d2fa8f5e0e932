//! Counters and states of endpoints: frozen classes with one attribute a figure, so that a name that does not
//! exist is an error. Each is a copy of one moment.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tensorpool_core::bridge::assembly::{Ignored, Loss};
use tensorpool_core::consumer::announce_filter::IgnoreReason;
use tensorpool_core::consumer::latency;
use tensorpool_core::consumer::phase::Phase;
use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::lease::attachment::AttachRefusal;
use tensorpool_core::shm::superblock;
use tensorpool_core::wire::driver::code_str;
use tensorpool_core::wire::hello::{Mode, StreamAddress};
use tensorpool_dataplane::bridge::receiver::ReceiverState;
use tensorpool_dataplane::bridge::source::SourceStream;
use tensorpool_dataplane::conductor;
use tensorpool_dataplane::consumer as consumer_plane;
use tensorpool_dataplane::lease::Lease;
use tensorpool_dataplane::mailbox;
use tensorpool_dataplane::producer as producer_plane;

use crate::records::{AnnouncedPool, LatencySummary};

/// A frozen class with public attributes and a text form.
macro_rules! stats {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[pyclass(frozen, get_all, module = "tensorpool._native")]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        #[pymethods]
        impl $name {
            /// Returns the figures by name.
            fn to_json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                $(dict.set_item(stringify!($field), &self.$field)?;)*
                Ok(dict)
            }

            fn __repr__<'py>(&self, py: Python<'py>) -> PyResult<String> {
                text_form(stringify!($name), &self.to_json(py)?)
            }
        }
    };
}

/// The text form of a class with these fields.
pub fn text_form(name: &str, fields: &Bound<'_, PyDict>) -> PyResult<String> {
    let fields: PyResult<Vec<String>> = fields
        .iter()
        .map(|(field, value)| Ok(format!("{}={}", field.cast::<PyString>()?, value.repr()?)))
        .collect();
    Ok(format!("{name}({})", fields?.join(", ")))
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Counts by reason.
fn by_reason(py: Python<'_>, counts: impl IntoIterator<Item = (&'static str, u64)>) -> PyResult<Py<PyDict>> {
    let dict = PyDict::new(py);
    for (reason, count) in counts {
        dict.set_item(reason, count)?;
    }
    Ok(dict.unbind())
}

/// Frames of a bridge that were lost, by reason.
pub fn losses(py: Python<'_>, lost: &[u64; Loss::COUNT]) -> PyResult<Py<PyDict>> {
    by_reason(py, Loss::ALL.iter().map(|why| (why.as_str(), lost[*why as usize])))
}

stats! {
    /// The state of a conductor's connection to its media driver.
    ConductorStatus {
        /// Whether the Aeron client is connected.
        connected: bool,
        /// How often it was connected.
        connections: u64,
        /// Whether a media driver runs in this process.
        embeds_driver: bool,
        /// The last error. None if there was none.
        last_error: Option<String>,
    }
}

impl From<conductor::Status> for ConductorStatus {
    fn from(status: conductor::Status) -> Self {
        let conductor::Status { connected, connections, embeds_driver, last_error, network: _ } = status;
        Self { connected, connections, embeds_driver, last_error }
    }
}

stats! {
    /// The state of the media driver for UDP channels.
    NetworkStatus {
        /// Whether the Aeron client for UDP is connected.
        connected: bool,
        /// How often it was connected.
        connections: u64,
        /// The directory of the media driver. None while there is none.
        dir: Option<String>,
        /// The process of the media driver. None if another program started it.
        pid: Option<u32>,
        /// The last error. None if there was none.
        last_error: Option<String>,
    }
}

impl From<conductor::NetworkStatus> for NetworkStatus {
    fn from(status: conductor::NetworkStatus) -> Self {
        let conductor::NetworkStatus { connected, connections, dir, pid, last_error } = status;
        Self { connected, connections, dir, pid, last_error }
    }
}

stats! {
    /// The lease of a producer or consumer.
    LeaseStatus {
        /// The id of the lease. None while there is none.
        lease_id: Option<u64>,
        /// The id of the client. None before the first request.
        client_id: Option<u32>,
        /// The revision in which the driver answers, as far as it is known.
        revision: u8,
        /// Slots of the granted header ring. None without a lease.
        nslots: Option<u32>,
        /// Strides of the granted pools. None without a lease.
        strides: Option<Vec<u32>>,
        /// The NUMA node of the granted regions. None if the driver does not report it.
        numa_node: Option<u32>,
        /// How often a lease was granted.
        granted: u64,
        /// How often a request was refused.
        refused: u64,
        /// How often a lease ended.
        ended: u64,
        /// Why there is no lease, as a code of the driver, or "PROTOCOL", "REGIONS", "CLOCK_DOMAIN", "NO_ANSWER".
        code: Option<&'static str>,
        /// Why there is no lease, as text.
        message: Option<String>,
    }
}

impl LeaseStatus {
    /// `None` for an endpoint without a driver.
    pub fn from_lease(py: Python<'_>, lease: Option<&Lease>) -> Option<Self> {
        let status = py.detach(|| Some(lease?.status()))?;
        let (code, message) = match status.refusal {
            None => (None, None),
            Some(AttachRefusal::Code(code, message)) => (Some(code_str(code)), Some(message)),
            Some(AttachRefusal::Protocol(why)) => (Some("PROTOCOL"), Some(why)),
            Some(AttachRefusal::Regions(why)) => (Some("REGIONS"), Some(why)),
            Some(AttachRefusal::Clock(why)) => (Some("CLOCK_DOMAIN"), Some(why)),
            Some(AttachRefusal::NoAnswer) => (Some("NO_ANSWER"), Some(String::new())),
        };
        Some(Self {
            lease_id: status.lease_id,
            client_id: status.client_id,
            revision: status.revision.number(),
            nslots: status.layout.as_ref().map(|layout| layout.nslots),
            numa_node: status.layout.as_ref().and_then(|layout| layout.node_id),
            strides: status.layout.map(|layout| layout.strides),
            granted: status.granted,
            refused: status.refused,
            ended: status.ended,
            code,
            message,
        })
    }
}

stats! {
    /// Frames of a producer by outcome, and what its per-consumer streams got.
    ProducerCounters {
        /// Frames whose descriptor was published.
        published: u64,
        /// Frames whose descriptor found the stream full.
        back_pressured: u64,
        /// Frames that no consumer subscribed to.
        not_connected: u64,
        /// Frames without a media driver.
        closed: u64,
        /// Frames in the ring.
        committed: u64,
        /// Frames that fit no pool.
        no_pool: u64,
        /// Frames whose slot was still claimed.
        slot_claimed: u64,
        /// Frames without a lease.
        detached: u64,
        /// Frames offered after the close.
        after_close: u64,
        /// Claims that were given up.
        abandoned: u64,
        /// Sequences without a frame.
        holes: u64,
        /// Bytes of the committed frames.
        bytes: u64,
        /// Descriptors published on per-consumer streams.
        per_consumer_published: u64,
        /// Descriptors held back by a rate limit.
        per_consumer_limited: u64,
        /// Descriptors that a per-consumer stream did not take.
        per_consumer_lost: u64,
        /// FrameProgress messages sent.
        progress_sent: u64,
        /// FrameProgress messages that a stream did not take.
        progress_lost: u64,
    }
}

impl From<&producer_plane::Producer> for ProducerCounters {
    fn from(producer: &producer_plane::Producer) -> Self {
        let (frames, per_consumer) = (producer.counters(), producer.per_consumer_counters());
        Self {
            published: get(&frames.published),
            back_pressured: get(&frames.back_pressured),
            not_connected: get(&frames.not_connected),
            closed: get(&frames.closed),
            committed: get(&frames.committed),
            no_pool: get(&frames.no_pool),
            slot_claimed: get(&frames.slot_claimed),
            detached: get(&frames.detached),
            after_close: get(&frames.after_close),
            abandoned: get(&frames.abandoned),
            holes: get(&frames.holes),
            bytes: get(&frames.bytes),
            per_consumer_published: get(&per_consumer.published),
            per_consumer_limited: get(&per_consumer.limited),
            per_consumer_lost: get(&per_consumer.lost),
            progress_sent: get(&per_consumer.progress_sent),
            progress_lost: get(&per_consumer.progress_lost),
        }
    }
}

stats! {
    /// A consumer's id, mode, streams and phase.
    ConsumerState {
        /// Its id in hellos and reports. None while it sends none.
        consumer_id: Option<u32>,
        /// "stream" or "rate_limited".
        mode: &'static str,
        /// Channel and id of the granted per-consumer descriptor stream. None: the shared one.
        descriptors: Option<(String, u32)>,
        /// Whether descriptors are already read from the per-consumer stream.
        on_per_consumer: bool,
        /// Channel and id of the granted per-consumer control stream. None: the shared one.
        control: Option<(String, u32)>,
        /// "unmapped", "mapped" or "fallback".
        phase: &'static str,
        /// The fallback URI in use. None: shared memory.
        fallback_uri: Option<String>,
        /// Whether the producer declined the request.
        declined: bool,
        /// Whether this consumer keeps the rate that it requested itself, because it reads no per-consumer stream.
        gates_locally: bool,
        /// Whether progress comes on the per-consumer control stream.
        progress_on_per_consumer: bool,
    }
}

impl From<&consumer_plane::Consumer> for ConsumerState {
    fn from(consumer: &consumer_plane::Consumer) -> Self {
        let state = consumer.consumer_state();
        let address = |address: StreamAddress| (address.channel, address.stream_id);
        Self {
            consumer_id: state.consumer_id,
            mode: match state.mode {
                Mode::Stream => "stream",
                Mode::RateLimited => "rate_limited",
            },
            descriptors: state.descriptors.map(address),
            on_per_consumer: state.on_per_consumer,
            control: state.control.map(address),
            phase: state.phase.unwrap_or(Phase::Unmapped).as_str(),
            fallback_uri: state.fallback_uri,
            declined: state.declined,
            gates_locally: state.gates_locally,
            progress_on_per_consumer: consumer.reads_progress().1,
        }
    }
}

stats! {
    /// Frames of a consumer, and its counters of mappings, announces and progress.
    ConsumerCounters {
        /// Descriptors without a delivered frame, by drop reason.
        drops: Py<PyDict>,
        /// Frames delivered.
        received: u64,
        /// Sequences from the first to the last, over all epochs.
        span: u64,
        /// How often regions were mapped.
        mapped: u64,
        /// How often announced regions were refused.
        refused: u64,
        /// Announces that were ignored, by reason.
        announces_ignored: Py<PyDict>,
        /// FrameProgress messages of the stream.
        progress_received: u64,
        /// Those that gave a partial frame.
        progress_accepted: u64,
        /// Those whose slot belonged to another frame, or whose epoch was another one.
        progress_late: u64,
        /// Those with fewer bytes than before.
        progress_backwards: u64,
        /// Those that were invalid.
        progress_refused: u64,
    }
}

impl ConsumerCounters {
    pub fn from_counters(py: Python<'_>, counters: &consumer_plane::Counters) -> PyResult<Self> {
        // Drops before received before span: a reader that runs while frames flow never sees a span smaller
        // than its parts.
        let drops =
            by_reason(py, DropReason::ALL.iter().map(|why| (why.as_str(), counters.drops.get(*why))))?;
        let ignored = [
            IgnoreReason::BeforeJoin,
            IgnoreReason::Stale,
            IgnoreReason::OlderEpoch,
            IgnoreReason::Layout,
            IgnoreReason::OtherOwner,
        ];
        Ok(Self {
            drops,
            received: get(&counters.received),
            span: get(&counters.span),
            mapped: get(&counters.mapped),
            // Pairs with the count in `refuse`.
            refused: counters.refused.load(Ordering::Acquire),
            announces_ignored: by_reason(py, ignored.map(|why| (why.as_str(), get(counters.ignored(why)))))?,
            progress_received: get(&counters.progress.received),
            progress_accepted: get(&counters.progress.accepted),
            progress_late: get(&counters.progress.late),
            progress_backwards: get(&counters.progress.backwards),
            progress_refused: get(&counters.progress.refused),
        })
    }
}

stats! {
    /// The latency of a consumer's frames.
    LatencyReport {
        /// "publish", "capture" or "mixed": which timestamps it is measured from. None before the first
        /// frame.
        since: Option<&'static str>,
        /// Of the last whole interval.
        last: Py<LatencySummary>,
        /// Since the beginning.
        total: Py<LatencySummary>,
        /// Frames whose timestamps are not of this host's clock.
        excluded: u64,
    }
}

impl LatencyReport {
    pub fn from_report(py: Python<'_>, report: &latency::LatencyReport) -> PyResult<Self> {
        Ok(Self {
            since: report.since.as_str(),
            last: Py::new(py, LatencySummary::from(report.last))?,
            total: Py::new(py, LatencySummary::from(report.life))?,
            excluded: report.left_out,
        })
    }
}

stats! {
    /// The first 64 bytes of a region (wire §7.1), valid or not.
    Superblock {
        /// What every region begins with.
        magic: u64,
        /// The version of the layout.
        layout_version: u32,
        /// The epoch of the region.
        epoch: u64,
        /// Its stream.
        stream_id: u32,
        /// Whether it is a header ring or a payload pool.
        region_type: i16,
        /// The id of the pool; 0 for a header ring.
        pool_id: u16,
        /// The number of its slots.
        nslots: u32,
        /// The bytes of one slot of a header ring.
        slot_bytes: u32,
        /// The bytes of one slot of a pool; 0 for a header ring.
        stride_bytes: u32,
        /// The process that owns it.
        pid: u64,
        /// When it was created.
        start_timestamp_ns: u64,
        /// When its owner was last active.
        activity_timestamp_ns: u64,
    }
}

impl From<superblock::Superblock> for Superblock {
    fn from(block: superblock::Superblock) -> Self {
        Self {
            magic: block.magic,
            layout_version: block.layout_version,
            epoch: block.epoch,
            stream_id: block.stream_id,
            region_type: block.region_type,
            pool_id: block.pool_id,
            nslots: block.nslots,
            slot_bytes: block.slot_bytes,
            stride_bytes: block.stride_bytes,
            pid: block.pid,
            start_timestamp_ns: block.start_timestamp_ns,
            activity_timestamp_ns: block.activity_timestamp_ns,
        }
    }
}

stats! {
    /// Messages of a metadata stream, and the blobs of one source.
    MetadataCounters {
        /// Messages of sources that a consumer here reads.
        received: u64,
        /// Messages of other sources.
        foreign: u64,
        /// Messages that could not be decoded.
        malformed: u64,
        /// Blobs that were completed.
        blobs: u64,
        /// Blobs that were discarded, by reason.
        blobs_discarded: Py<PyDict>,
    }
}

impl MetadataCounters {
    pub fn new(
        py: Python<'_>,
        [received, foreign, malformed]: [&AtomicU64; 3],
        blobs: u64,
        discarded: Vec<(&'static str, u64)>,
    ) -> PyResult<Self> {
        let blobs_discarded = by_reason(py, discarded)?;
        Ok(Self {
            received: get(received),
            foreign: get(foreign),
            malformed: get(malformed),
            blobs,
            blobs_discarded,
        })
    }
}

stats! {
    /// Messages of a mailbox.
    MailboxCounters {
        /// Messages that were queued.
        kept: u64,
        /// Messages for others.
        foreign: u64,
        /// Messages that could not be decoded.
        unreadable: u64,
        /// Messages that found the queue full.
        overflowed: u64,
    }
}

impl From<&mailbox::Counters> for MailboxCounters {
    fn from(counters: &mailbox::Counters) -> Self {
        Self {
            kept: get(&counters.kept),
            foreign: get(&counters.foreign),
            unreadable: get(&counters.unreadable),
            overflowed: get(&counters.overflowed),
        }
    }
}

stats! {
    /// What a recorder has copied of one stream.
    RecordedCounts {
        /// Frames.
        rows: u64,
        /// Bytes of their payloads.
        bytes: u64,
        /// Sequences that were lost.
        lost: u64,
        /// Frames announced twice or out of order.
        strays: u64,
    }
}

stats! {
    /// The buffer of a recorder, and its streams.
    RecorderBuffer {
        /// Bytes in use.
        used_bytes: usize,
        /// Bytes in total.
        total_bytes: usize,
        /// Arenas that wait to be taken.
        waiting: usize,
        /// `RecordedCounts` by stream id.
        streams: Py<PyDict>,
    }
}

stats! {
    /// Frames of one stream at a bridge's sender.
    BridgeSenderCounters {
        /// Frames sent.
        sent: u64,
        /// Chunks sent.
        chunks: u64,
        /// Payload bytes sent.
        bytes: u64,
        /// Frames that were received from the stream and not sent, by reason.
        dropped: Py<PyDict>,
    }
}

impl BridgeSenderCounters {
    pub fn from_source(py: Python<'_>, source: &SourceStream) -> PyResult<Self> {
        let counters = source.counters();
        let dropped = [
            ("overwritten", &counters.overwritten),
            ("unannounced", &counters.unannounced),
            ("not_connected", &counters.not_connected),
            ("closed", &counters.closed),
            ("too_many_chunks", &counters.too_many_chunks),
            ("too_long", &counters.too_long),
        ];
        Ok(Self {
            sent: get(&counters.sent),
            chunks: get(&counters.chunks),
            bytes: get(&counters.bytes),
            dropped: by_reason(py, dropped.map(|(name, counter)| (name, get(counter))))?,
        })
    }
}

stats! {
    /// One stream at a bridge's receiver: the announced layout of its source, and its counters.
    BridgeReceiverState {
        /// The source's epoch. None before its first announce.
        epoch: Option<u64>,
        /// The slots of its ring.
        nslots: Option<u32>,
        /// Its pools.
        pools: Vec<Py<AnnouncedPool>>,
        /// Whether there is a producer to write with.
        has_destination: bool,
        /// The first sequence of the epoch that was received. None before it.
        first_seq: Option<u64>,
        /// The last sequence of the epoch that was received. None before the first.
        last_seq: Option<u64>,
        /// Frames written to the destination.
        delivered: u64,
        /// Their bytes.
        bytes: u64,
        /// Chunks received.
        chunks: u64,
        /// Sequences from the first to the last.
        span: u64,
        /// Frames whose first chunk arrived before the announce of their epoch, or whose last chunk arrived after it
        /// ended.
        not_ready: u64,
        /// Announces of the source.
        announces: u64,
        /// Those that were ignored.
        announces_ignored: u64,
        /// FrameProgress messages forwarded.
        progress_sent: u64,
        /// FrameProgress messages that were not.
        progress_dropped: u64,
        /// Frames lost, by reason.
        lost: Py<PyDict>,
        /// Chunks ignored, by reason.
        chunks_ignored: Py<PyDict>,
    }
}

impl BridgeReceiverState {
    pub fn from_state(py: Python<'_>, state: ReceiverState) -> PyResult<Self> {
        let (announced, counters) = (state.announced, &state.counters);
        let layout = announced.as_ref();
        let pools: PyResult<Vec<_>> = layout
            .into_iter()
            .flat_map(|announced| &announced.pools)
            .map(|p| Py::new(py, AnnouncedPool { pool_id: p.pool_id, stride_bytes: p.stride_bytes }))
            .collect();
        let ignored = Ignored::ALL.iter().map(|why| (why.as_str(), counters.ignored(*why)));
        Ok(Self {
            epoch: layout.map(|a| a.epoch),
            nslots: layout.map(|a| a.nslots),
            pools: pools?,
            has_destination: state.has_destination,
            first_seq: state.seq_range.map(|(first, _)| first),
            last_seq: state.seq_range.map(|(_, last)| last),
            delivered: counters.delivered,
            bytes: counters.bytes,
            chunks: counters.chunks,
            span: counters.span,
            not_ready: counters.not_ready,
            announces: state.announces,
            announces_ignored: state.announces_ignored,
            progress_sent: state.progress_sent,
            progress_dropped: state.progress_dropped,
            lost: losses(py, &counters.lost)?,
            chunks_ignored: by_reason(py, ignored)?,
        })
    }
}
