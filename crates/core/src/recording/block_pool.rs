//! The memory that a recorder keeps frames in until they are on disk: one mapping, allocated once and divided
//! into blocks. An arena is a run of blocks, which are reused when it is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::os::fork::ForkGuard;

/// Alignment of payloads in an arena, and in the file that it is written to.
pub const ALIGNMENT: usize = 64;

/// All payload memory of a recorder. Its size bounds what can wait for the disk.
#[derive(Debug)]
pub struct BlockPool {
    ptr: *mut u8,
    len: usize,
    block_bytes: usize,
    /// Which blocks are in use. Locked briefly, once per arena.
    taken: Mutex<Vec<bool>>,
    in_use: AtomicUsize,
    fork_guard: ForkGuard,
}

// SAFETY: the mapping is private memory; a chunk belongs to one arena at a time.
unsafe impl Send for BlockPool {}
// SAFETY: as above; what is shared is behind the mutex.
unsafe impl Sync for BlockPool {}

/// A run of blocks that only its owner writes.
#[derive(Debug)]
pub struct BlockRun {
    blocks: Arc<BlockPool>,
    first: usize,
    count: usize,
}

impl BlockPool {
    /// Maps `total_bytes` in blocks of `block_bytes`, both rounded up to pages, and touches every page: a
    /// lack of memory is an error now, and no frame waits for a page later.
    pub fn new(total_bytes: usize, block_bytes: usize) -> std::io::Result<Arc<Self>> {
        let page = page_bytes();
        let block_bytes = block_bytes.max(1).next_multiple_of(page);
        let count = total_bytes.div_ceil(block_bytes).max(1);
        let len = count
            .checked_mul(block_bytes)
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let ptr = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let pool = Self {
            ptr: ptr.cast(),
            len,
            block_bytes,
            taken: Mutex::new(vec![false; count]),
            in_use: AtomicUsize::new(0),
            fork_guard: ForkGuard::current(),
        };
        // SAFETY: our own fresh mapping; advice and populating leave it as it is.
        unsafe {
            // Large pages where the system has them, best effort.
            let _ = madvise(ptr, len, Advice::LinuxHugepage);
            if madvise(ptr, len, Advice::LinuxPopulateWrite).is_err() {
                // An older kernel: touch the pages one by one.
                for at in (0..len).step_by(page) {
                    pool.ptr.add(at).write_volatile(0);
                }
            }
        }
        Ok(Arc::new(pool))
    }

    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// False in a forked child, where a thread that does not exist may hold a lock.
    pub fn is_owner(&self) -> bool {
        self.fork_guard.is_owner()
    }

    pub fn total_bytes(&self) -> usize {
        self.len
    }

    /// Bytes of the blocks in use, filled or not.
    pub fn used_bytes(&self) -> usize {
        self.in_use.load(Ordering::Relaxed) * self.block_bytes
    }

    /// A run of blocks of at least `bytes`. `None` while there is none.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<BlockRun> {
        let count = bytes.div_ceil(self.block_bytes).max(1);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = 0;
        let last = taken.iter().position(|is_taken| {
            free = if *is_taken { 0 } else { free + 1 };
            free == count
        })?;
        let first = last + 1 - count;
        taken[first..=last].fill(true);
        self.in_use.fetch_add(count, Ordering::Relaxed);
        Some(BlockRun { blocks: self.clone(), first, count })
    }
}

fn page_bytes() -> usize {
    // SAFETY: asks for a number, and touches nothing.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Drop for BlockPool {
    fn drop(&mut self) {
        // SAFETY: our own mapping; every run holds an Arc of it, so none is left.
        let _ = unsafe { munmap(self.ptr.cast(), self.len) };
    }
}

impl BlockRun {
    pub fn bytes(&self) -> usize {
        self.count * self.blocks.block_bytes
    }

    /// The address of a byte of the run. The caller stays inside.
    #[inline]
    pub fn at(&self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.bytes());
        // SAFETY: inside the mapping, by the line above.
        unsafe { self.blocks.ptr.add(self.first * self.blocks.block_bytes + at) }
    }
}

impl Drop for BlockRun {
    fn drop(&mut self) {
        if !self.blocks.is_owner() {
            return;
        }
        let mut taken = self.blocks.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken[self.first..self.first + self.count].fill(false);
        self.blocks.in_use.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_runs_do_not_overlap_and_are_reused() {
        let blocks = BlockPool::new(4 * 4096, 4096).unwrap();
        let (one, two) = (blocks.take(4096).unwrap(), blocks.take(4097).unwrap());
        assert_eq!((one.bytes(), two.bytes()), (4096, 8192));
        assert_eq!(two.at(0) as usize - one.at(0) as usize, 4096);
        assert_eq!(blocks.used_bytes(), 3 * 4096);
        assert!(blocks.take(8192).is_none(), "one chunk is left");
        let three = blocks.take(1).unwrap();
        drop(one);
        assert!(blocks.take(8192).is_none(), "what is free does not lie together");
        drop((two, three));
        assert_eq!(blocks.used_bytes(), 0);
        assert_eq!(blocks.take(4 * 4096).unwrap().bytes(), blocks.total_bytes());
        assert!(blocks.take(4 * 4096 + 1).is_none());
    }

    #[test]
    fn block_run_outlives_its_pool() {
        let blocks = BlockPool::new(10_000, 5_000).unwrap();
        assert_eq!(blocks.block_bytes() % 4096, 0);
        let run = blocks.take(10_000).unwrap();
        drop(blocks);
        // SAFETY: the run's own bytes.
        unsafe {
            std::ptr::write_bytes(run.at(0), 7, run.bytes());
            assert_eq!(run.at(run.bytes() - 1).read(), 7);
        }
    }
}
