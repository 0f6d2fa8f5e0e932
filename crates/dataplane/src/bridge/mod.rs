//! Frames between hosts (bridge §2): the sender reads slots and sends chunks, the receiver assembles them in
//! slots of another host. Each has its own thread. The conductor adds their handles.

mod descriptor_fanout;
mod fragment_assembler;
mod mapping;
mod private_ring;
mod progress_forwarder;
pub mod receiver;
pub mod sender;
pub mod source;
mod worker;

pub use private_ring::PrivateRing;
pub use receiver::Receiver;
pub use sender::Sender;
