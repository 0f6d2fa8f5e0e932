//! The conductor's publications and subscriptions of the control streams (driver §4.5, wire §10.1) and the QoS
//! streams (wire §10.4). Each is added when an endpoint needs it.
//!
//! All endpoints share one control and one QoS stream. A stream may have dedicated ones (decision 41);
//! messages to and from the driver are always on the shared control stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::driver::DriverMessage;
use tensorpool_core::wire::layout::{
    DRIVER_SCHEMA_ID, MESSAGE_HEADER_LENGTH, MESSAGE_HEADER_SCHEMA_ID, get_u16,
};

use crate::aeron::{Client, OfferError};
use crate::conductor::shared_stream::SharedStream;
use crate::conductor::{Endpoint, Tick};

/// Messages polled in one duty cycle; the rest waits for the next. A large number, because all endpoints
/// share the stream: a subscription that falls behind is rested, and misses its response.
const LIMIT: usize = 4096;
/// How long a closing endpoint tries to send its detach.
const DETACH_TIMEOUT: Duration = Duration::from_millis(20);

type Endpoints = [(u64, Arc<dyn Endpoint>)];

/// One kind of stream: the shared one, and the dedicated ones by id.
struct Streams {
    channel: String,
    shared: SharedStream,
    dedicated: BTreeMap<i32, SharedStream>,
}

impl Streams {
    fn new(channel: &str, stream_id: i32) -> Self {
        let shared = SharedStream::new(channel.to_owned(), stream_id);
        Self { channel: channel.to_owned(), shared, dedicated: BTreeMap::new() }
    }

    fn disconnect(&mut self) {
        self.shared.disconnect();
        self.dedicated.clear();
    }

    /// Opens the shared stream and those of `used`, and closes those of endpoints that are gone.
    fn open(&mut self, client: &Client, used: &[i32]) {
        self.shared.open(client);
        self.dedicated.retain(|id, _| used.contains(id));
        for id in used {
            let new = || SharedStream::new(self.channel.clone(), *id);
            self.dedicated.entry(*id).or_insert_with(new).open(client);
        }
    }

    /// The stream of an endpoint: the dedicated one, or the shared one.
    fn select(&mut self, dedicated: Option<i32>) -> Option<&mut SharedStream> {
        match dedicated {
            Some(id) => self.dedicated.get_mut(&id),
            None => Some(&mut self.shared),
        }
    }
}

pub struct ControlPlane {
    control: Streams,
    qos: Streams,
}

fn is_for_driver(message: &[u8]) -> bool {
    message.len() >= MESSAGE_HEADER_LENGTH && get_u16(message, MESSAGE_HEADER_SCHEMA_ID) == DRIVER_SCHEMA_ID
}

fn decode_qos(bytes: &[u8]) -> Option<ControlMessage> {
    match ControlMessage::decode(bytes) {
        message @ (ControlMessage::QosConsumer(_) | ControlMessage::QosProducer(_)) => Some(message),
        _ => None,
    }
}

fn decode_control(bytes: &[u8]) -> Option<ControlMessage> {
    match ControlMessage::decode(bytes) {
        ControlMessage::Other | ControlMessage::Malformed(_) => None,
        message => Some(message),
    }
}

/// Whether other messages usually follow soon. Hellos, their answers and QoS reports come once a period.
fn leads_to_more(message: &ControlMessage) -> bool {
    matches!(message, ControlMessage::Progress(_))
}

/// Lets all endpoints send, their leases first: in a flood of hellos the answers of one producer take all the room
/// that the control stream has, and a keepalive behind them, of any endpoint, would never be sent.
fn send_in_order(
    endpoints: &[&dyn Endpoint],
    tick: &Tick<'_>,
    mut send: impl FnMut(&dyn Endpoint, &[u8]) -> bool,
) {
    for endpoint in endpoints {
        endpoint.send_lease(tick, &mut |message| send(*endpoint, message));
    }
    for endpoint in endpoints {
        endpoint.send_control(tick, &mut |message| send(*endpoint, message));
    }
}

impl ControlPlane {
    pub fn new(control: (&str, i32), qos: (&str, i32)) -> Self {
        Self { control: Streams::new(control.0, control.1), qos: Streams::new(qos.0, qos.1) }
    }

    pub fn disconnect(&mut self) {
        self.control.disconnect();
        self.qos.disconnect();
    }

