//! The trait of everything that lives on the conductor's thread: producers, consumers, listeners, announcers.

use std::cell::Cell;

use tensorpool_core::consumer::announce_filter::Now;
use tensorpool_core::shm::containment::AllowedBases;
use tensorpool_core::wire::announce::PoolAnnounce;
use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::driver::DriverMessage;

use crate::aeron::{AeronError, Client};
use crate::conductor::events::Events;

/// What an endpoint may need in one duty cycle.
pub struct Tick<'a> {
    pub now: Now,
    pub bases: &'a AllowedBases,
    pub events: &'a Events,
    /// Set if more is expected soon: the conductor then pauses briefly between duty cycles.
    pub is_active: &'a Cell<bool>,
}

/// Anything that lives on a conductor. It has Aeron handles while there is a client.
pub trait Endpoint: Send + Sync {
    /// Requests handles, and stores them once they are ready. Cheap once all are ready.
    fn connect(&self, client: &Client) -> Result<(), AeronError>;
    /// Drops every handle: the client is dead, or about to be closed.
    fn disconnect(&self);
    /// The media driver is lost. `disconnect` follows.
    fn on_media_driver_lost(&self, _tick: &Tick<'_>) {}
    /// The media driver for UDP is gone. Drops the handles of UDP channels; `connect` requests them again.
    fn on_network_lost(&self) {}
    /// Drops everything, permanently.
    fn close(&self);
    fn do_work(&self, _tick: &Tick<'_>) {}
    fn receives_announces(&self) -> bool {
        false
    }
    fn on_announce(&self, _announce: &PoolAnnounce, _join_ns: u64, _tick: &Tick<'_>) {}
    fn sends_announces(&self) -> bool {
        false
    }
    /// Makes the next announce due at once.
    fn announce_now(&self) {}
    /// Sends every due announce with `send`. False from it: not sent, so it stays due.
    fn send_announces(&self, _now: Now, _send: &mut dyn FnMut(&[u8]) -> bool) {}
    /// Whether it uses the control and QoS streams. The methods below are called only then.
    fn uses_control_streams(&self) -> bool {
        false
    }
    /// The control stream of this endpoint, if it does not use the shared one.
    fn dedicated_control_stream(&self) -> Option<i32> {
        None
    }
    /// The QoS stream of this endpoint, if it does not use the shared one.
    fn dedicated_qos_stream(&self) -> Option<i32> {
        None
    }
    fn on_driver_message(&self, _message: &DriverMessage, _tick: &Tick<'_>) {}
    /// A new image joined the control stream, possibly that of a restarted driver.
    fn on_control_image(&self, _tick: &Tick<'_>) {}
    /// A message between producers, consumers and supervisors.
    fn on_control_message(&self, _message: &ControlMessage, _tick: &Tick<'_>) {}
    /// Sends due QoS reports with `send`, which returns whether the message was sent.
    fn send_qos(&self, _tick: &Tick<'_>, _send: &mut dyn FnMut(&[u8]) -> bool) {}
    /// Sends due messages to the driver with `send`, which returns whether the message was sent.
    fn send_lease(&self, _tick: &Tick<'_>, _send: &mut dyn FnMut(&[u8]) -> bool) {}
    /// Sends other due control messages with `send`, which returns whether the message was sent.
    fn send_control(&self, _tick: &Tick<'_>, _send: &mut dyn FnMut(&[u8]) -> bool) {}
    /// The detach to send to the driver before it closes.
    fn detach_message(&self) -> Option<Vec<u8>> {
        None
    }
}
