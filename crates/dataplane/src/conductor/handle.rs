//! The way of an Aeron handle from asked for to there.

use std::time::{Duration, Instant};

use crate::aeron::{AeronError, Pending};

/// How long after a refusal the media driver is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// A handle on its way from not wanted to there.
#[derive(Default)]
pub enum Handle<T> {
    #[default]
    None,
    Requested(Pending<T>),
    /// Not given; to be asked for again at that time.
    Refused(Instant),
    Ready(T),
}

impl<T: 'static> Handle<T> {
    /// Asks with `request` if nothing is there yet, then takes what came. After a refusal it asks again, later.
    pub fn advance(
        &mut self,
        request: impl FnOnce() -> Result<Pending<T>, AeronError>,
    ) -> Result<(), AeronError> {
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

    pub fn get(&mut self) -> Option<&mut T> {
        match self {
            Self::Ready(handle) => Some(handle),
            _ => None,
        }
    }
}
