//! Message publications and subscriptions for Python roles, for everything that happens per second rather
//! than per frame.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::aeron::{AeronError, Assembler, Client, MessageSender, OfferError, Subscription};
use crate::conductor::Endpoint;
use crate::conductor::handle::Handle;

/// A shared publication that is added again after the loss of a media driver.
pub struct MessagePublication {
    channel: String,
    stream_id: i32,
    state: Mutex<MessageSender>,
    failure: Mutex<Option<AeronError>>,
    closed: AtomicBool,
}

impl MessagePublication {
    pub fn new(channel: String, stream_id: i32) -> Self {
        let (state, failure) = (Mutex::default(), Mutex::default());
        Self { channel, stream_id, state, failure, closed: AtomicBool::new(false) }
    }

    pub fn offer(&self, message: &[u8]) -> Result<i64, OfferError> {
        let Ok(mut state) = self.state.lock() else {
            return Err(OfferError::Closed);
        };
        if self.closed.load(Ordering::Relaxed) { Err(OfferError::Closed) } else { state.offer(message) }
    }

    pub fn is_connected(&self) -> bool {
        self.state.lock().is_ok_and(|mut s| s.is_connected())
    }

    pub fn is_ready(&self) -> bool {
        self.state.lock().is_ok_and(|mut s| s.is_ready())
    }

    /// Whether the subscribers leave room for a message. `None` while there is no publication.
    pub fn has_room(&self) -> Option<bool> {
        self.state.lock().ok()?.shared().map(|p| p.has_room())
    }

    /// The session and the end of the log. `None` while there is no publication.
    fn end(&self) -> Option<(i32, i64)> {
        let mut state = self.state.lock().ok()?;
        let publication = state.shared()?;
        Some((publication.session_id(), publication.position()?))
    }

    pub fn max_message_length(&self) -> Option<usize> {
        self.state.lock().ok()?.max_message_length()
    }

    /// Why the media driver refused the channel, if it did. It is asked again if it only had no space.
    pub fn failure(&self) -> Option<AeronError> {
        self.failure.lock().ok()?.clone()
    }
}

impl Endpoint for MessagePublication {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let Ok(mut state) = self.state.lock() else {
            return Ok(());
        };
        if self.failure().is_some_and(|e| !e.is_temporary()) {
            return Ok(());
        }
        let result = state.advance(client, &self.channel, self.stream_id);
        if state.is_ready()
            && let Ok(mut failure) = self.failure.lock()
        {
            *failure = None;
        }
        record_failure(&self.failure, result)
    }

    fn disconnect(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.disconnect();
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.disconnect();
    }
}

fn record_failure(
    failure: &Mutex<Option<AeronError>>,
    result: Result<(), AeronError>,
) -> Result<(), AeronError> {
    if let Err(error) = &result
        && (error.is_out_of_space() || !error.is_temporary())
        && let Ok(mut failure) = failure.lock()
    {
        *failure = Some(error.clone());
    }
    result
}

#[derive(Default)]
struct AssembledSubscription {
    subscription: Handle<Subscription>,
    assembler: Option<Assembler>,
}

/// A subscription that delivers complete messages of any size.
pub struct MessageSubscription {
    channel: String,
    stream_id: i32,
    assembled: Mutex<AssembledSubscription>,
    failure: Mutex<Option<AeronError>>,
}

impl MessageSubscription {
    pub fn new(channel: String, stream_id: i32) -> Self {
        Self { channel, stream_id, assembled: Mutex::default(), failure: Mutex::default() }
    }

    /// Passes complete messages of up to `limit` fragments to `f`.
    pub fn poll(&self, limit: usize, mut f: impl FnMut(&[u8])) -> usize {
        self.poll_images(limit, |bytes, _| f(bytes))
    }

    /// As `poll`, and passes the session id of each message's image.
    pub fn poll_images(&self, limit: usize, mut f: impl FnMut(&[u8], i32)) -> usize {
        let Ok(mut assembled) = self.assembled.lock() else {
            return 0;
        };
        let AssembledSubscription { subscription, assembler } = &mut *assembled;
        match (subscription.get(), assembler) {
            (Some(subscription), Some(assembler)) => {
                assembler.poll(subscription, limit, |bytes, header| f(bytes, header.session_id()))
            }
            _ => 0,
        }
    }

    /// Whether a message waits, without reading it.
    pub fn has_message(&self) -> bool {
        self.assembled.lock().is_ok_and(|mut e| e.subscription.get().is_some_and(Subscription::has_fragment))
    }

    pub fn is_connected(&self) -> bool {
        self.assembled.lock().is_ok_and(|mut e| e.subscription.get().is_some_and(|s| s.is_connected()))
    }

    pub fn is_ready(&self) -> bool {
        self.assembled.lock().is_ok_and(|mut e| e.subscription.get().is_some())
    }

    /// The bytes between what was read and the end of that publication's log: messages, and claims that
    /// are not committed. `None` while the two are not connected.
    pub fn lag_bytes(&self, publication: &MessagePublication) -> Option<u64> {
        let mut assembled = self.assembled.lock().ok()?;
        let subscription = assembled.subscription.get()?;
        let (session_id, _) = publication.end()?;
        // Read first: what is published in between is unread, and no lag is negative.
        let at = subscription.position(session_id)?;
        let (_, end) = publication.end()?;
        Some(end.saturating_sub(at).max(0) as u64)
    }

    pub fn failure(&self) -> Option<AeronError> {
        self.failure.lock().ok()?.clone()
    }
}

impl Endpoint for MessageSubscription {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let Ok(mut assembled) = self.assembled.lock() else {
            return Ok(());
        };
        if self.failure().is_some_and(|e| !e.is_temporary()) {
            return Ok(());
        }
        if assembled.assembler.is_none() {
            assembled.assembler = Some(Assembler::new()?);
        }
        let result =
            assembled.subscription.advance(|| client.add_subscription(&self.channel, self.stream_id));
        record_failure(&self.failure, result)
    }

    fn disconnect(&self) {
        if let Ok(mut assembled) = self.assembled.lock() {
            *assembled = AssembledSubscription::default();
        }
    }

    fn close(&self) {
        self.disconnect();
    }
}
