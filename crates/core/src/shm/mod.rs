//! Regions in shared memory: superblocks, slots, the seqlock, and their files
//! (wire §6 to §9, §15.21).

pub mod anonymous;
pub mod assign;
pub mod containment;
pub mod copy;
pub mod copy_thread;
pub mod create;
pub mod epoch;
pub mod filled;
pub mod region;
pub mod region_lock;
pub mod seqlock;
pub mod slot;
pub mod superblock;
pub mod tensor;
