//! The conductor's publication and subscription of the announce stream (wire §10.1.1). Each is added when an
//! endpoint needs it.

use std::sync::Arc;

use tensorpool_core::wire::announce::{Decoded, PoolAnnounce};

use crate::aeron::channels::untethered;
use crate::aeron::{Assembler, Client, OfferError, Publication, Subscription};
use crate::conductor::handle::Handle;
use crate::conductor::{Endpoint, Tick};

/// Announces polled in one duty cycle. The rest waits for the next.
const LIMIT: usize = 256;
/// By then a subscriber whose client is not starved has seen our image.
const JOINED_AFTER_NS: u64 = 50_000_000;

pub struct AnnounceStream {
    channel: String,
    stream_id: i32,
    publication: Handle<Publication>,
    subscription: Handle<Subscription>,
    assembler: Option<Assembler>,
    malformed: u64,
    arrivals: u64,
    /// When all announces are repeated because a subscriber joined. 0 while there is none.
    repeat_at_ns: Option<u64>,
}

impl AnnounceStream {
    pub fn new(channel: String, stream_id: i32) -> Self {
        let (publication, subscription) = (Handle::None, Handle::None);
        Self {
            channel,
            stream_id,
            publication,
            subscription,
            assembler: None,
            malformed: 0,
            arrivals: 0,
            repeat_at_ns: Some(0),
        }
    }

    pub fn disconnect(&mut self) {
        self.publication = Handle::None;
        self.repeat_at_ns = Some(0);
        self.subscription = Handle::None;
        self.assembler = None;
    }

    pub fn work(&mut self, client: &Client, endpoints: &[(u64, Arc<dyn Endpoint>)], tick: &Tick<'_>) {
        if endpoints.iter().any(|(_, e)| e.receives_announces()) {
            self.receive(client, endpoints, tick);
        }
        if endpoints.iter().any(|(_, e)| e.sends_announces()) {
            self.send(client, endpoints, tick);
        }
    }

    fn receive(&mut self, client: &Client, endpoints: &[(u64, Arc<dyn Endpoint>)], tick: &Tick<'_>) {
        // Untethered: one subscriber that does not poll must not delay those who announce.
        let _ =
            self.subscription.advance(|| client.add_subscription(&untethered(&self.channel), self.stream_id));
        let Handle::Ready(subscription) = &mut self.subscription else {
            return;
        };
        if self.assembler.is_none() {
            self.assembler = Assembler::new().ok();
        }
        let Some(assembler) = &mut self.assembler else {
            return;
        };
        let mut announces = Vec::new();
        assembler.poll(subscription, LIMIT, |bytes, header| match PoolAnnounce::decode(bytes) {
            Decoded::Announce(announce) => announces.push((announce, header.session_id())),
            Decoded::Malformed(_) => self.malformed += 1,
            Decoded::Other => {}
        });
        // The subscription is new, or another image joined: our own producers announce at once.
        let arrivals = subscription.images().arrivals();
        if std::mem::replace(&mut self.arrivals, arrivals) != arrivals {
            endpoints.iter().for_each(|(_, e)| e.announce_now());
        }
        for (announce, session) in announces {
            let join_ns = subscription.images().joined_ns(session).unwrap_or(0);
            for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.receives_announces()) {
                endpoint.on_announce(&announce, join_ns, tick);
            }
        }
    }

    fn send(&mut self, client: &Client, endpoints: &[(u64, Arc<dyn Endpoint>)], tick: &Tick<'_>) {
        let _ = self.publication.advance(|| client.add_publication(&self.channel, self.stream_id));
        let Some(publication) = self.publication.get() else {
            return;
        };
        // No subscriber: all announces stay due, and the first subscriber gets them.
        if !publication.is_connected() {
            self.repeat_at_ns = Some(0);
            return;
        }
        let now_ns = tick.now.monotonic_ns;
        if self.repeat_at_ns.is_some_and(|at| at <= now_ns) {
            endpoints.iter().for_each(|(_, e)| e.announce_now());
            // We see the subscriber before it sees our image, and it takes the first announces for a replay.
            // So they are repeated.
            self.repeat_at_ns = (self.repeat_at_ns == Some(0)).then_some(now_ns + JOINED_AFTER_NS);
        }
        for (_, endpoint) in endpoints {
            endpoint.send_announces(tick.now, &mut |message| match publication.offer(message) {
                Err(OfferError::BackPressured | OfferError::NotConnected) => false,
                // Repeating it at once would not help, and must not delay the others.
                Ok(_) | Err(OfferError::Closed) => true,
            });
        }
    }
}
