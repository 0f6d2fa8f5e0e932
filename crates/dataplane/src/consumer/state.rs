//! What a consumer's polls and the conductor share: the source of descriptors, the reader, and refusals. Under
//! one lock. A poll takes descriptors from the source in order and passes them through the reader.

use std::sync::Arc;
use std::time::Instant;

use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::wire::descriptor::{Decoded, FrameDescriptor};
use tensorpool_core::wire::hello::StreamAddress;

use super::batch::LookPace;
use super::counters::Counters;
use super::reader::{DropObserver, Frame, RateLimit, Reader, RefusalState};
use super::source::{ConsumerSource, DescriptorSource, PolledFragment, Stream, WatchedStream};
use crate::aeron::Subscription;
use crate::descriptor_queue::DescriptorQueue;

/// What `skip_other_streams` found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SkippedDescriptors {
    pub(crate) images: usize,
    pub(crate) descriptors: usize,
}

/// A poll borrows the source and the reader at once.
pub(crate) struct State<S = Subscription> {
    pub(crate) source: ConsumerSource<S>,
    pub(crate) reader: Reader,
    pub(crate) refusal: RefusalState,
    /// The frame that ended a batch, because its layout is another. It counts as received, and is the next that
    /// is delivered.
    pub(crate) held: Option<Frame>,
    /// How often frames were polled.
    pub(crate) polls: u64,
    /// When the next batch looks for frames.
    pub(crate) pace: LookPace,
}

impl<S: Stream> State<S> {
    pub(crate) fn new(reader: Reader) -> Self {
        Self {
            source: ConsumerSource::default(),
            reader,
            refusal: RefusalState::default(),
            held: None,
            polls: 0,
            pace: LookPace::default(),
        }
    }

    /// A config granted a per-consumer stream, or none.
    pub(crate) fn on_descriptors(&mut self, address: Option<StreamAddress>) {
        match address {
            Some(address) => self.source.on_granted(address),
            None => {
                let limited = self.reader.rate_limit != RateLimit::Off;
                self.reader.overlaps |= self.source.on_withdrawn(limited).overlaps();
            }
        }
    }

    /// A fanout reads the descriptor stream from here on.
    pub(crate) fn on_queue(&mut self, queue: Arc<DescriptorQueue>) {
        self.reader.overlaps |= self.source.on_queue(queue).overlaps();
    }

    /// Polls, and passes each descriptor that is next in order to `each` until it returns false. Returns how
    /// many messages were consumed.
    #[inline]
    pub(crate) fn drain_while<W: DropObserver>(
        &mut self,
        stream_id: u32,
        counters: &Counters,
        limit: usize,
        observer: &mut W,
        each: impl FnMut(&mut Reader, &Counters, FrameDescriptor, &mut W) -> bool,
    ) -> usize {
        self.polls += 1;
        let taken = self.drain_sources(stream_id, counters, limit, observer, each);
        self.reader.settle(counters);
        taken
    }

    #[inline]
    fn drain_sources<W: DropObserver>(
        &mut self,
        stream_id: u32,
        counters: &Counters,
        limit: usize,
        observer: &mut W,
        mut each: impl FnMut(&mut Reader, &Counters, FrameDescriptor, &mut W) -> bool,
    ) -> usize {
        let Self { source, reader, .. } = self;
        reader.on_per_consumer = source.on_per_consumer();
        reader.observe_tails(observer);
        let mut poll = Poll { reader, counters, stream_id, limit, observer, each: &mut each };
        if source.fallback.is_some() {
            return poll.read_fallback(source);
        }
        // A later source is not read before an earlier one is empty: its descriptors would overtake.
        while let Some(oldest) = source.draining.front_mut() {
            let taken = match &mut oldest.from {
                DescriptorSource::Queue(queue) => poll.read_queue(queue),
                from => from.stream().map_or(0, |stream| poll.read_stream(stream)),
            };
            let Some(switch) = source.on_drained(Instant::now()) else { return taken };
            poll.reader.overlaps |= switch.overlaps();
            if taken > 0 {
                return taken;
            }
        }
        match &mut source.current {
            DescriptorSource::Shared(stream) | DescriptorSource::PerConsumer { stream, .. } => {
                poll.reader.rested |= stream.was_rested();
                poll.read_stream(stream)
            }
            DescriptorSource::Queue(queue) => poll.read_queue(queue),
            DescriptorSource::Opening(_) | DescriptorSource::Closed => 0,
        }
    }

