//! The states of an Aeron handle, from requested to ready.

use std::time::{Duration, Instant};

use crate::aeron::{AeronError, DriverHandle, Pending};

/// How long after a refusal the handle is requested again.
const RETRY: Duration = Duration::from_secs(1);

/// A handle that may not be ready yet.
#[derive(Default)]
pub enum Handle<T> {
    #[default]
    None,
    Requested(Pending<T>),
    /// Refused. Requested again at that time.
    Refused(Instant),
    Ready(T),
}

impl<T: DriverHandle + 'static> Handle<T> {
    /// Requests the handle if there is none or its media driver is gone, then stores it once it is ready. After
    /// a refusal it is requested again later.
    pub fn advance(
        &mut self,
        request: impl FnOnce() -> Result<Pending<T>, AeronError>,
    ) -> Result<(), AeronError> {
        if let Self::Ready(handle) = self
            && handle.is_lost()
        {
            *self = Self::None;
        }
        match self {
            Self::Refused(until) if Instant::now() < *until => return Ok(()),
            Self::None | Self::Refused(_) => {
                *self = Self::Refused(Instant::now() + RETRY);
                *self = Self::Requested(request()?);
            }
            Self::Requested(_) | Self::Ready(_) => {}
        }
        if let Self::Requested(pending) = self {
            match pending.poll() {
                Ok(None) => {}
                Ok(Some(handle)) => *self = Self::Ready(handle),
                Err(error) => {
                    *self = Self::Refused(Instant::now() + RETRY);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The ready handle. The next one is requested again.
    pub fn take(&mut self) -> Option<T> {
        match std::mem::take(self) {
            Self::Ready(handle) => Some(handle),
            other => {
                *self = other;
                None
            }
        }
    }

    pub fn get(&mut self) -> Option<&mut T> {
        match self {
            Self::Ready(handle) => Some(handle),
            _ => None,
        }
    }
}
