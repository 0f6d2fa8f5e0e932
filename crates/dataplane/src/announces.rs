//! The conductor's ear and voice on the announce stream. Each is opened when an endpoint needs it.

use std::sync::Arc;

use tensorpool_core::announce::{PoolAnnounce, Seen};

use crate::aeron::{Assembler, Client, Publication, Subscription};
use crate::conductor::{Endpoint, Tick};
use crate::handle::Handle;

/// Announces taken in one round; the rest waits for the next.
const LIMIT: usize = 256;

pub struct Announces {
    channel: String,
    stream_id: i32,
    publication: Handle<Publication>,
    subscription: Handle<Subscription>,
    assembler: Option<Assembler>,
    malformed: u64,
    arrivals: u64,
}

impl Announces {
    pub fn new(channel: String, stream_id: i32) -> Self {
        let (publication, subscription) = (Handle::None, Handle::None);
        Self { channel, stream_id, publication, subscription, assembler: None, malformed: 0, arrivals: 0 }
    }

    pub fn detach(&mut self) {
        self.publication = Handle::None;
        self.subscription = Handle::None;
        self.assembler = None;
    }

    pub fn work(&mut self, client: &Client, endpoints: &[(u64, Arc<dyn Endpoint>)], tick: &Tick<'_>) {
        if endpoints.iter().any(|(_, e)| e.hears_announces()) {
            self.hear(client, endpoints, tick);
        }
        if endpoints.iter().any(|(_, e)| e.sends_announces()) {
            self.speak(client, endpoints, tick);
        }
    }

    fn hear(&mut self, client: &Client, endpoints: &[(u64, Arc<dyn Endpoint>)], tick: &Tick<'_>) {
        // One reader that sleeps must not stall those who announce.
        let channel = with_parameter(&self.channel, "tether=false");
        let _ = self.subscription.advance(|| client.add_subscription(&channel, self.stream_id));
        let Handle::There(subscription) = &mut self.subscription else {
            return;
        };
        if self.assembler.is_none() {
            self.assembler = Assembler::new().ok();
        }
        let Some(assembler) = &mut self.assembler else {
            return;
        };
        let mut heard = Vec::new();
        assembler.poll(subscription, LIMIT, |bytes, header| match PoolAnnounce::decode(bytes) {
            Seen::Announce(announce) => heard.push((announce, header.session_id())),
            Seen::Malformed(_) => self.malformed += 1,
            Seen::Other => {}
        });
        // The ear has just opened, or someone new speaks: our own producers need not wait for their turn.
        let arrivals = subscription.images().arrivals();
        if std::mem::replace(&mut self.arrivals, arrivals) != arrivals {
            endpoints.iter().for_each(|(_, e)| e.announce_soon());
        }
        for (announce, session) in heard {
            let join_ns = subscription.images().joined_ns(session).unwrap_or(0);
            for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.hears_announces()) {
                endpoint.on_announce(&announce, join_ns, tick);
            }
        }
    }

    fn speak(&mut self, client: &Client, endpoints: &[(u64, Arc<dyn Endpoint>)], tick: &Tick<'_>) {
        let _ = self.publication.advance(|| client.add_publication(&self.channel, self.stream_id));
        let Some(publication) = self.publication.get() else {
            return;
        };
        for (_, endpoint) in endpoints {
            if let Some(message) = endpoint.due_announce(tick.now) {
                // Soft state: what is not heard now is said again next period.
                let _ = publication.offer(&message);
            }
        }
    }
}

/// Adds `key=value` to a channel unless the key is named already.
pub fn with_parameter(channel: &str, parameter: &str) -> String {
    let key = parameter.split('=').next().unwrap_or(parameter);
    let names = channel.split_once('?').map_or("", |(_, names)| names);
    if names.split('|').any(|p| p.split('=').next() == Some(key)) {
        return channel.to_owned();
    }
    let separator = if names.is_empty() && !channel.contains('?') { '?' } else { '|' };
    format!("{channel}{separator}{parameter}")
}

#[cfg(test)]
mod tests {
    use super::with_parameter;

    #[test]
    fn a_parameter_is_added_once() {
        assert_eq!(with_parameter("aeron:ipc", "tether=false"), "aeron:ipc?tether=false");
        assert_eq!(with_parameter("aeron:ipc?mtu=8k", "tether=false"), "aeron:ipc?mtu=8k|tether=false");
        assert_eq!(with_parameter("aeron:ipc?tether=true", "tether=false"), "aeron:ipc?tether=true");
    }
}