    /// Consumes descriptors of other streams at the head of each image of the shared stream. Those of this
    /// consumer stay, in order.
    pub(crate) fn skip_other_streams(&mut self, stream_id: u32, limit: usize) -> SkippedDescriptors {
        let DescriptorSource::Shared(watched) = &mut self.source.current else {
            return SkippedDescriptors::default();
        };
        let mut descriptors = 0;
        let images = watched.stream.skip_while(limit, |bytes| {
            let skips = match FrameDescriptor::decode(bytes) {
                Decoded::Descriptor(descriptor) => descriptor.stream_id != stream_id,
                Decoded::Other => true,
                // The next poll counts it.
                Decoded::Malformed => false,
            };
            descriptors += usize::from(skips);
            skips
        });
        SkippedDescriptors { images, descriptors }
    }

    /// Calls `f` with the fallback's mapping in place of the shared one.
    pub(crate) fn with_fallback_mapping<T>(&mut self, f: impl FnOnce(&mut Reader) -> T) -> T {
        let reader = &mut self.reader;
        let Some(ring) = &self.source.fallback else { return f(reader) };
        let shm_mapping = std::mem::replace(&mut reader.epoch.mapping, ring.mapping());
        let done = f(reader);
        reader.epoch.mapping = shm_mapping;
        done
    }

    /// Whether there is something to poll.
    pub(crate) fn has_descriptors(&mut self) -> bool {
        if self.held.is_some() {
            return true;
        }
        let Some(has_frame) = self.source.fallback.as_ref().map(|ring| ring.has_any()) else {
            return self.source.has_descriptors();
        };
        discard_descriptors(&mut self.source, 64);
        has_frame
    }
}

/// Discards descriptors of the current stream, so that no publication waits for a reader of a fallback.
fn discard_descriptors<S: Stream>(source: &mut ConsumerSource<S>, limit: usize) {
    if let Some(watched) = source.current.stream() {
        watched.stream.poll_while(limit, |_, _| true);
    }
}

/// One poll: who takes the descriptors, and how many.
struct Poll<'a, W, E> {
    reader: &'a mut Reader,
    counters: &'a Counters,
    stream_id: u32,
    limit: usize,
    observer: &'a mut W,
    each: &'a mut E,
}

impl<W, E> Poll<'_, W, E>
where
    W: DropObserver,
    E: FnMut(&mut Reader, &Counters, FrameDescriptor, &mut W) -> bool,
{
    #[inline]
    fn read_stream<S: Stream>(&mut self, stream: &mut WatchedStream<S>) -> usize {
        let Self { reader, counters, stream_id, limit, observer, each } = self;
        let (stream_id, limit) = (*stream_id, *limit);
        stream.poll(limit, |bytes| match FrameDescriptor::decode(bytes) {
            Decoded::Descriptor(d) if d.stream_id == stream_id => {
                let continues =
                    !reader.is_next(counters, &d, *observer) || each(reader, counters, d, *observer);
                PolledFragment { is_ours: true, continues }
            }
            Decoded::Descriptor(_) | Decoded::Other => PolledFragment { is_ours: false, continues: true },
            Decoded::Malformed => {
                counters.drops.add(DropReason::Malformed, 1);
                PolledFragment { is_ours: false, continues: true }
            }
        })
    }

    fn read_queue(&mut self, queue: &DescriptorQueue) -> usize {
        let mut taken = 0;
        while taken < self.limit
            && let Some(descriptor) = queue.next()
        {
            taken += 1;
            if self.reader.is_next(self.counters, &descriptor, self.observer)
                && !(self.each)(self.reader, self.counters, descriptor, self.observer)
            {
                break;
            }
        }
        taken
    }

    fn read_fallback<S: Stream>(&mut self, source: &mut ConsumerSource<S>) -> usize {
        discard_descriptors(source, self.limit);
        let Some(ring) = &source.fallback else { return 0 };
        let (mut taken, mut continues) = (0, true);
        while taken < self.limit
            && continues
            && let Some((mapping, descriptor)) = ring.next()
        {
            taken += 1;
            let reader = &mut *self.reader;
            reader.follow_epoch(self.counters, mapping.epoch, u64::from(mapping.nslots), None);
            let shm_mapping = reader.epoch.mapping.replace(mapping);
            continues = !reader.is_next(self.counters, &descriptor, self.observer)
                || (self.each)(reader, self.counters, descriptor, self.observer);
            reader.epoch.mapping = shm_mapping;
        }
        taken
    }
}
