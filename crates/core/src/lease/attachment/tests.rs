//! Tests of every transition of a lease, with a simulated clock.

use super::*;
use crate::wire::announce::AnnouncedPool;
use crate::wire::driver::RevokeReason;
use crate::wire::layout::*;

const S: u64 = 1_000_000_000;

fn options(role: Role) -> LeaseOptions {
    LeaseOptions {
        stream_id: 10_000,
        role,
        revision: Revision::First,
        tries_other_revision: false,
        may_create: true,
        require_hugepages: false,
        desired_node: NULL_U32,
        keepalive_ns: S,
        announce_period_ns: S,
        attach_timeout_ns: 5 * S,
        retry_ns: S,
    }
}

fn work(a: &mut Attachment, now_ns: u64) -> (Vec<Vec<u8>>, Option<LossReason>) {
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
        node_id: NULL_U32,
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
    let mut a = Attachment::new(options(role), 9);
    let (sent, _) = work(&mut a, 0);
    assert_eq!(templates(&sent), [SHM_ATTACH_REQUEST_TEMPLATE_ID]);
    assert_eq!(a.on_response(&granted(&sent[0], 3 * S), 0), ResponseOutcome::Granted);
    a
}

fn revoked(key: LeaseKey) -> LeaseRevoked {
    LeaseRevoked { lease: key, reason: RevokeReason::Revoked, message: String::new() }
}

/// requirement: driver-4.4-2
#[test]
fn keepalives_are_sent_well_before_the_expiry() {
    let mut a = Attachment::new(options(Role::Producer), 9);
    let (sent, _) = work(&mut a, 0);
    a.on_response(&granted(&sent[0], S * 6 / 10), 0);
    assert!(work(&mut a, S / 10).0.is_empty());
    assert_eq!(templates(&work(&mut a, S / 5).0), [SHM_LEASE_KEEPALIVE_TEMPLATE_ID]);
    assert!(work(&mut a, S * 3 / 10).0.is_empty());
}

#[test]
fn response_that_comes_after_the_expiry_causes_one_keepalive_at_once_and_few_after_it() {
    for late_ns in [0, 1, S] {
        let mut a = Attachment::new(options(Role::Producer), 9);
        let (sent, _) = work(&mut a, 0);
        let now_ns = S + late_ns;
        assert_eq!(a.on_response(&granted(&sent[0], S), now_ns), ResponseOutcome::Granted);
        assert_eq!(templates(&work(&mut a, now_ns).0), [SHM_LEASE_KEEPALIVE_TEMPLATE_ID]);
        // A millisecond of duty cycles.
        let more: usize = (1..=1_000).map(|i| work(&mut a, now_ns + i * 1_000).0.len()).sum();
        assert_eq!(more, 0);
        assert_eq!(templates(&work(&mut a, now_ns + MIN_KEEPALIVE_NS).0), [SHM_LEASE_KEEPALIVE_TEMPLATE_ID]);
    }
}

/// requirement: driver-4.4-7
#[test]
fn lease_without_sent_keepalives_is_lost() {
    let mut a = attached(Role::Producer);
    assert_eq!(a.work(S, &mut |_| false), None);
    assert_eq!(a.work(2 * S - 1, &mut |_| false), None);
    assert_eq!(a.work(2 * S, &mut |_| false), Some(LossReason::KeepaliveNotSent));
    assert!(!a.is_held());
}

/// A control stream that is full for a while costs no lease that the driver still holds.
#[test]
fn lease_is_held_while_a_keepalive_can_still_come_in_time() {
    let often = LeaseOptions { keepalive_ns: S / 10, announce_period_ns: 10 * S, ..options(Role::Consumer) };
    let mut a = Attachment::new(often, 9);
    let (sent, _) = work(&mut a, 0);
    a.on_response(&granted(&sent[0], 3 * S), 0);
    assert_eq!(a.work(2 * S, &mut |_| false), None);
    assert_eq!(templates(&work(&mut a, 28 * S / 10).0), [SHM_LEASE_KEEPALIVE_TEMPLATE_ID]);
    assert_eq!(a.work(56 * S / 10, &mut |_| false), None);
    assert_eq!(a.work(57 * S / 10, &mut |_| false), Some(LossReason::KeepaliveNotSent));
}

