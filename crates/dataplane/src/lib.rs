//! Work per frame and per duty cycle over Aeron, without Python.
//!
//! One conductor thread owns the Aeron client and the life of every handle. Other threads use only their own
//! publication or subscription, under its lock. So the loss of a media driver is handled in one place: the
//! conductor removes the handles, waits, connects again, and provides new ones.

pub mod aeron;
pub mod announcer;
pub mod bridge;
pub mod conductor;
pub mod consumer;
pub mod counter;
pub mod descriptor_queue;
pub mod endpoint_counters;
pub mod idle;
pub mod join;
pub mod lease;
pub mod limiter;
pub mod mailbox;
pub mod media_driver;
pub mod messages;
pub mod metadata;
pub mod priority_lock;
pub mod producer;
pub mod raw;
pub mod recorder;
pub mod replay;
pub mod request_wait;
pub mod status_reporter;
