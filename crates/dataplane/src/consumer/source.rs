//! Where a consumer's descriptors come from: the shared stream, a fanout's queue, or a per-consumer stream
//! (wire §5). A change of streams drains the previous one, so that no frame is lost in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpool_core::wire::hello::StreamAddress;

use crate::aeron::channels::untethered;
use crate::aeron::{AeronError, Client, Subscription};
use crate::conductor::handle::Handle;
use crate::descriptor_queue::DescriptorQueue;

/// How long an earlier stream is drained at most: a slow reader would never reach its end.
const DRAIN_FOR: Duration = Duration::from_secs(1);

pub(crate) struct Draining {
    pub(crate) subscription: Subscription,
    pub(crate) until: Instant,
}

/// The stream that is read, the one before it, and the one to come.
#[derive(Default)]
pub(crate) struct Source {
    pub(crate) subscription: Handle<Subscription>,
    /// The previous stream, until it is empty, so that no frame is lost in the change.
    pub(crate) draining: Option<Draining>,
    /// The granted per-consumer stream, and its subscription until it is connected.
    granted_address: Option<StreamAddress>,
    per_consumer: Handle<Subscription>,
    pub(crate) on_per_consumer: bool,
    /// A fanout reads the descriptor stream and queues our descriptors here.
    pub(crate) queue: Option<Arc<DescriptorQueue>>,
    departures: u64,
    /// The session of this stream's descriptors, and when its image joined.
    pub(crate) image: Option<(i32, Option<u64>)>,
}

/// What became of a per-consumer stream that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// Nothing is granted, or the move was made before.
    Settled,
    /// It is not connected yet.
    Connecting,
    /// Its descriptors are read from here on. `overlaps`: the other stream was not drained.
    Moved { overlaps: bool },
}

impl Source {
    /// Subscribes to the shared stream, unless something is read already.
    pub(crate) fn subscribe(
        &mut self,
        client: &Client,
        channel: &str,
        stream_id: i32,
    ) -> Result<(), AeronError> {
        if self.subscription.get().is_none() && self.queue.is_none() {
            let channel = untethered(channel);
            self.subscription.advance(|| client.add_subscription(&channel, stream_id))?;
            (self.departures, self.image) = (0, None);
        }
        Ok(())
    }

    pub(crate) fn is_ready(&mut self) -> bool {
        self.queue.is_some() || self.subscription.get().is_some()
    }

    pub(crate) fn has_descriptors(&mut self) -> bool {
        self.draining.is_some()
            || self.queue.as_ref().is_some_and(|queue| !queue.is_empty())
            || self.subscription.get().is_some_and(Subscription::has_fragment)
    }

    /// The producer granted a per-consumer stream, or none any more. True if the stream that is read changes.
    pub(crate) fn on_granted(&mut self, address: Option<StreamAddress>) -> bool {
        self.per_consumer = Handle::None;
        let is_released = address.is_none() && self.on_per_consumer;
        if is_released {
            // Back to the shared stream, which is requested again.
            self.subscription = Handle::None;
            (self.draining, self.on_per_consumer) = (None, false);
        }
        self.granted_address = address;
        is_released
    }

    /// Moves to the per-consumer stream once it is connected. `limited`: the consumer asked for fewer frames,
    /// so descriptors that wait on the other stream are left there.
    pub(crate) fn move_to_per_consumer(
        &mut self,
        client: &Client,
        limited: bool,
    ) -> Result<Move, AeronError> {
        let Some(address) = self.granted_address.clone().filter(|_| !self.on_per_consumer) else {
            return Ok(Move::Settled);
        };
        self.per_consumer
            .advance(|| client.add_subscription(&untethered(&address.channel), address.stream_id as i32))?;
        // Connected: every descriptor published from here on comes on it.
        if !self.per_consumer.get().is_some_and(|s| s.is_connected()) {
            return Ok(Move::Connecting);
        }
        let before = std::mem::replace(&mut self.subscription, std::mem::take(&mut self.per_consumer));
        if limited {
            self.image = None;
        } else if let Handle::Ready(before) = before {
            self.drain_first(before);
        }
        (self.on_per_consumer, self.departures) = (true, 0);
        Ok(Move::Moved { overlaps: limited })
    }

    /// A fanout reads the shared stream from here on. Descriptors that wait on our own subscription are read
    /// first.
    pub(crate) fn on_queue(&mut self, queue: Arc<DescriptorQueue>) {
        if !self.on_per_consumer
            && let Handle::Ready(before) = std::mem::take(&mut self.subscription)
        {
            self.drain_first(before);
        }
        self.queue = Some(queue);
    }

    /// The media driver is gone, and every stream and grant with it.
    pub(crate) fn on_disconnected(&mut self) {
        (self.subscription, self.per_consumer) = (Handle::None, Handle::None);
        (self.draining, self.on_per_consumer, self.granted_address) = (None, false, None);
    }

    pub(crate) fn close(&mut self) {
        (self.subscription, self.per_consumer, self.draining) = (Handle::None, Handle::None, None);
    }

    fn drain_first(&mut self, before: Subscription) {
        self.draining = Some(Draining { subscription: before, until: Instant::now() + DRAIN_FOR });
    }

    /// Ends the draining of the previous stream once it is empty or too slow. True if it ended: the new stream
    /// has all descriptors since it was connected.
    pub(crate) fn is_drained(&mut self) -> bool {
        let Some(before) = &mut self.draining else { return false };
        if before.subscription.has_fragment() && Instant::now() < before.until {
            return false;
        }
        (self.draining, self.image) = (None, None);
        true
    }

    /// Whether the media driver rested this subscription. The stream is shared: only the departure of our own
    /// producer's image means that.
    #[inline]
    pub(crate) fn was_rested(&mut self) -> bool {
        let Some(subscription) = self.subscription.get() else { return false };
        let images = subscription.images();
        let departures = images.departures();
        if departures == self.departures {
            return false;
        }
        self.departures = departures;
        let is_gone = self.image.is_some_and(|(session, joined)| images.joined_ns(session) != joined);
        if is_gone {
            self.image = None;
        }
        is_gone
    }
}
