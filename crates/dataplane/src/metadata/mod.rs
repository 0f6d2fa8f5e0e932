//! Metadata of data sources on the metadata stream (wire §10.3): its publisher and its listener.

pub mod listener;
pub mod publisher;
