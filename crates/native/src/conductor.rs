//! `Conductor`: the native thread of a connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::os::time::StreamClock;
use tensorpool_dataplane::conductor as plane;
use tensorpool_dataplane::conductor::Endpoint;
use tensorpool_dataplane::media_driver::Settings;

use crate::errors;
use crate::options::ConnectionOptions;
use crate::records::ConductorEvent;
use crate::stats::{ConductorStatus, NetworkStatus};
use crate::wait::{bounded, in_slices};

/// The native thread that owns the Aeron client of a connection, and everything that lives on it.
///
/// Connects to a media driver, reconnects when it restarts, and runs the duty cycle of every endpoint. Any
/// thread may call the methods. All of them raise `ForkedError` in a forked child.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Conductor {
    conductor: plane::Conductor,
    control: (String, i32),
    clock: StreamClock,
    fork_guard: ForkGuard,
}

impl Conductor {
    /// Refuses a conductor of the parent process.
    pub fn check_fork(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)
    }

    /// Adds an endpoint, in the process that started the conductor only.
    pub fn add(&self, py: Python<'_>, endpoint: Arc<dyn Endpoint>) -> PyResult<u64> {
        self.check_fork(py)?;
        Ok(self.conductor.add(endpoint))
    }

    /// Channel and stream id of the control stream.
    pub fn control(&self) -> (String, i32) {
        self.control.clone()
    }

    /// The clock of the streams that are announced on it.
    pub const fn clock(&self) -> StreamClock {
        self.clock
    }

    pub fn remove(&self, py: Python<'_>, id: u64) {
        if self.fork_guard.is_owner() {
            py.detach(|| self.conductor.remove(id));
        }
    }
}

#[pymethods]
impl Conductor {
    /// Starts the thread. With `embed_media_driver` it also runs a media driver in this process, unless one is
    /// active in `aeron_dir`. UDP channels use the media driver in `network_dir`, with the lock `network_lock`;
    /// without them, a process that `network_command` starts when the first UDP channel is opened.
    #[new]
    #[pyo3(signature = (options, *, announce_channel, media_driver_lock, network_command = Vec::new(), network_lock = None))]
    fn new(
        py: Python<'_>,
        options: ConnectionOptions,
        announce_channel: String,
        media_driver_lock: PathBuf,
        network_command: Vec<String>,
        network_lock: Option<PathBuf>,
    ) -> PyResult<Self> {
        let ids = options.stream_ids;
        let control = (ids.control_channel.clone(), ids.control);
        let driver_timeout_ms = (options.driver_timeout_s * 1e3) as u64;
        let config = plane::Config {
            embed: options.embed_media_driver.then(|| {
                let settings = Settings::new(options.aeron_dir.clone(), media_driver_lock.clone());
                Settings {
                    driver_timeout_ms,
                    dir_mode: options.aeron_dir_mode,
                    idle_strategy: options.media_driver_idle,
                    ..settings
                }
            }),
            media_driver_lock,
            aeron_dir: options.aeron_dir,
            driver_timeout_ms,
            announce_channel,
            announce_stream_id: ids.announce,
            announce_period_ns: options.announce_period_ns,
            control_channel: ids.control_channel,
            control_stream_id: ids.control,
            qos_channel: ids.qos_channel,
            qos_stream_id: ids.qos,
            allowed_base_dirs: options.allowed_base_dirs,
            network: plane::NetworkConfig {
                external: options.network_dir.map(|dir| (dir, network_lock.unwrap_or_default())),
                command: network_command,
            },
        };
        let conductor = py.detach(|| plane::Conductor::start(config))?;
        let clock =
            if options.is_realtime_synced { StreamClock::RealtimeSynced } else { StreamClock::Monotonic };
        Ok(Self { conductor, control, clock, fork_guard: ForkGuard::current() })
    }

    /// Waits up to `timeout` seconds for the media driver. Returns True once connected. Releases the GIL;
    /// Ctrl-C ends the wait.
    fn wait_connected(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard)?;
        let deadline = Instant::now() + bounded(timeout);
        let connected = in_slices(py, Some(deadline), |slice| {
            self.conductor.wait_connected(slice).connected.then_some(())
        })?;
        Ok(connected.is_some())
    }

    /// Returns whether the client is connected, how often it was, whether a media driver is embedded, and
    /// the last error.
    fn status(&self, py: Python<'_>) -> PyResult<ConductorStatus> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.conductor.status()).into())
    }

    /// Returns the state of the media driver for UDP.
    fn network_status(&self, py: Python<'_>) -> PyResult<NetworkStatus> {
        errors::check_fork(py, self.fork_guard)?;
        Ok(py.detach(|| self.conductor.status()).network.into())
    }

    /// Returns the next event, or None after `timeout` seconds or once closed.
    fn next_event(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<ConductorEvent>> {
        errors::check_fork(py, self.fork_guard)?;
        let deadline = Instant::now() + bounded(timeout);
        let events = self.conductor.events();
        let event = in_slices(py, Some(deadline), |slice| match events.next(slice) {
            None if !events.is_closed() => None,
            ended => Some(ended),
        })?;
        Ok(event.flatten().map(ConductorEvent::from))
    }

    /// Closes every producer, consumer and handle, then the client and an embedded media driver.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::check_fork(py, self.fork_guard)?;
        py.detach(|| self.conductor.close());
        Ok(())
    }
}
