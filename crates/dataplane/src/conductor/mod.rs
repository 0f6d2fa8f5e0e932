//! The conductor: one thread per connection that owns the Aeron client and the life of every handle.
//!
//! It connects, embeds a media driver where allowed and needed, adds the publications and subscriptions of
//! its endpoints, sends and receives announces, and notices the loss of the media driver. UDP channels have a
//! media driver in a process of its own (`network`). The conductor never uses Python, so a busy interpreter
//! delays nothing.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tensorpool_core::consumer::announce_filter::Now;
use tensorpool_core::os::fork::ForkGuard;
use tensorpool_core::os::mapping_guard;
use tensorpool_core::os::time::{monotonic_ns, realtime_ns};
use tensorpool_core::shm::containment::AllowedBases;

use crate::aeron::{self, Client, DriverClient, Network};
use crate::idle::Pause;
use crate::media_driver::{self, LaunchError, MediaDriver, MediaDriverWatch, Settings};

mod announce_stream;
mod control_plane;
mod endpoint;
pub mod events;
pub mod handle;
mod network;
mod shared_stream;

use announce_stream::AnnounceStream;
use control_plane::ControlPlane;
pub use endpoint::{Endpoint, Tick};
use events::{Event, Events};
pub use network::NetworkConfig;
use network::{NetworkChange, NetworkDriver};

/// Pauses between duty cycles: short enough for prompt mapping and announces while endpoints come and go, and
/// the longest that a message may wait when nothing has happened for a while.
const MIN_PAUSE: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_millis(40);
/// Duty cycles in one period of announces at least, so that none is late by much.
const CYCLES_A_PERIOD: u32 = 16;
const RETRY: Duration = Duration::from_millis(200);
/// How often a media driver in another process is checked.
const WATCH: Duration = Duration::from_millis(50);
/// How often the handler of lost mappings is checked.
const GUARD_PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Config {
    pub aeron_dir: String,
    /// If set, a media driver is embedded when none runs in `aeron_dir`.
    pub embed: Option<Settings>,
    /// The lock of the process that embeds a media driver in `aeron_dir`.
    pub media_driver_lock: PathBuf,
    pub driver_timeout_ms: u64,
    pub announce_channel: String,
    pub announce_stream_id: i32,
    pub announce_period_ns: u64,
    pub control_channel: String,
    pub control_stream_id: i32,
    pub qos_channel: String,
    pub qos_stream_id: i32,
    pub allowed_base_dirs: Vec<PathBuf>,
    pub network: NetworkConfig,
}

enum Command {
    Add(u64, Arc<dyn Endpoint>),
    Remove(u64, mpsc::Sender<()>),
    Stop,
}

#[derive(Clone, Debug, Default)]
pub struct Status {
    pub connected: bool,
    /// Incremented at every connection, so that a waiter can distinguish a new one.
    pub connections: u64,
    pub embeds_driver: bool,
    pub last_error: Option<String>,
    pub network: NetworkStatus,
}

/// The state of the media driver for UDP.
#[derive(Clone, Debug, Default)]
pub struct NetworkStatus {
    pub connected: bool,
    pub connections: u64,
    pub dir: Option<String>,
    /// The process that this conductor started.
    pub pid: Option<u32>,
    pub last_error: Option<String>,
}

struct Shared {
    /// `None` once the thread has ended, which then runs no commands.
    commands: Mutex<Option<Vec<Command>>>,
    status: Mutex<Status>,
    changed: Condvar,
    events: Events,
}

pub struct Conductor {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    next_id: AtomicU64,
    fork_guard: ForkGuard,
}

