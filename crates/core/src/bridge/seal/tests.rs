use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_800_000_000_000_000_000;
const AGE: u64 = 60_000_000_000;
const HERE: u64 = 1;
const THERE: u64 = 2;

fn keys(bytes: &[u8], origin: u64) -> Arc<SharedKeys> {
    let all: Vec<[u8; KEY_BYTES]> = bytes.iter().map(|b| [*b; KEY_BYTES]).collect();
    Arc::new(SharedKeys::new(&all, origin).expect("at least one key"))
}

fn sealer(bytes: &[u8]) -> Sealer {
    Sealer::new(keys(bytes, HERE), Purpose::Payload).expect("random numbers")
}

fn opener(bytes: &[u8]) -> Opener {
    Opener::new(keys(bytes, THERE), Purpose::Payload, AGE)
}

#[test]
fn message_survives_sealing_and_opening() {
    let (mut sealer, mut opener) = (sealer(&[1]), opener(&[1]));
    for message in [b"".as_slice(), b"x", &[7; 5000]] {
        let sealed = sealer.seal_message(message, NOW).unwrap();
        assert_eq!(sealed.len(), message.len() + SEAL_BYTES);
        assert!(message.len() < 8 || !sealed.windows(8).any(|w| w == &message[..8]));
        assert_eq!(opener.open(&sealed, NOW), Ok(message));
    }
}

#[test]
fn replayed_message_is_rejected() {
    let (mut sealer, mut opener) = (sealer(&[1]), opener(&[1]));
    let sealed: Vec<_> = (0..3).map(|n| sealer.seal_message(&[n], NOW).unwrap()).collect();
    assert_eq!(opener.open(&sealed[1], NOW), Ok([1].as_slice()));
    assert_eq!(opener.open(&sealed[1], NOW), Err(Fault::Replayed));
    assert_eq!(opener.open(&sealed[2], NOW), Ok([2].as_slice()));
    assert_eq!(opener.open(&sealed[1], NOW), Err(Fault::Replayed));
    assert_eq!(opener.open(&sealed[2], NOW), Err(Fault::Replayed));
}

#[test]
fn messages_out_of_order_are_accepted_once() {
    let (mut sealer, mut opener) = (sealer(&[1]), opener(&[1]));
    let sealed: Vec<_> = (0..5).map(|n| sealer.seal_message(&[n], NOW).unwrap()).collect();
    for n in [2, 4, 0, 3, 1] {
        assert_eq!(opener.open(&sealed[n], NOW), Ok([n as u8].as_slice()), "{n}");
    }
    for message in &sealed {
        assert_eq!(opener.open(message, NOW), Err(Fault::Replayed));
    }
}

#[test]
fn remembered_counters_are_bounded() {
    let (mut sealer, mut opener) = (sealer(&[1]), opener(&[1]));
    let first = sealer.seal_message(b"first", NOW).unwrap();
    let second = sealer.seal_message(b"second", NOW).unwrap();
    assert!(opener.open(&second, NOW).is_ok());
    for _ in 0..=MAX_COUNTERS {
        let next = sealer.seal_message(b"x", NOW).unwrap();
        assert!(opener.open(&next, NOW).is_ok());
    }
    assert_eq!(opener.sessions[0].counters.recent.len(), MAX_COUNTERS);
    // Too old to be distinguished from a replayed one.
    assert_eq!(opener.open(&first, NOW), Err(Fault::Replayed));
}

#[test]
fn late_receiver_takes_no_message_from_long_before() {
    let (mut sealer, mut opener) = (sealer(&[1]), opener(&[1]));
    let before = sealer.seal_message(b"before", NOW - AGE / 2).unwrap();
    let now = sealer.seal_message(b"now", NOW + 2 * MAX_REORDER_NS).unwrap();
    assert!(opener.open(&now, NOW + 2 * MAX_REORDER_NS).is_ok());
    assert_eq!(opener.open(&before, NOW), Err(Fault::Replayed));
}

#[test]
fn clock_that_is_set_back_begins_a_new_session() {
    let (mut sealer, mut opener) = (sealer(&[1]), opener(&[1]));
    sealer.seal_message(b"future", NOW + 10 * AGE).unwrap();
    sealer.update(NOW);
    let sealed = sealer.seal_message(b"x", NOW).unwrap();
    assert_eq!(opener.open(&sealed, NOW), Ok(b"x".as_slice()));
}

