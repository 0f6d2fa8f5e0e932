//! A client's way to a lease, and what ends it (driver §4, §10). Pure: messages and the time go in; what to
//! send, and what became of the lease, come out.
//!
//! Every attempt draws a new client id, and a correlation id that carries it, so that an answer can be told
//! from the answers to all others on the shared control stream. A request that is not answered is sent again
//! as it was; the driver gives the same answer to it.

use crate::driver_messages::{AttachRequest, AttachResponse, LeaseName, LeaseRevoked, Revision, Role};
use crate::layout::{HEADER_SLOT_BYTES, LAYOUT_VERSION, NULL_U32, NULL_U64, RESPONSE_CODE_OK};

/// Missed announces after which the driver counts as lost.
const MISSED_ANNOUNCES: u64 = 3;
/// How many keepalives fit into the time that a lease is given for.
const KEEPALIVES_A_LEASE: u64 = 3;
/// Those who are woken at once by one message do not all speak at once.
const SPREAD_NS: u64 = 20_000_000;
/// A request without an answer is said again after this long, then after twice that, up to the usual pause.
const FIRST_REPEAT_NS: u64 = 100_000_000;
/// Refusals in a row make the pause longer, up to this many times the usual one.
const LONGEST_PAUSE: u32 = 4;

#[derive(Clone, Debug)]
pub struct Terms {
    pub stream_id: u32,
    pub role: Role,
    pub revision: Revision,
    pub may_create: bool,
    pub require_hugepages: bool,
    pub keepalive_ns: u64,
    pub announce_period_ns: u64,
    pub attach_timeout_ns: u64,
    pub retry_ns: u64,
}

#[derive(Clone, Debug)]
struct Asked {
    request: AttachRequest,
    since_ns: u64,
    next_send_ns: u64,
    repeat_ns: u64,
    /// That nobody answers has been said.
    is_overdue: bool,
}

#[derive(Clone, Debug)]
struct Held {
    name: LeaseName,
    epoch: u64,
    keepalive_ns: u64,
    next_keepalive_ns: u64,
    /// Since when keepalives are not taken.
    failing_since_ns: Option<u64>,
    /// When the driver was heard of last.
    heard_ns: u64,
}

#[derive(Clone, Debug)]
enum Phase {
    Waiting { ask_at_ns: u64 },
    Asked(Asked),
    Held(Held),
}

/// Why there is no lease: what the driver said, or that it said nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Code(i32, String),
    /// An OK that cannot be used.
    Protocol(String),
    /// The lease was granted, and its regions cannot be used here.
    Regions(String),
    NoAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not for us, or no longer.
    Ignored,
    Granted,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    NotOurs,
    /// Our lease is over.
    Ours,
    /// The producer of the stream that we consume is gone; a later epoch will be announced.
    ProducerGone,
}

/// How a lease was lost without a word from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    NoAnnounce,
    KeepaliveNotSent,
    LaterEpoch,
    MediaDriver,
}

impl Lost {
    pub const fn why(self) -> &'static str {
        match self {
            Self::NoAnnounce => "the driver gives no sign of life",
            Self::KeepaliveNotSent => "keepalives cannot be sent",
            Self::LaterEpoch => "the driver announces a later epoch",
            Self::MediaDriver => "the media driver is gone",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Attachment {
    terms: Terms,
    phase: Phase,
    /// Words for the driver that nobody waits for.
    farewells: Vec<Vec<u8>>,
    refusal: Option<Refusal>,
    refused_in_a_row: u32,
    counter: u32,
    random: u64,
    /// Who we were in the last attempt.
    client_id: u32,
}

impl Attachment {
    /// `seed` makes client ids and pauses differ between clients.
    pub fn new(terms: Terms, seed: u64) -> Self {
        Self {
            terms,
            phase: Phase::Waiting { ask_at_ns: 0 },
            farewells: Vec::new(),
            refusal: None,
            refused_in_a_row: 0,
            counter: 0,
            random: seed | 1,
            client_id: 0,
        }
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    pub fn lease(&self) -> Option<LeaseName> {
        match &self.phase {
            Phase::Held(held) => Some(held.name),
            _ => None,
        }
    }

    pub fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held(_))
    }

    /// Why the last attempt came to nothing; none once a lease is held.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    fn random(&mut self) -> u64 {
        // xorshift64*: spread, not secrecy, is what is needed here.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn draw_client_id(&mut self) -> u32 {
        loop {
            let id = self.random() as u32;
            if id != 0 && id != NULL_U32 {
                return id;
            }
        }
    }

