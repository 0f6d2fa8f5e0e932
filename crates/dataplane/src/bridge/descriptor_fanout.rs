//! The descriptor streams of a sender's consumers, each read through one subscription for all of them. On the
//! sender's thread.

use std::collections::HashMap;
use std::sync::Arc;

use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::wire::descriptor::{Decoded, FrameDescriptor};

use crate::aeron::channels::untethered;
use crate::aeron::{AeronError, Client, Subscription};
use crate::conductor::handle::Handle;
use crate::consumer::Consumer;
use crate::descriptor_queue::DescriptorQueue;

struct FanoutConsumer {
    consumer: Arc<Consumer>,
    queue: Arc<DescriptorQueue>,
    is_connected: bool,
}

struct FanoutStream {
    channel: String,
    stream_id: i32,
    subscription: Handle<Subscription>,
    consumers: HashMap<u32, FanoutConsumer>,
}

#[derive(Default)]
pub(super) struct DescriptorFanout(Vec<FanoutStream>);

impl DescriptorFanout {
    /// From the next connect on, its descriptors come through the fanout.
    pub fn add(&mut self, consumer: Arc<Consumer>) {
        let (channel, stream_id) = consumer.descriptors_at();
        let at = self.0.iter().position(|e| (e.channel.as_str(), e.stream_id) == (channel, stream_id));
        let at = at.unwrap_or_else(|| {
            let (channel, subscription) = (channel.to_owned(), Handle::None);
            self.0.push(FanoutStream { channel, stream_id, subscription, consumers: HashMap::new() });
            self.0.len() - 1
        });
        let (key, queue) = (consumer.stream_id(), Arc::default());
        self.0[at].consumers.insert(key, FanoutConsumer { consumer, queue, is_connected: false });
    }

    /// Whether every subscription is ready.
    pub fn advance(&mut self, client: &Client) -> Result<bool, AeronError> {
        let mut all = true;
        for stream in &mut self.0 {
            stream
                .subscription
                .advance(|| client.add_subscription(&untethered(&stream.channel), stream.stream_id))?;
            if stream.subscription.get().is_none() {
                all = false;
                continue;
            }
            // Every descriptor published from here on comes to this subscription. Earlier ones are still on
            // the consumer's own.
            for entry in stream.consumers.values_mut().filter(|f| !f.is_connected) {
                entry.consumer.read_from_queue(entry.queue.clone());
                entry.is_connected = true;
            }
        }
        Ok(all)
    }

    pub fn disconnect(&mut self) {
        self.0.iter_mut().for_each(|stream| stream.subscription = Handle::None);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Queues descriptors for their consumers. Returns how many messages were consumed.
    #[inline]
    pub fn poll(&mut self, limit: usize) -> usize {
        let mut taken = 0;
        for FanoutStream { subscription, consumers, .. } in &mut self.0 {
            let Some(subscription) = subscription.get() else { continue };
            taken += subscription.poll(limit, |bytes, _| match FrameDescriptor::decode(bytes) {
                Decoded::Descriptor(descriptor) => {
                    if let Some(entry) = consumers.get(&descriptor.stream_id) {
                        entry.queue.push(descriptor);
                    }
                }
                Decoded::Malformed => {
                    consumers
                        .values()
                        .for_each(|entry| entry.consumer.counters().drops.add(DropReason::Malformed, 1));
                }
                Decoded::Other => {}
            });
        }
        taken
    }
}
