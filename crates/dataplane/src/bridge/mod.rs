//! Frames between hosts: the sender's loop reads slots and sends chunks, the receiver's puts them together in the
//! slots of another host (bridge §2). Each has a thread of its own; the conductor gives them their handles.

mod descriptor_fanout;
mod mapping;
mod private_ring;
mod progress_forwarder;
mod reassembly;
pub mod receiver;
pub mod sender;
pub mod source;
mod worker;

pub use private_ring::PrivateRing;
pub use receiver::Receiver;
pub use sender::Sender;
