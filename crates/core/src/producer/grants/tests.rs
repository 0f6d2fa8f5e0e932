use super::*;
use proptest::prelude::*;

const S: u64 = 1_000_000_000;
const STREAM: u32 = 10_000;

fn grants() -> ConsumerGrants {
    let policy = GrantPolicy {
        channels: vec!["aeron:ipc".into()],
        descriptor_ids: 31_000..=31_009,
        control_ids: 32_000..=32_009,
        stale_ns: 5 * S,
    };
    ConsumerGrants::new(STREAM, policy)
}

fn address(stream_id: u32) -> StreamRequest {
    StreamRequest::At(StreamAddress { channel: "aeron:ipc".into(), stream_id })
}

fn hello(consumer_id: u32) -> ConsumerHello {
    ConsumerHello {
        stream_id: STREAM,
        consumer_id,
        supports_shm: true,
        supports_progress: false,
        mode: Mode::Stream,
        max_rate_hz: 0,
        expected_layout_version: LAYOUT_VERSION,
        hints: ProgressHints::default(),
        descriptor: StreamRequest::None,
        control: StreamRequest::None,
    }
}

fn send_hello(grants: &mut ConsumerGrants, hello: &ConsumerHello) -> (ConsumerConfig, Vec<StreamChange>) {
    grants.on_hello(hello, 0).expect("for us")
}

/// requirement: wire-5-1
#[test]
fn free_stream_is_granted_and_opened() {
    let mut w = grants();
    let asks =
        ConsumerHello { descriptor: address(31_000), mode: Mode::RateLimited, max_rate_hz: 20, ..hello(1) };
    let (config, changes) = send_hello(&mut w, &asks);
    assert_eq!((config.descriptor, config.mode, config.use_shm), (address(31_000), Mode::RateLimited, true));
    let opened = StreamAddress { channel: "aeron:ipc".into(), stream_id: 31_000 };
    assert_eq!(changes, [StreamChange::OpenDescriptors { consumer_id: 1, address: opened, max_rate_hz: 20 }]);
    // The same hello again changes nothing.
    let (again, changes) = send_hello(&mut w, &asks);
    assert_eq!(again.descriptor, address(31_000));
    assert_eq!(changes, [StreamChange::SetRate { consumer_id: 1, max_rate_hz: 20 }]);
}

/// requirement: wire-5-8, wire-10.1.2-1, wire-10.1.2-2, wire-10.1.3-3, wire-10.1.3-4
#[test]
fn invalid_taken_and_foreign_requests_are_declined() {
    let mut w = grants();
    send_hello(&mut w, &ConsumerHello { descriptor: address(31_000), ..hello(1) });
    let udp = StreamRequest::At(StreamAddress {
        channel: "aeron:udp?endpoint=10.0.0.1:4".into(),
        stream_id: 31_001,
    });
    for (id, requested) in [
        (2, StreamRequest::Invalid),
        (3, udp),
        (4, address(31_000)),
        (5, address(31_010)),
        (6, address(1100)),
    ] {
        let asks = ConsumerHello {
            descriptor: requested.clone(),
            control: requested,
            supports_progress: true,
            mode: Mode::RateLimited,
            ..hello(id)
        };
        let (config, changes) = send_hello(&mut w, &asks);
        assert_eq!((config.descriptor, config.control), (StreamRequest::None, StreamRequest::None), "{id}");
        assert_eq!(config.mode, Mode::Stream, "nothing limits the shared stream");
        assert!(changes.is_empty());
    }
}

#[test]
fn consumer_without_shm_is_not_granted_a_stream() {
    let mut w = grants();
    let remote = ConsumerHello { supports_shm: false, descriptor: address(31_000), ..hello(7) };
    let newer = ConsumerHello { expected_layout_version: LAYOUT_VERSION + 1, ..hello(8) };
    for hello in [remote, newer] {
        let (answer, changes) = w.on_hello(&hello, 0).expect("for us");
        assert_eq!((answer.use_shm, answer.descriptor, changes), (false, StreamRequest::None, vec![]));
    }
    let order = ConsumerConfig { use_shm: true, ..w.config_for(7, None) };
    w.on_order(&order, 0);
    let remote = ConsumerHello { supports_shm: false, ..hello(7) };
    assert!(w.on_hello(&remote, 0).expect("for us").0.use_shm, "a supervisor knows better");
}

