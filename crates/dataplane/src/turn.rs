//! A lock whose busy user lets the conductor go first.
//!
//! A thread that offers or polls without pause holds its lock nearly all the time, and the standard
//! mutex lets it have the lock again before a sleeping waiter has woken up. Frames of 16 MiB at full
//! speed kept the conductor out for longer than it may be silent, and readers took the producer for
//! dead. So the conductor says that it wants the lock, and the user's threads give way.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub struct TurnLock<T> {
    inner: Mutex<T>,
    wanted: AtomicU32,
}

impl<T> TurnLock<T> {
    pub fn new(value: T) -> Self {
        Self { inner: Mutex::new(value), wanted: AtomicU32::new(0) }
    }

    /// For the user's threads.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self.wanted.load(Ordering::Relaxed) != 0 {
            self.give_way();
        }
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn give_way(&self) {
        while self.wanted.load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
        }
    }

    /// For the conductor: waits for one holder at most.
    pub fn lock_first(&self) -> MutexGuard<'_, T> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        guard
    }
}

#[cfg(test)]
mod tests {
    use super::TurnLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn a_thread_that_never_pauses_lets_the_other_in() {
        let (lock, stop) = (TurnLock::new(()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _held = lock.lock();
                    let until = Instant::now() + Duration::from_micros(500);
                    while Instant::now() < until {}
                }
            });
            for _ in 0..200 {
                drop(lock.lock_first());
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
