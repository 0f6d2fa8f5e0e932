//! The conductor's ears and voice on the control stream (driver §4.5, wire §10.1) and on the QoS stream
//! (wire §10.4). Each is opened when an endpoint has something to say or to hear there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::driver::DriverMessage;

use crate::aeron::{Client, NotTaken};
use crate::conductor::shared_stream::Talk;
use crate::conductor::{Endpoint, Tick};

/// Messages taken in one round; the rest waits for the next. Many: the stream is everybody's, and who falls
/// behind what the driver itself can read is put to rest, and misses its answer.
const LIMIT: usize = 4096;
/// How long an endpoint that closes tries to say so.
const DETACH_TIMEOUT: Duration = Duration::from_millis(20);

type Endpoints = [(u64, Arc<dyn Endpoint>)];

pub struct ControlPlane {
    control: Talk,
    qos: Talk,
}

impl ControlPlane {
    pub fn new(channel: &str, control_stream_id: i32, qos_stream_id: i32) -> Self {
        Self {
            control: Talk::new(channel.to_owned(), control_stream_id),
            qos: Talk::new(channel.to_owned(), qos_stream_id),
        }
    }

    pub fn disconnect(&mut self) {
        self.control.disconnect();
        self.qos.disconnect();
    }

    /// Hears what has been said, and lets the endpoints act on it.
    pub fn hear(&mut self, client: &Client, endpoints: &Endpoints, tick: &Tick<'_>) {
        if !endpoints.iter().any(|(_, e)| e.uses_control_streams()) {
            return;
        }
        self.control.open(client);
        self.qos.open(client);
        let (mut from_driver, mut spoken) = (Vec::new(), Vec::new());
        self.control.hear(LIMIT, |bytes| match DriverMessage::decode(bytes) {
            DriverMessage::Other => match ControlMessage::decode(bytes) {
                ControlMessage::Other | ControlMessage::Malformed(_) => {}
                said => spoken.push(said),
            },
            DriverMessage::Malformed(_) => {}
            said => from_driver.push(said),
        });
        self.qos.hear(LIMIT, |bytes| {
            if let said @ (ControlMessage::QosConsumer(_) | ControlMessage::QosProducer(_)) =
                ControlMessage::decode(bytes)
            {
                spoken.push(said);
            }
        });
        let someone_came = self.control.someone_came();
        for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.uses_control_streams()) {
            if someone_came {
                endpoint.on_control_image(tick);
            }
            from_driver.iter().for_each(|said| endpoint.on_driver_message(said, tick));
            spoken.iter().for_each(|said| endpoint.on_control_message(said, tick));
        }
    }

    /// Says what the endpoints have to say.
    pub fn speak(&mut self, endpoints: &Endpoints, tick: &Tick<'_>) {
        for (_, endpoint) in endpoints.iter().filter(|(_, e)| e.uses_control_streams()) {
            if self.control.is_open() {
                endpoint.send_control(tick, &mut |message| self.control.say(message).is_ok());
            }
            if self.qos.is_open() {
                endpoint.send_qos(tick, &mut |message| self.qos.say(message).is_ok());
            }
        }
    }

    /// The last word of an endpoint that closes. Nobody waits for an answer.
    pub fn say(&mut self, message: &[u8]) {
        let until = Instant::now() + DETACH_TIMEOUT;
        while let Err(NotTaken::BackPressured) = self.control.say(message)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
