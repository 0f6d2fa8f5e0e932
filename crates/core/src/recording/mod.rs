//! Frames in memory on their way to a recording, and record batches read back from one.

pub mod batch_scan;
pub mod block_pool;
pub mod rows;
pub mod stream_buffer;
