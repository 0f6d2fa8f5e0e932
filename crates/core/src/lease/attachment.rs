//! The state machine of a lease: how a client obtains it, keeps it and loses it (driver §4, §10). Pure:
//! messages and the time go in; requests and lease events come out.
//!
//! Every attempt draws a new client id, and a correlation id that contains it, so that a response can be
//! distinguished from all others on the shared control stream. An unanswered request is repeated unchanged,
//! and the driver gives it the same response.

use std::path::{Path, PathBuf};

use crate::wire::announce::PoolAnnounce;
use crate::wire::driver::{AttachRequest, AttachResponse, LeaseKey, LeaseRevoked, Revision, Role};
use crate::wire::layout::{HEADER_SLOT_BYTES, LAYOUT_VERSION, NULL_U32, NULL_U64, RESPONSE_CODE_OK};
use crate::wire::region_uri::RegionUri;

/// Missed announces after which the driver counts as lost.
const MISSED_ANNOUNCES: u64 = 3;
/// How many keepalives are sent within the time to expiry.
const KEEPALIVES_A_LEASE: u64 = 3;
/// The time between two keepalives at least: a response that comes late says little of how long a lease lasts.
const MIN_KEEPALIVE_NS: u64 = 10_000_000;
/// Clients that one message triggers spread their requests over this time.
const SPREAD_NS: u64 = 20_000_000;
/// An unanswered request is repeated after this time, then after twice that, up to the usual pause.
const FIRST_REPEAT_NS: u64 = 100_000_000;
/// Consecutive refusals make the pause longer, up to this many times the usual one.
const MAX_PAUSE_FACTOR: u32 = 4;
/// A client that tries both revisions sends this many requests in the usual one, then takes turns.
const SENDS_BEFORE_OTHER: u32 = 3;
/// The multiplier of xorshift64*.
const XORSHIFT_MULTIPLIER: u64 = 0x2545_F491_4F6C_DD1D;

#[derive(Clone, Debug)]
pub struct LeaseOptions {
    pub stream_id: u32,
    pub role: Role,
    /// The revision of the first requests.
    pub revision: Revision,
    /// Requests that get no answer are also sent in the other revision.
    pub tries_other_revision: bool,
    pub may_create: bool,
    pub require_hugepages: bool,
    /// The NUMA node for new regions, or null.
    pub desired_node: u32,
    pub keepalive_ns: u64,
    pub announce_period_ns: u64,
    pub attach_timeout_ns: u64,
    pub retry_ns: u64,
}

#[derive(Clone, Debug)]
struct PendingRequest {
    request: AttachRequest,
    since_ns: u64,
    next_send_ns: u64,
    repeat_ns: u64,
    sends: u32,
    /// The missing response was reported.
    is_overdue: bool,
}

/// The layout of the granted regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedLayout {
    pub nslots: u32,
    /// Of each pool, in the driver's order.
    pub strides: Vec<u32>,
    /// The NUMA node of the regions, where the driver says it.
    pub node_id: Option<u32>,
}

#[derive(Clone, Debug)]
struct HeldLease {
    key: LeaseKey,
    layout: GrantedLayout,
    epoch: u64,
    /// Where the driver has the epochs of the stream, if the paths of its files show it.
    directory: Option<PathBuf>,
    keepalive_ns: u64,
    next_keepalive_ns: u64,
    /// When the last keepalive was sent, or the lease granted.
    kept_ns: u64,
    /// How long the lease counts as held without a keepalive: one keepalive less than the time to its expiry.
    hold_ns: u64,
    /// When the driver last announced the stream.
    announced_ns: u64,
}

#[derive(Clone, Debug)]
enum LeasePhase {
    Waiting { request_at_ns: u64 },
    Requested(PendingRequest),
    Held(HeldLease),
}

