//! Rules of a producer: sequence numbers, grants, progress and metadata schedules. Pure.

pub mod grants;
pub mod metadata_schedule;
pub mod progress_schedule;
pub mod rate_gate;
pub mod readers;
pub mod sequencer;