/// requirement: wire-5-2, wire-5-3, wire-10.1.3-5
#[test]
fn stream_stays_open_with_hello_or_qos() {
    let mut w = grants();
    let asks = ConsumerHello {
        descriptor: address(31_000),
        control: address(32_000),
        supports_progress: true,
        ..hello(1)
    };
    send_hello(&mut w, &asks);
    w.on_qos(STREAM, 1, 4 * S);
    assert!(w.on_tick(9 * S).is_empty());
    w.on_hello(&asks, 9 * S);
    assert!(w.on_tick(14 * S).is_empty());
    let closed =
        [StreamChange::CloseDescriptors { consumer_id: 1 }, StreamChange::CloseControl { consumer_id: 1 }];
    assert_eq!(w.on_tick(14 * S + 1), closed);
    assert!(w.is_empty());
    // Its stream is free again.
    let (config, _) = send_hello(&mut w, &ConsumerHello { descriptor: address(31_000), ..hello(2) });
    assert_eq!(config.descriptor, address(31_000));
    assert_eq!(w.on_leave(2), [StreamChange::CloseDescriptors { consumer_id: 2 }]);
}

#[test]
fn order_outlasts_a_later_hello() {
    let mut w = grants();
    let asks = ConsumerHello { descriptor: address(31_000), max_rate_hz: 5, ..hello(1) };
    send_hello(&mut w, &asks);
    let order = ConsumerConfig {
        stream_id: STREAM,
        consumer_id: 1,
        use_shm: true,
        mode: Mode::RateLimited,
        max_rate_hz: None,
        fallback_uri: String::new(),
        descriptor: StreamRequest::None,
        control: StreamRequest::None,
    };
    assert_eq!(w.on_order(&order, S), [StreamChange::SetRate { consumer_id: 1, max_rate_hz: 5 }]);
    let (config, _) = send_hello(&mut w, &asks);
    assert_eq!((config.mode, config.descriptor), (Mode::RateLimited, address(31_000)));
    assert!(w.on_order(&ConsumerConfig { consumer_id: 9, ..order.clone() }, S).is_empty());
    // An order of a disallowed channel opens nothing, not at the next hello either.
    let foreign = StreamRequest::At(StreamAddress {
        channel: "aeron:udp?endpoint=10.0.0.1:4".into(),
        stream_id: 31_001,
    });
    w.on_order(&ConsumerConfig { descriptor: foreign, ..order }, S);
    assert_eq!(send_hello(&mut w, &asks).0.descriptor, StreamRequest::None);
}

#[test]
fn order_sets_the_rate_while_it_is_in_force() {
    let mut w = grants();
    send_hello(&mut w, &hello(1));
    let order = ConsumerConfig {
        mode: Mode::RateLimited,
        max_rate_hz: Some(3),
        descriptor: address(31_004),
        ..w.config_for(1, None)
    };
    let opened = StreamAddress { channel: "aeron:ipc".into(), stream_id: 31_004 };
    let open = StreamChange::OpenDescriptors { consumer_id: 1, address: opened, max_rate_hz: 3 };
    assert_eq!(w.on_order(&order, S), [open]);
    let (config, changes) = send_hello(&mut w, &hello(1));
    assert_eq!(
        (config.mode, config.descriptor, config.max_rate_hz),
        (Mode::RateLimited, address(31_004), None)
    );
    assert_eq!(changes, [StreamChange::SetRate { consumer_id: 1, max_rate_hz: 3 }]);
    // After the order ends the consumer keeps its stream, so that no frame is lost, and gets all frames.
    let free = ConsumerConfig { mode: Mode::Stream, max_rate_hz: None, ..order };
    assert_eq!(w.on_order(&free, S), [StreamChange::SetRate { consumer_id: 1, max_rate_hz: 0 }]);
}

/// requirement: wire-5-4
#[test]
fn mode_of_a_config_is_the_mode_in_force() {
    let mut w = grants();
    send_hello(&mut w, &ConsumerHello { descriptor: address(31_000), ..hello(1) });
    send_hello(&mut w, &hello(2));
    let order = |stream_id| ConsumerConfig {
        stream_id: STREAM,
        consumer_id: 2,
        use_shm: true,
        mode: Mode::RateLimited,
        max_rate_hz: Some(3),
        fallback_uri: String::new(),
        descriptor: address(stream_id),
        control: StreamRequest::None,
    };
    // The stream is in use, or not allowed: the order limits nothing, and the config says so.
    for declined in [31_000, 31_010] {
        assert_eq!(w.on_order(&order(declined), S), []);
        let (config, _) = send_hello(&mut w, &hello(2));
        assert_eq!((config.mode, config.descriptor), (Mode::Stream, StreamRequest::None), "{declined}");
    }
    // The supervisor's next attempt is granted.
    assert_eq!(w.on_order(&order(31_001), S).len(), 1);
    let (config, _) = send_hello(&mut w, &hello(2));
    assert_eq!((config.mode, config.descriptor), (Mode::RateLimited, address(31_001)));
    // A limit without a rate is none.
    let unlimited = ConsumerHello { descriptor: address(31_002), mode: Mode::RateLimited, ..hello(3) };
    assert_eq!(send_hello(&mut w, &unlimited).0.mode, Mode::Stream);
}

