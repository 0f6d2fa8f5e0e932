//! The conductor's ears and voice on the control stream (driver §4.5, wire §10.1) and on the QoS stream
//! (wire §10.4). Each is opened when an endpoint has something to say or to hear there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::driver::DriverMessage;

use crate::aeron::{Client, NotTaken};
use crate::conductor::shared_stream::SharedStream;
use crate::conductor::{Endpoint, Tick};

/// Messages taken in one round; the rest waits for the next. Many: the stream is everybody's, and who falls
/// behind what the driver itself can read is put to rest, and misses its answer.
const LIMIT: usize = 4096;
/// How long an endpoint that closes tries to say so.
const DETACH_TIMEOUT: Duration = Duration::from_millis(20);

type Endpoints = [(u64, Arc<dyn Endpoint>)];

pub struct ControlPlane {
    control: SharedStream,
    qos: SharedStream,
}

impl ControlPlane {
    pub fn new(channel: &str, control_stream_id: i32, qos_stream_id: i32) -> Self {
        Self {
            control: SharedStream::new(channel.to_owned(), control_stream_id),
            qos: SharedStream::new(channel.to_owned(), qos_stream_id),
        }
    }

    pub fn disconnect(&mut self) {
        self.control.disconnect();
        self.qos.disconnect();
    }

    /// Hears what has been said, and lets the endpoints act on it.
    pub fn receive(&mut self, client: &Client, endpoints: &Endpoints, tick: &Tick<'_>) {
        if !endpoints.iter().any(|(_, e)| e.uses_control_streams()) {
            return;
        }
        self.control.open(client);
        self.qos.open(client);
        let (mut driver_messages, mut control_messages) = (Vec::new(), Vec::new());
        self.control.poll(LIMIT, |bytes| match DriverMessage::decode(bytes) {
            DriverMessage::Other => match ControlMessage::decode(bytes) {
                ControlMessage::Other | ControlMessage::Malformed(_) => {}
                message => control_messages.push(message),
            },
            DriverMessage::Malformed(_) => {}
            message => driver_messages.push(message),
        });
        self.qos.poll(LIMIT, |bytes| {
            if let message @ (ControlMessage::QosConsumer(_) | ControlMessage::QosProducer(_)) =
                ControlMessage::decode(bytes)
            {
                control_messages.push(message);
            }
        });
        let image_joined = self.control.image_joined();
        for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.uses_control_streams()) {
            if image_joined {
                endpoint.on_control_image(tick);
            }
            driver_messages.iter().for_each(|message| endpoint.on_driver_message(message, tick));
            control_messages.iter().for_each(|message| endpoint.on_control_message(message, tick));
        }
    }

    /// Says what the endpoints have to say.
    pub fn send(&mut self, endpoints: &Endpoints, tick: &Tick<'_>) {
        for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.uses_control_streams()) {
            if self.control.is_open() {
                endpoint.send_control(tick, &mut |message| self.control.offer(message).is_ok());
            }
            if self.qos.is_open() {
                endpoint.send_qos(tick, &mut |message| self.qos.offer(message).is_ok());
            }
        }
    }

    /// The last word of an endpoint that closes. Nobody waits for an answer.
    pub fn send_last(&mut self, message: &[u8]) {
        let until = Instant::now() + DETACH_TIMEOUT;
        while let Err(NotTaken::BackPressured) = self.control.offer(message)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
