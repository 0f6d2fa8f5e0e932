//! The way of an Aeron handle from asked for to there.

use crate::aeron::{AeronError, Pending};

/// A handle on its way from not wanted to there.
#[derive(Default)]
pub enum Handle<T> {
    #[default]
    None,
    Asked(Pending<T>),
    There(T),
}

impl<T: 'static> Handle<T> {
    /// Asks with `ask` if nothing is there yet, then takes what came. A refusal is asked again.
    pub fn advance(
        &mut self,
        ask: impl FnOnce() -> Result<Pending<T>, AeronError>,
    ) -> Result<(), AeronError> {
        if let Self::None = self {
            *self = Self::Asked(ask()?);
        }
        if let Self::Asked(pending) = self {
            match pending.poll() {
                Ok(None) => {}
                Ok(Some(made)) => *self = Self::There(made),
                Err(error) => {
                    *self = Self::None;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub fn get(&mut self) -> Option<&mut T> {
        match self {
            Self::There(handle) => Some(handle),
            _ => None,
        }
    }
}
