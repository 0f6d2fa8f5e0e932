//! A stream that many endpoints share: one publication and one untethered subscription, added when needed and
//! again after the loss of a media driver.

use crate::aeron::channels::untethered;
use crate::aeron::{Assembler, Client, CongestionBypass, OfferError, Publication, Subscription};
use crate::conductor::handle::Handle;

pub struct SharedStream {
    channel: String,
    stream_id: i32,
    publication: Handle<Publication>,
    bypass: CongestionBypass,
    subscription: Handle<Subscription>,
    assembler: Option<Assembler>,
    arrivals: u64,
}

impl SharedStream {
    pub fn new(channel: String, stream_id: i32) -> Self {
        let (publication, subscription) = (Handle::None, Handle::None);
        let bypass = CongestionBypass::default();
        Self { channel, stream_id, publication, bypass, subscription, assembler: None, arrivals: 0 }
    }

    pub fn disconnect(&mut self) {
        self.publication = Handle::None;
        self.bypass.disconnect();
        self.subscription = Handle::None;
        self.assembler = None;
    }

    /// Requests both, and stores them once they are ready.
    pub fn open(&mut self, client: &Client) {
        // Untethered: a subscriber that does not poll must not delay the publications.
        let _ =
            self.subscription.advance(|| client.add_subscription(&untethered(&self.channel), self.stream_id));
        let _ = self.publication.advance(|| client.add_publication(&self.channel, self.stream_id));
        let _ = self.bypass.advance(client, &self.channel, self.stream_id);
        if self.assembler.is_none() {
            self.assembler = Assembler::new().ok();
        }
    }

    /// Both are ready: a request sent before the subscription is ready would miss its response.
    pub fn is_open(&self) -> bool {
        matches!((&self.subscription, &self.publication), (Handle::Ready(_), Handle::Ready(_)))
    }

    /// Passes up to `limit` complete messages to `f`, our own included.
    pub fn poll(&mut self, limit: usize, mut f: impl FnMut(&[u8])) {
        if let (Handle::Ready(subscription), Some(assembler)) = (&mut self.subscription, &mut self.assembler)
        {
            assembler.poll(subscription, limit, |bytes, _| f(bytes));
        }
    }

    /// Whether a new image joined since the last call.
    pub fn image_joined(&mut self) -> bool {
        let Handle::Ready(subscription) = &mut self.subscription else { return false };
        let arrivals = subscription.images().arrivals();
        std::mem::replace(&mut self.arrivals, arrivals) != arrivals
    }

    pub fn offer(&mut self, message: &[u8]) -> Result<i64, OfferError> {
        let Some(publication) = self.publication.get() else { return Err(OfferError::Closed) };
        self.bypass.offer(message, |bytes| publication.offer(bytes))
    }
}
