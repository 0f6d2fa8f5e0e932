//! The lease of a producer or consumer (driver §4): its state machine, counters and events. On the
//! conductor's thread; any thread may read the status.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tensorpool_core::lease::attachment::{
    AttachRefusal, Attachment, GrantedLayout, LeaseOptions, LossReason, ResponseOutcome, Revocation,
};
use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::wire::announce::PoolAnnounce;
use tensorpool_core::wire::driver::{AttachResponse, DriverMessage, Revision, code_str};
use tensorpool_core::wire::layout::MAX_U32;

use crate::conductor::Tick;
use crate::conductor::events::Event;

/// What a message means for the holder of the lease.
pub enum LeaseEvent<'a> {
    Nothing,
    /// Map these regions.
    Granted(&'a AttachResponse),
    /// Unmap at once.
    Ended,
    /// That producer of the stream is gone: wait for the announce of a later epoch.
    ProducerGone(u32),
}

pub struct Lease {
    attachment: Mutex<Attachment>,
    granted: AtomicU64,
    refused: AtomicU64,
    ended: AtomicU64,
    /// The last reported refusal, so that each is reported once.
    reported: Mutex<Option<AttachRefusal>>,
}

/// A snapshot of the lease.
#[derive(Clone, Debug)]
pub struct Status {
    pub lease_id: Option<u64>,
    pub client_id: Option<u32>,
    pub revision: Revision,
    pub layout: Option<GrantedLayout>,
    pub refusal: Option<AttachRefusal>,
    pub granted: u64,
    pub refused: u64,
    pub ended: u64,
}

fn seed() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    // A thread draws the hasher's keys once, and a forked child inherits them. Without pid and time two
    // processes would request under the same client id, and both would get the one lease.
    hasher.write_u32(std::process::id());
    hasher.write_u64(monotonic_ns());
    hasher.finish()
}

/// A random id that is neither 0 nor the null value.
pub fn random_id() -> u32 {
    (seed() as u32).clamp(1, MAX_U32)
}

impl Lease {
    pub fn new(options: LeaseOptions) -> Self {
        Self {
            attachment: Mutex::new(Attachment::new(options, seed())),
            granted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            reported: Mutex::default(),
        }
    }

    fn attachment(&self) -> MutexGuard<'_, Attachment> {
        self.attachment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_held(&self) -> bool {
        self.attachment().is_held()
    }

    pub fn status(&self) -> Status {
        let attachment = self.attachment();
        Status {
            lease_id: attachment.lease().map(|l| l.lease_id),
            client_id: attachment.lease().map(|l| l.client_id),
            revision: attachment.revision(),
            layout: attachment.layout().cloned(),
            refusal: attachment.refusal().cloned(),
            granted: self.granted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            ended: self.ended.load(Ordering::Relaxed),
        }
    }

    pub fn on_driver_message<'a>(&self, message: &'a DriverMessage, tick: &Tick<'_>) -> LeaseEvent<'a> {
        let now_ns = tick.now.monotonic_ns;
        match message {
            DriverMessage::Attached(response) => {
                let answer = self.attachment().on_response(response, now_ns);
                match answer {
                    ResponseOutcome::Ignored => LeaseEvent::Nothing,
                    ResponseOutcome::Granted => LeaseEvent::Granted(response),
                    ResponseOutcome::Refused => {
                        self.report_refusal(tick);
                        LeaseEvent::Nothing
                    }
                }
            }
            DriverMessage::Revoked(revoked) => {
                let revocation = self.attachment().on_revoked(revoked, now_ns);
                match revocation {
                    Revocation::NotOurs => LeaseEvent::Nothing,
                    Revocation::ProducerGone => LeaseEvent::ProducerGone(revoked.lease.client_id),
                    Revocation::Ours => {
                        let mut detail = revoked.reason.as_str().to_owned();
                        if !revoked.message.is_empty() {
                            detail = format!("{detail}: {}", revoked.message);
                        }
                        self.end(tick, "revoked", detail)
                    }
                }
            }
            DriverMessage::Shutdown { reason, message } => {
                if !self.attachment().on_shutdown(now_ns) {
                    return LeaseEvent::Nothing;
                }
                let mut detail = reason.as_str().to_owned();
                if !message.is_empty() {
                    detail = format!("{detail}: {message}");
                }
                self.end(tick, "driver_shutdown", detail)
            }
            DriverMessage::Other | DriverMessage::Malformed(_) => LeaseEvent::Nothing,
        }
    }

    fn end<'a>(&self, tick: &Tick<'_>, kind: &'static str, detail: String) -> LeaseEvent<'a> {
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.event(tick, kind, None, detail);
        LeaseEvent::Ended
    }

