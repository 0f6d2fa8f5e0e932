//! `tensorpool._native`: the bindings of the Rust crates to Python. One file per concept; this one registers
//! them.

use pyo3::prelude::*;

mod announcer;
mod array_input;
mod arrays;
mod batches;
mod bridge;
mod bridge_keys;
mod checksum;
mod conductor;
mod consumer;
mod counter;
mod errors;
mod extension;
mod frame;
mod mailbox;
mod media_driver;
mod messages;
mod metadata;
mod metadata_publisher;
mod offer_result;
mod options;
mod producer;
mod progress;
mod raw;
mod recorder;
mod replay;
mod report_reader;
mod shm;
mod slot;
mod stats;
mod status_reporter;
mod wait;

/// The native part of TensorPool: what happens per frame, and what must not wait for the interpreter.
#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("AERON_VERSION", tensorpool_dataplane::aeron::version())?;
    m.add_class::<conductor::Conductor>()?;
    m.add_class::<media_driver::MediaDriver>()?;
    m.add_class::<producer::Producer>()?;
    m.add_class::<slot::Slot>()?;
    m.add_class::<offer_result::OfferResult>()?;
    m.add_class::<consumer::Consumer>()?;
    m.add_class::<frame::Frame>()?;
    m.add_class::<progress::Progress>()?;
    m.add_class::<mailbox::Mailbox>()?;
    m.add_class::<metadata::MetadataListener>()?;
    m.add_class::<metadata_publisher::MetadataPublisher>()?;
    m.add_class::<status_reporter::StatusReporter>()?;
    m.add_class::<messages::Publication>()?;
    m.add_class::<messages::Subscription>()?;
    m.add_class::<report_reader::ReportReader>()?;
    m.add_class::<counter::AeronCounter>()?;
    m.add_class::<shm::FileLock>()?;
    m.add_class::<announcer::StreamAnnouncer>()?;
    m.add_class::<recorder::Recorder>()?;
    m.add_class::<recorder::Arena>()?;
    m.add_class::<replay::ReplayRows>()?;
    m.add_class::<bridge::BridgeSender>()?;
    m.add_class::<bridge::BridgeReceiver>()?;
    m.add_class::<bridge_keys::BridgeKeys>()?;
    m.add_class::<bridge_keys::BridgeSealer>()?;
    m.add_class::<bridge_keys::BridgeOpener>()?;
    m.add_class::<raw::RawPublication>()?;
    m.add_class::<raw::RawSubscription>()?;
    m.add_class::<stats::ConductorStatus>()?;
    m.add_class::<stats::NetworkStatus>()?;
    m.add_class::<stats::LeaseStatus>()?;
    m.add_class::<stats::ProducerCounters>()?;
    m.add_class::<stats::ConsumerState>()?;
    m.add_class::<stats::ConsumerCounters>()?;
    m.add_class::<stats::LatencyFigures>()?;
    m.add_class::<stats::MetadataCounters>()?;
    m.add_class::<stats::MailboxCounters>()?;
    m.add_class::<stats::RecordedCounts>()?;
    m.add_class::<stats::RecorderBuffer>()?;
    m.add_class::<stats::BridgeSenderCounters>()?;
    m.add_class::<stats::BridgeReceiverState>()?;
    m.add_function(wrap_pyfunction!(media_driver::default_aeron_dir, m)?)?;
    m.add_function(wrap_pyfunction!(media_driver::media_driver_is_active, m)?)?;
    m.add_function(wrap_pyfunction!(counter::read_counters, m)?)?;
    m.add_function(wrap_pyfunction!(shm::bind_memory, m)?)?;
    m.add_function(wrap_pyfunction!(shm::create_epoch, m)?)?;
    m.add_function(wrap_pyfunction!(shm::memory_node, m)?)?;
    m.add_function(wrap_pyfunction!(shm::assign_epoch, m)?)?;
    m.add_function(wrap_pyfunction!(shm::remove_epoch, m)?)?;
    m.add_function(wrap_pyfunction!(shm::open_region, m)?)?;
    m.add_function(wrap_pyfunction!(shm::read_superblock, m)?)?;
    m.add_function(wrap_pyfunction!(shm::parse_region_uri, m)?)?;
    m.add_function(wrap_pyfunction!(shm::sanitize_user, m)?)?;
    m.add_function(wrap_pyfunction!(array_input::copy_bytes, m)?)?;
    m.add_function(wrap_pyfunction!(batches::scan_batches, m)?)?;
    m.add_function(wrap_pyfunction!(checksum::crc32c, m)?)?;
    m.add_function(wrap_pyfunction!(checksum::crc32c_each, m)?)?;
    m.add_function(wrap_pyfunction!(replay::replay_rows, m)?)?;
    m.add_function(wrap_pyfunction!(consumer::drop_reasons, m)?)?;
    m.add_function(wrap_pyfunction!(recorder::recorder_reasons, m)?)?;
    m.add_function(wrap_pyfunction!(bridge::bridge_reasons, m)?)?;
    m.add_function(wrap_pyfunction!(bridge::parse_fallback_uri, m)?)?;
    Ok(())
}
