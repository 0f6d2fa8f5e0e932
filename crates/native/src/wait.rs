//! Waits without the interpreter, in slices short enough for a Ctrl-C.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tensorpool_dataplane::consumer::WaitOutcome;

/// How long a wait runs without the interpreter before it checks for a Ctrl-C.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);
/// The same on a thread that is not the first of its process: Python handles signals on its main thread, which is
/// another one only where a program embeds the interpreter.
const SELDOM_SIGNAL_CHECK: Duration = Duration::from_millis(500);

fn signal_check() -> Duration {
    // SAFETY: both take no arguments and cannot fail.
    let is_first = unsafe { libc::gettid() == libc::getpid() };
    if is_first { SIGNAL_CHECK } else { SELDOM_SIGNAL_CHECK }
}

/// The end of a wait. None: no end.
pub fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    match timeout {
        None => Ok(None),
        Some(t) if t >= 0.0 => {
            Ok(Duration::try_from_secs_f64(t).ok().and_then(|t| Instant::now().checked_add(t)))
        }
        Some(t) => {
            Err(pyo3::exceptions::PyValueError::new_err(format!("a timeout of {t} s is no time to wait")))
        }
    }
}

/// Seconds as users write them, clamped to a valid duration.
pub fn bounded(seconds: f64) -> Duration {
    Duration::from_secs_f64(if seconds.is_nan() { 0.0 } else { seconds.clamp(0.0, 1e9) })
}

/// Calls `ask` with a slice of the remaining time until it returns a result or the time is over.
pub fn in_slices<T: Send>(
    py: Python<'_>,
    deadline: Option<Instant>,
    ask: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    in_slices_of(py, SIGNAL_CHECK, deadline, ask)
}

fn in_slices_of<T: Send>(
    py: Python<'_>,
    signal_check: Duration,
    deadline: Option<Instant>,
    ask: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let slice = left.map_or(signal_check, |left| left.min(signal_check));
        let answer = py.detach(|| ask(slice));
        if answer.is_some() || deadline.is_some_and(|d| Instant::now() >= d) {
            return Ok(answer);
        }
        py.check_signals()?;
    }
}

/// Waits for frames, or for another end of the wait. `wait` gets a slice of the time, and when all began.
pub fn until(
    py: Python<'_>,
    deadline: Option<Instant>,
    wait: impl Fn(Duration, Instant) -> WaitOutcome + Sync,
) -> PyResult<WaitOutcome> {
    let since = Instant::now();
    // It ends at once when its consumer is closed, so nothing else waits for the next check.
    let ended = in_slices_of(py, signal_check(), deadline, |left| match wait(left, since) {
        WaitOutcome::TimedOut => None,
        ended => Some(ended),
    })?;
    Ok(ended.unwrap_or(WaitOutcome::TimedOut))
}
