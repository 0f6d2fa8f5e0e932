//! Listener of the metadata stream (wire §10.3), for all consumers of a context. Polled on the conductor's
//! thread, so that nothing is missed while the interpreter is busy. It keeps metadata of consumed streams
//! only.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorpool_core::consumer::blob_assembly::{Blob, BlobAssembly, DiscardReason};
use tensorpool_core::consumer::metadata_cache::{AnnouncedSource, MetadataCache, MetadataVersion};
use tensorpool_core::wire::metadata::MetadataMessage;

use crate::aeron::channels::untethered;
use crate::aeron::fragment_filter::FragmentFilter;
use crate::aeron::{AeronError, Assembler, Client, Header, Subscription};
use crate::conductor::handle::Handle;
use crate::conductor::{Endpoint, Tick};

/// Fragments polled in one duty cycle: 16 MiB of blobs take little more than ten thousand.
const FRAGMENTS_A_ROUND: usize = 16_384;

#[derive(Debug, Default)]
pub struct Counters {
    pub received: AtomicU64,
    /// Messages of streams without a consumer here, and messages that are no metadata.
    pub foreign: AtomicU64,
    pub malformed: AtomicU64,
}

#[derive(Default)]
struct Stream {
    interested: usize,
    cache: MetadataCache,
    blobs: BlobAssembly,
}

#[derive(Default)]
struct State {
    subscription: Handle<Subscription>,
    assembler: Option<Assembler>,
    fragment_filter: FragmentFilter,
    departures: u64,
    streams: HashMap<u32, Stream>,
    closed: bool,
}

pub struct MetadataListener {
    channel: String,
    stream_id: i32,
    state: Mutex<State>,
    counters: Counters,
}

impl MetadataListener {
    pub fn new(channel: &str, stream_id: i32) -> Self {
        // Untethered: a subscriber that does not poll must not delay the publishers.
        let channel = untethered(channel);
        Self { channel, stream_id, state: Mutex::default(), counters: Counters::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn is_ready(&self) -> bool {
        self.lock().subscription.get().is_some()
    }

    /// Keeps metadata of that stream until every subscriber has called `unsubscribe`.
    pub fn subscribe(&self, stream_id: u32) {
        self.lock().streams.entry(stream_id).or_default().interested += 1;
    }

    pub fn unsubscribe(&self, stream_id: u32) {
        let gone = {
            let mut state = self.lock();
            let Some(stream) = state.streams.get_mut(&stream_id) else { return };
            stream.interested -= 1;
            if stream.interested > 0 { None } else { state.streams.remove(&stream_id) }
        };
        drop(gone);
    }

    /// The attributes of a version. A frame may be read before the conductor has polled its metadata, which
    /// was published first. Then this polls.
    pub fn at(&self, stream_id: u32, epoch: u64, version: u32) -> Option<Arc<MetadataVersion>> {
        self.find(stream_id, |s| s.cache.at(epoch, version).cloned())
    }

    pub fn newest(&self, stream_id: u32) -> Option<Arc<MetadataVersion>> {
        let mut state = self.lock();
        state.poll(&self.counters);
        state.streams.get(&stream_id)?.cache.newest().cloned()
    }

    pub fn source(&self, stream_id: u32) -> Option<AnnouncedSource> {
        self.find(stream_id, |s| s.cache.source().cloned())
    }

    pub fn blob(&self, stream_id: u32, blob_type: u32, of: Option<(u64, u32)>) -> Option<Arc<Blob>> {
        let mut state = self.lock();
        state.poll(&self.counters);
        state.streams.get(&stream_id)?.blobs.newest(blob_type, of).cloned()
    }

    /// How many blobs of a stream completed, and how many were discarded for each reason.
    pub fn blob_counts(&self, stream_id: u32) -> (u64, Vec<(&'static str, u64)>) {
        let state = self.lock();
        let stream = state.streams.get(&stream_id);
        let count = |why: &DiscardReason| (why.as_str(), stream.map_or(0, |s| s.blobs.discarded(*why)));
        (stream.map_or(0, |s| s.blobs.completed()), DiscardReason::ALL.iter().map(count).collect())
    }

    fn find<T>(&self, stream_id: u32, read: impl Fn(&Stream) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        let value = state.streams.get(&stream_id).and_then(&read);
        if value.is_some() {
            return value;
        }
        state.poll(&self.counters);
        state.streams.get(&stream_id).and_then(read)
    }
}

impl State {
    /// Returns how many fragments came.
    fn poll(&mut self, counters: &Counters) -> usize {
        let Self { subscription, assembler, fragment_filter, departures, streams, .. } = self;
        let (Some(subscription), Some(assembler)) = (subscription.get(), assembler) else { return 0 };
        let gone = subscription.images().departures();
        if std::mem::replace(departures, gone) != gone
            && fragment_filter.settle(subscription.images())
            // The assembler keeps a buffer for every session it ever saw. A new one drops those of closed
            // sessions.
            && let Ok(fresh) = Assembler::new()
        {
            *assembler = fresh;
        }
        let known: &HashMap<u32, Stream> = streams;
        let mut foreign = 0;
        let mut messages: Vec<(i32, Vec<u8>)> = Vec::new();
        let taken = assembler.poll_some(
            subscription,
            FRAGMENTS_A_ROUND,
            |bytes, header| {
                fragment_filter.wants(header, || {
                    let ours = MetadataMessage::stream_of(bytes).is_some_and(|id| known.contains_key(&id));
                    foreign += u64::from(!ours);
                    ours
                })
            },
            |bytes, header: Header| messages.push((header.session_id(), bytes.to_vec())),
        );
        counters.foreign.fetch_add(foreign, Ordering::Relaxed);
        for (session_id, bytes) in messages {
            let stream = MetadataMessage::stream_of(&bytes).and_then(|id| streams.get_mut(&id));
            let was_read = stream.is_some_and(|s| s.on_message(session_id, MetadataMessage::decode(&bytes)));
            let fate = if was_read { &counters.received } else { &counters.malformed };
            fate.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

impl Stream {
    /// False for a message that cannot be read.
    fn on_message(&mut self, session_id: i32, message: MetadataMessage<'_>) -> bool {
        match message {
            MetadataMessage::Announce(m) => self.cache.on_announce(session_id, m),
            MetadataMessage::Meta(m) => self.cache.on_meta(session_id, m),
            MetadataMessage::BlobAnnounce(m) => {
                self.blobs.on_announce(session_id, self.cache.epoch_of(session_id), m)
            }
            MetadataMessage::BlobChunk(m) => self.blobs.on_chunk(session_id, m),
            MetadataMessage::BlobComplete(m) => self.blobs.on_complete(session_id, m),
            MetadataMessage::Other | MetadataMessage::Malformed(_) => return false,
        }
        true
    }
}

impl Endpoint for MetadataListener {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let mut state = self.lock();
        if state.closed {
            return Ok(());
        }
        if state.assembler.is_none() {
            state.assembler = Some(Assembler::new()?);
        }
        state.subscription.advance(|| client.add_subscription(&self.channel, self.stream_id))
    }

    fn disconnect(&self) {
        let mut state = self.lock();
        (state.subscription, state.assembler) = (Handle::None, None);
        (state.fragment_filter, state.departures) = (FragmentFilter::default(), 0);
    }

    fn close(&self) {
        self.lock().closed = true;
        self.disconnect();
    }

    fn do_work(&self, tick: &Tick<'_>) {
        // Several at once are parts of a blob, whose other parts follow. One alone is repeated once a period.
        if self.lock().poll(&self.counters) > 1 {
            tick.is_active.set(true);
        }
    }
}