/// requirement: driver-4.12-4, driver-10-1
#[test]
fn three_missed_announces_lose_the_driver() {
    let mut a = attached(Role::Consumer);
    a.on_announce(5, S);
    assert_eq!(work(&mut a, 4 * S).1, None);
    assert_eq!(work(&mut a, 4 * S + 1).1, Some(LossReason::NoAnnounce));
    let (sent, _) = work(&mut a, 4 * S + SPREAD_NS + 1);
    assert_eq!(templates(&sent), [SHM_DETACH_REQUEST_TEMPLATE_ID, SHM_ATTACH_REQUEST_TEMPLATE_ID]);
}

/// requirement: driver-4.2-8
#[test]
fn ok_with_a_null_field_is_refused_and_requested_again() {
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
        let mut a = Attachment::new(options(Role::Consumer), 3);
        let (sent, _) = work(&mut a, 0);
        let mut response = granted(&sent[0], 3 * S);
        spoil(&mut response);
        assert_eq!(a.on_response(&response, 0), ResponseOutcome::Refused, "{field}");
        let Some(AttachRefusal::Protocol(why)) = a.refusal() else { panic!("{field}") };
        assert!(why.ends_with(field), "{why}");
        let (sent, _) = work(&mut a, 2 * S);
        assert_eq!(templates(&sent).last(), Some(&SHM_ATTACH_REQUEST_TEMPLATE_ID), "{field}");
    }
}

#[test]
fn second_revision_needs_no_max_dims() {
    let mut a = Attachment::new(options(Role::Consumer), 3);
    let (sent, _) = work(&mut a, 0);
    let response =
        AttachResponse { revision: Revision::Second, max_dims: NULL_U8, ..granted(&sent[0], 3 * S) };
    assert_eq!(a.on_response(&response, 0), ResponseOutcome::Granted);
}

#[test]
fn unanswered_request_is_repeated_unchanged() {
    let mut a = Attachment::new(options(Role::Consumer), 3);
    let (first, _) = work(&mut a, 0);
    let (again, _) = work(&mut a, S);
    assert_eq!(first, again);
    assert_eq!(a.refusal(), None);
    work(&mut a, 5 * S);
    assert_eq!(a.refusal(), Some(&AttachRefusal::NoAnswer));
    assert_eq!(first, work(&mut a, 60 * S).0);
    // A busy driver responds late.
    assert_eq!(a.on_response(&granted(&first[0], 63 * S), 60 * S), ResponseOutcome::Granted);
    assert_eq!(a.refusal(), None);
}

#[test]
fn unanswered_request_is_sent_in_both_revisions_if_configured() {
    let mut a = Attachment::new(LeaseOptions { tries_other_revision: true, ..options(Role::Consumer) }, 3);
    let mut sent = Vec::new();
    for tick in 0..500 {
        sent.extend(work(&mut a, tick * S / 100).0);
    }
    let first = SHM_ATTACH_REQUEST_BLOCK_LENGTH;
    let second = SHM_ATTACH_REQUEST_R2_BLOCK_LENGTH;
    let blocks: Vec<u16> = sent.iter().map(|m| get_u16(m, MESSAGE_HEADER_BLOCK_LENGTH)).collect();
    // At 0, 0.1, 0.3 s, then in turns at 0.7 s, 1.5 s and once a second.
    assert_eq!(blocks, [first, first, first, second, first, second, first, second]);
    let ids = |m: &Vec<u8>| m[MESSAGE_HEADER_LENGTH..MESSAGE_HEADER_LENGTH + 16].to_vec();
    assert!(sent.iter().all(|m| ids(m) == ids(&sent[0])), "one request, in two forms");
    // From now on, requests are sent in the revision of the driver's answer first.
    let answer = AttachResponse { revision: Revision::Second, max_dims: NULL_U8, ..granted(&sent[0], 9 * S) };
    assert_eq!(a.on_response(&answer, 5 * S), ResponseOutcome::Granted);
    assert_eq!(a.revision(), Revision::Second);
    let own = a.lease().unwrap();
    assert_eq!(a.on_revoked(&revoked(own), 5 * S), Revocation::Ours);
    assert_eq!(get_u16(&work(&mut a, 6 * S).0[0], MESSAGE_HEADER_BLOCK_LENGTH), second);
}

