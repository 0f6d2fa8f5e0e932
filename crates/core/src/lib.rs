//! The part of TensorPool that uses neither Aeron nor Python: messages, regions in shared memory, and the
//! rules of leases, consumers, producers, bridges and recordings.
//!
//! Code that decides is a pure function of its arguments, time included, so that every branch can be tested.
//! Code that touches memory or files is small and marked. Groups depend downwards only: `os` and
//! `drop_reason`, then `wire`, then `shm`, then the roles.

#[cfg(not(target_endian = "little"))]
compile_error!("TensorPool regions are little-endian; a big-endian host is refused (wire §15.1)");

pub mod bridge;
pub mod checksum;
pub mod consumer;
pub mod drop_reason;
pub mod histogram;
pub mod join;
pub mod lease;
pub mod os;
pub mod producer;
pub mod recording;
pub mod shm;
pub mod wire;
