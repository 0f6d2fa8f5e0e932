//! Joins: frames of several streams that belong together, by sequence, by time, or the newest of each. Pure:
//! arrivals and the time in, sets of frames out.
//!
//! One input, or a clock, **drives** the join: it names the outputs. An output is attempted once, when every
//! input has reached the frame that the output needs; nothing waits for a slot, and a frame that was
//! overwritten meanwhile is dropped. Every frame is counted: joined, dropped by reason, or still pending.
//!
//! Nothing is allocated once the buffers have grown to what the streams need.

mod input;
mod matcher;
mod rules;
#[cfg(test)]
mod tests;

pub use input::{InputCounts, JoinReason};
pub use matcher::{Arrival, JoinedSet, Matcher, Output};
pub use rules::{Basis, Drive, JoinRules, MAX_INPUTS, Select};