#[test]
fn repeats_of_a_request_keep_their_pause() {
    let mut a = Attachment::new(options(Role::Consumer), 3);
    let sent = (0..200 * 100).filter(|tick| !work(&mut a, tick * S / 100).0.is_empty()).count();
    // At 0, 0.1, 0.3 and 0.7 s, and once a second from 1.5 s on.
    assert_eq!(sent, 4 + 199);
}

#[test]
fn own_revocation_does_not_retry_and_anothers_does() {
    let mut a = attached(Role::Producer);
    let own = a.lease().unwrap();
    a.release(AttachRefusal::Regions("cannot be mapped".into()), 0);
    work(&mut a, 0);
    assert_eq!(a.on_revoked(&revoked(own), 0), Revocation::NotOurs);
    let other = LeaseKey { lease_id: 1, client_id: 1, ..own };
    assert_eq!(a.on_revoked(&revoked(other), 0), Revocation::NotOurs);
    assert!(work(&mut a, S / 4).0.is_empty(), "the pause holds");
    let (sent, _) = work(&mut a, 2 * S);
    let busy = AttachResponse { code: RESPONSE_CODE_REJECTED, ..granted(&sent[0], 0) };
    assert_eq!(a.on_response(&busy, 2 * S), ResponseOutcome::Refused);
    a.on_revoked(&revoked(LeaseKey { role: Role::Consumer, ..other }), 2 * S);
    assert!(work(&mut a, 2 * S + S / 4).0.is_empty(), "a consumer's end frees nothing");
    a.on_revoked(&revoked(other), 2 * S);
    assert_eq!(templates(&work(&mut a, 2 * S + S / 4).0), [SHM_ATTACH_REQUEST_TEMPLATE_ID]);
}

#[test]
fn foreign_and_late_responses_are_ignored() {
    let mut a = Attachment::new(options(Role::Consumer), 3);
    let (sent, _) = work(&mut a, 0);
    let other = AttachResponse { correlation_id: 1, ..granted(&sent[0], 3 * S) };
    assert_eq!(a.on_response(&other, 0), ResponseOutcome::Ignored);
    let good = granted(&sent[0], 3 * S);
    assert_eq!(a.on_response(&good, 0), ResponseOutcome::Granted);
    assert_eq!(a.on_response(&good, 0), ResponseOutcome::Ignored);
}

/// requirement: driver-4.9-5, driver-4.9-6
#[test]
fn only_our_revocation_ends_the_lease() {
    let mut a = attached(Role::Producer);
    let key = a.lease().unwrap();
    let foreign = [
        LeaseKey { lease_id: 1, ..key },
        LeaseKey { client_id: 1, ..key },
        LeaseKey { stream_id: 1, ..key },
        LeaseKey { role: Role::Consumer, ..key },
    ];
    for other in foreign {
        assert_eq!(a.on_revoked(&revoked(other), 0), Revocation::NotOurs);
    }
    assert_eq!(a.on_revoked(&revoked(key), 0), Revocation::Ours);
    assert!(!a.is_held());
    assert_eq!(templates(&work(&mut a, SPREAD_NS).0), [SHM_ATTACH_REQUEST_TEMPLATE_ID]);
}

/// requirement: driver-4.9-7
#[test]
fn consumer_keeps_its_lease_when_the_producer_is_gone() {
    let mut a = attached(Role::Consumer);
    let producer = LeaseKey { lease_id: 1, stream_id: 10_000, client_id: 1, role: Role::Producer };
    assert_eq!(a.on_revoked(&revoked(producer), 0), Revocation::ProducerGone);
    assert!(a.is_held());
}

/// requirement: driver-4.12-3
#[test]
fn shutdown_ends_the_lease_and_a_restarted_driver_is_asked_soon() {
    let mut a = attached(Role::Consumer);
    assert!(a.on_shutdown(0));
    assert!(!a.on_shutdown(0));
    assert!(work(&mut a, S / 20).0.is_empty());
    a.retry_now(S / 20);
    assert_eq!(templates(&work(&mut a, S / 20 + SPREAD_NS).0), [SHM_ATTACH_REQUEST_TEMPLATE_ID]);
}

#[test]
fn later_epoch_ends_a_producer_lease_only() {
    let mut consumer = attached(Role::Consumer);
    assert_eq!(consumer.on_announce(6, 0), None);
    let mut producer = attached(Role::Producer);
    assert_eq!(producer.on_announce(5, 0), None);
    assert_eq!(producer.on_announce(6, 0), Some(LossReason::LaterEpoch));
}

