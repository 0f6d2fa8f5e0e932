//! What single calls return: frozen classes with one attribute a field, instead of tuples whose order has to be
//! known.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tensorpool_core::bridge::assembly::Loss;
use tensorpool_core::bridge::session_ledger;
use tensorpool_core::drop_reason;
use tensorpool_core::histogram::Summary;
use tensorpool_core::recording::rows::Gap;
use tensorpool_core::recording::stream_buffer;
use tensorpool_core::shm::create::EpochFiles;
use tensorpool_core::wire::fallback_uri::FallbackUri;
use tensorpool_core::wire::region_uri::RegionUri;
use tensorpool_dataplane::announcer;
use tensorpool_dataplane::conductor::events::Event;

use crate::stats::{losses, text_form};

/// A frozen class with public attributes and a text form.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[pyclass(frozen, get_all, module = "tensorpool._native")]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        #[pymethods]
        impl $name {
            fn __repr__<'py>(&self, py: Python<'py>) -> PyResult<String> {
                let fields = PyDict::new(py);
                $(fields.set_item(stringify!($field), &self.$field)?;)*
                text_form(stringify!($name), &fields)
            }
        }
    };
}

record! {
    /// A change of a connection, or of one of its endpoints.
    ConductorEvent {
        /// What happened, as in "mapped".
        kind: &'static str,
        /// When, on the monotonic clock.
        at_ns: u64,
        /// The stream of the endpoint. None for the connection.
        stream_id: Option<u32>,
        /// The epoch that it is about. None if there is none.
        epoch: Option<u64>,
        /// More about it, for people.
        detail: String,
    }
}

impl From<Event> for ConductorEvent {
    fn from(event: Event) -> Self {
        let Event { kind, at_ns, stream_id, epoch, detail } = event;
        Self { kind, at_ns, stream_id, epoch, detail }
    }
}

record! {
    /// A message, and the image that it came from.
    ImageMessage {
        /// The bytes of the message.
        message: Py<PyBytes>,
        /// The Aeron session id of the image.
        session_id: i32,
    }
}

record! {
    /// One counter of the media driver's counters file, of any client.
    CounterReading {
        /// Its id among the media driver's counters.
        counter_id: i32,
        /// What kind of counter it is.
        type_id: i32,
        /// Its value at the moment of reading.
        value: i64,
        /// The label that Aeron's tools show.
        label: String,
        /// What identifies it among those of its type.
        key: Py<PyBytes>,
    }
}

record! {
    /// The latency of the frames of an interval, in nanoseconds. All 0 without frames.
    LatencySummary {
        /// Number of frames.
        count: u64,
        /// Half of the frames were not slower.
        p50_ns: u64,
        /// 99 of 100 frames were not slower.
        p99_ns: u64,
        /// The slowest frame.
        max_ns: u64,
    }
}

impl From<Summary> for LatencySummary {
    fn from(summary: Summary) -> Self {
        let Summary { count, p50, p99, max } = summary;
        Self { count, p50_ns: p50, p99_ns: p99, max_ns: max }
    }
}

// --- regions

record! {
    /// One payload pool of an epoch.
    PoolRegion {
        /// Its id in announces and slots.
        pool_id: u16,
        /// The bytes of one of its slots.
        stride_bytes: u32,
        /// The URI of its region.
        uri: String,
    }
}

record! {
    /// The regions of an epoch that were created or assigned.
    EpochRegions {
        /// The directory of all its files.
        directory: PathBuf,
        /// The URI of the header ring.
        header_uri: String,
        /// Its payload pools.
        pools: Vec<Py<PoolRegion>>,
    }
}

impl EpochRegions {
    pub fn from_files(py: Python<'_>, files: EpochFiles) -> PyResult<Self> {
        let pools: PyResult<Vec<_>> = files
            .pools
            .into_iter()
            .map(|(pool, uri)| {
                let (pool_id, stride_bytes) = (pool.pool_id, pool.stride_bytes);
                Py::new(py, PoolRegion { pool_id, stride_bytes, uri })
            })
            .collect();
        Ok(Self { directory: files.directory, header_uri: files.header_uri, pools: pools? })
    }
}

record! {
    /// The parts of a region URI.
    ParsedRegionUri {
        /// The path of the file.
        path: String,
        /// Whether the file has to be on huge pages.
        require_hugepages: bool,
    }
}

impl From<RegionUri> for ParsedRegionUri {
    fn from(uri: RegionUri) -> Self {
        Self { path: uri.path, require_hugepages: uri.require_hugepages }
    }
}

record! {
    /// A producer whose lock was released.
    DeadProducer {
        /// Its stream.
        stream_id: u32,
        /// The epoch that it wrote.
        epoch: u64,
    }
}

record! {
    /// An epoch whose regions were found truncated or overwritten.
    DamagedEpoch {
        /// Its stream.
        stream_id: u32,
        /// Its number.
        epoch: u64,
        /// What was found.
        reason: String,
    }
}

impl From<announcer::DamagedEpoch> for DamagedEpoch {
    fn from(damaged: announcer::DamagedEpoch) -> Self {
        Self { stream_id: damaged.stream_id, epoch: damaged.epoch, reason: damaged.reason }
    }
}

// --- recordings

