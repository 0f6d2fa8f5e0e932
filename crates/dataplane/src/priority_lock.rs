//! A mutex that gives the conductor thread priority over the thread that polls or offers.
//!
//! A thread that offers or polls without pause holds its lock nearly all the time, and a standard mutex lets
//! it acquire the lock again before a sleeping waiter has woken up. Frames of 16 MiB at full speed kept the
//! conductor out for so long that readers took the producer for stale. So the conductor announces that it
//! waits, and the other threads yield.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::idle::yield_core;

pub struct PriorityLock<T> {
    inner: Mutex<T>,
    priority_waiters: AtomicU32,
}

impl<T> PriorityLock<T> {
    pub fn new(value: T) -> Self {
        Self { inner: Mutex::new(value), priority_waiters: AtomicU32::new(0) }
    }

    /// For threads that poll or offer.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self.priority_waiters.load(Ordering::Relaxed) != 0 {
            self.yield_to_priority();
        }
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For threads that poll or offer: the lock if it is free and the conductor does not wait for it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if self.priority_waiters.load(Ordering::Relaxed) != 0 {
            return None;
        }
        match self.inner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    fn yield_to_priority(&self) {
        let mut yields = 0;
        while self.priority_waiters.load(Ordering::Relaxed) != 0 {
            yield_core(&mut yields);
        }
    }

    /// For the conductor: waits for one holder at most.
    pub fn lock_priority(&self) -> MutexGuard<'_, T> {
        self.priority_waiters.fetch_add(1, Ordering::Relaxed);
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.priority_waiters.fetch_sub(1, Ordering::Relaxed);
        guard
    }
}

#[cfg(test)]
mod tests {
    use super::PriorityLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn priority_waiter_gets_a_busy_lock() {
        let (lock, stop) = (PriorityLock::new(()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _guard = lock.lock();
                    let until = Instant::now() + Duration::from_micros(500);
                    while Instant::now() < until {}
                }
            });
            for _ in 0..200 {
                drop(lock.lock_priority());
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn try_lock_takes_a_free_lock_only() {
        let lock = PriorityLock::new(1);
        assert_eq!(lock.try_lock().as_deref(), Some(&1));
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        lock.priority_waiters.store(1, Ordering::Relaxed);
        assert!(lock.try_lock().is_none(), "the conductor goes first");
    }
}
