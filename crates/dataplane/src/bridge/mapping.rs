//! One mapping of a receiver: the state of its source, its assemblies, and the slots they are written to
//! (bridge §4, §6).

use std::sync::Arc;

use tensorpool_core::bridge::assembly::{AssemblyTable, FrameStore, Loss};
use tensorpool_core::bridge::session_ledger::SessionLedger;
use tensorpool_core::bridge::source::{AnnounceEffect, SourceState};
use tensorpool_core::wire::announce::PoolAnnounce;
use tensorpool_core::wire::chunk::Chunk;
use tensorpool_core::wire::control::FrameProgress;
use tensorpool_core::wire::layout::HEADER_SLOT_BYTES;

use super::private_ring::PrivateRing;
use super::progress_forwarder::ProgressForwarder;
use crate::aeron::Publication;
use crate::conductor::handle::Handle;
use crate::producer::{ClaimedSlot, Outcome, Producer};

enum FrameSink {
    /// A stream of this host.
    Producer(Arc<Producer>),
    /// One consumer of this process.
    Private(Arc<PrivateRing>),
}

impl FrameSink {
    fn epoch(&self) -> Option<u64> {
        match self {
            Self::Producer(producer) => producer.epoch(),
            Self::Private(private) => private.mapping().map(|m| m.epoch),
        }
    }

    fn nslots(&self) -> Option<u32> {
        match self {
            Self::Producer(producer) => producer.nslots(),
            Self::Private(private) => private.mapping().map(|m| m.nslots),
        }
    }

    fn claim_at(&self, seq: u64, len: u32) -> Result<ClaimedSlot, Loss> {
        match self {
            Self::Producer(producer) => producer.claim_at(seq, len).map_err(loss),
            Self::Private(private) => private.claim_at(seq, len),
        }
    }

    fn commit(&self, slot: &ClaimedSlot, trace_id: u64) -> Result<(), Loss> {
        match self {
            Self::Producer(producer) => producer.commit_at(slot, trace_id).map(drop).map_err(loss),
            Self::Private(private) => private.commit(slot, trace_id),
        }
    }
}

/// The destination of frames. Once written to, it belongs to one epoch of the source.
struct Destination {
    sink: FrameSink,
    is_used: bool,
    nslots: Option<u32>,
}

/// What has arrived of a source stream. Only what was opened and decoded: any program may send other bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Also those that are ignored, for example without a destination: the stream brings them.
    pub chunks: u64,
    /// Announces and progress. The other messages of the control stream are read elsewhere.
    pub messages: u64,
}

pub(super) struct ReceiverMapping {
    pub dest_stream_id: u32,
    pub source: SourceState,
    pub table: AssemblyTable<ClaimedSlot>,
    pub ledger: SessionLedger,
    pub progress_forwarder: ProgressForwarder,
    pub progress_publication: Handle<Publication>,
    pub progress_address: Option<(String, i32)>,
    destination: Option<Destination>,
    /// Allocates its own memory for each epoch.
    private: Option<Arc<PrivateRing>>,
    pub announces: u64,
    pub announces_ignored: u64,
    pub progress_sent: u64,
    pub traffic: Traffic,
}

impl ReceiverMapping {
    pub fn new(dest_stream_id: u32, timeout_ns: u64, silence_ns: u64) -> Self {
        Self {
            dest_stream_id,
            source: SourceState::new(silence_ns),
            table: AssemblyTable::new(timeout_ns),
            ledger: SessionLedger::default(),
            progress_forwarder: ProgressForwarder::default(),
            progress_publication: Handle::None,
            progress_address: None,
            destination: None,
            private: None,
            announces: 0,
            announces_ignored: 0,
            progress_sent: 0,
            traffic: Traffic::default(),
        }
    }

    /// Sets a destination that nothing was written to.
    pub fn set_destination(&mut self, producer: Arc<Producer>) {
        self.table.abandon(Loss::Detached);
        self.dest_stream_id = producer.stream_id();
        let sink = FrameSink::Producer(producer);
        self.destination = Some(Destination { sink, is_used: false, nslots: None });
    }

    /// Sends frames to one consumer of this process, from the next announce on.
    pub fn set_private_ring(&mut self, private: Arc<PrivateRing>) {
        self.private = Some(private);
    }

    /// Removes the destination: no frame is written to it from here on.
    pub fn clear_destination(&mut self) -> bool {
        self.table.abandon(Loss::Detached);
        self.destination.take().is_some()
    }

    pub fn has_destination(&self) -> bool {
        self.destination.is_some()
    }

