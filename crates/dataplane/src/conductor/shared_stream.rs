//! A stream that many speak and hear on: one shared publication and one untethered subscription, opened when
//! they are needed and given anew after a media driver's death.

use crate::aeron::channels::untethered;
use crate::aeron::{Assembler, Client, NotTaken, Publication, Subscription};
use crate::conductor::handle::Handle;

pub struct SharedStream {
    channel: String,
    stream_id: i32,
    publication: Handle<Publication>,
    subscription: Handle<Subscription>,
    assembler: Option<Assembler>,
    arrivals: u64,
}

impl SharedStream {
    pub fn new(channel: String, stream_id: i32) -> Self {
        let (publication, subscription) = (Handle::None, Handle::None);
        Self { channel, stream_id, publication, subscription, assembler: None, arrivals: 0 }
    }

    pub fn disconnect(&mut self) {
        self.publication = Handle::None;
        self.subscription = Handle::None;
        self.assembler = None;
    }

    /// Asks for both ends, and takes them as they come.
    pub fn open(&mut self, client: &Client) {
        // Whoever sleeps here must not stall those who speak.
        let _ =
            self.subscription.advance(|| client.add_subscription(&untethered(&self.channel), self.stream_id));
        let _ = self.publication.advance(|| client.add_publication(&self.channel, self.stream_id));
        if self.assembler.is_none() {
            self.assembler = Assembler::new().ok();
        }
    }

    /// Both ends are there: who asks before it can hear would miss the answer.
    pub fn is_open(&self) -> bool {
        matches!((&self.subscription, &self.publication), (Handle::Ready(_), Handle::Ready(_)))
    }

    /// Hands up to `limit` whole messages to `f`, our own among them.
    pub fn poll(&mut self, limit: usize, mut f: impl FnMut(&[u8])) {
        if let (Handle::Ready(subscription), Some(assembler)) = (&mut self.subscription, &mut self.assembler)
        {
            assembler.poll(subscription, limit, |bytes, _| f(bytes));
        }
    }

    /// Whether someone new has begun to speak since the last question.
    pub fn image_joined(&mut self) -> bool {
        let Handle::Ready(subscription) = &mut self.subscription else { return false };
        let arrivals = subscription.images().arrivals();
        std::mem::replace(&mut self.arrivals, arrivals) != arrivals
    }

    pub fn offer(&mut self, message: &[u8]) -> Result<i64, NotTaken> {
        self.publication.get().map_or(Err(NotTaken::Closed), |p| p.offer(message))
    }
}
