//! Sender of messages of any size on one stream: a shared publication with short terms, and for a message that
//! does not fit it an exclusive one with long terms, while there are such messages.
//!
//! A log buffer takes three terms of memory, whatever passes through it, and a message has an eighth of a term
//! at most. Most streams never carry a large message, so they should not all pay for one. Subscribers read both
//! publications, because both are on the same stream. While there is a second one, all messages take it, and at
//! each change the next message waits until the subscribers of this host have read the earlier ones: so their
//! order stays.

use std::time::{Duration, Instant};

use crate::aeron::channels::has_parameter;
use crate::aeron::on_demand_publication::{CongestionBypass, OnDemandPublication};
use crate::aeron::{AeronError, Client, OfferError, Publication};
use crate::conductor::handle::Handle;

/// Terms of the publication for large messages: 12 MiB of memory, messages of up to 512 KiB.
const LARGE_TERM: &str = "term-length=4m";
/// The longest message.
const MAX_MESSAGE_BYTES: usize = (4 << 20) / 8;

/// How long a large message waits for subscribers to read what was sent before. One that reads nothing for this long
/// may read it first.
const MAX_ORDER_WAIT: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct MessageSender {
    shared: Handle<Publication>,
    large: OnDemandPublication,
    bypass: CongestionBypass,
    /// The caller's channel has a term length of its own, which holds for all messages.
    has_own_terms: bool,
    /// The end of our last message in the shared publication, until the subscribers have read it.
    unread: Option<i64>,
    /// A message took the bypass, and the subscribers have not read it.
    has_unread_bypass: bool,
    /// Since when a large message waits for that.
    waits_since: Option<Instant>,
}

impl MessageSender {
    /// Requests what is needed, and stores it once it is ready.
    pub fn advance(&mut self, client: &Client, channel: &str, stream_id: i32) -> Result<(), AeronError> {
        self.has_own_terms = has_parameter(channel, "term-length");
        self.shared.advance(|| client.add_publication(channel, stream_id))?;
        let others = self
            .bypass
            .advance(client, channel, stream_id)
            .and_then(|()| self.large.advance(client, channel, LARGE_TERM, stream_id));
        // Without the others small messages still pass: only a failure of the shared one is permanent.
        others.or_else(|error| if error.is_temporary() { Err(error) } else { Ok(()) })
    }

    pub fn disconnect(&mut self) {
        self.shared = Handle::None;
        self.large.disconnect();
        self.bypass.disconnect();
        self.forget_unread();
    }

    /// The publication that all clients of the channel share. `None` while there is none.
    pub fn shared(&mut self) -> Option<&mut Publication> {
        self.shared.get()
    }

    pub fn is_ready(&mut self) -> bool {
        self.shared.get().is_some()
    }

    pub fn is_connected(&mut self) -> bool {
        self.shared.get().is_some_and(|p| p.is_connected())
    }

    /// The longest message. `None` while there is no publication.
    pub fn max_message_length(&mut self) -> Option<usize> {
        let shared = self.shared.get()?.max_message_length();
        Some(if self.has_own_terms { shared } else { shared.max(MAX_MESSAGE_BYTES) })
    }

    fn forget_unread(&mut self) {
        (self.unread, self.has_unread_bypass, self.waits_since) = (None, false, None);
    }

    /// Whether the subscribers have read what we sent through the shared publication, and past it.
    fn earlier_is_read(&mut self) -> bool {
        if self.unread.is_none() && !self.has_unread_bypass {
            return true;
        }
        let waits_since = *self.waits_since.get_or_insert_with(Instant::now);
        let Self { shared, bypass, unread, has_unread_bypass, .. } = self;
        let shared_is_read = unread.zip(shared.get()).is_none_or(|(end, shared)| shared.is_read_to(end));
        let is_read = shared_is_read && (!*has_unread_bypass || bypass.is_read());
        if is_read || waits_since.elapsed() > MAX_ORDER_WAIT {
            self.forget_unread();
            return true;
        }
        false
    }

    fn offer_shared(&mut self, message: &[u8]) -> Result<i64, OfferError> {
        let Self { shared, bypass, unread, has_unread_bypass, .. } = self;
        let Some(shared) = shared.get() else { return Err(OfferError::NotConnected) };
        let mut took_bypass = true;
        let result = bypass.offer(message, |bytes| {
            let offered = shared.offer(bytes).inspect(|end| *unread = Some(*end));
            took_bypass = offered.is_err();
            offered
        });
        *has_unread_bypass |= took_bypass && result.is_ok();
        result
    }

    /// The first large message is back-pressured until its publication is ready, and the subscribers have read
    /// the messages before it.
    pub fn offer(&mut self, message: &[u8]) -> Result<i64, OfferError> {
        let Some(max) = self.max_message_length() else { return Err(OfferError::NotConnected) };
        let Some(shared) = self.shared.get() else { return Err(OfferError::NotConnected) };
        let is_large = message.len() > shared.max_message_length();
        if message.len() > max || !(is_large || self.large.is_ready()) {
            return self.offer_shared(message);
        }
        if !shared.is_connected() {
            return Err(OfferError::NotConnected);
        }
        if is_large {
            self.large.need();
        }
        match self.earlier_is_read() {
            true => self.large.offer(message),
            false if is_large => Err(OfferError::BackPressured),
            false => self.offer_shared(message),
        }
    }
}