    pub fn on_announce(&mut self, announce: &PoolAnnounce, now_ns: u64) {
        match self.source.on_announce(announce, now_ns) {
            AnnounceEffect::Ignored => self.announces_ignored += 1,
            AnnounceEffect::Same => self.announces += 1,
            AnnounceEffect::NewEpoch => {
                self.announces += 1;
                self.table.restart();
                self.progress_forwarder.clear();
                // Frames of two source epochs never share a local epoch.
                self.destination.take_if(|d| d.is_used);
                if let (Some(private), Some(announced)) = (&self.private, self.source.announced())
                    && private.map(announced)
                {
                    let sink = FrameSink::Private(private.clone());
                    self.destination = Some(Destination { sink, is_used: false, nslots: None });
                }
            }
        }
    }

    /// `position`: where the chunk ends in its session.
    #[inline]
    pub fn on_chunk(&mut self, chunk: &Chunk<'_>, session: i32, position: impl FnOnce() -> i64, now_ns: u64) {
        self.traffic.chunks += 1;
        self.ledger.set_session(session, self.table.counters());
        let outcome = match self.source.admit(chunk.epoch) {
            Ok(()) => {
                let mut slots = DestinationSlots {
                    source: &self.source,
                    destination: &mut self.destination,
                    progress_forwarder: &mut self.progress_forwarder,
                };
                self.table.on_chunk(chunk, now_ns, &mut slots)
            }
            Err((why, ends_all)) => {
                if ends_all {
                    self.table.abandon(Loss::Epoch);
                }
                self.table.ignore(chunk, why)
            }
        };
        self.ledger.note(outcome, position);
    }

    /// Sends due progress with the local stream id and epoch.
    pub fn send_due_progress(&mut self) {
        if self.progress_forwarder.due.is_empty() {
            return;
        }
        let epoch = self.destination.as_ref().and_then(|d| d.sink.epoch());
        for progress in self.progress_forwarder.due.drain(..) {
            let sent =
                epoch.zip(self.progress_publication.get()).is_some_and(|(epoch, progress_publication)| {
                    let progress = FrameProgress { stream_id: self.dest_stream_id, epoch, ..progress };
                    progress_publication.offer(&progress.encode()).is_ok()
                });
            if sent {
                self.progress_sent += 1;
            } else {
                self.progress_forwarder.dropped += 1;
            }
        }
    }
}

struct DestinationSlots<'a> {
    source: &'a SourceState,
    destination: &'a mut Option<Destination>,
    progress_forwarder: &'a mut ProgressForwarder,
}

fn loss(outcome: Outcome) -> Loss {
    match outcome {
        Outcome::NoPool => Loss::NoPool,
        Outcome::SlotClaimed => Loss::Superseded,
        _ => Loss::Detached,
    }
}

impl FrameStore for DestinationSlots<'_> {
    type Slot = ClaimedSlot;

    fn nslots(&mut self) -> u32 {
        let Some(destination) = self.destination else { return 1 };
        if destination.nslots.is_none() {
            destination.nslots = destination.sink.nslots();
        }
        destination.nslots.unwrap_or(1)
    }

    fn open(&mut self, seq: u64, payload_length: u32) -> Result<ClaimedSlot, Loss> {
        let destination = self.destination.as_mut().ok_or(Loss::Detached)?;
        let slot = destination.sink.claim_at(seq, payload_length)?;
        destination.is_used = true;
        // The ring has another size than before: assemblies that share no slot there may share one here.
        if *destination.nslots.get_or_insert(slot.nslots()) != slot.nslots() {
            *self.destination = None;
            return Err(Loss::Detached);
        }
        Ok(slot)
    }

    #[inline]
    fn write(&mut self, slot: &mut ClaimedSlot, offset: u32, bytes: &[u8]) {
        slot.write(offset, bytes);
    }

    fn holds(&self, slot: &ClaimedSlot, offset: u32, bytes: &[u8]) -> bool {
        slot.holds(offset, bytes)
    }

    fn describe(
        &mut self,
        slot: &mut ClaimedSlot,
        seq: u64,
        payload_length: u32,
        header: &[u8; HEADER_SLOT_BYTES],
    ) -> Result<(), Loss> {
        self.source.validate_header(header, seq, payload_length)?;
        slot.describe(header);
        Ok(())
    }

    fn commit(&mut self, slot: ClaimedSlot, seq: u64, trace_id: u64) -> Result<(), Loss> {
        let destination = self.destination.as_ref().ok_or(Loss::Detached)?;
        destination.sink.commit(&slot, trace_id)?;
        self.progress_forwarder.delivered(seq, slot.payload_length());
        Ok(())
    }

    #[inline]
    fn advanced(&mut self, _: &ClaimedSlot, seq: u64, prefix: u32) {
        self.progress_forwarder.advanced(seq, prefix);
    }
}
