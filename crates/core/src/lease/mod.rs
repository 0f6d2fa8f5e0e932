//! A client's lease on one stream (driver §4). Pure.

pub mod attachment;
