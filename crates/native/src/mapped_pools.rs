//! `MappedPools`: where the payload pools of an epoch lie in this process, for devices that read them directly.

use std::sync::Arc;

use pyo3::prelude::*;
use tensorpool_core::shm::epoch::MappedEpoch;

/// Memory of one mapped pool.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct MemoryRange {
    /// Address of the first byte.
    #[pyo3(get)]
    address: usize,
    /// Number of bytes.
    #[pyo3(get)]
    nbytes: usize,
}

/// The payload pools of one epoch as they are mapped into this process. They stay mapped as long as this
/// object lives, even if the consumer or producer maps another epoch or is closed.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct MappedPools {
    mapping: Arc<MappedEpoch>,
}

impl MappedPools {
    pub fn new(mapping: Arc<MappedEpoch>) -> Self {
        Self { mapping }
    }
}

#[pymethods]
impl MappedPools {
    /// The stream of the pools.
    #[getter]
    fn stream_id(&self) -> u32 {
        self.mapping.stream_id
    }

    /// The epoch of the pools.
    #[getter]
    fn epoch(&self) -> u64 {
        self.mapping.epoch
    }

    /// Returns the memory of each pool, smallest slots first.
    fn ranges(&self) -> Vec<MemoryRange> {
        self.mapping.pool_memory().map(|(at, nbytes)| MemoryRange { address: at as usize, nbytes }).collect()
    }
}
