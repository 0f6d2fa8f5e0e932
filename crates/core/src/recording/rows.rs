//! What a stream buffer hands over: rows, gaps, and their memory.

use std::sync::{Arc, Mutex, PoisonError};

use crate::recording::block_pool::{BlockPool, BlockRun};
use crate::wire::layout::MAX_DIMS;

/// One frame, in the columns of a batch. `tensorpool.recorder` reads it by these offsets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub seq: u64,
    pub timestamp_ns: u64,
    pub publish_timestamp_ns: u64,
    pub receive_time_ns: i64,
    pub trace_id: u64,
    pub payload_offset: u64,
    pub payload_bytes: u64,
    pub strides: [i64; MAX_DIMS],
    pub dims: [i32; MAX_DIMS],
    pub meta_version: u32,
    pub crc32c: u32,
    pub dtype: i16,
    pub major_order: i16,
    pub ndims: u8,
    pub unused: [u8; 3],
}

/// Missing sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub epoch: u64,
    pub first_seq: u64,
    pub count: u64,
    pub reason: &'static str,
    /// The row of its arena before which it is. The number of rows: behind the last.
    pub before_row: u32,
    pub time_ns: i64,
}

/// Rows and gaps on their way to disk.
#[derive(Debug)]
pub struct Arena {
    pub stream_id: u32,
    pub epoch: u64,
    pub rows: Vec<Row>,
    pub gaps: Vec<Gap>,
    pub filled_bytes: usize,
    /// `None` for an arena of gaps only.
    pub run: Option<BlockRun>,
    pub(super) since_ns: u64,
    pub(super) memory: Arc<ArenaPool>,
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.memory.recycle(std::mem::take(&mut self.rows));
    }
}

/// The memory of arenas: blocks for payloads, and lists of rows. Both are reused.
#[derive(Debug)]
pub struct ArenaPool {
    pub blocks: Arc<BlockPool>,
    lists: Mutex<Vec<Vec<Row>>>,
}

impl ArenaPool {
    pub fn new(blocks: Arc<BlockPool>) -> Arc<Self> {
        Arc::new(Self { blocks, lists: Mutex::default() })
    }

    pub(super) fn list(&self, rows: usize) -> Vec<Row> {
        let mut list = self.lists.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        list.reserve_exact(rows);
        list
    }

    fn recycle(&self, mut list: Vec<Row>) {
        if list.capacity() > 0 && self.blocks.is_owner() {
            list.clear();
            self.lists.lock().unwrap_or_else(PoisonError::into_inner).push(list);
        }
    }
}
