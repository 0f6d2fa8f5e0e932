//! The conductor's ear and voice on the driver's control stream: attaches, keepalives, notices (driver §4.5).
//! Opened when an endpoint holds, or wants, a lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpool_core::driver_messages::Heard;

use crate::aeron::{Assembler, Client, NotTaken, Publication, Subscription};
use crate::announces::with_parameter;
use crate::conductor::{Endpoint, Tick};
use crate::handle::Handle;

/// Messages taken in one round; the rest waits for the next. Many: the stream is everybody's, and who falls
/// behind what the driver itself can read is put to rest, and misses its answer.
const LIMIT: usize = 4096;
/// How long an endpoint that closes tries to say so.
const FAREWELL: Duration = Duration::from_millis(20);

pub struct ControlPlane {
    channel: String,
    stream_id: i32,
    publication: Handle<Publication>,
    subscription: Handle<Subscription>,
    assembler: Option<Assembler>,
    arrivals: u64,
}

impl ControlPlane {
    pub fn new(channel: String, stream_id: i32) -> Self {
        let (publication, subscription) = (Handle::None, Handle::None);
        Self { channel, stream_id, publication, subscription, assembler: None, arrivals: 0 }
    }

    pub fn detach(&mut self) {
        self.publication = Handle::None;
        self.subscription = Handle::None;
        self.assembler = None;
    }

    /// Hears what the driver has said, and lets the endpoints act on it.
    pub fn hear(&mut self, client: &Client, endpoints: &[(u64, Arc<dyn Endpoint>)], tick: &Tick<'_>) {
        if !endpoints.iter().any(|(_, e)| e.wants_lease()) {
            return;
        }
        // A client that sleeps must not stall the driver's answers to the others.
        let channel = with_parameter(&self.channel, "tether=false");
        let _ = self.subscription.advance(|| client.add_subscription(&channel, self.stream_id));
        let _ = self.publication.advance(|| client.add_publication(&self.channel, self.stream_id));
        let Handle::There(subscription) = &mut self.subscription else { return };
        if self.assembler.is_none() {
            self.assembler = Assembler::new().ok();
        }
        let Some(assembler) = &mut self.assembler else { return };
        let mut heard = Vec::new();
        assembler.poll(subscription, LIMIT, |bytes, _| match Heard::decode(bytes) {
            Heard::Other | Heard::Malformed(_) => {}
            message => heard.push(message),
        });
        let arrivals = subscription.images().arrivals();
        let someone_came = std::mem::replace(&mut self.arrivals, arrivals) != arrivals;
        for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.wants_lease()) {
            if someone_came {
                endpoint.on_newcomer(tick);
            }
            for message in &heard {
                endpoint.on_driver(message, tick);
            }
        }
    }

    /// Says what the endpoints have to say to the driver.
    pub fn speak(&mut self, endpoints: &[(u64, Arc<dyn Endpoint>)], tick: &Tick<'_>) {
        // Who asks before it can hear would miss the answer.
        let (Handle::There(_), Handle::There(publication)) = (&self.subscription, &mut self.publication)
        else {
            return;
        };
        for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.wants_lease()) {
            endpoint.send_requests(tick, &mut |message| publication.offer(message).is_ok());
        }
    }

    /// The last word of an endpoint that closes. Nobody waits for an answer.
    pub fn say(&mut self, message: &[u8]) {
        let Handle::There(publication) = &mut self.publication else { return };
        let until = Instant::now() + FAREWELL;
        while let Err(NotTaken::BackPressured) = publication.offer(message)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
