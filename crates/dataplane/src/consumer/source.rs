//! Where a consumer's descriptors come from, as explicit states: the shared stream, a fanout's queue, a
//! per-consumer stream (wire §5), or a fallback (wire §15.12).
//!
//! A change of streams drains the previous one first, so that no descriptor is lost in it. Each event has a
//! transition of its name. They are generic over the stream, so that a property test drives them without
//! Aeron.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpool_core::wire::hello::StreamAddress;

use crate::aeron::channels::untethered;
use crate::aeron::{AeronError, Client, Header, Subscription};
use crate::bridge::PrivateRing;
use crate::conductor::handle::Handle;
use crate::descriptor_queue::DescriptorQueue;

/// How long an earlier stream is drained at most: a slow reader would never reach its end.
const DRAIN_FOR: Duration = Duration::from_secs(1);

/// Earlier streams that are drained at most. Configs that come faster than polls must not pile up streams.
pub(crate) const MAX_DRAINING: usize = 2;

/// A subscription, as far as a source needs it. A stream that is dropped is closed.
pub(crate) trait Stream: 'static {
    type Header: Copy;

    fn is_connected(&self) -> bool;
    /// Whether a fragment waits, without consuming it.
    fn has_fragment(&mut self) -> bool;
    /// Passes up to `limit` fragments to `f` until it returns false. That fragment is consumed too.
    fn poll_while<F: FnMut(&[u8], Self::Header) -> bool>(&mut self, limit: usize, f: F) -> usize;
    /// Consumes up to `limit` fragments of each image, while `f` returns true. Returns how many images there are.
    fn skip_while<F: FnMut(&[u8]) -> bool>(&mut self, limit: usize, f: F) -> usize;
    fn session_id(header: Self::Header) -> i32;
    /// How many images left so far.
    fn departures(&self) -> u64;
    /// When the image of a session joined. `None`: there is no such image.
    fn joined_ns(&self, session_id: i32) -> Option<u64>;
}

impl Stream for Subscription {
    type Header = Header;

    #[inline]
    fn is_connected(&self) -> bool {
        Subscription::is_connected(self)
    }

    #[inline]
    fn has_fragment(&mut self) -> bool {
        Subscription::has_fragment(self)
    }

    #[inline]
    fn poll_while<F: FnMut(&[u8], Header) -> bool>(&mut self, limit: usize, f: F) -> usize {
        Subscription::poll_while(self, limit, f)
    }

    fn skip_while<F: FnMut(&[u8]) -> bool>(&mut self, limit: usize, f: F) -> usize {
        Subscription::skip_while(self, limit, f)
    }

    #[inline]
    fn session_id(header: Header) -> i32 {
        header.session_id()
    }

    #[inline]
    fn departures(&self) -> u64 {
        self.images().departures()
    }

    fn joined_ns(&self, session_id: i32) -> Option<u64> {
        self.images().joined_ns(session_id)
    }
}

/// A stream, and the image that its descriptors come from.
pub(crate) struct WatchedStream<S> {
    pub(crate) stream: S,
    departures: u64,
    /// The session of this stream's descriptors, and when its image joined.
    image: Option<(i32, Option<u64>)>,
}

impl<S: Stream> WatchedStream<S> {
    fn new(stream: S) -> Self {
        Self { stream, departures: 0, image: None }
    }

    /// Passes up to `limit` fragments to `f` until it returns `Stop`. `f` also returns whether the fragment
    /// was a descriptor of the consumer's own stream.
    #[inline]
    pub(crate) fn poll(&mut self, limit: usize, mut f: impl FnMut(&[u8]) -> PolledFragment) -> usize {
        let Self { stream, image, .. } = self;
        let taken = stream.poll_while(limit, |bytes, header| {
            let polled = f(bytes);
            if polled.is_ours && image.is_none() {
                *image = Some((S::session_id(header), None));
            }
            polled.continues
        });
        if let Some((session, joined @ None)) = image {
            *joined = stream.joined_ns(*session);
        }
        taken
    }