    /// A pause of half to one and a half times the usual one, longer after refusals in a row.
    fn pause_ns(&mut self) -> u64 {
        let factor = u64::from(self.refused_in_a_row.clamp(1, LONGEST_PAUSE));
        let usual = self.terms.retry_ns.max(2) * factor;
        usual / 2 + self.random() % usual
    }

    fn correlation_id(&mut self, client_id: u32) -> i64 {
        self.counter = self.counter.wrapping_add(1);
        ((u64::from(client_id) << 32) | u64::from(self.counter)) as i64
    }

    /// What is due now goes to `send`, which says whether it was taken. Some if the lease is lost.
    pub fn work(&mut self, now_ns: u64, send: &mut dyn FnMut(&[u8]) -> bool) -> Option<Lost> {
        for farewell in std::mem::take(&mut self.farewells) {
            send(&farewell);
        }
        if let Phase::Waiting { ask_at_ns } = self.phase
            && now_ns >= ask_at_ns
        {
            self.ask(now_ns);
        }
        match &mut self.phase {
            Phase::Waiting { .. } => None,
            Phase::Asked(asked) => {
                if now_ns >= asked.since_ns + self.terms.attach_timeout_ns && !asked.is_overdue {
                    // It goes on asking as it did: a driver that makes gigabytes answers this request, and one
                    // drawn anew would find the stream taken by the old one.
                    asked.is_overdue = true;
                    self.refusal = Some(Refusal::NoAnswer);
                }
                if now_ns >= asked.next_send_ns {
                    let taken = send(&asked.request.encode(self.terms.revision));
                    if taken {
                        asked.next_send_ns = now_ns + asked.repeat_ns.min(self.terms.retry_ns);
                        asked.repeat_ns *= 2;
                    }
                }
                None
            }
            Phase::Held(held) => {
                if now_ns >= held.next_keepalive_ns {
                    if send(&held.name.encode_keepalive(now_ns)) {
                        held.next_keepalive_ns = now_ns + held.keepalive_ns;
                        held.failing_since_ns = None;
                    } else {
                        let since = *held.failing_since_ns.get_or_insert(now_ns);
                        if now_ns - since >= held.keepalive_ns {
                            return Some(self.lose(Lost::KeepaliveNotSent, now_ns));
                        }
                    }
                }
                let silence_ns = now_ns.saturating_sub(held.heard_ns);
                (silence_ns > MISSED_ANNOUNCES * self.terms.announce_period_ns)
                    .then(|| self.lose(Lost::NoAnnounce, now_ns))
            }
        }
    }

    fn ask(&mut self, now_ns: u64) {
        let client_id = self.draw_client_id();
        let request = AttachRequest {
            correlation_id: self.correlation_id(client_id),
            stream_id: self.terms.stream_id,
            client_id,
            role: self.terms.role,
            may_create: self.terms.may_create,
            require_hugepages: self.terms.require_hugepages,
        };
        let (since_ns, next_send_ns) = (now_ns, now_ns);
        let repeat_ns = FIRST_REPEAT_NS;
        self.client_id = client_id;
        self.phase = Phase::Asked(Asked { request, since_ns, next_send_ns, repeat_ns, is_overdue: false });
    }

    fn refuse(&mut self, refusal: Refusal, now_ns: u64) {
        self.refusal = Some(refusal);
        self.refused_in_a_row = self.refused_in_a_row.saturating_add(1);
        let ask_at_ns = now_ns + self.pause_ns();
        self.phase = Phase::Waiting { ask_at_ns };
    }

    fn lose(&mut self, lost: Lost, now_ns: u64) -> Lost {
        // The driver may live after all: it need not wait for the expiry.
        if let Some(farewell) = self.farewell() {
            self.farewells.push(farewell);
        }
        self.ask_soon(now_ns);
        lost
    }

    fn ask_soon(&mut self, now_ns: u64) {
        let ask_at_ns = now_ns + self.random() % SPREAD_NS;
        self.phase = Phase::Waiting { ask_at_ns };
    }