#[test]
fn old_or_future_message_is_rejected_by_a_fresh_receiver() {
    let sealed = sealer(&[1]).seal_message(b"x", NOW).unwrap();
    assert_eq!(opener(&[1]).open(&sealed, NOW + AGE + 1), Err(Fault::Stale));
    assert_eq!(opener(&[1]).open(&sealed, NOW - AGE - 1), Err(Fault::Stale));
    assert!(opener(&[1]).open(&sealed, NOW + AGE).is_ok());
}

#[test]
fn other_key_other_purpose_and_no_seal_are_rejected() {
    let sealed = sealer(&[1]).seal_message(b"x", NOW).unwrap();
    assert_eq!(opener(&[2]).open(&sealed, NOW), Err(Fault::WrongKey));
    let mut control = Opener::new(keys(&[1], THERE), Purpose::Control, AGE);
    assert_eq!(control.open(&sealed, NOW), Err(Fault::Altered));
    assert_eq!(opener(&[1]).open(b"plain message", NOW), Err(Fault::Unsealed));
}

#[test]
fn message_that_comes_back_to_its_host_is_rejected() {
    let mut sealer = sealer(&[1]);
    let sealed = sealer.seal_message(b"x", NOW).unwrap();
    // Another bridge of the sending host, and the same one after a restart, have its number too.
    let mut own = Opener::new(keys(&[1], HERE), Purpose::Payload, AGE);
    assert_eq!(own.open(&sealed, NOW), Err(Fault::Reflected));
    let mut disguised = sealed.clone();
    put_u64(&mut disguised, ORIGIN, THERE + 1);
    assert_eq!(own.open(&disguised, NOW), Err(Fault::Altered));
    assert!(own.sessions.is_empty());
    assert_eq!(opener(&[1]).open(&sealed, NOW), Ok(b"x".as_slice()));
}

#[test]
fn keys_change_while_both_ends_run() {
    let (sending, receiving) = (keys(&[1], HERE), keys(&[1], THERE));
    let mut sealer = Sealer::new(sending.clone(), Purpose::Payload).unwrap();
    let mut opener = Opener::new(receiving.clone(), Purpose::Payload, AGE);
    let old = sealer.seal_message(b"1", NOW).unwrap();
    assert!(opener.open(&old, NOW).is_ok());
    receiving.replace(&[[1; KEY_BYTES], [2; KEY_BYTES]]);
    sending.replace(&[[2; KEY_BYTES], [1; KEY_BYTES]]);
    sealer.update(NOW);
    let new = sealer.seal_message(b"2", NOW).unwrap();
    assert_eq!(opener.open(&new, NOW), Ok(b"2".as_slice()));
    // The replaced key is remembered with its counters as long as it is accepted.
    assert_eq!(opener.open(&old, NOW), Err(Fault::Replayed));
    receiving.replace(&[[2; KEY_BYTES]]);
    assert_eq!(opener.open(&old, NOW), Err(Fault::WrongKey));
}

#[test]
fn sessions_are_bounded() {
    let mut opener = opener(&[1]);
    let shared = keys(&[1], HERE);
    let sealed_by_new =
        |now: u64| Sealer::new(shared.clone(), Purpose::Payload).unwrap().seal_message(b"x", now).unwrap();
    for _ in 0..MAX_SESSIONS {
        assert!(opener.open(&sealed_by_new(NOW), NOW).is_ok());
    }
    assert_eq!(opener.open(&sealed_by_new(NOW), NOW), Err(Fault::Sessions));
    assert_eq!(opener.sessions.len(), MAX_SESSIONS);
    let later = NOW + AGE + 1;
    assert!(opener.open(&sealed_by_new(later), later).is_ok());
    assert_eq!(opener.sessions.len(), MAX_SESSIONS);
}

proptest! {
    /// No altered, shortened or invented message is opened, and none leaves a trace.
    #[test]
    fn altered_message_is_never_opened(
        message in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), bit in 0..8,
        cut in any::<prop::sample::Index>(),
    ) {
        let (mut sealer, mut opener) = (sealer(&[1]), opener(&[1]));
        let sealed = sealer.seal_message(&message, NOW).unwrap();
        let mut altered = sealed.clone();
        altered[at.index(sealed.len())] ^= 1u8 << bit;
        prop_assert!(opener.open(&altered, NOW).is_err());
        prop_assert!(opener.open(&sealed[..cut.index(sealed.len())], NOW).is_err());
        prop_assert!(opener.sessions.is_empty());
        prop_assert_eq!(opener.open(&sealed, NOW), Ok(message.as_slice()));
    }

    #[test]
    fn arbitrary_bytes_are_never_opened(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(opener(&[1]).open(&bytes, NOW).is_err());
    }
}