    /// Whether the media driver rested this subscription. The stream is shared: only the departure of our own
    /// producer's image means that.
    #[inline]
    pub(crate) fn was_rested(&mut self) -> bool {
        let departures = self.stream.departures();
        if departures == self.departures {
            return false;
        }
        self.departures = departures;
        let is_gone = self.image.is_some_and(|(session, joined)| self.stream.joined_ns(session) != joined);
        if is_gone {
            self.image = None;
        }
        is_gone
    }
}

/// What a fragment was, and whether the poll continues.
#[derive(Clone, Copy)]
pub(crate) struct PolledFragment {
    pub(crate) is_ours: bool,
    pub(crate) continues: bool,
}

/// Where descriptors are read.
pub(crate) enum DescriptorSource<S> {
    /// The shared stream is requested, and nothing is read.
    Opening(Handle<S>),
    Shared(WatchedStream<S>),
    /// A fanout reads the shared stream and queues our descriptors here.
    Queue(Arc<DescriptorQueue>),
    /// The stream that the producer granted. `queue`: what is read after it, in place of the shared stream.
    PerConsumer {
        stream: WatchedStream<S>,
        queue: Option<Arc<DescriptorQueue>>,
    },
    /// The consumer is closed. Nothing opens it again.
    Closed,
}

impl<S: Stream> DescriptorSource<S> {
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Shared(_) | Self::Queue(_) | Self::PerConsumer { .. })
    }

    /// The stream that is polled. `None` for a queue, and while there is none.
    #[inline]
    pub(crate) fn stream(&mut self) -> Option<&mut WatchedStream<S>> {
        match self {
            Self::Shared(stream) | Self::PerConsumer { stream, .. } => Some(stream),
            Self::Opening(_) | Self::Queue(_) | Self::Closed => None,
        }
    }

    fn has_descriptors(&mut self) -> bool {
        match self {
            Self::Shared(stream) | Self::PerConsumer { stream, .. } => stream.stream.has_fragment(),
            Self::Queue(queue) => !queue.is_empty(),
            Self::Opening(_) | Self::Closed => false,
        }
    }

    /// What is read without a grant. The queue of a fanout outlives every stream.
    fn without_streams(self) -> Self {
        match self {
            Self::Queue(queue) | Self::PerConsumer { queue: Some(queue), .. } => Self::Queue(queue),
            Self::Closed => Self::Closed,
            _ => Self::Opening(Handle::None),
        }
    }
}

/// A source that is read before the current one, until it is empty.
pub(crate) struct Draining<S> {
    pub(crate) from: DescriptorSource<S>,
    pub(crate) until: Instant,
}

/// A granted stream until it is connected.
struct Connecting<S> {
    address: StreamAddress,
    handle: Handle<S>,
}

/// Whether descriptors that were read before may come again from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the reader has to know that descriptors come again"]
pub(crate) enum DescriptorOrder {
    /// The same source as before, or the previous one is drained first.
    InOrder,
    Overlaps,
}

impl DescriptorOrder {
    pub(crate) fn overlaps(self) -> bool {
        self == Self::Overlaps
    }
}

/// What became of a per-consumer stream that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamMove {
    /// Nothing is granted, or the move was made before.
    Settled,
    /// It is not connected yet.
    Connecting,
    /// Its descriptors are read from here on.
    Moved(DescriptorOrder),
}

/// The source that is read, those to drain before it, the one to come, and the fallback above them all.
pub(crate) struct ConsumerSource<S> {
    pub(crate) current: DescriptorSource<S>,
    /// Oldest first. The current source is not read before this is empty.
    pub(crate) draining: VecDeque<Draining<S>>,
    next: Option<Connecting<S>>,
    /// Frames are read from this ring instead. Changes of the source continue below it.
    pub(crate) fallback: Option<Arc<PrivateRing>>,
}

impl<S> Default for ConsumerSource<S> {
    fn default() -> Self {
        let current = DescriptorSource::Opening(Handle::None);
        Self { current, draining: VecDeque::with_capacity(MAX_DRAINING), next: None, fallback: None }
    }
}

