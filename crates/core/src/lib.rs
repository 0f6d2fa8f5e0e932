//! The part of TensorPool that knows neither Aeron nor Python: the layout of shared memory, the
//! seqlock, region files and their safe opening, and the pure rules of producers and consumers.
//!
//! Everything that decides is a plain function of its arguments (time included), so that it can be
//! tested to the last branch; everything that touches memory or files is small and marked.

#[cfg(not(target_endian = "little"))]
compile_error!("TensorPool regions are little-endian; a big-endian host is refused (wire §15.1)");

pub mod accounts;
pub mod announce;
pub mod arena;
pub mod assembly;
pub mod assign;
pub mod attach;
pub mod batches;
pub mod blob;
pub mod bridged;
pub mod bulletin;
pub mod checksum;
pub mod chunk;
pub mod contain;
pub mod copy;
pub mod create;
pub mod data_source;
pub mod descriptor;
pub mod driver_messages;
pub mod drops;
pub mod event;
pub mod fallback;
pub mod follow;
pub mod fork;
pub mod greeting;
pub mod hello;
pub mod histogram;
pub mod latency;
pub mod layout;
pub mod lock;
pub mod mapped;
pub mod mapping;
pub mod metadata;
pub mod order;
pub mod phase;
pub mod prefix;
pub mod progress;
pub mod rate;
pub mod readers;
pub mod region;
pub mod region_lock;
pub mod ring;
pub mod said;
pub mod seqlock;
pub mod slot;
pub mod spoken;
pub mod superblock;
pub mod tensor;
pub mod time;
pub mod told;
pub mod track;
pub mod tracker;
pub mod uri;
pub mod wishes;
