use super::*;
use proptest::prelude::*;

const S: u64 = 1_000_000_000;

fn own(stream_id: u32) -> StreamAddress {
    StreamAddress { channel: "aeron:ipc".into(), stream_id }
}

fn hello_state() -> HelloState {
    let proposal = StreamProposal { channel: "aeron:ipc".into(), first: 31_000, last: 31_000 };
    let request = ConsumerRequest { descriptor: Some(proposal), ..ConsumerRequest::default() };
    let mut g = HelloState::new(10_000, request, S);
    assert!(g.due(0).is_none(), "no hello before begin");
    assert!(g.begin(7).is_empty());
    g
}

fn config(descriptor: StreamRequest) -> ConsumerConfig {
    ConsumerConfig {
        stream_id: 10_000,
        consumer_id: 7,
        use_shm: true,
        mode: Mode::Stream,
        max_rate_hz: None,
        fallback_uri: String::new(),
        descriptor,
        control: StreamRequest::None,
    }
}

#[test]
fn hello_is_due_at_once_and_every_period() {
    let mut g = hello_state();
    let hello = g.due(0).expect("due");
    assert_eq!((hello.consumer_id, hello.descriptor), (7, StreamRequest::At(own(31_000))));
    g.sent(0);
    assert!(g.due(S - 1).is_none());
    assert!(g.due(S).is_some());
}

/// requirement: wire-5-1, wire-10.1.3-4
#[test]
fn granted_stream_is_read_and_a_declined_one_is_not() {
    let mut g = hello_state();
    let granted = config(StreamRequest::At(own(31_000)));
    assert_eq!(g.on_config(&granted), [ConfigChange::Descriptors(Some(own(31_000)))]);
    assert!(g.on_config(&granted).is_empty());
    assert_eq!(g.on_config(&config(StreamRequest::None)), [ConfigChange::Descriptors(None)]);
    // The request is repeated a few times before the decline is reported.
    let changes: Vec<ConfigChange> =
        (0..20).flat_map(|_| g.on_config(&config(StreamRequest::Invalid))).collect();
    assert_eq!(changes, [ConfigChange::Declined]);
}

#[test]
fn declined_request_is_repeated_with_another_id() {
    let proposal = StreamProposal { channel: "aeron:ipc".into(), first: 31_000, last: 31_999 };
    let request = ConsumerRequest { descriptor: Some(proposal), ..ConsumerRequest::default() };
    let mut g = HelloState::new(10_000, request, S);
    g.begin(7);
    let mut ids = std::collections::HashSet::new();
    for now_ns in 0..6 {
        let StreamRequest::At(address) = g.due(now_ns).expect("due").descriptor else { panic!("not asked") };
        assert!((31_000..=31_999).contains(&address.stream_id));
        ids.insert(address.stream_id);
        g.sent(now_ns);
        g.on_config(&config(StreamRequest::None));
    }
    assert_eq!(ids.len(), 6);
}

#[test]
fn order_stays_while_the_producer_grants_no_stream() {
    let mut g = hello_state();
    let order = ConsumerConfig {
        mode: Mode::RateLimited,
        max_rate_hz: Some(5),
        ..config(StreamRequest::At(own(31_000)))
    };
    g.on_config(&order);
    assert_eq!(g.ordered_hz(), Some(5));
    g.on_config(&config(StreamRequest::None));
    assert_eq!((g.ordered_hz(), g.mode()), (Some(5), Mode::Stream), "the answer of the producer");
    g.on_config(&ConsumerConfig { max_rate_hz: Some(0), ..config(StreamRequest::None) });
    assert_eq!(g.ordered_hz(), None, "the supervisor releases the consumer");
    g.on_config(&order);
    g.on_config(&ConsumerConfig { mode: Mode::RateLimited, ..config(StreamRequest::None) });
    assert_eq!(g.ordered_hz(), None, "its own request applies again");
    g.on_config(&order);
    g.begin(7);
    assert_eq!(g.ordered_hz(), None, "another epoch");
}

#[test]
fn config_of_another_consumer_is_ignored() {
    let mut g = hello_state();
    let granted = config(StreamRequest::At(own(31_000)));
    assert!(g.on_config(&ConsumerConfig { consumer_id: 8, ..granted.clone() }).is_empty());
    assert!(g.on_config(&ConsumerConfig { stream_id: 1, ..granted }).is_empty());
}

#[test]
fn new_producer_voids_grants() {
    let mut g = hello_state();
    g.sent(0);
    g.on_config(&config(StreamRequest::At(own(31_000))));
    assert_eq!(g.begin(9), [ConfigChange::Descriptors(None)]);
    assert_eq!(g.due(0).map(|h| h.consumer_id), Some(9));
    assert!(g.end().is_empty());
    assert!(g.due(100 * S).is_none());
}

