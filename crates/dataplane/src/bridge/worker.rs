//! A worker thread that runs duty cycles until it is stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tensorpool_core::os::fork::ForkGuard;

use crate::idle::{Idle, IdleStrategy};

pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    fork_guard: ForkGuard,
}

impl Worker {
    /// `do_work` returns how much it did. After 0 the thread idles.
    pub fn start(
        name: &str,
        idle: IdleStrategy,
        mut do_work: impl FnMut() -> usize + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let should_stop = stop.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut idling = Idle::new(idle);
            while !should_stop.load(Ordering::Relaxed) {
                if do_work() > 0 {
                    idling = Idle::new(idle);
                } else {
                    idling.idle();
                }
            }
        })?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)), fork_guard: ForkGuard::current() })
    }

    /// Ends the thread and joins it.
    pub fn stop(&self) {
        if !self.fork_guard.is_owner() {
            return;
        }
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().ok().and_then(|mut t| t.take()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.fork_guard.is_owner() {
            self.stop();
        } else if let Ok(mut thread) = self.thread.try_lock() {
            std::mem::forget(thread.take());
        }
    }
}
