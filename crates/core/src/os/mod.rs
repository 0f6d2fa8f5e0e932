//! Processes, files, memory and clocks of the operating system.

pub mod cache;
pub mod file_lock;
pub mod fork;
pub mod hugepages;
pub mod mapping_guard;
pub mod numa;
pub mod prefetch;
pub mod time;
