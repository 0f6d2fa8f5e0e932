//! The fallback of a consumer (wire §15.12): it reads the payload stream of a bridge itself, into anonymous
//! memory, and returns to shared memory when a config says so. On the conductor's thread, except for polling.
//!
//! Epochs and sequences are the source's in both cases. So the sequence tracker continues: a frame is
//! delivered once, and frames missing in between are a gap.

use std::sync::{Arc, MutexGuard, PoisonError};

use tensorpool_core::wire::chunk::ChunkLimits;
use tensorpool_core::wire::fallback_uri::FallbackUri;
use tensorpool_core::wire::layout::CLOCK_DOMAIN_MONOTONIC;

use super::Consumer;
use crate::aeron::Client;
use crate::bridge::receiver::Config as ReceiverConfig;
use crate::bridge::{PrivateRing, Receiver};
use crate::conductor::events::Event;
use crate::conductor::{Endpoint, Tick};
use crate::idle::IdleStrategy;

const MAX_CHUNK_BYTES: u32 = 65_535;
const MAX_PAYLOAD_BYTES: u32 = 1 << 30;
const ASSEMBLY_TIMEOUT_NS: u64 = 250_000_000;

/// Options for reading frames without shared memory.
#[derive(Clone, Debug)]
pub struct FallbackOptions {
    /// Read frames from this URI while there is no shared memory to use.
    pub uri: Option<String>,
    /// Bound on the memory that a source's announce can allocate here.
    pub max_bytes: u64,
    /// How long a source's epoch stays valid without announces before a lower one is accepted.
    pub silence_ns: u64,
    pub idle: IdleStrategy,
}

/// The fallback in use, or about to be.
#[derive(Default)]
pub(super) struct FallbackReader {
    uri: Option<String>,
    running: Option<(Arc<PrivateRing>, Receiver)>,
}

impl Consumer {
    fn fallback(&self) -> MutexGuard<'_, FallbackReader> {
        self.fallback.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the ordered fallback, uses it once it is mapped, and stops it.
    pub(super) fn update_fallback(&self, tick: &Tick<'_>) {
        let mut fallback = self.fallback();
        let change = {
            let control = self.control();
            let uri = control.fallback_uri();
            (uri != fallback.uri.as_deref()).then(|| uri.map(str::to_owned))
        };
        if let Some(uri) = change {
            self.stop_fallback(&mut fallback);
            fallback.uri = uri;
            match fallback.uri.as_deref().map(|uri| self.start_fallback(uri)).transpose() {
                Ok(running) => fallback.running = running,
                Err(why) => self.push_event(tick, "fallback_failed", 0, why),
            }
        }
        let Some((ring, _)) = &fallback.running else { return };
        if let Some(why) = ring.take_refused() {
            self.push_event(tick, "fallback_failed", 0, why);
        }
        let Some(epoch) = ring.mapping().map(|m| m.epoch) else { return };
        let mut state = self.state.lock_priority();
        if state.source.fallback.is_none() {
            state.reader.overlaps |= state.source.on_fallback(ring.clone()).overlaps();
            self.counters.latency.follow_clock(CLOCK_DOMAIN_MONOTONIC);
            drop(state);
            self.push_event(tick, "fallback_mapped", epoch, String::new());
        }
    }

    fn push_event(&self, tick: &Tick<'_>, kind: &'static str, epoch: u64, detail: String) {
        let (stream_id, at_ns) = (Some(self.config.stream_id), tick.now.monotonic_ns);
        tick.events.push(Event { kind, at_ns, stream_id, epoch: Some(epoch), detail });
    }

    fn start_fallback(&self, uri: &str) -> Result<(Arc<PrivateRing>, Receiver), String> {
        let (uri, options) = (FallbackUri::parse(uri)?, &self.config.fallback);
        let limits = ChunkLimits {
            chunk_bytes: MAX_CHUNK_BYTES,
            payload_bytes: MAX_PAYLOAD_BYTES,
            needs_checksum: false,
        };
        let config = ReceiverConfig {
            payload_channel: uri.payload.0,
            payload_stream_id: uri.payload.1,
            control_channel: uri.control.0,
            control_stream_id: uri.control.1,
            limits,
            fits_session_mtu: true,
            keys: None,
            timeout_ns: ASSEMBLY_TIMEOUT_NS,
            silence_ns: options.silence_ns,
        };
        let receiver = Receiver::start(config, options.idle).map_err(|e| e.to_string())?;
        let private = Arc::new(PrivateRing::new(self.config.stream_id, options.max_bytes));
        receiver.add_private(uri.stream_id, private.clone());
        Ok((private, receiver))
    }

    fn stop_fallback(&self, fallback: &mut FallbackReader) {
        let Some((_, receiver)) = fallback.running.take() else { return };
        receiver.stop();
        receiver.close();
        let mut state = self.state.lock_priority();
        let Some(switch) = state.source.on_fallback_ended() else { return };
        state.reader.overlaps |= switch.overlaps();
        if let Some(mapping) = state.reader.epoch.mapping.clone() {
            let entitled = mapping.newest_committed().map_or(0, |newest| newest + 1);
            let (epoch, nslots) = (mapping.epoch, u64::from(mapping.nslots));
            state.reader.follow_epoch(&self.counters, epoch, nslots, Some(entitled));
        }
    }

    /// A fallback that the media driver refuses does not keep the consumer from shared memory.
    pub(super) fn connect_fallback(&self, client: &Client) {
        if let Some((ring, receiver)) = &self.fallback().running
            && let Err(error) = receiver.connect(client)
        {
            ring.refuse(error.to_string());
        }
    }

    pub(super) fn disconnect_fallback(&self) {
        if let Some((_, receiver)) = &self.fallback().running {
            receiver.disconnect();
        }
    }

    pub(super) fn lose_fallback_network(&self) {
        if let Some((_, receiver)) = &self.fallback().running {
            receiver.on_network_lost();
        }
    }

    pub(super) fn close_fallback(&self) {
        let mut fallback = self.fallback();
        self.stop_fallback(&mut fallback);
    }
}