    fn event(&self, tick: &Tick<'_>, kind: &'static str, epoch: Option<u64>, detail: String) {
        let stream_id = Some(self.attachment().options().stream_id);
        tick.events.push(Event { kind, at_ns: tick.now.monotonic_ns, stream_id, epoch, detail });
    }

    /// The regions are mapped: the lease is in use.
    pub fn on_mapped(&self, tick: &Tick<'_>, epoch: u64) {
        self.granted.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut reported) = self.reported.lock() {
            *reported = None;
        }
        self.event(tick, "attached", Some(epoch), String::new());
    }

    /// The regions cannot be used here: releases the lease.
    pub fn release(&self, tick: &Tick<'_>, refusal: AttachRefusal) {
        self.attachment().release(refusal, tick.now.monotonic_ns);
        self.report_refusal(tick);
    }

    /// The regions were lost while they were in use: returns the lease, and requests another one.
    pub fn on_regions_lost(&self, tick: &Tick<'_>, why: String) {
        self.attachment().release(AttachRefusal::Regions(why.clone()), tick.now.monotonic_ns);
        self.end(tick, "regions_lost", why);
    }

    fn report_refusal(&self, tick: &Tick<'_>) {
        let refusal = self.attachment().refusal().cloned();
        self.refused.fetch_add(1, Ordering::Relaxed);
        let Ok(mut reported) = self.reported.lock() else { return };
        if !is_same(reported.as_ref(), refusal.as_ref()) {
            reported.clone_from(&refusal);
            if let Some(refusal) = refusal {
                self.event(tick, "attach_refused", None, describe(&refusal));
            }
        }
    }

    /// Sends what is due. True if the lease was lost.
    pub fn work(&self, tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let (lost, timed_out) = {
            let mut attachment = self.attachment();
            let before = attachment.refusal().cloned();
            let lost = attachment.work(tick.now.monotonic_ns, send);
            let timed_out = before.as_ref() != attachment.refusal() && !attachment.is_held();
            (lost, timed_out)
        };
        if timed_out {
            self.report_refusal(tick);
        }
        self.report_loss(lost, tick)
    }

    /// Whether an announce of the stream may be of the driver that granted the lease.
    pub fn is_of_driver(&self, announce: &PoolAnnounce) -> bool {
        self.attachment().is_of_driver(announce)
    }

    /// Whether an announce of this epoch ends the lease.
    pub fn ends_with(&self, epoch: u64) -> bool {
        self.attachment().ends_with(epoch)
    }

    /// The stream was announced. True if that ends the lease.
    pub fn on_announce(&self, epoch: u64, tick: &Tick<'_>) -> bool {
        let lost = self.attachment().on_announce(epoch, tick.now.monotonic_ns);
        self.report_loss(lost, tick)
    }

    /// The media driver is lost. True if a lease was lost with it.
    pub fn on_media_driver_lost(&self, tick: &Tick<'_>) -> bool {
        let lost = self.attachment().on_media_driver_lost(tick.now.monotonic_ns);
        self.report_loss(lost, tick)
    }

    fn report_loss(&self, lost: Option<LossReason>, tick: &Tick<'_>) -> bool {
        if let Some(lost) = lost {
            self.end(tick, "driver_lost", lost.as_str().to_owned());
        }
        lost.is_some()
    }

    /// Returns the lease, and requests none until `resume`.
    pub fn suspend(&self) {
        self.attachment().suspend();
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests a lease at once.
    pub fn resume(&self, now_ns: u64) {
        self.attachment().retry_now(now_ns);
    }

    pub fn on_control_image(&self, tick: &Tick<'_>) {
        self.attachment().retry_now(tick.now.monotonic_ns);
    }

    pub fn detach_request(&self) -> Option<Vec<u8>> {
        self.attachment().detach_request()
    }
}

/// Whether both refusals have the same reason. The path of regions differs at each attempt, so it is not
/// compared.
fn is_same(reported: Option<&AttachRefusal>, refusal: Option<&AttachRefusal>) -> bool {
    matches!((reported, refusal), (Some(AttachRefusal::Regions(_)), Some(AttachRefusal::Regions(_))))
        || reported == refusal
}

pub fn describe(refusal: &AttachRefusal) -> String {
    match refusal {
        AttachRefusal::Code(code, message) => format!("{}: {message}", code_str(*code)),
        AttachRefusal::Protocol(why) | AttachRefusal::Regions(why) | AttachRefusal::Clock(why) => why.clone(),
        AttachRefusal::NoAnswer => "no driver answers".to_owned(),
    }
}
