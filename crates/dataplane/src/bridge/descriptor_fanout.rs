//! The descriptor streams that a sender's consumers read, each through one subscription for all of them.

use std::collections::HashMap;
use std::sync::Arc;

use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::wire::descriptor::{Decoded, FrameDescriptor};

use crate::aeron::channels::untethered;
use crate::aeron::{AeronError, Client, Subscription};
use crate::conductor::handle::Handle;
use crate::consumer::Consumer;
use crate::descriptor_queue::Feed;

struct Fed {
    consumer: Arc<Consumer>,
    feed: Arc<Feed>,
    is_fed: bool,
}

struct Ear {
    channel: String,
    stream_id: i32,
    subscription: Handle<Subscription>,
    fed: HashMap<u32, Fed>,
}

#[derive(Default)]
pub(super) struct Ears(Vec<Ear>);

impl Ears {
    /// From the next attach on its descriptors come through an ear.
    pub fn add(&mut self, consumer: Arc<Consumer>) {
        let (channel, stream_id) = consumer.descriptors_at();
        let at = self.0.iter().position(|e| (e.channel.as_str(), e.stream_id) == (channel, stream_id));
        let at = at.unwrap_or_else(|| {
            let (channel, subscription) = (channel.to_owned(), Handle::None);
            self.0.push(Ear { channel, stream_id, subscription, fed: HashMap::new() });
            self.0.len() - 1
        });
        let (key, feed) = (consumer.stream_id(), Arc::default());
        self.0[at].fed.insert(key, Fed { consumer, feed, is_fed: false });
    }

    /// Whether every ear is there.
    pub fn advance(&mut self, client: &Client) -> Result<bool, AeronError> {
        let mut all = true;
        for ear in &mut self.0 {
            ear.subscription.advance(|| client.add_subscription(&untethered(&ear.channel), ear.stream_id))?;
            if ear.subscription.get().is_none() {
                all = false;
                continue;
            }
            // All that is published from here on comes to the ear; what was before, the consumer still has.
            for fed in ear.fed.values_mut().filter(|f| !f.is_fed) {
                fed.consumer.feed_from(fed.feed.clone());
                fed.is_fed = true;
            }
        }
        Ok(all)
    }

    pub fn disconnect(&mut self) {
        self.0.iter_mut().for_each(|ear| ear.subscription = Handle::None);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Hands descriptors to those they are for. Returns how many messages were taken.
    #[inline]
    pub fn listen(&mut self, limit: usize) -> usize {
        let mut taken = 0;
        for Ear { subscription, fed, .. } in &mut self.0 {
            let Some(subscription) = subscription.get() else { continue };
            taken += subscription.poll(limit, |bytes, _| match FrameDescriptor::decode(bytes) {
                Decoded::Descriptor(descriptor) => {
                    if let Some(one) = fed.get(&descriptor.stream_id) {
                        one.feed.push(descriptor);
                    }
                }
                Decoded::Malformed => {
                    fed.values().for_each(|one| one.consumer.counters().drops.add(DropReason::Malformed, 1));
                }
                Decoded::Other => {}
            });
        }
        taken
    }
}