    /// Polls all streams, and passes the messages to the endpoints.
    pub fn receive(&mut self, client: &Client, endpoints: &Endpoints, tick: &Tick<'_>) {
        let (mut dedicated_control, mut dedicated_qos) = (Vec::new(), Vec::new());
        let mut is_used = false;
        for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.uses_control_streams()) {
            is_used = true;
            dedicated_control.extend(endpoint.dedicated_control_stream());
            dedicated_qos.extend(endpoint.dedicated_qos_stream());
        }
        if !is_used {
            return;
        }
        self.control.open(client, &dedicated_control);
        self.qos.open(client, &dedicated_qos);
        let (mut driver_messages, mut control_messages) = (Vec::new(), Vec::new());
        self.control.shared.poll(LIMIT, |bytes| match DriverMessage::decode(bytes) {
            DriverMessage::Other => control_messages.extend(decode_control(bytes)),
            DriverMessage::Malformed(_) => {}
            message => driver_messages.push(message),
        });
        self.qos.shared.poll(LIMIT, |bytes| control_messages.extend(decode_qos(bytes)));
        let image_joined = self.control.shared.image_joined();
        if image_joined || !driver_messages.is_empty() || control_messages.iter().any(leads_to_more) {
            tick.is_active.set(true);
        }
        for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.uses_control_streams()) {
            if image_joined {
                endpoint.on_control_image(tick);
            }
            driver_messages.iter().for_each(|message| endpoint.on_driver_message(message, tick));
            control_messages.iter().for_each(|message| endpoint.on_control_message(message, tick));
        }
        self.receive_own(endpoints, tick);
    }

    /// Passes the messages of streams that are not shared to the endpoints that use them.
    fn receive_own(&mut self, endpoints: &Endpoints, tick: &Tick<'_>) {
        let mut messages = Vec::new();
        for (id, stream) in &mut self.control.dedicated {
            stream.poll(LIMIT, |bytes| messages.extend(decode_control(bytes)));
            for message in messages.drain(..) {
                if leads_to_more(&message) {
                    tick.is_active.set(true);
                }
                for (_, endpoint) in
                    endpoints.iter().filter(|(_, e)| e.dedicated_control_stream() == Some(*id))
                {
                    endpoint.on_control_message(&message, tick);
                }
            }
        }
        for (id, stream) in &mut self.qos.dedicated {
            stream.poll(LIMIT, |bytes| messages.extend(decode_qos(bytes)));
            for message in messages.drain(..) {
                for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.dedicated_qos_stream() == Some(*id)) {
                    endpoint.on_control_message(&message, tick);
                }
            }
        }
    }

    /// Sends the messages of the endpoints.
    pub fn send(&mut self, endpoints: &Endpoints, tick: &Tick<'_>) {
        let mut ready: Vec<&dyn Endpoint> = Vec::with_capacity(endpoints.len());
        if self.control.shared.is_open() {
            let users =
                endpoints.iter().map(|(_, endpoint)| &**endpoint).filter(|e| e.uses_control_streams());
            ready.extend(
                users.filter(|e| {
                    self.control.select(e.dedicated_control_stream()).is_some_and(|s| s.is_open())
                }),
            );
        }
        send_in_order(&ready, tick, |endpoint, message| {
            let dedicated = if is_for_driver(message) { None } else { endpoint.dedicated_control_stream() };
            self.control.select(dedicated).is_some_and(|s| s.offer(message).is_ok())
        });
        for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.uses_control_streams()) {
            if let Some(qos) = self.qos.select(endpoint.dedicated_qos_stream())
                && qos.is_open()
            {
                endpoint.send_qos(tick, &mut |message| qos.offer(message).is_ok());
            }
        }
    }

    /// Sends the detach of a closing endpoint. Nothing waits for its response.
    pub fn send_last(&mut self, message: &[u8]) {
        let until = Instant::now() + DETACH_TIMEOUT;
        while let Err(OfferError::BackPressured) = self.control.shared.offer(message)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tensorpool_core::consumer::announce_filter::Now;
    use tensorpool_core::shm::containment::AllowedBases;

    use super::*;
    use crate::aeron::AeronError;
    use crate::conductor::events::Events;

    /// An endpoint with a keepalive to send, and with answers to more hellos than the stream has room for.
    struct FloodedEndpoint;

    impl Endpoint for FloodedEndpoint {
        fn connect(&self, _client: &Client) -> Result<(), AeronError> {
            Ok(())
        }

        fn disconnect(&self) {}

        fn close(&self) {}

        fn send_lease(&self, _tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) {
            send(b"keepalive");
        }

        fn send_control(&self, _tick: &Tick<'_>, send: &mut dyn FnMut(&[u8]) -> bool) {
            while send(b"answer") {}
        }
    }

    #[test]
    fn keepalives_of_all_endpoints_go_before_answers_to_hellos() {
        let bases = AllowedBases::new(["/dev/shm"]).unwrap();
        let (events, is_active) = (Events::default(), Cell::default());
        let now = Now { monotonic_ns: 0, realtime_ns: 0 };
        let tick = Tick { now, bases: &bases, events: &events, is_active: &is_active };
        let mut log: Vec<Vec<u8>> = Vec::new();
        send_in_order(&[&FloodedEndpoint, &FloodedEndpoint], &tick, |_, message| {
            let has_room = log.len() < 3;
            if has_room {
                log.push(message.to_vec());
            }
            has_room
        });
        assert_eq!(log, [b"keepalive".as_slice(), b"keepalive", b"answer"]);
    }
}
