//! `MediaDriver`: Aeron's media driver in this process, and the check for one in another.

use std::sync::Mutex;

use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_dataplane::aeron;
use tensorpool_dataplane::media_driver::{self as plane, LaunchError, Settings};

use crate::errors;
use crate::options::MediaDriverOptions;

/// The native part of `tensorpool.MediaDriver`: Aeron's media driver on threads of this process.
///
/// Any thread may call the methods.
#[pyclass(frozen, subclass, module = "tensorpool._native")]
pub struct MediaDriver {
    driver: Mutex<Option<plane::MediaDriver>>,
    dir: String,
    fork_guard: ForkGuard,
}

#[pymethods]
impl MediaDriver {
    /// Starts the media driver, and removes the directory of a dead one first.
    ///
    /// Raises `MediaDriverBusy` if one is active in its directory, `MediaDriverError` if it cannot start.
    #[new]
    fn new(py: Python<'_>, options: MediaDriverOptions) -> PyResult<Self> {
        let aeron_dir = options.aeron_dir;
        let settings = Settings {
            dedicated_threads: options.dedicated_threads,
            idle_strategy: options.idle_strategy,
            ipc_term_length: options.ipc_term_length,
            dir_mode: options.dir_mode,
            driver_timeout_ms: options.driver_timeout_ms,
            udp: options.udp,
            ..Settings::new(aeron_dir.clone(), options.lock_path)
        };
        match py.detach(|| plane::MediaDriver::launch(&settings)) {
            Ok(driver) => Ok(Self {
                driver: Mutex::new(Some(driver)),
                dir: aeron_dir,
                fork_guard: ForkGuard::current(),
            }),
            Err(error) => {
                let class = match error {
                    LaunchError::Held(_) => "MediaDriverBusy",
                    _ if error.to_string().contains("Active media driver") => "MediaDriverBusy",
                    _ => "MediaDriverError",
                };
                let remedy = match class {
                    "MediaDriverBusy" => "attach to that one with aeron_dir=..., or choose another directory",
                    _ => "check the settings and the directory",
                };
                let message = format!("cannot start a media driver in {aeron_dir}: {error}; {remedy}");
                Err(errors::raise(py, class, &message, |f| f.set_item("aeron_dir", aeron_dir)))
            }
        }
    }

    /// The directory that clients connect to.
    #[getter]
    fn aeron_dir(&self) -> &str {
        &self.dir
    }

    /// Whether the media driver was closed. Raises `ForkedError` in a forked child.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(self.driver.lock().map_or(true, |d| d.is_none()))
    }

    /// Stops the media driver and removes its directory. May be called again. Raises `ForkedError` in a
    /// forked child.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        let driver = self.driver.lock().ok().and_then(|mut d| d.take());
        py.detach(|| drop(driver));
        Ok(())
    }
}

/// Returns Aeron's default directory for this user.
#[pyfunction]
pub fn default_aeron_dir() -> String {
    aeron::default_dir()
}

/// Returns whether a media driver in `aeron_dir` has a heartbeat younger than `timeout_ms`.
#[pyfunction]
pub fn media_driver_is_active(py: Python<'_>, aeron_dir: &str, timeout_ms: i64) -> bool {
    py.detach(|| aeron::driver_is_active(aeron_dir, timeout_ms))
}
