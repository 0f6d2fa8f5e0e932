//! The part of TensorPool that knows neither Aeron nor Python: the layout of shared memory, the
//! seqlock, region files and their safe opening, and the pure rules of producers and consumers.
//!
//! Everything that decides is a plain function of its arguments (time included), so that it can be
//! tested to the last branch; everything that touches memory or files is small and marked.

#[cfg(not(target_endian = "little"))]
compile_error!("TensorPool regions are little-endian; a big-endian host is refused (wire §15.1)");

pub mod bridge;
pub mod checksum;
pub mod consumer;
pub mod drop_reason;
pub mod histogram;
pub mod lease;
pub mod os;
pub mod producer;
pub mod recording;
pub mod shm;
pub mod wire;