impl ConsumerSource<Subscription> {
    /// Requests the shared stream, unless something is read already.
    pub(crate) fn subscribe(
        &mut self,
        client: &Client,
        channel: &str,
        stream_id: i32,
    ) -> Result<(), AeronError> {
        if let DescriptorSource::Opening(handle) = &mut self.current {
            let channel = untethered(channel);
            handle.advance(|| client.add_subscription(&channel, stream_id))?;
            if let Some(stream) = handle.take() {
                self.on_subscribed(stream);
            }
        }
        Ok(())
    }

    /// Requests the granted stream, and moves to it once it is connected. `limited`: as for `on_connected`.
    pub(crate) fn move_to_granted(
        &mut self,
        client: &Client,
        limited: bool,
    ) -> Result<StreamMove, AeronError> {
        let Some(Connecting { address, handle }) = &mut self.next else { return Ok(StreamMove::Settled) };
        handle
            .advance(|| client.add_subscription(&untethered(&address.channel), address.stream_id as i32))?;
        // Connected: every descriptor published from here on comes on it.
        if !handle.get().is_some_and(|stream| stream.is_connected()) {
            return Ok(StreamMove::Connecting);
        }
        let stream = handle.take();
        Ok(stream
            .map_or(StreamMove::Connecting, |stream| StreamMove::Moved(self.on_connected(stream, limited))))
    }
}

impl<S: Stream> ConsumerSource<S> {
    pub(crate) fn is_ready(&self) -> bool {
        self.current.is_open()
    }

    pub(crate) fn is_connected(&mut self) -> bool {
        self.fallback.is_some() || self.current.stream().is_some_and(|watched| watched.stream.is_connected())
    }

    pub(crate) fn on_per_consumer(&self) -> bool {
        matches!(self.current, DescriptorSource::PerConsumer { .. })
    }

    /// Whether a poll would do anything.
    pub(crate) fn has_descriptors(&mut self) -> bool {
        let can_end = self.draining.len() > 1 || self.current.is_open();
        match self.draining.front_mut() {
            // A poll ends the draining, if nothing else.
            Some(oldest) => can_end || oldest.from.has_descriptors(),
            None => self.current.has_descriptors(),
        }
    }

    /// The shared stream is ready: every descriptor published from here on comes on it.
    pub(crate) fn on_subscribed(&mut self, stream: S) {
        if let DescriptorSource::Opening(_) = self.current {
            self.current = DescriptorSource::Shared(WatchedStream::new(stream));
        }
    }

    /// The producer granted a per-consumer stream. The current source is read until that one is connected.
    pub(crate) fn on_granted(&mut self, address: StreamAddress) {
        if !matches!(self.current, DescriptorSource::Closed) {
            self.next = Some(Connecting { address, handle: Handle::None });
        }
    }

    /// The granted stream is connected. `limited`: the consumer requested fewer frames, so descriptors that
    /// wait elsewhere are left there.
    pub(crate) fn on_connected(&mut self, stream: S, limited: bool) -> DescriptorOrder {
        self.next = None;
        let queue = match &self.current {
            DescriptorSource::Closed => return DescriptorOrder::InOrder,
            DescriptorSource::Queue(queue) => Some(queue.clone()),
            DescriptorSource::PerConsumer { queue, .. } => queue.clone(),
            DescriptorSource::Opening(_) | DescriptorSource::Shared(_) => None,
        };
        let stream = WatchedStream::new(stream);
        let before = std::mem::replace(&mut self.current, DescriptorSource::PerConsumer { stream, queue });
        if limited {
            self.draining.clear();
            return DescriptorOrder::Overlaps;
        }
        self.drain_first(before)
    }

