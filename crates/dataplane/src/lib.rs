//! What happens per frame and per tick over Aeron, without Python.
//!
//! One conductor thread owns the Aeron client and every handle's life; the threads of the user only
//! touch their own publication or subscription, under its lock. So a dead media driver is survived
//! in one place: the conductor takes the handles away, waits, connects again, and gives new ones.

pub mod aeron;
pub mod announcer;
pub mod bridge;
pub mod conductor;
pub mod consumer;
pub mod counter;
pub mod descriptor_queue;
pub mod endpoint_counters;
pub mod idle;
pub mod lease;
pub mod mailbox;
pub mod media_driver;
pub mod messages;
pub mod metadata;
pub mod priority_lock;
pub mod producer;
pub mod raw;
pub mod recorder;
pub mod replay;
pub mod status_reporter;
