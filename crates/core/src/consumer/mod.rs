//! Rules of a consumer: what it maps, asks for, counts and reports. Pure.

pub mod announce_filter;
pub mod blob_assembly;
pub mod hello_state;
pub mod latency;
pub mod metadata_cache;
pub mod phase;
pub mod progress_tracker;
pub mod sequence_tracker;
