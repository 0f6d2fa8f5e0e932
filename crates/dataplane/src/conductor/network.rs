//! The media driver for UDP: a process of its own that the conductor starts when the first UDP channel is
//! requested, and starts again when it ends. Or one that another program runs in a configured directory.
//!
//! The process ends with this one: its standard input is a pipe, and it ends when the pipe is closed. Forked
//! children do not keep the pipe open.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tensorpool_core::os::fork::ForkGuardedFile;

use crate::aeron::{self, DriverClient, Network};
use crate::media_driver::MediaDriverWatch;

const RETRY: Duration = Duration::from_millis(200);
const MAX_RETRY: Duration = Duration::from_secs(5);
/// How often an external media driver is checked.
const WATCH: Duration = Duration::from_millis(50);
/// How long a process may take to end before it is killed.
const END: Duration = Duration::from_secs(3);
const MAX_DIR_BYTES: usize = 4096;

/// Which media driver serves UDP channels.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Directory and lock of a media driver that another program runs. `None`: the process of `command`.
    pub external: Option<(String, PathBuf)>,
    /// Starts a media driver, prints its directory as one line, and ends when its standard input is closed.
    pub command: Vec<String>,
}

/// What changed in a duty cycle.
pub(super) enum NetworkChange {
    Connected(String),
    /// There is no connection any more.
    Lost(String),
    /// There is none yet.
    Failed(String),
}

/// A media driver in a child process.
struct DriverProcess {
    child: Child,
    /// The process ends when this is closed. `None` once it is.
    stdin: Option<ForkGuardedFile>,
    stdout: ChildStdout,
    line: Vec<u8>,
}

impl DriverProcess {
    fn start(command: &[String]) -> std::io::Result<Self> {
        let [program, arguments @ ..] = command else {
            return Err(std::io::Error::new(ErrorKind::NotFound, "no command is known that starts it"));
        };
        let mut read_end = None;
        let stdin = ForkGuardedFile::open(|| {
            let (reader, writer) = std::io::pipe()?;
            read_end = Some(reader);
            std::io::Result::Ok(File::from(OwnedFd::from(writer)))
        })?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(read_end.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::piped())
            // Ctrl-C in a terminal is for the program, which ends its media driver last.
            .process_group(0)
            .spawn()?;
        let Some(stdout) = child.stdout.take() else {
            return Err(std::io::Error::new(ErrorKind::BrokenPipe, "it has no standard output"));
        };
        let flags = rustix::fs::fcntl_getfl(&stdout)?;
        rustix::fs::fcntl_setfl(&stdout, flags | OFlags::NONBLOCK)?;
        Ok(Self { child, stdin: Some(stdin), stdout, line: Vec::new() })
    }

    /// The directory of the media driver, once it is running.
    fn dir(&mut self) -> Option<String> {
        let mut buffer = [0; 512];
        while !self.line.ends_with(b"\n") && self.line.len() < MAX_DIR_BYTES {
            match self.stdout.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => self.line.extend_from_slice(&buffer[..count]),
            }
        }
        let line = self.line.strip_suffix(b"\n")?;
        String::from_utf8(line.to_vec()).ok()
    }

    /// How the process ended. `None` while it runs.
    fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(format!("its process {} ended with {status}", self.child.id())),
            // The program reaps children by itself.
            Err(_) => Some(format!("its process {} is gone", self.child.id())),
        }
    }
}

/// A process that was asked to end, and when it is killed.
struct EndingProcess {
    process: DriverProcess,
    kill_at: Option<Instant>,
}

impl EndingProcess {
    fn new(mut process: DriverProcess) -> Self {
        drop(process.stdin.take());
        Self { process, kill_at: Some(Instant::now() + END) }
    }

    /// Kills it when its time is over. True once it has ended, and is no zombie any more.
    fn has_ended(&mut self) -> bool {
        if self.kill_at.is_some_and(|at| Instant::now() >= at) {
            self.kill_at = None;
            let _ = self.process.child.kill();
        }
        self.process.ended().is_some()
    }
}

/// The state of the media driver for UDP. Belongs to the conductor's thread.
pub(super) struct NetworkDriver {
    config: NetworkConfig,
    driver_timeout_ms: u64,
    network: Arc<Network>,
    process: Option<DriverProcess>,
    /// Earlier processes, which the conductor does not wait for.
    ending: Vec<EndingProcess>,
    client: Option<Arc<DriverClient>>,
    watch: Option<MediaDriverWatch>,
    next_watch: Instant,
    next_try: Instant,
    retry: Duration,
}

impl NetworkDriver {
    pub fn new(config: NetworkConfig, driver_timeout_ms: u64, network: Arc<Network>) -> Self {
        let now = Instant::now();
        Self {
            config,
            driver_timeout_ms,
            network,
            process: None,
            ending: Vec::new(),
            client: None,
            watch: None,
            next_watch: now,
            next_try: now,
            retry: RETRY,
        }
    }