impl Conductor {
    pub fn start(config: Config) -> std::io::Result<Self> {
        let bases = AllowedBases::new(&config.allowed_base_dirs)?;
        let shared = Arc::new(Shared {
            commands: Mutex::new(Some(Vec::new())),
            status: Mutex::default(),
            changed: Condvar::new(),
            events: Events::default(),
        });
        let network = Arc::new(Network::default());
        let longest = Duration::from_nanos(config.announce_period_ns) / CYCLES_A_PERIOD;
        let longest = longest.clamp(MIN_PAUSE, MAX_PAUSE);
        let pause = Pause::new(MIN_PAUSE, longest, Instant::now());
        let conductor_loop = ConductorLoop {
            network_driver: NetworkDriver::new(
                config.network.clone(),
                config.driver_timeout_ms,
                network.clone(),
            ),
            network,
            announce_stream: AnnounceStream::new(config.announce_channel.clone(), config.announce_stream_id),
            control: ControlPlane::new(
                (&config.control_channel, config.control_stream_id),
                (&config.qos_channel, config.qos_stream_id),
            ),
            config,
            bases,
            shared: shared.clone(),
            endpoints: Vec::new(),
            client: None,
            driver: None,
            watch: None,
            next_watch: Instant::now(),
            next_try: Instant::now(),
            next_guard: Instant::now(),
            pause,
            is_active: Cell::default(),
        };
        let thread =
            std::thread::Builder::new().name("tp-conductor".into()).spawn(move || conductor_loop.run())?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            next_id: AtomicU64::new(1),
            fork_guard: ForkGuard::current(),
        })
    }

    fn command(&self, command: Command) {
        if let Ok(mut commands) = self.shared.commands.lock()
            && let Some(commands) = commands.as_mut()
        {
            commands.push(command);
        }
        if let Ok(thread) = self.thread.lock()
            && let Some(thread) = thread.as_ref()
        {
            thread.thread().unpark();
        }
    }

    /// Adds an endpoint. The id removes it.
    pub fn add(&self, endpoint: Arc<dyn Endpoint>) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.command(Command::Add(id, endpoint));
        id
    }

    /// Closes an endpoint and waits until its handles are gone.
    pub fn remove(&self, id: u64) {
        if !self.fork_guard.is_owner() {
            return;
        }
        let (done, wait) = mpsc::channel();
        self.command(Command::Remove(id, done));
        // An error means that the conductor has ended, and with it all handles: it dropped the sender.
        let _ = wait.recv();
    }

    pub fn status(&self) -> Status {
        self.shared.status.lock().map(|s| s.clone()).unwrap_or_default()
    }

    /// Waits until connected, or for `timeout`.
    pub fn wait_connected(&self, timeout: Duration) -> Status {
        let Ok(status) = self.shared.status.lock() else {
            return Status::default();
        };
        match self.shared.changed.wait_timeout_while(status, timeout, |s| !s.connected) {
            Ok((status, _)) => status.clone(),
            Err(_) => Status::default(),
        }
    }

    pub fn events(&self) -> &Events {
        &self.shared.events
    }

    /// Stops the thread, closes every endpoint, the client, and the embedded driver.
    pub fn close(&self) {
        if !self.fork_guard.is_owner() {
            return;
        }
        self.command(Command::Stop);
        let thread = self.thread.lock().ok().and_then(|mut t| t.take());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.shared.events.close();
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        if self.fork_guard.is_owner() {
            self.close();
        } else if let Ok(mut thread) = self.thread.try_lock() {
            std::mem::forget(thread.take());
        }
    }
}

/// The state of the conductor's thread.
struct ConductorLoop {
    config: Config,
    bases: AllowedBases,
    shared: Arc<Shared>,
    endpoints: Vec<(u64, Arc<dyn Endpoint>)>,
    announce_stream: AnnounceStream,
    control: ControlPlane,
    client: Option<Client>,
    network: Arc<Network>,
    network_driver: NetworkDriver,
    driver: Option<MediaDriver>,
    /// Watches a media driver in another process, where that is possible.
    watch: Option<MediaDriverWatch>,
    next_watch: Instant,
    next_try: Instant,
    next_guard: Instant,
    pause: Pause,
    /// Whether this duty cycle did something after which more is expected soon.
    is_active: Cell<bool>,
}