    pub fn on_response(&mut self, response: &AttachResponse, now_ns: u64) -> Answer {
        let Phase::Asked(Asked { request, .. }) = &self.phase else {
            return Answer::Ignored;
        };
        if request.correlation_id != response.correlation_id {
            return Answer::Ignored;
        }
        if response.code != RESPONSE_CODE_OK {
            self.refuse(Refusal::Code(response.code, response.error_message.clone()), now_ns);
            return Answer::Refused;
        }
        if let Some(fault) = self.fault(response) {
            if response.lease_id != NULL_U64 {
                // What cannot be used is given back.
                let name = LeaseName {
                    lease_id: response.lease_id,
                    stream_id: request.stream_id,
                    client_id: request.client_id,
                    role: request.role,
                };
                let correlation_id = request.correlation_id.wrapping_add(1);
                self.farewells.push(name.encode_detach(correlation_id));
            }
            self.refuse(Refusal::Protocol(fault), now_ns);
            return Answer::Refused;
        }
        let name = LeaseName {
            lease_id: response.lease_id,
            stream_id: request.stream_id,
            client_id: request.client_id,
            role: request.role,
        };
        let lease_ns = match response.lease_expiry_ns {
            NULL_U64 => u64::MAX,
            expiry => expiry.saturating_sub(now_ns),
        };
        let keepalive_ns = self.terms.keepalive_ns.min(lease_ns / KEEPALIVES_A_LEASE).max(1);
        self.phase = Phase::Held(Held {
            name,
            epoch: response.epoch,
            keepalive_ns,
            next_keepalive_ns: now_ns + keepalive_ns,
            failing_since_ns: None,
            heard_ns: now_ns,
        });
        self.refusal = None;
        self.refused_in_a_row = 0;
        Answer::Granted
    }