record! {
    /// Sequences that a recorder did not record, and why.
    RecordedGap {
        /// Their epoch.
        epoch: u64,
        /// The first of them.
        first_seq: u64,
        /// How many there are.
        count: u64,
        /// Why they are missing.
        reason: &'static str,
        /// The row of the arena that they come before.
        before_row: u32,
        /// When they were found missing.
        time_ns: i64,
    }
}

impl From<Gap> for RecordedGap {
    fn from(gap: Gap) -> Self {
        let Gap { epoch, first_seq, count, reason, before_row, time_ns } = gap;
        Self { epoch, first_seq, count, reason, before_row, time_ns }
    }
}

record! {
    /// How far a replay window was published.
    ReplayResult {
        /// The first entry that was not published.
        position: usize,
        /// Why it stopped there: "done", "time", "not_ready", "no_pool" or "closed".
        stop: &'static str,
        /// The stream of that entry, by its place in the list of streams.
        stream: usize,
        /// Payload bytes published.
        nbytes: u64,
        /// Frames that every reader would refuse, which were left out.
        unfit: u64,
        /// Frames that were published late.
        late: u64,
        /// The largest delay of them.
        late_max_ns: u64,
    }
}

// --- bridges

record! {
    /// What a bridge's sender has sent of one stream, up to a position.
    SenderPosition {
        /// The sessions of this run, oldest first.
        sessions: Vec<i32>,
        /// The position in the last of them.
        position: i64,
        /// Frames of the stream sent up to there.
        sent: u64,
    }
}

record! {
    /// Frames of all streams of a bridge's sender or receiver.
    BridgeTotals {
        /// Frames sent, or delivered.
        frames: u64,
        /// Their bytes.
        nbytes: u64,
        /// Frames that were not.
        dropped: u64,
    }
}

impl From<(u64, u64, u64)> for BridgeTotals {
    fn from((frames, nbytes, dropped): (u64, u64, u64)) -> Self {
        Self { frames, nbytes, dropped }
    }
}

record! {
    /// Payload bytes in the chunks of a frame.
    ChunkSizes {
        /// In the first chunk, which also has the headers.
        first_bytes: u32,
        /// In each of the others.
        rest_bytes: u32,
    }
}

record! {
    /// What became of a stream's frames in some sessions at a bridge's receiver.
    SessionCounts {
        /// Frames written to the destination.
        delivered: u64,
        /// Frames whose first chunk arrived before the announce of their epoch, or whose last chunk arrived after it
        /// ended.
        not_ready: u64,
        /// Frames lost, by reason.
        lost: Py<PyDict>,
        /// Whether these are all frames of the sessions.
        is_complete: bool,
    }
}

impl SessionCounts {
    pub fn from_counts(
        py: Python<'_>,
        counts: &session_ledger::SessionCounts,
        is_complete: bool,
    ) -> PyResult<Self> {
        let (delivered, not_ready) = (counts.delivered, counts.not_ready);
        Ok(Self { delivered, not_ready, lost: losses(py, &counts.lost)?, is_complete })
    }
}

record! {
    /// One pool of a stream that is announced from another host.
    AnnouncedPool {
        /// Its id in announces and slots.
        pool_id: u16,
        /// The bytes of one of its slots.
        stride_bytes: u32,
    }
}

record! {
    /// The parts of a `bridge://` URI.
    ParsedFallbackUri {
        /// The id of the bridge.
        instance_id: String,
        /// The channel of payloads.
        payload_channel: String,
        /// The stream id of payloads.
        payload_stream_id: i32,
        /// The channel of control messages.
        control_channel: String,
        /// The stream id of control messages.
        control_stream_id: i32,
        /// The stream whose frames are sent.
        stream_id: u32,
    }
}

impl From<FallbackUri> for ParsedFallbackUri {
    fn from(uri: FallbackUri) -> Self {
        let FallbackUri { instance_id, payload, control, stream_id } = uri;
        Self {
            instance_id,
            payload_channel: payload.0,
            payload_stream_id: payload.1,
            control_channel: control.0,
            control_stream_id: control.1,
            stream_id,
        }
    }
}

// --- reasons

record! {
    /// A reason why a consumer did not deliver a frame.
    DropReason {
        /// Its name in ledgers and metrics.
        name: &'static str,
        /// What it means.
        meaning: &'static str,
        /// Whether such frames are part of the span.
        is_in_span: bool,
    }
}

impl From<drop_reason::DropReason> for DropReason {
    fn from(reason: drop_reason::DropReason) -> Self {
        Self { name: reason.as_str(), meaning: reason.meaning().trim(), is_in_span: reason.in_span() }
    }
}

record! {
    /// A reason why a recorder did not record a frame.
    RecorderReason {
        /// Its name in ledgers and recordings.
        name: &'static str,
        /// What it means.
        meaning: &'static str,
    }
}

impl RecorderReason {
    pub fn all() -> Vec<Self> {
        stream_buffer::REASONS.iter().map(|(name, meaning)| Self { name, meaning }).collect()
    }
}

record! {
    /// A reason why a bridge's receiver lost a frame.
    BridgeReason {
        /// Its name in ledgers and metrics.
        name: &'static str,
        /// What it means.
        meaning: &'static str,
        /// Whether a chunk of the frame was never received.
        is_incomplete: bool,
    }
}

impl From<Loss> for BridgeReason {
    fn from(loss: Loss) -> Self {
        Self { name: loss.as_str(), meaning: loss.meaning().trim(), is_incomplete: loss.is_incomplete() }
    }
}
