//! What lives on the conductor's thread: a producer, a consumer, an ear, the driver's beacons.

use tensorpool_core::consumer::announce_filter::Now;
use tensorpool_core::shm::containment::AllowedBases;
use tensorpool_core::wire::announce::PoolAnnounce;
use tensorpool_core::wire::control::ControlMessage;
use tensorpool_core::wire::driver::DriverMessage;

use crate::aeron::{AeronError, Client};
use crate::conductor::events::Events;

/// What every endpoint may need in a round.
pub struct Tick<'a> {
    pub now: Now,
    pub bases: &'a AllowedBases,
    pub events: &'a Events,
}

/// Something that lives on the conductor: it gets Aeron handles while there is a client.
pub trait Endpoint: Send + Sync {
    /// Asks for handles, and takes them as they come. Cheap once all are there.
    fn connect(&self, client: &Client) -> Result<(), AeronError>;
    /// Lets go of every handle: the client is dead, or about to be closed.
    fn disconnect(&self);
    /// The media driver is gone; `disconnect` follows.
    fn on_media_driver_lost(&self, _tick: &Tick<'_>) {}
    /// The end: lets go of everything.
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
    /// Gives every announce that is due to `send`; false from it: not taken now, so it stays due.
    fn send_announces(&self, _now: Now, _send: &mut dyn FnMut(&[u8]) -> bool) {}
    /// Whether it has to do with the control and QoS streams; the rest of these concern it then.
    fn uses_control_streams(&self) -> bool {
        false
    }
    fn on_driver_message(&self, _message: &DriverMessage, _tick: &Tick<'_>) {}
    /// Someone new speaks on the control stream; it may be a driver that came back.
    fn on_control_image(&self, _tick: &Tick<'_>) {}
    /// What producers, consumers and supervisors say to each other.
    fn on_control_message(&self, _message: &ControlMessage, _tick: &Tick<'_>) {}
    /// Gives what is due on the QoS stream to `send`, which says whether it was taken.
    fn send_qos(&self, _tick: &Tick<'_>, _send: &mut dyn FnMut(&[u8]) -> bool) {}
    /// Gives what it has to say on the control stream to `send`, which says whether it was taken.
    fn send_control(&self, _tick: &Tick<'_>, _send: &mut dyn FnMut(&[u8]) -> bool) {}
    /// What the driver is told before the end.
    fn detach_message(&self) -> Option<Vec<u8>> {
        None
    }
}
