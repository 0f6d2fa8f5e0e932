//! An exclusive publication beside a shared one, on the same stream, for as long as it is needed.

use std::time::{Duration, Instant};

use crate::aeron::channels::with_parameter;
use crate::aeron::{AeronError, Client, ExclusivePublication, OfferError};
use crate::conductor::handle::Handle;

/// How long its memory stays in use after it was last needed.
const LINGER: Duration = Duration::from_secs(10);
/// How long it stays at most when a subscriber does not read it.
const MAX_LINGER: Duration = Duration::from_secs(20);
/// How long a shared publication is full before a client gets an exclusive one.
const FULL_FOR: Duration = Duration::from_millis(100);

/// Exists from the first `need` until it was not needed for a while.
#[derive(Default)]
pub struct OnDemandPublication {
    publication: Handle<ExclusivePublication>,
    needed_at: Option<Instant>,
}

impl OnDemandPublication {
    pub fn need(&mut self) {
        self.needed_at = Some(Instant::now());
    }

    pub fn is_needed(&self) -> bool {
        self.needed_at.is_some()
    }

    pub fn is_ready(&mut self) -> bool {
        self.publication.get().is_some()
    }

    /// Requests it while it is needed, with this term length, and removes it afterwards, when its subscribers
    /// have read it. Then what follows elsewhere is read after it.
    pub fn advance(
        &mut self,
        client: &Client,
        channel: &str,
        term: &str,
        stream_id: i32,
    ) -> Result<(), AeronError> {
        let Some(unneeded_for) = self.needed_at.map(|at| at.elapsed()) else { return Ok(()) };
        if unneeded_for > MAX_LINGER || (unneeded_for > LINGER && self.is_read()) {
            *self = Self::default();
            return Ok(());
        }
        self.publication
            .advance(|| client.add_exclusive_publication(&with_parameter(channel, term), stream_id))
    }

    pub fn disconnect(&mut self) {
        self.publication = Handle::None;
    }

    fn is_read(&mut self) -> bool {
        self.publication.get().is_none_or(|p| p.is_read())
    }

    /// Back-pressured until it is ready and its subscribers have it. One that Aeron has closed is requested
    /// again. A message that is longer than its terms allow is refused as from a closed one.
    pub fn offer(&mut self, message: &[u8]) -> Result<i64, OfferError> {
        let Some(publication) = self.publication.get() else { return Err(OfferError::BackPressured) };
        match publication.offer(message) {
            Err(OfferError::NotConnected) => Err(OfferError::BackPressured),
            Err(OfferError::Closed) if message.len() <= publication.max_message_length() => {
                self.publication = Handle::None;
                Err(OfferError::BackPressured)
            }
            result => result,
        }
    }
}

/// An exclusive publication instead of a shared one that other clients keep full: their flood must not stop the
/// messages of this client.
///
/// Clients of one media driver share the log of a shared publication. A client that offers without a pause
/// gets all of its space.
#[derive(Default)]
pub struct CongestionBypass {
    publication: OnDemandPublication,
    full_since: Option<Instant>,
}

impl CongestionBypass {
    /// Terms for messages of up to 32 KiB; longer ones wait for space in the shared publication.
    const TERM: &str = "term-length=256k";

    pub fn advance(&mut self, client: &Client, channel: &str, stream_id: i32) -> Result<(), AeronError> {
        self.publication.advance(client, channel, Self::TERM, stream_id)
    }

    pub fn disconnect(&mut self) {
        self.publication.disconnect();
        self.full_since = None;
    }

    /// Whether the subscribers have read what took the bypass.
    pub fn is_read(&mut self) -> bool {
        self.publication.is_read()
    }

    /// Offers to the shared publication, or to the exclusive one while that one is full for long.
    ///
    /// A message that takes the bypass may be read before earlier ones, which wait in the log of others, and a
    /// later one before it. So the messages of control streams must not depend on their order.
    pub fn offer(
        &mut self,
        message: &[u8],
        shared: impl FnOnce(&[u8]) -> Result<i64, OfferError>,
    ) -> Result<i64, OfferError> {
        match shared(message) {
            Err(OfferError::BackPressured) => {
                let since = *self.full_since.get_or_insert_with(Instant::now);
                if since.elapsed() < FULL_FOR && !self.publication.is_needed() {
                    return Err(OfferError::BackPressured);
                }
                self.publication.need();
                match self.publication.offer(message) {
                    // Longer than its terms allow: only the shared publication takes it.
                    Err(OfferError::Closed) => Err(OfferError::BackPressured),
                    result => result,
                }
            }
            result => {
                self.full_since = None;
                result
            }
        }
    }
}