#[derive(Clone, Debug)]
pub struct Attachment {
    options: LeaseOptions,
    phase: LeasePhase,
    /// Detach requests to send. Nothing waits for their response.
    detach_requests: Vec<Vec<u8>>,
    refusal: Option<AttachRefusal>,
    refused_in_a_row: u32,
    counter: u32,
    random: u64,
    /// The client id of the last attempt.
    client_id: u32,
    /// The revision of the first requests: the configured one, then the one that the driver answers in.
    revision: Revision,
}

impl Attachment {
    /// `seed` makes client ids and pauses differ between clients.
    pub fn new(options: LeaseOptions, seed: u64) -> Self {
        Self {
            revision: options.revision,
            options,
            phase: LeasePhase::Waiting { request_at_ns: 0 },
            detach_requests: Vec::new(),
            refusal: None,
            refused_in_a_row: 0,
            counter: 0,
            random: seed | 1,
            client_id: 0,
        }
    }

    pub fn options(&self) -> &LeaseOptions {
        &self.options
    }

    pub fn lease(&self) -> Option<LeaseKey> {
        match &self.phase {
            LeasePhase::Held(held) => Some(held.key),
            _ => None,
        }
    }

    /// What the driver granted. `None` while no lease is held.
    pub fn layout(&self) -> Option<&GrantedLayout> {
        match &self.phase {
            LeasePhase::Held(held) => Some(&held.layout),
            _ => None,
        }
    }