    fn fault(&self, response: &AttachResponse) -> Option<String> {
        if let Some(field) = response.missing() {
            return Some(format!("the driver's OK lacks {field}"));
        }
        if response.stream_id != self.terms.stream_id {
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
        if revoked.lease.stream_id != self.terms.stream_id {
            return Revocation::NotOurs;
        }
        match &self.phase {
            Phase::Held(held) if held.name == revoked.lease => {
                self.ask_soon(now_ns);
                Revocation::Ours
            }
            Phase::Held(_) if revoked.lease.role == Role::Producer && self.terms.role == Role::Consumer => {
                Revocation::ProducerGone
            }
            Phase::Waiting { .. } if self.waits_for(&revoked.lease) => {
                self.ask_soon(now_ns);
                Revocation::NotOurs
            }
            _ => Revocation::NotOurs,
        }
    }

    /// Whether the end of that lease may be what a refused producer waits for: the end of another's, not the
    /// echo of what it gave back itself.
    fn waits_for(&self, ended: &LeaseName) -> bool {
        self.terms.role == Role::Producer
            && ended.role == Role::Producer
            && ended.client_id != self.client_id
            && matches!(self.refusal, Some(Refusal::Code(..)))
    }

    /// The driver stops in order. True if that ends our lease.
    pub fn on_shutdown(&mut self, now_ns: u64) -> bool {
        let was_held = self.is_held();
        if was_held {
            // Most often it is being restarted: a short pause, and then the repeats of an unanswered request.
            let short = (self.terms.retry_ns / 10).max(1);
            let ask_at_ns = now_ns + short + self.random() % short;
            self.phase = Phase::Waiting { ask_at_ns };
        }
        was_held
    }

    /// The stream was announced: the driver lives.
    pub fn on_announce(&mut self, epoch: u64, now_ns: u64) -> Option<Lost> {
        match &mut self.phase {
            Phase::Held(held) => {
                held.heard_ns = now_ns;
                let superseded = self.terms.role == Role::Producer && epoch > held.epoch;
                superseded.then(|| self.lose(Lost::LaterEpoch, now_ns))
            }
            // A producer that was refused waits for the other's end; a consumer for this very announce.
            Phase::Waiting { .. } if self.terms.role == Role::Producer => None,
            _ => {
                self.wake(now_ns);
                None
            }
        }
    }

    /// Someone new speaks on the control stream, a driver perhaps: what is wanted is asked for at once.
    pub fn wake(&mut self, now_ns: u64) {
        let soon = now_ns + self.random() % SPREAD_NS;
        match &mut self.phase {
            Phase::Waiting { ask_at_ns } => *ask_at_ns = soon.min(*ask_at_ns),
            Phase::Asked(asked) => asked.next_send_ns = soon.min(asked.next_send_ns),
            Phase::Held(_) => {}
        }
    }

    /// The media driver is gone, and every message with it.
    pub fn on_disconnected(&mut self, now_ns: u64) -> Option<Lost> {
        match self.phase {
            Phase::Held(_) => Some(self.lose(Lost::MediaDriver, now_ns)),
            _ => {
                self.ask_soon(now_ns);
                None
            }
        }
    }

    /// The lease cannot be used here: it is given back, and asked for again after a pause.
    pub fn give_back(&mut self, why: String, now_ns: u64) {
        if let Some(farewell) = self.farewell() {
            self.farewells.push(farewell);
        }
        self.refuse(Refusal::Regions(why), now_ns);
    }

    /// The detach that ends a lease in order.
    pub fn farewell(&mut self) -> Option<Vec<u8>> {
        let name = self.lease()?;
        let correlation_id = self.correlation_id(name.client_id);
        Some(name.encode_detach(correlation_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::announce::AnnouncedPool;
    use crate::driver_messages::RevokeReason;
    use crate::layout::*;

    const S: u64 = 1_000_000_000;

    fn terms(role: Role) -> Terms {
        Terms {
            stream_id: 10_000,
            role,
            revision: Revision::First,
            may_create: true,
            require_hugepages: false,
            keepalive_ns: S,
            announce_period_ns: S,
            attach_timeout_ns: 5 * S,
            retry_ns: S,
        }
    }

    fn work(a: &mut Attachment, now_ns: u64) -> (Vec<Vec<u8>>, Option<Lost>) {
        let mut sent = Vec::new();
        let lost = a.work(now_ns, &mut |bytes| {
            sent.push(bytes.to_vec());
            true
        });
        (sent, lost)
    }

    fn templates(sent: &[Vec<u8>]) -> Vec<u16> {
        sent.iter().map(|m| get_u16(m, MESSAGE_HEADER_TEMPLATE_ID)).collect()
    }

    fn granted(request: &[u8], expiry_ns: u64) -> AttachResponse {
        AttachResponse {
            revision: Revision::First,
            correlation_id: get_u64(request, MESSAGE_HEADER_LENGTH) as i64,
            code: RESPONSE_CODE_OK,
            lease_id: 77,
            lease_expiry_ns: expiry_ns,
            stream_id: 10_000,
            epoch: 5,
            layout_version: 1,
            header_nslots: 8,
            header_slot_bytes: 256,
            max_dims: 8,
            pools: vec![AnnouncedPool {
                pool_id: 1,
                nslots: 8,
                stride_bytes: 64,
                uri: "shm:file?path=/dev/shm/1".into(),
            }],
            header_uri: "shm:file?path=/dev/shm/h".into(),
            error_message: String::new(),
        }
    }

    fn attached(role: Role) -> Attachment {
        let mut a = Attachment::new(terms(role), 9);
        let (sent, _) = work(&mut a, 0);
        assert_eq!(templates(&sent), [SHM_ATTACH_REQUEST_TEMPLATE_ID]);
        assert_eq!(a.on_response(&granted(&sent[0], 3 * S), 0), Answer::Granted);
        a
    }

    fn revoked(name: LeaseName) -> LeaseRevoked {
        LeaseRevoked { lease: name, reason: RevokeReason::Revoked, message: String::new() }
    }

    /// requirement: driver-4.4-2
    #[test]
    fn keepalives_come_well_before_the_expiry_that_was_told() {
        let mut a = Attachment::new(terms(Role::Producer), 9);
        let (sent, _) = work(&mut a, 0);
        a.on_response(&granted(&sent[0], S * 6 / 10), 0);
        assert!(work(&mut a, S / 10).0.is_empty());
        assert_eq!(templates(&work(&mut a, S / 5).0), [SHM_LEASE_KEEPALIVE_TEMPLATE_ID]);
        assert!(work(&mut a, S * 3 / 10).0.is_empty());
    }

    /// requirement: driver-4.4-7
    #[test]
    fn a_lease_whose_keepalives_are_not_taken_is_given_up() {
        let mut a = attached(Role::Producer);
        assert_eq!(a.work(S, &mut |_| false), None);
        assert_eq!(a.work(2 * S - 1, &mut |_| false), None);
        assert_eq!(a.work(2 * S, &mut |_| false), Some(Lost::KeepaliveNotSent));
        assert!(!a.is_held());
    }

    /// requirement: driver-4.12-4, driver-10-1
    #[test]
    fn three_missed_announces_mean_that_the_driver_is_lost() {
        let mut a = attached(Role::Consumer);
        a.on_announce(5, S);
        assert_eq!(work(&mut a, 4 * S).1, None);
        assert_eq!(work(&mut a, 4 * S + 1).1, Some(Lost::NoAnnounce));
        let (sent, _) = work(&mut a, 4 * S + SPREAD_NS + 1);
        assert_eq!(templates(&sent), [SHM_DETACH_REQUEST_TEMPLATE_ID, SHM_ATTACH_REQUEST_TEMPLATE_ID]);
    }

    /// requirement: driver-4.2-8
    #[test]
    fn an_ok_with_a_null_in_it_is_dropped_and_asked_for_again() {
        type Spoil = fn(&mut AttachResponse);
        let spoils: [(&str, Spoil); 12] = [
            ("leaseId", |r| r.lease_id = NULL_U64),
            ("streamId", |r| r.stream_id = NULL_U32),
            ("epoch", |r| r.epoch = NULL_U64),
            ("layoutVersion", |r| r.layout_version = NULL_U32),
            ("headerNslots", |r| r.header_nslots = NULL_U32),
            ("headerSlotBytes", |r| r.header_slot_bytes = NULL_U16),
            ("maxDims", |r| r.max_dims = NULL_U8),
            ("headerRegionUri", |r| r.header_uri.clear()),
            ("payloadPools", |r| r.pools.clear()),
            ("payloadPools.regionUri", |r| r.pools[0].uri.clear()),
            ("payloadPools.poolNslots", |r| r.pools[0].nslots = 4),
            ("payloadPools.strideBytes", |r| r.pools[0].stride_bytes = NULL_U32),
        ];
        for (field, spoil) in spoils {
            let mut a = Attachment::new(terms(Role::Consumer), 3);
            let (sent, _) = work(&mut a, 0);
            let mut response = granted(&sent[0], 3 * S);
            spoil(&mut response);
            assert_eq!(a.on_response(&response, 0), Answer::Refused, "{field}");
            let Some(Refusal::Protocol(why)) = a.refusal() else { panic!("{field}") };
            assert!(why.ends_with(field), "{why}");
            let (sent, _) = work(&mut a, 2 * S);
            assert_eq!(templates(&sent).last(), Some(&SHM_ATTACH_REQUEST_TEMPLATE_ID), "{field}");
        }
    }

    #[test]
    fn a_later_revision_has_no_max_dims_to_lack() {
        let mut a = Attachment::new(terms(Role::Consumer), 3);
        let (sent, _) = work(&mut a, 0);
        let response =
            AttachResponse { revision: Revision::Second, max_dims: NULL_U8, ..granted(&sent[0], 3 * S) };
        assert_eq!(a.on_response(&response, 0), Answer::Granted);
    }

    #[test]
    fn an_unanswered_request_is_sent_again_as_it_was_for_as_long_as_it_takes() {
        let mut a = Attachment::new(terms(Role::Consumer), 3);
        let (first, _) = work(&mut a, 0);
        let (again, _) = work(&mut a, S);
        assert_eq!(first, again);
        assert_eq!(a.refusal(), None);
        work(&mut a, 5 * S);
        assert_eq!(a.refusal(), Some(&Refusal::NoAnswer));
        assert_eq!(first, work(&mut a, 60 * S).0);
        // A driver that had much to do answers at last.
        assert_eq!(a.on_response(&granted(&first[0], 63 * S), 60 * S), Answer::Granted);
        assert_eq!(a.refusal(), None);
    }

    #[test]
    fn the_echo_of_what_was_given_back_wakes_nobody_and_another_s_end_does() {
        let mut a = attached(Role::Producer);
        let own = a.lease().unwrap();
        a.give_back("cannot be mapped".into(), 0);
        work(&mut a, 0);
        assert_eq!(a.on_revoked(&revoked(own), 0), Revocation::NotOurs);
        let other = LeaseName { lease_id: 1, client_id: 1, ..own };
        assert_eq!(a.on_revoked(&revoked(other), 0), Revocation::NotOurs);
        assert!(work(&mut a, S / 4).0.is_empty(), "the pause holds");
        let (sent, _) = work(&mut a, 2 * S);
        let busy = AttachResponse { code: RESPONSE_CODE_REJECTED, ..granted(&sent[0], 0) };
        assert_eq!(a.on_response(&busy, 2 * S), Answer::Refused);
        a.on_revoked(&revoked(LeaseName { role: Role::Consumer, ..other }), 2 * S);
        assert!(work(&mut a, 2 * S + S / 4).0.is_empty(), "a consumer's end frees nothing");
        a.on_revoked(&revoked(other), 2 * S);
        assert_eq!(templates(&work(&mut a, 2 * S + S / 4).0), [SHM_ATTACH_REQUEST_TEMPLATE_ID]);
    }

    #[test]
    fn answers_to_others_and_late_ones_are_ignored() {
        let mut a = Attachment::new(terms(Role::Consumer), 3);
        let (sent, _) = work(&mut a, 0);
        let other = AttachResponse { correlation_id: 1, ..granted(&sent[0], 3 * S) };
        assert_eq!(a.on_response(&other, 0), Answer::Ignored);
        let good = granted(&sent[0], 3 * S);
        assert_eq!(a.on_response(&good, 0), Answer::Granted);
        assert_eq!(a.on_response(&good, 0), Answer::Ignored);
    }

    /// requirement: driver-4.9-5, driver-4.9-6
    #[test]
    fn our_own_revocation_ends_the_lease_and_another_s_does_not() {
        let mut a = attached(Role::Producer);
        let name = a.lease().unwrap();
        let foreign = [
            LeaseName { lease_id: 1, ..name },
            LeaseName { client_id: 1, ..name },
            LeaseName { stream_id: 1, ..name },
            LeaseName { role: Role::Consumer, ..name },
        ];
        for other in foreign {
            assert_eq!(a.on_revoked(&revoked(other), 0), Revocation::NotOurs);
        }
        assert_eq!(a.on_revoked(&revoked(name), 0), Revocation::Ours);
        assert!(!a.is_held());
        assert_eq!(templates(&work(&mut a, SPREAD_NS).0), [SHM_ATTACH_REQUEST_TEMPLATE_ID]);
    }

    /// requirement: driver-4.9-7
    #[test]
    fn a_consumer_learns_that_its_producer_is_gone_and_keeps_its_lease() {
        let mut a = attached(Role::Consumer);
        let producer = LeaseName { lease_id: 1, stream_id: 10_000, client_id: 1, role: Role::Producer };
        assert_eq!(a.on_revoked(&revoked(producer), 0), Revocation::ProducerGone);
        assert!(a.is_held());
    }

    /// requirement: driver-4.12-3
    #[test]
    fn a_shutdown_ends_the_lease_and_a_driver_that_comes_back_is_asked_at_once() {
        let mut a = attached(Role::Consumer);
        assert!(a.on_shutdown(0));
        assert!(!a.on_shutdown(0));
        assert!(work(&mut a, S / 20).0.is_empty());
        a.wake(S / 20);
        assert_eq!(templates(&work(&mut a, S / 20 + SPREAD_NS).0), [SHM_ATTACH_REQUEST_TEMPLATE_ID]);
    }

    #[test]
    fn a_producer_superseded_by_a_later_epoch_stops_and_a_consumer_goes_on() {
        let mut consumer = attached(Role::Consumer);
        assert_eq!(consumer.on_announce(6, 0), None);
        let mut producer = attached(Role::Producer);
        assert_eq!(producer.on_announce(5, 0), None);
        assert_eq!(producer.on_announce(6, 0), Some(Lost::LaterEpoch));
    }

    #[test]
    fn refusals_make_the_pause_longer_and_never_endless() {
        let mut a = Attachment::new(terms(Role::Producer), 3);
        let (mut now, mut longest) = (0, 0);
        for _ in 0..50 {
            let (sent, _) = work(&mut a, now);
            let refusal = AttachResponse {
                code: RESPONSE_CODE_REJECTED,
                error_message: "busy".into(),
                ..granted(&sent[0], 0)
            };
            assert_eq!(a.on_response(&refusal, now), Answer::Refused);
            assert_eq!(a.refusal(), Some(&Refusal::Code(RESPONSE_CODE_REJECTED, "busy".into())));
            let Phase::Waiting { ask_at_ns } = a.phase else { panic!("still asking") };
            assert!(ask_at_ns - now >= S / 2);
            longest = longest.max(ask_at_ns - now);
            now = ask_at_ns;
        }
        assert!((2 * S..=6 * S).contains(&longest), "{longest}");
    }

    #[test]
    fn client_ids_differ_and_the_correlation_carries_them() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..1000 {
            let mut a = Attachment::new(terms(Role::Consumer), seed * 2 + 1);
            let (sent, _) = work(&mut a, 0);
            let block = &sent[0][MESSAGE_HEADER_LENGTH..];
            let client_id = get_u32(block, SHM_ATTACH_REQUEST_CLIENT_ID);
            assert_eq!(get_u64(block, 0) >> 32, u64::from(client_id));
            assert!(client_id != 0 && client_id != NULL_U32);
            seen.insert(client_id);
        }
        assert!(seen.len() > 990);
    }
}
