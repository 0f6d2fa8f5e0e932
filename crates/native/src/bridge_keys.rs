//! `BridgeKeys`, `BridgeSealer` and `BridgeOpener`: sealed messages of a bridge that Python sends and receives.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tensorpool_core::bridge::seal::{KEY_BYTES, MAX_KEYS, Opener, Purpose, Sealer, SharedKeys, key_id};
use tensorpool_core::os::time::realtime_ns;
use tensorpool_core::wire::chunk::Fault;

fn parsed(keys: &[Vec<u8>]) -> PyResult<Vec<[u8; KEY_BYTES]>> {
    if keys.is_empty() || keys.len() > MAX_KEYS {
        return Err(PyValueError::new_err(format!("{} keys: use 1 to {MAX_KEYS}", keys.len())));
    }
    let exact = |key: &Vec<u8>| {
        let fault = || PyValueError::new_err(format!("a key has {KEY_BYTES} bytes, not {}", key.len()));
        key.as_slice().try_into().map_err(|_| fault())
    };
    keys.iter().map(exact).collect()
}

fn purpose_of(text: &str) -> PyResult<Purpose> {
    let known = Purpose::ALL.into_iter().find(|purpose| purpose.as_str() == text);
    known.ok_or_else(|| PyValueError::new_err(format!("{text:?}: use payload, control or metadata")))
}

/// The keys of a bridge. The first one seals, all of them open.
///
/// Any thread may call the methods.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct BridgeKeys {
    shared: Arc<SharedKeys>,
}

impl BridgeKeys {
    pub fn shared(&self) -> Arc<SharedKeys> {
        self.shared.clone()
    }
}

#[pymethods]
impl BridgeKeys {
    /// Takes keys of 32 bytes each, and a number of the host: messages that were sealed with the same number are
    /// not opened. Raises `ValueError` for other keys, for none and for more than four.
    #[new]
    fn new(keys: Vec<Vec<u8>>, origin: u64) -> PyResult<Self> {
        let keys =
            SharedKeys::new(&parsed(&keys)?, origin).ok_or_else(|| PyValueError::new_err("no keys"))?;
        Ok(Self { shared: Arc::new(keys) })
    }

    /// Replaces the keys while they are in use. Raises `ValueError` as the constructor does.
    fn replace(&self, keys: Vec<Vec<u8>>) -> PyResult<()> {
        self.shared.replace(&parsed(&keys)?);
        Ok(())
    }

    /// Returns a number that names a key without revealing it.
    #[staticmethod]
    fn id_of(key: Vec<u8>) -> PyResult<u32> {
        Ok(key_id(&parsed(&[key])?[0]))
    }
}

/// Seals the messages of one publication, in the order in which they are sent.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct BridgeSealer {
    sealer: Mutex<Sealer>,
}

#[pymethods]
impl BridgeSealer {
    /// `purpose`: payload, control or metadata. Raises `ValueError` for others.
    #[new]
    fn new(keys: &Bound<'_, BridgeKeys>, purpose: &str) -> PyResult<Self> {
        let sealer = Sealer::new(keys.get().shared(), purpose_of(purpose)?);
        let sealer = sealer.ok_or_else(|| PyValueError::new_err("the system has no random numbers"))?;
        Ok(Self { sealer: Mutex::new(sealer) })
    }

    /// Returns the sealed message.
    fn seal<'py>(&self, py: Python<'py>, message: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let mut sealer = self.sealer.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = realtime_ns();
        sealer.update(now_ns);
        let sealed = sealer.seal_message(message, now_ns);
        sealed.map(|sealed| PyBytes::new(py, &sealed)).ok_or_else(|| PyValueError::new_err("too long"))
    }
}

struct CountingOpener {
    opener: Opener,
    rejected: [u64; Fault::COUNT],
}

/// Opens the sealed messages of one subscription.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct BridgeOpener {
    state: Mutex<CountingOpener>,
}

#[pymethods]
impl BridgeOpener {
    /// `purpose`: payload, control or metadata. Raises `ValueError` for others.
    #[new]
    fn new(keys: &Bound<'_, BridgeKeys>, purpose: &str, max_age_ns: u64) -> PyResult<Self> {
        let opener = Opener::new(keys.get().shared(), purpose_of(purpose)?, max_age_ns);
        Ok(Self { state: Mutex::new(CountingOpener { opener, rejected: [0; Fault::COUNT] }) })
    }

    /// Returns the message, or None for one that is rejected, which is counted.
    fn open<'py>(&self, py: Python<'py>, message: &[u8]) -> Option<Bound<'py, PyBytes>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let CountingOpener { opener, rejected } = &mut *state;
        match opener.open(message, realtime_ns()) {
            Ok(message) => Some(PyBytes::new(py, message)),
            Err(fault) => {
                rejected[fault as usize] += 1;
                None
            }
        }
    }

    /// Returns the number of rejected messages, by reason.
    fn rejected<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let dict = PyDict::new(py);
        for fault in Fault::ALL {
            dict.set_item(fault.as_str(), state.rejected[*fault as usize])?;
        }
        Ok(dict)
    }
}