impl ConductorLoop {
    fn run(mut self) {
        while self.run_commands() {
            match self.client.as_ref().map(|c| c.local().is_closed()) {
                None => self.connect(),
                Some(true) => self.disconnect("it stopped answering"),
                Some(false) if self.is_orphaned() => self.disconnect("its process is gone"),
                Some(false) => self.work(),
            }
            self.work_network();
            self.work_endpoints();
            self.keep_guard();
            let is_active = self.is_active.take();
            std::thread::park_timeout(self.pause.after_cycle(is_active, Instant::now()));
        }
        let unhandled = self.shared.commands.lock().ok().and_then(|mut c| c.take());
        for command in unhandled.into_iter().flatten() {
            if let Command::Add(_, endpoint) = command {
                endpoint.close();
            }
        }
        for (_, endpoint) in std::mem::take(&mut self.endpoints) {
            self.end(&*endpoint);
        }
        self.announce_stream.disconnect();
        self.control.disconnect();
        // Handles are dropped. A client is dropped before the driver it uses.
        self.network_driver.close();
        drop(self.client.take());
        drop(self.driver.take());
    }

    /// Another part of the program may have installed a handler of its own since the last mapping, as
    /// Python's faulthandler does.
    fn keep_guard(&mut self) {
        let now = Instant::now();
        if now >= self.next_guard {
            self.next_guard = now + GUARD_PERIOD;
            mapping_guard::ensure_installed();
        }
    }

    /// Runs commands. False to stop.
    fn run_commands(&mut self) -> bool {
        let commands = self
            .shared
            .commands
            .lock()
            .map(|mut c| c.as_mut().map(std::mem::take).unwrap_or_default())
            .unwrap_or_default();
        for command in commands {
            self.is_active.set(true);
            match command {
                Command::Add(id, endpoint) => self.endpoints.push((id, endpoint)),
                Command::Remove(id, done) => {
                    if let Some(at) = self.endpoints.iter().position(|(i, _)| *i == id) {
                        let (_, endpoint) = self.endpoints.swap_remove(at);
                        self.end(&*endpoint);
                    }
                    let _ = done.send(());
                }
                Command::Stop => return false,
            }
        }
        true
    }

    /// Sends the detach before the lock and the regions are dropped.
    fn end(&mut self, endpoint: &dyn Endpoint) {
        if let Some(detach_message) = endpoint.detach_message() {
            self.control.send_last(&detach_message);
        }
        endpoint.close();
    }

    fn connect(&mut self) {
        if Instant::now() < self.next_try {
            return;
        }
        match self.try_connect() {
            Ok((client, watch)) => {
                self.is_active.set(true);
                self.client = Some(Client::new(client, self.network.clone()));
                self.watch = watch;
                let embeds = self.driver.is_some();
                self.set_status(|s| {
                    s.connected = true;
                    s.connections += 1;
                    s.embeds_driver = embeds;
                    s.last_error = None;
                });
                let what = if embeds { "embedded" } else { "external" };
                self.event(
                    "media_driver_connected",
                    format!("{what} media driver in {}", self.config.aeron_dir),
                );
            }
            Err(error) => {
                self.set_status(|s| s.last_error = Some(error));
                self.next_try = Instant::now() + RETRY;
            }
        }
    }

    /// A client, and for a driver in another process the watch on it.
    fn try_connect(&mut self) -> Result<(Arc<DriverClient>, Option<MediaDriverWatch>), String> {
        let (dir, lock) = (&self.config.aeron_dir, &self.config.media_driver_lock);
        if self.driver.is_none() {
            // The heartbeat of a killed process stays fresh for a while. Its lock is released at once.
            let is_active = !media_driver::is_unfinished(dir)
                && aeron::driver_is_active(dir, self.config.driver_timeout_ms as i64)
                && !media_driver::is_left_over(dir, lock);
            match &self.config.embed {
                _ if is_active => {}
                None => return Err(format!("no media driver is running in {dir}")),
                Some(settings) => match MediaDriver::launch(settings) {
                    Ok(driver) => self.driver = Some(driver),
                    // Another process is just starting one: check again soon, and keep serving the endpoints.
                    Err(LaunchError::Held(who)) => {
                        return Err(format!("the media driver of {who} in {dir} does not answer"));
                    }
                    Err(error) => return Err(format!("cannot embed a media driver in {dir}: {error}")),
                },
            }
        }
        let watch = self.driver.is_none().then(|| MediaDriverWatch::new(dir, lock));
        let client = DriverClient::connect(dir, self.config.driver_timeout_ms);
        client.map(|c| (c, watch)).map_err(|e| format!("media driver in {dir}: {e}"))
    }