fn announce_at(epoch: u64, path: &str) -> PoolAnnounce {
    PoolAnnounce {
        stream_id: 10_000,
        producer_id: 1,
        epoch,
        timestamp_ns: 0,
        clock_domain: 1,
        layout_version: 1,
        header_nslots: 8,
        header_slot_bytes: 256,
        pools: Vec::new(),
        header_uri: format!("shm:file?path={path}"),
    }
}

#[test]
fn only_announces_of_the_granted_directory_are_of_the_driver() {
    let mut a = Attachment::new(options(Role::Consumer), 9);
    let elsewhere = announce_at(6, "/dev/shm/tensorpool-b/default/10000/6/header.ring");
    assert!(a.is_of_driver(&elsewhere), "without a lease it may be");
    let (sent, _) = work(&mut a, 0);
    let header_uri = "shm:file?path=/dev/shm/tensorpool-a/default/10000/5/header.ring".to_owned();
    a.on_response(&AttachResponse { header_uri, ..granted(&sent[0], 3 * S) }, 0);
    assert!(a.is_of_driver(&announce_at(6, "/dev/shm/tensorpool-a/default/10000/6/header.ring")));
    assert!(!a.is_of_driver(&elsewhere));
    for path in [
        "/dev/shm/tensorpool-a/other/10000/6/header.ring",
        "/dev/shm/tensorpool-a/default/10000/7/header.ring",
        "/dev/shm/tensorpool-a/default/10000/header.ring",
        "/6/header.ring",
        "relative/6/header.ring",
        "/",
    ] {
        assert!(!a.is_of_driver(&announce_at(6, path)), "{path}");
    }
}

#[test]
fn directories_of_other_names_rule_out_no_announce() {
    let a = attached(Role::Consumer);
    assert!(a.is_of_driver(&announce_at(6, "/dev/shm/anything")));
}

#[test]
fn pause_grows_with_refusals_up_to_a_bound() {
    let mut a = Attachment::new(options(Role::Producer), 3);
    let (mut now, mut longest) = (0, 0);
    for _ in 0..50 {
        let (sent, _) = work(&mut a, now);
        let refusal = AttachResponse {
            code: RESPONSE_CODE_REJECTED,
            error_message: "busy".into(),
            ..granted(&sent[0], 0)
        };
        assert_eq!(a.on_response(&refusal, now), ResponseOutcome::Refused);
        assert_eq!(a.refusal(), Some(&AttachRefusal::Code(RESPONSE_CODE_REJECTED, "busy".into())));
        let LeasePhase::Waiting { request_at_ns } = a.phase else { panic!("still asking") };
        assert!(request_at_ns - now >= S / 2);
        longest = longest.max(request_at_ns - now);
        now = request_at_ns;
    }
    assert!((2 * S..=6 * S).contains(&longest), "{longest}");
}

#[test]
fn correlation_id_carries_the_client_id() {
    let mut seen = std::collections::HashSet::new();
    for seed in 0..1000 {
        let mut a = Attachment::new(options(Role::Consumer), seed * 2 + 1);
        let (sent, _) = work(&mut a, 0);
        let block = &sent[0][MESSAGE_HEADER_LENGTH..];
        let client_id = get_u32(block, SHM_ATTACH_REQUEST_CLIENT_ID);
        assert_eq!(get_u64(block, 0) >> 32, u64::from(client_id));
        assert!(client_id != 0 && client_id != NULL_U32);
        seen.insert(client_id);
    }
    assert!(seen.len() > 990);
}

#[test]
fn suspended_lease_is_detached_and_requested_only_when_resumed() {
    let mut a = attached(Role::Producer);
    a.suspend();
    assert!(!a.is_held());
    let (sent, lost) = work(&mut a, 2 * S);
    assert_eq!((templates(&sent), lost), (vec![SHM_DETACH_REQUEST_TEMPLATE_ID], None));
    assert!(work(&mut a, 1000 * S).0.is_empty());
    a.retry_now(1000 * S);
    assert_eq!(templates(&work(&mut a, 1001 * S).0), [SHM_ATTACH_REQUEST_TEMPLATE_ID]);
}
