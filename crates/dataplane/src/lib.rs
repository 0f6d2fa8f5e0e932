//! What happens per frame and per tick over Aeron, without Python.
//!
//! One conductor thread owns the Aeron client and every handle's life; the threads of the user only
//! touch their own publication or subscription, under its lock. So a dead media driver is survived
//! in one place: the conductor takes the handles away, waits, connects again, and gives new ones.

pub mod aeron;
pub mod announces;
pub mod beacons;
pub mod bridge;
pub mod bulletin;
pub mod channels;
pub mod conductor;
pub mod consumer;
pub mod control;
pub mod control_plane;
pub mod counter;
pub mod endpoint;
pub mod events;
pub mod feed;
pub mod fragments;
pub mod gauges;
pub mod handle;
pub mod idle;
pub mod lease;
pub mod mailbox;
pub mod media_driver;
pub mod metadata_ear;
pub mod playing;
pub mod producer;
pub mod raw;
pub mod reading;
pub mod recorder;
pub mod reporter;
pub mod talk;
pub mod turn;
