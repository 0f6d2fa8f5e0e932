//! What comes of asking for a lease, and how one ends.

/// Why there is no lease: what the driver said, or that it said nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Code(i32, String),
    /// An OK that cannot be used.
    Protocol(String),
    /// The lease was granted, and its regions cannot be used here.
    Regions(String),
    NoAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not for us, or no longer.
    Ignored,
    Granted,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    NotOurs,
    /// Our lease is over.
    Ours,
    /// The producer of the stream that we consume is gone; a later epoch will be announced.
    ProducerGone,
}

/// How a lease was lost without a word from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    NoAnnounce,
    KeepaliveNotSent,
    LaterEpoch,
    MediaDriver,
}

impl Lost {
    pub const fn why(self) -> &'static str {
        match self {
            Self::NoAnnounce => "the driver gives no sign of life",
            Self::KeepaliveNotSent => "keepalives cannot be sent",
            Self::LaterEpoch => "the driver announces a later epoch",
            Self::MediaDriver => "the media driver is gone",
        }
    }
}
