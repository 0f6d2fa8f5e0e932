//! NUMA nodes: the memory policy of a thread, and the node of a file's pages.
//!
//! The pages of a region are allocated when it is created, by the policy of the thread that creates it.

use std::fs::File;
use std::io;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The largest node number that the kernel supports (`MAX_NUMNODES`).
const MAX_NODES: usize = 1024;
const WORD_BITS: usize = usize::BITS as usize;
const MPOL_DEFAULT: libc::c_int = 0;
const MPOL_BIND: libc::c_int = 2;
const MPOL_F_NODE: libc::c_int = 1;
const MPOL_F_ADDR: libc::c_int = 2;
/// Pages of a file that are looked at: the first, the last, and some in between.
const SAMPLES: usize = 5;

/// Binds memory that this thread allocates from now on to a node; `None`: the process's policy again.
pub fn bind_memory(node: Option<u32>) -> io::Result<()> {
    let mut mask = [0_usize; MAX_NODES / WORD_BITS];
    let (policy, nodes, bits) = match node {
        None => (MPOL_DEFAULT, std::ptr::null(), 0),
        Some(node) => {
            let node = node as usize;
            let word = mask.get_mut(node / WORD_BITS).ok_or(io::ErrorKind::InvalidInput)?;
            *word = 1 << (node % WORD_BITS);
            // The kernel ignores the last of the bits that it is told about.
            (MPOL_BIND, mask.as_ptr(), MAX_NODES + 1)
        }
    };
    // SAFETY: the kernel reads `bits` bits of the mask, which lives through the call.
    let rc = unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, nodes, bits) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node of a file's pages. `None` if they are on several nodes, or the file is empty.
pub fn memory_node(file: &File) -> io::Result<Option<u32>> {
    let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    if len == 0 {
        return Ok(None);
    }
    // SAFETY: a fresh read-only mapping of the whole file, unmapped below.
    let base = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
    let nodes: io::Result<Vec<u32>> =
        (0..SAMPLES).map(|n| node_of(base as usize + (len - 1) / (SAMPLES - 1) * n)).collect();
    // SAFETY: the mapping from above; nothing refers to it.
    unsafe { munmap(base, len)? };
    let nodes = nodes?;
    Ok(nodes.iter().all(|node| *node == nodes[0]).then_some(nodes[0]))
}

fn node_of(address: usize) -> io::Result<u32> {
    let mut node: libc::c_int = -1;
    // SAFETY: the kernel writes the node; it faults the page in itself, and reports one that it cannot.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            std::ptr::null_mut::<libc::c_ulong>(),
            0_usize,
            address,
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    if rc == 0 { u32::try_from(node).map_err(io::Error::other) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn node_that_no_kernel_has_is_refused() {
        let error = bind_memory(Some(MAX_NODES as u32)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn memory_of_a_bound_thread_is_on_its_node() {
        // Containers may forbid the calls.
        if bind_memory(Some(0)).is_err() {
            return;
        }
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.write_all(&[1; 16 << 10]).unwrap();
        bind_memory(None).unwrap();
        assert_eq!(memory_node(&file).unwrap(), Some(0));
    }
}
