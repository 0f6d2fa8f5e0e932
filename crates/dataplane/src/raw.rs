//! Raw Aeron publications and subscriptions, the baseline of the bridge's benchmark. As few instructions as
//! possible: claims are filled from one buffer, fragments are counted and dropped, on the caller's thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::aeron::channels::tethered;
use crate::aeron::{AeronError, Client, ExclusivePublication, OfferError, Subscription};
use crate::conductor::Endpoint;
use crate::conductor::handle::Handle;
use crate::idle::yield_core;

const FRAGMENTS: usize = 256;

fn lock<T>(handle: &Mutex<T>) -> MutexGuard<'_, T> {
    handle.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct RawPublication {
    channel: String,
    stream_id: i32,
    handle: Mutex<Handle<ExclusivePublication>>,
    closed: AtomicBool,
}

impl RawPublication {
    pub fn new(channel: String, stream_id: i32) -> Self {
        Self { channel, stream_id, handle: Mutex::new(Handle::None), closed: AtomicBool::new(false) }
    }

    pub fn is_connected(&self) -> bool {
        lock(&self.handle).get().is_some_and(|p| p.is_connected())
    }

    /// Sends `frame` `times` times, in messages as long as the MTU allows. False if that took longer than
    /// `timeout`.
    pub fn send(&self, frame: &[u8], times: u64, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut handle = lock(&self.handle);
        let Some(publication) = handle.get() else { return false };
        let most = publication.max_payload_length();
        let mut yields = 0;
        for _ in 0..times {
            for message in frame.chunks(most) {
                while let Err(why) = publication.claim(message.len(), |bytes| bytes.copy_from_slice(message))
                {
                    if why != OfferError::BackPressured || Instant::now() > deadline {
                        return false;
                    }
                    yield_core(&mut yields);
                }
            }
        }
        true
    }
}

impl Endpoint for RawPublication {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        // A sending thread holds the lock, and then the handle is ready.
        let Ok(mut handle) = self.handle.try_lock() else { return Ok(()) };
        if self.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        handle.advance(|| client.add_exclusive_publication(&self.channel, self.stream_id))
    }

    fn disconnect(&self) {
        *lock(&self.handle) = Handle::None;
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.disconnect();
    }
}

pub struct RawSubscription {
    channel: String,
    stream_id: i32,
    handle: Mutex<Handle<Subscription>>,
    received: AtomicU64,
    closed: AtomicBool,
}

impl RawSubscription {
    pub fn new(channel: String, stream_id: i32) -> Self {
        let (received, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { channel, stream_id, handle: Mutex::new(Handle::None), received, closed }
    }

    pub fn is_connected(&self) -> bool {
        lock(&self.handle).get().is_some_and(|s| s.is_connected())
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Receives until `total` bytes have come. False if that took longer than `timeout`.
    pub fn receive(&self, total: u64, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut handle = lock(&self.handle);
        let Some(subscription) = handle.get() else { return false };
        let mut yields = 0;
        while self.received() < total {
            let mut bytes = 0;
            subscription.poll(FRAGMENTS, |fragment, _| bytes += fragment.len() as u64);
            self.received.fetch_add(bytes, Ordering::Relaxed);
            if bytes == 0 {
                if Instant::now() > deadline {
                    return false;
                }
                yield_core(&mut yields);
            }
        }
        true
    }
}

impl Endpoint for RawSubscription {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let Ok(mut handle) = self.handle.try_lock() else { return Ok(()) };
        if self.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        handle.advance(|| client.add_subscription(&tethered(&self.channel), self.stream_id))
    }

    fn disconnect(&self) {
        *lock(&self.handle) = Handle::None;
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.disconnect();
    }
}
