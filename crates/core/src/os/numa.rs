//! NUMA nodes: the memory policy of a thread, and the node of a file's pages.
//!
//! The pages of a region are allocated when it is created, by the policy of the thread that creates it.

use std::cell::Cell;
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

/// The nodes that a policy is about, one bit each.
type NodeMask = [usize; MAX_NODES / WORD_BITS];

/// A memory policy of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    mode: libc::c_int,
    nodes: NodeMask,
}

impl Policy {
    /// The policy of this thread, which it may have from its parent (`numactl`).
    fn current() -> io::Result<Self> {
        let mut policy = Self { mode: MPOL_DEFAULT, nodes: [0; MAX_NODES / WORD_BITS] };
        // SAFETY: the kernel writes the mode and up to MAX_NODES bits of the mask.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy.mode,
                policy.nodes.as_mut_ptr(),
                MAX_NODES,
                std::ptr::null_mut::<libc::c_void>(),
                0,
            )
        };
        if rc == 0 { Ok(policy) } else { Err(io::Error::last_os_error()) }
    }

    fn apply(&self) -> io::Result<()> {
        let has_nodes = self.nodes.iter().any(|word| *word != 0);
        // The kernel ignores the last of the bits that it is passed.
        let (nodes, bits) =
            if has_nodes { (self.nodes.as_ptr(), MAX_NODES + 1) } else { (std::ptr::null(), 0) };
        // SAFETY: the kernel reads MAX_NODES bits of the mask, which lives through the call.
        let rc = unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, nodes, bits) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

thread_local! {
    /// The policy of the thread before it was bound. `None` while it is not bound.
    static BEFORE: Cell<Option<Policy>> = const { Cell::new(None) };
}

/// Binds memory that this thread allocates from now on to a node; `None`: the policy that was in force before.
pub fn bind_memory(node: Option<u32>) -> io::Result<()> {
    let Some(node) = node else {
        let Some(before) = BEFORE.get() else { return Ok(()) };
        before.apply()?;
        BEFORE.set(None);
        return Ok(());
    };
    let mut bound = Policy { mode: MPOL_BIND, nodes: [0; MAX_NODES / WORD_BITS] };
    let node = node as usize;
    *bound.nodes.get_mut(node / WORD_BITS).ok_or(io::ErrorKind::InvalidInput)? = 1 << (node % WORD_BITS);
    let before = match BEFORE.get() {
        Some(before) => before,
        None => Policy::current()?,
    };
    bound.apply()?;
    BEFORE.set(Some(before));
    Ok(())
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

    #[test]
    fn earlier_policy_is_restored() {
        const MPOL_INTERLEAVE: libc::c_int = 3;
        let mut nodes = [0; MAX_NODES / WORD_BITS];
        nodes[0] = 1;
        let inherited = Policy { mode: MPOL_INTERLEAVE, nodes };
        // Containers may forbid the calls.
        if inherited.apply().is_err() || Policy::current().is_err() {
            return;
        }
        bind_memory(Some(0)).unwrap();
        bind_memory(Some(0)).unwrap();
        assert_eq!(Policy::current().unwrap().mode, MPOL_BIND);
        bind_memory(None).unwrap();
        assert_eq!(Policy::current().unwrap(), inherited);
        bind_memory(None).unwrap();
        assert_eq!(Policy::current().unwrap(), inherited, "a thread that is not bound keeps its policy");
    }
}
