//! Prefetch of mapped files that are read once, from beginning to end.

use rustix::mm::{Advice, madvise};

/// Page size where the system does not report one.
const PAGE: usize = 4096;

/// Loads a part of a mapped file into memory and into the page table, so that its next reader waits for
/// neither disk nor faults. A hint: what cannot be loaded now is loaded when it is read.
pub fn prefetch(part: &[u8]) {
    // SAFETY: asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE);
    let start = part.as_ptr() as usize / page * page;
    let end = part.as_ptr() as usize + part.len();
    if part.is_empty() {
        return;
    }
    for advice in [Advice::LinuxPopulateRead, Advice::WillNeed] {
        // SAFETY: neither advice changes what the memory holds; the range lies in the mapping of `part`.
        let taken = unsafe { madvise(start as *mut _, end - start, advice) };
        if taken.is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetch_leaves_memory_unchanged() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let before = bytes.clone();
        for (start, end) in [(0, 0), (0, 1), (1, 99_999), (4096, 8192), (0, 100_000)] {
            prefetch(&bytes[start..end]);
        }
        assert_eq!(bytes, before);
    }
}
