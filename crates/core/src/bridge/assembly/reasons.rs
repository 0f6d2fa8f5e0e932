//! Reasons why chunks are ignored and frames lost at a receiver, each with its counter (bridge §5).

use crate::drop_reason::DropReason;
use crate::wire::chunk::reasons;

reasons! {
    /// Why a sound chunk was not used.
    Ignored {
        /// No pools were announced yet.
        Unannounced = "before_announce",
        /// Of a past epoch.
        OldEpoch = "old_epoch",
        /// Of an epoch that was not announced.
        UnknownEpoch = "unannounced_epoch",
        /// Of a frame that is older than a delivered one.
        Late = "late",
        /// Of a frame that was dropped.
        OfDropped = "of_dropped",
        /// The chunk was received before.
        Duplicate = "duplicate",
    }
}

reasons! {
    /// Why a frame of which chunks arrived was not delivered.
    Loss {
        /// A chunk did not arrive in time.
        Timeout = "timeout",
        /// A later frame was delivered, or needed the space, before all chunks had arrived.
        Superseded = "superseded",
        /// The source's epoch changed in the middle.
        Epoch = "epoch",
        /// Chunks that overlap, or two with the same index and different bytes.
        Conflict = "conflict",
        /// Chunks that disagree on the frame's length or number of chunks.
        Inconsistent = "inconsistent",
        /// All chunks arrived, and their lengths do not add up to the payload.
        Lengths = "lengths",
        /// The header is that of another sequence.
        Seq = "header_seq",
        /// The header is of another length, message, schema or version.
        Kind = "header_kind",
        /// The header has an element type, order, shape or strides that are not known here.
        Tensor = "header_tensor",
        /// The header's payload does not start at the start of its slot.
        PayloadOffset = "payload_offset",
        /// The header states another payload length.
        ValuesLen = "values_len",
        /// The header names a pool that the source did not announce.
        PoolId = "pool_id",
        /// A payload longer than the stride of its pool at the source.
        SourceStride = "source_stride",
        /// A payload that fits no pool here.
        NoPool = "no_pool",
        /// There was no destination to write into: its lease was being requested.
        Detached = "detached",
    }
}

impl Loss {
    /// The loss that an invalid header causes, in a few classes.
    pub fn from_drop_reason(reason: DropReason) -> Self {
        match reason {
            DropReason::HeaderLength | DropReason::HeaderMessage => Self::Kind,
            DropReason::PayloadOffset => Self::PayloadOffset,
            _ => Self::Tensor,
        }
    }

    /// A chunk never arrived: the network lost it, or the sender abandoned the frame.
    pub const fn is_incomplete(self) -> bool {
        matches!(self, Self::Timeout | Self::Superseded | Self::Epoch)
    }
}