#[test]
fn refused_stream_is_withdrawn_and_not_granted_again_at_once() {
    let mut w = grants();
    let asks = ConsumerHello {
        descriptor: address(31_000),
        control: address(32_000),
        supports_progress: true,
        mode: Mode::RateLimited,
        max_rate_hz: 20,
        ..hello(1)
    };
    send_hello(&mut w, &asks);
    let refused = RefusedStream::Descriptors { consumer_id: 1 };
    let (config, changes) = w.on_refused(refused, S).expect("granted");
    assert_eq!(
        (config.descriptor, config.control, config.mode),
        (StreamRequest::None, address(32_000), Mode::Stream)
    );
    assert_eq!(changes, [StreamChange::CloseDescriptors { consumer_id: 1 }]);
    assert!(w.on_refused(refused, S).is_none());
    let (config, changes) = w.on_refused(RefusedStream::Control { consumer_id: 1 }, S).expect("granted");
    assert_eq!(
        (config.control, changes),
        (StreamRequest::None, vec![StreamChange::CloseControl { consumer_id: 1 }])
    );
    // The same request is declined, another id is granted.
    let (config, changes) = send_hello(&mut w, &asks);
    assert_eq!(
        (config.descriptor, config.control, changes),
        (StreamRequest::None, StreamRequest::None, vec![])
    );
    let other = ConsumerHello { descriptor: address(31_001), ..hello(1) };
    assert_eq!(send_hello(&mut w, &other).0.descriptor, address(31_001));
    // Later the media driver may have room again.
    w.on_tick(S + REFUSED_NS);
    assert_eq!(w.on_hello(&asks, S + REFUSED_NS).expect("for us").0.descriptor, address(31_000));
    assert!(w.on_refused(RefusedStream::Control { consumer_id: 9 }, S).is_none());
}

#[test]
fn smallest_progress_hints_win() {
    let mut w = grants();
    assert_eq!(w.progress(), None);
    let hints = |us, bytes| ProgressHints { interval_us: us, bytes_delta: bytes, major_delta_units: None };
    let asks = |id, h| ConsumerHello { supports_progress: true, hints: h, ..hello(id) };
    send_hello(&mut w, &asks(1, hints(Some(500), None)));
    send_hello(&mut w, &asks(2, hints(Some(300), Some(4096))));
    send_hello(&mut w, &ConsumerHello { hints: hints(Some(1), Some(1)), ..hello(3) });
    assert_eq!(w.progress(), Some(hints(Some(300), Some(4096))));
    assert!(w.wants_shared_progress());
}

#[test]
fn hello_of_another_stream_is_ignored() {
    assert!(grants().on_hello(&ConsumerHello { stream_id: 1, ..hello(1) }, 0).is_none());
}

proptest! {
    /// For any requests in any order: no two consumers share a stream, all ids are in range, and open streams
    /// are exactly those that were opened and not closed.
    #[test]
    fn per_consumer_streams_are_never_shared(steps in proptest::collection::vec((0u32..6, 30_998u32..31_012, 0u8..4), 0..60)) {
        let mut w = grants();
        let mut open: BTreeMap<u32, StreamAddress> = BTreeMap::new();
        for (at, (id, stream_id, what)) in steps.into_iter().enumerate() {
            let now_ns = at as u64 * S;
            let requested = match what {
                0 => StreamRequest::None,
                1 => StreamRequest::Invalid,
                _ => address(stream_id),
            };
            let asks = ConsumerHello { descriptor: requested, ..hello(id) };
            let (config, mut changes) = w.on_hello(&asks, now_ns).expect("ours");
            changes.extend(w.on_tick(now_ns));
            for change in changes {
                match change {
                    StreamChange::OpenDescriptors { consumer_id, address, .. } => {
                        prop_assert!((31_000..=31_009).contains(&address.stream_id));
                        prop_assert!(!open.values().any(|l| *l == address));
                        prop_assert!(open.insert(consumer_id, address).is_none());
                    }
                    StreamChange::CloseDescriptors { consumer_id } => {
                        prop_assert!(open.remove(&consumer_id).is_some());
                    }
                    StreamChange::SetRate { consumer_id, .. } => prop_assert!(open.contains_key(&consumer_id)),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            let named = requested_address(&config.descriptor);
            prop_assert_eq!(named.as_ref(), open.get(&id));
        }
    }
}
