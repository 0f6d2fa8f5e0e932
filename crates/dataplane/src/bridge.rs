//! Frames between hosts: the sender's loop reads slots and sends chunks, the receiver's puts them together in the
//! slots of another host (bridge §2). Each has a thread of its own; the conductor gives them their handles.

mod ears;
mod echo;
mod fragments;
mod private;
pub mod receiver;
pub mod sender;
mod sink;
pub mod source;
mod worker;

pub use private::Private;
pub use receiver::Receiver;
pub use sender::Sender;
