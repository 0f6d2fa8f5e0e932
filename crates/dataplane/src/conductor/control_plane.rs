//! The conductor's publications and subscriptions of the control stream (driver §4.5, wire §10.1) and the QoS
//! stream (wire §10.4). Each is added when an endpoint needs it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::driver::DriverMessage;

use crate::aeron::{Client, NotTaken};
use crate::conductor::shared_stream::SharedStream;
use crate::conductor::{Endpoint, Tick};

/// Messages polled in one duty cycle; the rest waits for the next. A large number, because all endpoints
/// share the stream: a subscription that falls behind is rested, and misses its response.
const LIMIT: usize = 4096;
/// How long a closing endpoint tries to send its detach.
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

    /// Polls both streams, and passes the messages to the endpoints.
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

    /// Sends the messages of the endpoints.
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

    /// Sends the detach of a closing endpoint. Nothing waits for its response.
    pub fn send_last(&mut self, message: &[u8]) {
        let until = Instant::now() + DETACH_TIMEOUT;
        while let Err(NotTaken::BackPressured) = self.control.offer(message)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