    fn is_orphaned(&mut self) -> bool {
        let now = Instant::now();
        let Some(watch) = self.watch.as_ref().filter(|_| now >= self.next_watch) else {
            return false;
        };
        self.next_watch = now + WATCH;
        watch.is_dead()
    }

    fn disconnect(&mut self, how: &str) {
        let tick = tick(&self.bases, &self.shared, &self.is_active);
        for (_, endpoint) in &self.endpoints {
            endpoint.on_media_driver_lost(&tick);
            endpoint.disconnect();
        }
        self.announce_stream.disconnect();
        self.control.disconnect();
        let errors = self.client.take().map(|c| c.local().errors()).unwrap_or_default();
        // An embedded driver that stopped answering is replaced.
        drop(self.driver.take());
        let why = errors.last().map_or_else(|| how.to_owned(), |e| e.message.clone());
        self.set_status(|s| {
            s.connected = false;
            s.last_error = Some(format!("media driver lost: {why}"));
        });
        self.event("media_driver_lost", why);
        self.next_try = Instant::now();
    }

    /// The media driver for UDP may end and start again while that of the host's memory continues.
    fn work_network(&mut self) {
        let Some(change) = self.network_driver.do_work() else { return };
        let pid = self.network_driver.pid();
        match change {
            NetworkChange::Connected(dir) => {
                self.event("network_connected", format!("media driver for UDP in {dir}"));
                self.set_status(|s| {
                    let connections = s.network.connections + 1;
                    s.network =
                        NetworkStatus { connected: true, connections, dir: Some(dir), pid, last_error: None };
                });
            }
            NetworkChange::Lost(reason) => {
                for (_, endpoint) in &self.endpoints {
                    endpoint.on_network_lost();
                }
                self.set_network_error(format!("media driver for UDP lost: {reason}"), pid);
                self.event("network_lost", reason);
            }
            NetworkChange::Failed(reason) => {
                self.set_network_error(format!("no media driver for UDP: {reason}"), pid);
                self.event("network_failed", reason);
            }
        }
    }

    fn set_network_error(&self, error: String, pid: Option<u32>) {
        self.set_status(|s| {
            s.network.connected = false;
            s.network.pid = pid;
            s.network.last_error = Some(error);
        });
    }

    /// With or without a media driver: activity timestamps are in shared memory, not in Aeron.
    fn work_endpoints(&self) {
        let tick = tick(&self.bases, &self.shared, &self.is_active);
        for (_, endpoint) in &self.endpoints {
            endpoint.do_work(&tick);
        }
    }

    fn work(&mut self) {
        let Some(client) = &self.client else { return };
        let tick = tick(&self.bases, &self.shared, &self.is_active);
        let network_errors = self.network_driver.client().map(|c| c.errors()).unwrap_or_default();
        for error in client.local().errors().into_iter().chain(network_errors) {
            push(tick.events, "aeron_error", error.to_string());
        }
        for (_, endpoint) in &self.endpoints {
            if let Err(error) = endpoint.connect(client) {
                push(tick.events, "aeron_error", error.to_string());
                self.set_status(|s| s.last_error = Some(error.to_string()));
            }
        }
        // A driver message about a lease comes before the announce that follows from it. An endpoint receives
        // both before it decides and sends.
        self.control.receive(client, &self.endpoints, &tick);
        self.announce_stream.work(client, &self.endpoints, &tick);
        self.control.send(&self.endpoints, &tick);
    }

    fn set_status(&self, change: impl FnOnce(&mut Status)) {
        if let Ok(mut status) = self.shared.status.lock() {
            change(&mut status);
        }
        self.shared.changed.notify_all();
    }

    fn event(&self, kind: &'static str, detail: String) {
        push(&self.shared.events, kind, detail);
    }
}

fn tick<'a>(bases: &'a AllowedBases, shared: &'a Shared, is_active: &'a Cell<bool>) -> Tick<'a> {
    let now = Now { monotonic_ns: monotonic_ns(), realtime_ns: realtime_ns() };
    Tick { now, bases, events: &shared.events, is_active }
}

fn push(events: &Events, kind: &'static str, detail: String) {
    events.push(Event { kind, at_ns: monotonic_ns(), stream_id: None, epoch: None, detail });
}
