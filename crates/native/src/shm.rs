//! Functions on region files: create, assign, remove and read.

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensorpool_core::os::file_lock;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::os::numa;
use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::shm::assign::{self, Assignment};
use tensorpool_core::shm::containment::AllowedBases;
use tensorpool_core::shm::create;
use tensorpool_core::shm::region::{Access, Region};
use tensorpool_core::shm::superblock::{Expected, RegionKind, Superblock};
use tensorpool_core::wire::layout::SUPERBLOCK_SIZE;
use tensorpool_core::wire::region_uri::RegionUri;

use crate::options::{EpochOptions, PoolOptions};
use crate::records::{EpochRegions, ParsedRegionUri};
use crate::{errors, stats};

/// Creates the regions of an epoch. Raises `RegionCreateError`, whose `reason` says why.
#[pyfunction]
pub fn create_epoch(py: Python<'_>, spec: EpochOptions) -> PyResult<EpochRegions> {
    let spec = spec.spec();
    let files = py
        .detach(|| create::create_epoch(&spec, u64::from(std::process::id()), monotonic_ns()))
        .map_err(|e| errors::create(py, &e))?;
    EpochRegions::from_files(py, files)
}

/// Binds memory that this thread allocates from now on to a NUMA node; None: the policy from before again.
///
/// Raises `OSError` for a node that the machine does not have, and where a container forbids the call.
#[pyfunction]
#[pyo3(signature = (node))]
pub fn bind_memory(node: Option<u32>) -> PyResult<()> {
    Ok(numa::bind_memory(node)?)
}

/// Returns the NUMA node of a file's pages. None if they are on several nodes. Raises `OSError`.
#[pyfunction]
pub fn memory_node(py: Python<'_>, path: PathBuf) -> PyResult<Option<u32>> {
    Ok(py.detach(|| numa::memory_node(&std::fs::File::open(path)?))?)
}

/// Assigns a later epoch to regions that no writer held: renames their directory, rewrites every
/// superblock.
///
/// Raises `RegionCreateError`. A refusal changes nothing; after any other failure the regions are removed.
#[pyfunction]
#[pyo3(signature = (directory, *, epoch, stream_id, nslots, pools, require_hugepages = false))]
pub fn assign_epoch(
    py: Python<'_>,
    directory: PathBuf,
    epoch: u64,
    stream_id: u32,
    nslots: u32,
    pools: Vec<PoolOptions>,
    require_hugepages: bool,
) -> PyResult<EpochRegions> {
    let pools = pools.into_iter().map(PoolOptions::spec).collect();
    let wanted = Assignment { directory, epoch, stream_id, nslots, pools, require_hugepages };
    let files = py
        .detach(|| assign::assign_epoch(&wanted, u64::from(std::process::id()), monotonic_ns()))
        .map_err(|e| errors::create(py, &e))?;
    EpochRegions::from_files(py, files)
}

/// Removes an epoch directory with its regions, and only those. Raises `OSError` if that fails.
#[pyfunction]
pub fn remove_epoch(py: Python<'_>, directory: PathBuf) -> PyResult<()> {
    Ok(py.detach(|| create::remove_epoch(&directory))?)
}

/// Validates a region as a consumer would, and returns its superblock. `pool_id` of None: a header ring.
/// Raises `RegionRejected`, whose `reason` says why.
#[pyfunction]
#[pyo3(signature = (uri, *, base_dirs, epoch, stream_id, nslots, pool_id = None, stride_bytes = 0, layout_version = 1))]
pub fn open_region(
    py: Python<'_>,
    uri: &str,
    base_dirs: Vec<PathBuf>,
    epoch: u64,
    stream_id: u32,
    nslots: u32,
    pool_id: Option<u16>,
    stride_bytes: u32,
    layout_version: u32,
) -> PyResult<stats::Superblock> {
    let kind = match pool_id {
        None => RegionKind::HeaderRing,
        Some(pool_id) => RegionKind::PayloadPool { pool_id, stride_bytes },
    };
    let expected = Expected { layout_version, epoch, stream_id, kind, nslots };
    let bases = AllowedBases::new(base_dirs)?;
    let region = py.detach(|| Region::open(uri, &expected, &bases, Access::Read));
    Ok(region.map_err(|e| errors::region(py, &e))?.superblock().into())
}

/// Returns the fields of a superblock, valid or not. Raises `ValueError` for fewer than 64 bytes.
#[pyfunction]
pub fn read_superblock(data: &[u8]) -> PyResult<stats::Superblock> {
    let head: &[u8; SUPERBLOCK_SIZE] = data
        .get(..SUPERBLOCK_SIZE)
        .and_then(|b| b.try_into().ok())
        .ok_or_else(|| PyValueError::new_err("a superblock has 64 bytes"))?;
    Ok(Superblock::decode(head).into())
}

/// Returns the parts of a region URI. Raises `ValueError` with the reason if it is invalid.
#[pyfunction]
pub fn parse_region_uri(uri: &str) -> PyResult<ParsedRegionUri> {
    let parsed = RegionUri::parse(uri).map_err(|e| PyValueError::new_err(format!("{uri:?}: {e}")))?;
    Ok(parsed.into())
}

/// Returns a user name that is safe as part of a directory name.
#[pyfunction]
pub fn sanitize_user(name: &str) -> String {
    create::sanitize_user(name)
}

/// A lock on a file, which the kernel releases when its holder dies.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct FileLock {
    lock: Mutex<Option<file_lock::FileLock>>,
    fork_guard: ForkGuard,
}

#[pymethods]
impl FileLock {
    /// Acquires the lock and writes the text `holder` into the file. Raises `LockHeld`, with the holder's
    /// text, if another process holds it, and `OSError` if the file cannot be opened.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, holder: &str) -> PyResult<Self> {
        match file_lock::FileLock::acquire(&path, holder) {
            Ok(lock) => Ok(Self { lock: Mutex::new(Some(lock)), fork_guard: ForkGuard::current() }),
            Err(file_lock::LockError::Held(who)) => {
                let message = format!("{} is held by {who}", path.display());
                Err(errors::raise(py, "LockHeld", &message, |f| f.set_item("holder", who)))
            }
            Err(file_lock::LockError::Io(e)) => Err(e.into()),
        }
    }

    /// Releases the lock. May be called again. Raises `ForkedError` in a forked child.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        if let Ok(mut lock) = self.lock.lock() {
            drop(lock.take());
        }
        Ok(())
    }
}