    /// The revision in which the driver answers, as far as it is known.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn is_held(&self) -> bool {
        matches!(self.phase, LeasePhase::Held(_))
    }

    /// Why the last attempt failed. `None` while a lease is held.
    pub fn refusal(&self) -> Option<&AttachRefusal> {
        self.refusal.as_ref()
    }

    fn random(&mut self) -> u64 {
        // xorshift64*: the numbers need to be spread, not secret.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(XORSHIFT_MULTIPLIER) >> 16
    }

    fn draw_client_id(&mut self) -> u32 {
        loop {
            let id = self.random() as u32;
            if id != 0 && id != NULL_U32 {
                return id;
            }
        }
    }

    /// A pause of half to one and a half times the usual one, longer after consecutive refusals.
    fn pause_ns(&mut self) -> u64 {
        let factor = u64::from(self.refused_in_a_row.clamp(1, MAX_PAUSE_FACTOR));
        let usual = self.options.retry_ns.max(2) * factor;
        usual / 2 + self.random() % usual
    }

    fn correlation_id(&mut self, client_id: u32) -> i64 {
        self.counter = self.counter.wrapping_add(1);
        ((u64::from(client_id) << 32) | u64::from(self.counter)) as i64
    }

    /// Sends what is due with `send`, which returns whether the message was sent. `Some` if the lease is
    /// lost.
    pub fn work(&mut self, now_ns: u64, send: &mut dyn FnMut(&[u8]) -> bool) -> Option<LossReason> {
        for detach_request in std::mem::take(&mut self.detach_requests) {
            send(&detach_request);
        }
        if let LeasePhase::Waiting { request_at_ns } = self.phase
            && now_ns >= request_at_ns
        {
            self.start_request(now_ns);
        }
        match &mut self.phase {
            LeasePhase::Waiting { .. } => None,
            LeasePhase::Requested(requested) => {
                if now_ns >= requested.since_ns + self.options.attach_timeout_ns && !requested.is_overdue {
                    // The same request is repeated: a driver that creates gigabytes responds to it later, and
                    // a new request would find the stream taken by the old one.
                    requested.is_overdue = true;
                    self.refusal = Some(AttachRefusal::NoAnswer);
                }
                if now_ns >= requested.next_send_ns {
                    let takes_turns =
                        self.options.tries_other_revision && requested.sends >= SENDS_BEFORE_OTHER;
                    let is_others_turn =
                        takes_turns && (requested.sends - SENDS_BEFORE_OTHER).is_multiple_of(2);
                    let revision = if is_others_turn { self.revision.other() } else { self.revision };
                    if send(&requested.request.encode(revision)) {
                        requested.sends += 1;
                        requested.next_send_ns = now_ns + requested.repeat_ns.min(self.options.retry_ns);
                        requested.repeat_ns = requested.repeat_ns.saturating_mul(2);
                    }
                }
                None
            }
            LeasePhase::Held(held) => {
                if now_ns >= held.next_keepalive_ns {
                    if send(&held.key.encode_keepalive(now_ns)) {
                        held.next_keepalive_ns = now_ns + held.keepalive_ns;
                        held.kept_ns = now_ns;
                    } else if now_ns - held.kept_ns >= held.hold_ns {
                        return Some(self.lose(LossReason::KeepaliveNotSent, now_ns));
                    }
                }
                let since_announce_ns = now_ns.saturating_sub(held.announced_ns);
                (since_announce_ns > MISSED_ANNOUNCES * self.options.announce_period_ns)
                    .then(|| self.lose(LossReason::NoAnnounce, now_ns))
            }
        }
    }

    fn start_request(&mut self, now_ns: u64) {
        let client_id = self.draw_client_id();
        let request = AttachRequest {
            correlation_id: self.correlation_id(client_id),
            stream_id: self.options.stream_id,
            client_id,
            role: self.options.role,
            may_create: self.options.may_create,
            require_hugepages: self.options.require_hugepages,
            desired_node: self.options.desired_node,
        };
        let (since_ns, next_send_ns) = (now_ns, now_ns);
        let repeat_ns = FIRST_REPEAT_NS;
        self.client_id = client_id;
        self.phase = LeasePhase::Requested(PendingRequest {
            request,
            since_ns,
            next_send_ns,
            repeat_ns,
            sends: 0,
            is_overdue: false,
        });
    }

    fn refuse(&mut self, refusal: AttachRefusal, now_ns: u64) {
        self.refusal = Some(refusal);
        self.refused_in_a_row = self.refused_in_a_row.saturating_add(1);
        let request_at_ns = now_ns + self.pause_ns();
        self.phase = LeasePhase::Waiting { request_at_ns };
    }

    fn lose(&mut self, lost: LossReason, now_ns: u64) -> LossReason {
        // The driver may still run: a detach spares it the wait for the expiry.
        if let Some(detach_request) = self.detach_request() {
            self.detach_requests.push(detach_request);
        }
        self.request_soon(now_ns);
        lost
    }

    fn request_soon(&mut self, now_ns: u64) {
        let request_at_ns = now_ns + self.random() % SPREAD_NS;
        self.phase = LeasePhase::Waiting { request_at_ns };
    }

    pub fn on_response(&mut self, response: &AttachResponse, now_ns: u64) -> ResponseOutcome {
        let LeasePhase::Requested(PendingRequest { request, .. }) = &self.phase else {
            return ResponseOutcome::Ignored;
        };
        if request.correlation_id != response.correlation_id {
            return ResponseOutcome::Ignored;
        }
        if response.code != RESPONSE_CODE_OK {
            self.refuse(AttachRefusal::Code(response.code, response.error_message.clone()), now_ns);
            return ResponseOutcome::Refused;
        }
        let key = LeaseKey {
            lease_id: response.lease_id,
            stream_id: request.stream_id,
            client_id: request.client_id,
            role: request.role,
        };
        if let Some(fault) = self.fault(response) {
            if response.lease_id != NULL_U64 {
                // A lease that cannot be used is released.
                let correlation_id = request.correlation_id.wrapping_add(1);
                self.detach_requests.push(key.encode_detach(correlation_id));
            }
            self.refuse(AttachRefusal::Protocol(fault), now_ns);
            return ResponseOutcome::Refused;
        }
        let lease_ns = match response.lease_expiry_ns {
            NULL_U64 => u64::MAX,
            expiry => expiry.saturating_sub(now_ns),
        };
        let first_ns = self.options.keepalive_ns.min(lease_ns / KEEPALIVES_A_LEASE);
        let keepalive_ns = first_ns.max(MIN_KEEPALIVE_NS.min(self.options.keepalive_ns));
        let hold_ns =
            if lease_ns == u64::MAX { 2 * keepalive_ns } else { lease_ns.saturating_sub(keepalive_ns) };
        let layout = GrantedLayout {
            nslots: response.header_nslots,
            strides: response.pools.iter().map(|pool| pool.stride_bytes).collect(),
            node_id: (response.node_id != NULL_U32).then_some(response.node_id),
        };
        self.phase = LeasePhase::Held(HeldLease {
            key,
            layout,
            epoch: response.epoch,
            directory: stream_directory(&response.header_uri, response.epoch),
            keepalive_ns,
            next_keepalive_ns: now_ns + first_ns,
            kept_ns: now_ns,
            hold_ns,
            announced_ns: now_ns,
        });
        if self.options.tries_other_revision {
            self.revision = response.revision;
        }
        self.refusal = None;
        self.refused_in_a_row = 0;
        ResponseOutcome::Granted
    }

    fn fault(&self, response: &AttachResponse) -> Option<String> {
        if let Some(field) = response.missing() {
            return Some(format!("the driver's OK lacks {field}"));
        }
        if response.stream_id != self.options.stream_id {
            return Some(format!("the driver's OK is about stream {}", response.stream_id));
        }
        if response.layout_version != LAYOUT_VERSION
            || usize::from(response.header_slot_bytes) != HEADER_SLOT_BYTES
        {
            return Some(format!(
                "layout version {} with header slots of {} bytes cannot be read",
                response.layout_version, response.header_slot_bytes
            ));
        }
        None
    }

    pub fn on_revoked(&mut self, revoked: &LeaseRevoked, now_ns: u64) -> Revocation {
        if revoked.lease.stream_id != self.options.stream_id {
            return Revocation::NotOurs;
        }
        match &self.phase {
            LeasePhase::Held(held) if held.key == revoked.lease => {
                self.request_soon(now_ns);
                Revocation::Ours
            }
            LeasePhase::Held(_)
                if revoked.lease.role == Role::Producer && self.options.role == Role::Consumer =>
            {
                Revocation::ProducerGone
            }
            LeasePhase::Waiting { .. } if self.waits_for(&revoked.lease) => {
                self.request_soon(now_ns);
                Revocation::NotOurs
            }
            _ => Revocation::NotOurs,
        }
    }

    /// Whether the end of that lease may be what a refused producer waits for: the end of another client's
    /// lease, not of its own.
    fn waits_for(&self, ended: &LeaseKey) -> bool {
        self.options.role == Role::Producer
            && ended.role == Role::Producer
            && ended.client_id != self.client_id
            && matches!(self.refusal, Some(AttachRefusal::Code(..)))
    }

    /// The driver shuts down. True if that ends our lease.
    pub fn on_shutdown(&mut self, now_ns: u64) -> bool {
        let was_held = self.is_held();
        if was_held {
            // Usually the driver restarts: a short pause, then the repeats of an unanswered request.
            let short = (self.options.retry_ns / 10).max(1);
            let request_at_ns = now_ns + short + self.random() % short;
            self.phase = LeasePhase::Waiting { request_at_ns };
        }
        was_held
    }

    /// Whether an announce of the stream may be of the driver that granted the lease.
    ///
    /// Announces do not say who sent them, and any client of the media driver can send one: a driver of
    /// another namespace, or a producer without a driver, that uses the same stream id. Their regions are in
    /// other directories. Without a lease, and with a driver that names its directories otherwise, every
    /// announce may be the driver's.
    pub fn is_of_driver(&self, announce: &PoolAnnounce) -> bool {
        let LeasePhase::Held(HeldLease { directory: Some(directory), .. }) = &self.phase else { return true };
        stream_directory(&announce.header_uri, announce.epoch)
            .is_some_and(|of_announce| of_announce == *directory)
    }

    /// Whether an announce of this epoch ends the lease: a producer writes to the newest epoch only.
    pub fn ends_with(&self, epoch: u64) -> bool {
        let LeasePhase::Held(held) = &self.phase else { return false };
        self.options.role == Role::Producer && epoch > held.epoch
    }

    /// The driver announced the stream, so it is running.
    pub fn on_announce(&mut self, epoch: u64, now_ns: u64) -> Option<LossReason> {
        match &mut self.phase {
            LeasePhase::Held(held) => {
                held.announced_ns = now_ns;
                self.ends_with(epoch).then(|| self.lose(LossReason::LaterEpoch, now_ns))
            }
            // A refused producer waits for the end of the other lease, a consumer for this announce.
            LeasePhase::Waiting { .. } if self.options.role == Role::Producer => None,
            _ => {
                self.retry_now(now_ns);
                None
            }
        }
    }

    /// A new image joined the control stream, possibly that of a driver: the pending request is sent at once.
    pub fn retry_now(&mut self, now_ns: u64) {
        let soon = now_ns + self.random() % SPREAD_NS;
        match &mut self.phase {
            LeasePhase::Waiting { request_at_ns } => *request_at_ns = soon.min(*request_at_ns),
            LeasePhase::Requested(requested) => requested.next_send_ns = soon.min(requested.next_send_ns),
            LeasePhase::Held(_) => {}
        }
    }

    /// The media driver is lost, and every message in flight with it.
    pub fn on_media_driver_lost(&mut self, now_ns: u64) -> Option<LossReason> {
        match self.phase {
            LeasePhase::Held(_) => Some(self.lose(LossReason::MediaDriver, now_ns)),
            _ => {
                self.request_soon(now_ns);
                None
            }
        }
    }

    /// The regions cannot be used here: releases the lease, and requests it again after a pause.
    pub fn release(&mut self, refusal: AttachRefusal, now_ns: u64) {
        if let Some(detach_request) = self.detach_request() {
            self.detach_requests.push(detach_request);
        }
        self.refuse(refusal, now_ns);
    }

    /// Returns the lease, and requests none until `retry_now`.
    pub fn suspend(&mut self) {
        if let Some(detach_request) = self.detach_request() {
            self.detach_requests.push(detach_request);
        }
        self.phase = LeasePhase::Waiting { request_at_ns: u64::MAX };
    }

    /// The detach request that ends a lease in order.
    pub fn detach_request(&mut self) -> Option<Vec<u8>> {
        let key = self.lease()?;
        let correlation_id = self.correlation_id(key.client_id);
        Some(key.encode_detach(correlation_id))
    }
}