    pub fn client(&self) -> Option<&Arc<DriverClient>> {
        self.client.as_ref()
    }

    /// The process of the media driver that this conductor started.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|p| p.child.id())
    }

    /// Connects when UDP is wanted, and notices the end of the media driver.
    pub fn do_work(&mut self) -> Option<NetworkChange> {
        self.ending.retain_mut(|ending| !ending.has_ended());
        if !self.network.is_wanted() {
            return None;
        }
        let now = Instant::now();
        if self.client.is_some() {
            let reason = self.end_of_driver(now)?;
            self.disconnect();
            return Some(NetworkChange::Lost(reason));
        }
        if let Some(reason) = self.process.as_mut().and_then(DriverProcess::ended) {
            self.process = None;
            return Some(NetworkChange::Failed(self.delay(now, reason)));
        }
        if now < self.next_try {
            return None;
        }
        match self.connect() {
            Ok(dir) => {
                self.retry = RETRY;
                dir.map(NetworkChange::Connected)
            }
            Err(reason) => {
                self.end_process();
                Some(NetworkChange::Failed(self.delay(now, reason)))
            }
        }
    }

    /// The directory of the media driver once connected. `None`: it is still starting.
    fn connect(&mut self) -> Result<Option<String>, String> {
        let dir = match &self.config.external {
            Some((dir, lock)) => {
                if !aeron::driver_is_active(dir, self.driver_timeout_ms as i64) {
                    return Err(format!("no media driver is running in {dir}"));
                }
                self.watch = Some(MediaDriverWatch::new(dir, lock));
                dir.clone()
            }
            None => {
                if self.process.is_none() {
                    let process = DriverProcess::start(&self.config.command);
                    self.process = Some(process.map_err(|e| format!("cannot start it: {e}"))?);
                }
                let Some(dir) = self.process.as_mut().and_then(DriverProcess::dir) else { return Ok(None) };
                dir
            }
        };
        let client = DriverClient::connect(&dir, self.driver_timeout_ms).map_err(|e| e.to_string())?;
        self.network.set_client(Some(client.clone()));
        self.client = Some(client);
        Ok(Some(dir))
    }

    fn end_of_driver(&mut self, now: Instant) -> Option<String> {
        if let Some(reason) = self.process.as_mut().and_then(DriverProcess::ended) {
            return Some(reason);
        }
        if self.client.as_ref().is_some_and(|c| c.is_closed()) {
            return Some("it stopped answering".into());
        }
        if now < self.next_watch {
            return None;
        }
        self.next_watch = now + WATCH;
        self.watch.as_ref().is_some_and(MediaDriverWatch::is_dead).then(|| "its process is gone".into())
    }

    /// The next attempt is made later and later, so that a media driver that cannot start costs little.
    fn delay(&mut self, now: Instant, reason: String) -> String {
        self.next_try = now + self.retry;
        self.retry = (self.retry * 2).min(MAX_RETRY);
        reason
    }

    fn disconnect(&mut self) {
        self.network.set_client(None);
        if let Some(client) = self.client.take() {
            client.set_lost();
        }
        self.watch = None;
        // One that runs but does not answer is replaced too.
        if let Some(process) = &mut self.process {
            let _ = process.child.kill();
        }
        self.end_process();
        self.next_try = Instant::now();
    }

    /// Asks the process to end. A later duty cycle reaps it.
    fn end_process(&mut self) {
        self.ending.extend(self.process.take().map(EndingProcess::new));
    }

    /// Disconnects, ends the process and waits for that. The handles are dropped already.
    pub fn close(&mut self) {
        self.network.set_client(None);
        drop(self.client.take());
        self.end_process();
        while !self.ending.is_empty() {
            self.ending.retain_mut(|ending| !ending.has_ended());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_does_not_end_holds_no_duty_cycle() {
        let command = ["sh", "-c", "echo /no/media/driver; exec sleep 60"].map(str::to_owned).to_vec();
        let network = Arc::new(Network::default());
        let mut driver = NetworkDriver::new(NetworkConfig { external: None, command }, 10, network.clone());
        network.want();
        let began = Instant::now();
        let failed = loop {
            let duty_cycle = Instant::now();
            if let Some(change) = driver.do_work() {
                assert!(duty_cycle.elapsed() < END, "the duty cycle waited for the process");
                break change;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the process printed nothing");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(failed, NetworkChange::Failed(_)));
        assert_eq!((driver.ending.len(), driver.pid()), (1, None));
        driver.ending[0].kill_at = Some(Instant::now());
        driver.close();
        assert!(driver.ending.is_empty(), "it is killed and reaped");
    }
}
