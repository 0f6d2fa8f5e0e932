//! Recording of a consumer's frames: they are copied from their slots into a recorder's arenas, and lost
//! sequences become gaps. On the recorder's thread.

use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::os::time::realtime_ns;
use tensorpool_core::recording::rows::Row;
use tensorpool_core::recording::stream_buffer::StreamBuffer;
use tensorpool_core::wire::layout::NULL_U64;

use super::Consumer;
use super::reader::{DropObserver, Frame};

/// Messages and bytes of one poll at most, so that the conductor can take the lock in between.
const MAX_MESSAGES_PER_POLL: usize = 64;
const MAX_BYTES_PER_POLL: usize = 4 << 20;

impl DropObserver for StreamBuffer {
    fn on_drop(&mut self, epoch: u64, first_seq: u64, count: u64, reason: DropReason) {
        StreamBuffer::add_gap(self, epoch, first_seq, count, reason.as_str());
    }

    fn on_other_epoch(&mut self, epoch: u64, seq: u64) {
        self.unmapped(epoch, seq);
    }
}

impl Consumer {
    /// Records what waits, up to a bound. Returns how many messages were consumed.
    pub fn record_into(&self, buffer: &mut StreamBuffer) -> usize {
        let mut bytes = 0;
        let mut state = self.lock();
        // Only a batch leaves one, taken before the recorder got the consumer.
        if let Some(frame) = state.held.take()
            && !record_frame(buffer, &frame)
        {
            self.counters.received_to_late();
        }
        self.drain_while(state, MAX_MESSAGES_PER_POLL, buffer, |reader, counters, descriptor, buffer| {
            if let Some(frame) = reader.accept(counters, &descriptor, buffer) {
                bytes += frame.slot_ref.info.values_len_bytes as usize;
                buffer.set_wall_ns(realtime_ns() as i64);
                if !record_frame(buffer, &frame) {
                    counters.received_to_late();
                    reader.on_overwritten(frame.slot_ref.seq);
                }
            }
            bytes < MAX_BYTES_PER_POLL
        })
    }
}

/// False if the writer overwrote the frame during the copy: then it is lost, and recorded as a gap.
fn record_frame(buffer: &mut StreamBuffer, frame: &Frame) -> bool {
    let (epoch, slot_ref) = (frame.mapping.epoch, &frame.slot_ref);
    let Some(at) = buffer.begin(epoch, slot_ref.seq, slot_ref.info.values_len_bytes as usize) else {
        return true;
    };
    // SAFETY: `begin` made room for the payload, in memory that no other code has a reference to.
    let Some(crc32c) = (unsafe { frame.mapping.copy_out_summed(slot_ref, at) }) else {
        StreamBuffer::add_gap(buffer, epoch, slot_ref.seq, 1, DropReason::Late.as_str());
        return false;
    };
    let (info, tensor) = (&slot_ref.info, &slot_ref.info.tensor);
    buffer.commit(Row {
        seq: slot_ref.seq,
        timestamp_ns: info.timestamp_ns,
        publish_timestamp_ns: frame.publish_timestamp_ns.unwrap_or(NULL_U64),
        trace_id: frame.trace_id,
        payload_bytes: u64::from(info.values_len_bytes),
        strides: tensor.strides,
        dims: tensor.dims,
        meta_version: info.meta_version,
        crc32c,
        dtype: tensor.dtype,
        major_order: tensor.major_order,
        ndims: tensor.ndims,
        ..Row::default()
    });
    true
}