    /// The producer granted nothing, or withdrew the grant. `limited`: as for `on_connected`.
    pub(crate) fn on_withdrawn(&mut self, limited: bool) -> DescriptorOrder {
        self.next = None;
        let closing = match std::mem::replace(&mut self.current, DescriptorSource::Closed) {
            DescriptorSource::PerConsumer { stream, queue } => (stream, queue),
            other => {
                self.current = other;
                return DescriptorOrder::InOrder;
            }
        };
        let (stream, queue) = closing;
        // A shared source that is not drained yet has every descriptor that comes after it in the line.
        let shared = |d: &Draining<S>| !matches!(d.from, DescriptorSource::PerConsumer { .. });
        if let Some(at) = self.draining.iter().position(shared) {
            self.draining.truncate(at + 1);
            let is_current = match (&self.draining[at].from, &queue) {
                (DescriptorSource::Queue(draining), Some(queue)) => Arc::ptr_eq(draining, queue),
                (_, queue) => queue.is_none(),
            };
            let before = if is_current { self.draining.pop_back().map(|d| d.from) } else { None };
            self.current = match (before, queue) {
                (Some(before), _) => before,
                (None, Some(queue)) => DescriptorSource::Queue(queue),
                (None, None) => DescriptorSource::Opening(Handle::None),
            };
            return DescriptorOrder::InOrder;
        }
        let withdrawn = DescriptorSource::PerConsumer { stream, queue: None };
        self.current = queue.map_or(DescriptorSource::Opening(Handle::None), DescriptorSource::Queue);
        if limited {
            self.draining.clear();
            return DescriptorOrder::Overlaps;
        }
        self.drain_first(withdrawn)
    }

    /// A fanout reads the shared stream from here on.
    pub(crate) fn on_queue(&mut self, queue: Arc<DescriptorQueue>) -> DescriptorOrder {
        match &mut self.current {
            DescriptorSource::Closed => DescriptorOrder::InOrder,
            DescriptorSource::PerConsumer { queue: later, .. } => {
                *later = Some(queue);
                DescriptorOrder::InOrder
            }
            current => {
                let before = std::mem::replace(current, DescriptorSource::Queue(queue));
                self.drain_first(before)
            }
        }
    }

    /// Frames come from a fallback. Descriptors that wait elsewhere are left there.
    pub(crate) fn on_fallback(&mut self, ring: Arc<PrivateRing>) -> DescriptorOrder {
        if !matches!(self.current, DescriptorSource::Closed) {
            self.draining.clear();
            self.fallback = Some(ring);
        }
        DescriptorOrder::Overlaps
    }

    /// Frames come from shared memory again. `None` if there was no fallback.
    pub(crate) fn on_fallback_ended(&mut self) -> Option<DescriptorOrder> {
        self.fallback.take()?;
        self.draining.clear();
        Some(DescriptorOrder::Overlaps)
    }

    /// Ends the draining of the oldest source once it is empty or too slow, and the one after it can be read.
    /// That one has all descriptors since it was connected, some of which were read before.
    pub(crate) fn on_drained(&mut self, now: Instant) -> Option<DescriptorOrder> {
        let can_end = self.draining.len() > 1 || self.current.is_open();
        let oldest = self.draining.front_mut()?;
        if (!can_end || oldest.from.has_descriptors()) && now < oldest.until {
            return None;
        }
        self.draining.pop_front();
        Some(DescriptorOrder::Overlaps)
    }

    /// The media driver is gone, and every stream and grant with it.
    pub(crate) fn on_disconnected(&mut self) -> DescriptorOrder {
        // A fanout's queue stays, and has what was read elsewhere.
        let was_elsewhere = self.on_per_consumer() || !self.draining.is_empty();
        self.next = None;
        self.draining.clear();
        let before = std::mem::replace(&mut self.current, DescriptorSource::Closed);
        self.current = before.without_streams();
        if was_elsewhere { DescriptorOrder::Overlaps } else { DescriptorOrder::InOrder }
    }

    pub(crate) fn close(&mut self) {
        self.draining.clear();
        (self.current, self.next, self.fallback) = (DescriptorSource::Closed, None, None);
    }

    fn drain_first(&mut self, before: DescriptorSource<S>) -> DescriptorOrder {
        if !before.is_open() {
            return DescriptorOrder::InOrder;
        }
        let is_full = self.draining.len() == MAX_DRAINING;
        if is_full {
            self.draining.pop_front();
        }
        self.draining.push_back(Draining { from: before, until: Instant::now() + DRAIN_FOR });
        if is_full { DescriptorOrder::Overlaps } else { DescriptorOrder::InOrder }
    }
}

#[cfg(test)]
mod tests;