/// requirement: wire-10.1.3-1
#[test]
fn fallback_that_cannot_be_read_is_refused() {
    let mut g = hello_state();
    let fallback = |uri: &str| ConsumerConfig {
        use_shm: false,
        fallback_uri: uri.into(),
        ..config(StreamRequest::At(own(31_000)))
    };
    g.on_config(&config(StreamRequest::At(own(31_000))));
    for (uri, why) in [
        ("http://x", "use bridge://"),
        ("aeron:udp?endpoint=h:1", "use bridge://"),
        ("bridge://1?stream=5", "payload, payload_stream, control, control_stream is missing"),
    ] {
        let changes = g.on_config(&fallback(uri));
        let [ConfigChange::RefusedFallback(text)] = &changes[..] else { panic!("{changes:?}") };
        assert!(text.starts_with(why) && text.ends_with(&format!(": {uri}")), "{text}");
        assert!(g.on_config(&fallback(uri)).is_empty(), "it is refused once");
    }
    let uri = "bridge://1?payload=aeron%3Audp%3Fendpoint%3Dh%3A1&payload_stream=1\
               &control=aeron%3Audp%3Fendpoint%3Dh%3A2&control_stream=2&stream=5";
    assert_eq!(g.on_config(&fallback(uri)), [ConfigChange::Fallback(uri.into())]);
    assert!(g.on_config(&fallback(uri)).is_empty());
    assert_eq!(g.on_config(&config(StreamRequest::At(own(31_000)))), [ConfigChange::Shm]);
}

#[derive(Clone, Debug)]
enum Step {
    Begin(u32),
    End,
    /// Consumer id, and the stream ids that the config grants.
    Config(u32, Option<u32>, Option<u32>),
    Hello,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let address = |first: u32| prop::option::of(first..first + 3);
    let one = prop_oneof![
        (1..3u32).prop_map(Step::Begin),
        Just(Step::End),
        (1..3u32, address(31_000), address(32_000)).prop_map(|(id, d, c)| Step::Config(id, d, c)),
        Just(Step::Hello),
    ];
    prop::collection::vec(one, 0..60)
}

fn request_for(stream_id: Option<u32>) -> StreamRequest {
    stream_id.map_or(StreamRequest::None, |id| StreamRequest::At(own(id)))
}

proptest! {
    /// A consumer that applies the changes, and nothing else, reads what the last config to its id granted.
    /// requirement: wire-5-1, wire-5-5, wire-10.1.2-1, wire-10.1.2-2
    #[test]
    fn config_changes_lead_to_the_last_grant(steps in steps()) {
        let proposal = |first| Some(StreamProposal { channel: "aeron:ipc".into(), first, last: first + 2 });
        let request = ConsumerRequest { descriptor: proposal(31_000), control: proposal(32_000), ..ConsumerRequest::default() };
        let mut g = HelloState::new(10_000, request, S);
        let (mut who, mut granted) = (None, (None, None));
        let (mut reads, mut receives) = (None, None);
        let mut now_ns = 0;
        for step in steps {
            let changes = match step {
                Step::Begin(id) => {
                    (who, granted) = (Some(id), (None, None));
                    g.begin(id)
                }
                Step::End => {
                    (who, granted) = (None, (None, None));
                    g.end()
                }
                Step::Config(id, descriptor, control) => {
                    if who == Some(id) {
                        granted = (descriptor.map(own), control.map(own));
                    }
                    let (descriptor, control) = (request_for(descriptor), request_for(control));
                    g.on_config(&ConsumerConfig { consumer_id: id, control, ..config(descriptor) })
                }
                Step::Hello => {
                    now_ns += S;
                    let hello = g.due(now_ns);
                    prop_assert_eq!(hello.as_ref().map(|h| h.consumer_id), who);
                    for (request_for, granted, first) in hello.iter().flat_map(|h| {
                        [(&h.descriptor, &granted.0, 31_000), (&h.control, &granted.1, 32_000)]
                    }) {
                        // A granted stream is requested again, otherwise an id of the range; never half a
                        // request.
                        let StreamRequest::At(address) = request_for else { return Err(TestCaseError::fail("not asked")) };
                        prop_assert!(granted.as_ref().is_none_or(|granted| granted == address));
                        prop_assert!((first..=first + 2).contains(&address.stream_id));
                    }
                    if hello.is_some() {
                        g.sent(now_ns);
                    }
                    Vec::new()
                }
            };
            for change in changes {
                match change {
                    ConfigChange::Descriptors(address) => reads = address,
                    ConfigChange::Control(address) => receives = address,
                    _ => {}
                }
            }
            prop_assert_eq!((&reads, &receives), (&granted.0, &granted.1));
            prop_assert_eq!((g.descriptors(), g.control()), (reads.as_ref(), receives.as_ref()));
            prop_assert_eq!(g.consumer_id(), who);
        }
    }
}