/// Why there is no lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachRefusal {
    Code(i32, String),
    /// An OK response that cannot be used.
    Protocol(String),
    /// The lease was granted, but its regions cannot be used here.
    Regions(String),
    /// The lease was granted, but the driver writes the times of another clock than this program.
    Clock(String),
    NoAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// For another client, or too late.
    Ignored,
    Granted,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    NotOurs,
    /// Our lease has ended.
    Ours,
    /// The producer of the consumed stream is gone. A later epoch will be announced.
    ProducerGone,
}

/// How a lease was lost without a message from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    NoAnnounce,
    KeepaliveNotSent,
    LaterEpoch,
    MediaDriver,
}

impl LossReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoAnnounce => "the driver sends no announces",
            Self::KeepaliveNotSent => "keepalives cannot be sent",
            Self::LaterEpoch => "the driver announces a later epoch",
            Self::MediaDriver => "the media driver is gone",
        }
    }
}

/// The directory of a stream whose epochs have directories of their own below it (wire §15.21a).
fn stream_directory(header_uri: &str, epoch: u64) -> Option<PathBuf> {
    let uri = RegionUri::parse(header_uri).ok()?;
    let of_epoch = Path::new(&uri.path).parent()?;
    (of_epoch.file_name()? == epoch.to_string().as_str()).then(|| of_epoch.parent().map(Path::to_path_buf))?
}

#[cfg(test)]
mod tests;
