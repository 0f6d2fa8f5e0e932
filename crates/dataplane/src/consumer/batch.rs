//! Batches: frames of one layout, copied one after the other into memory of the caller. Each is checked after
//! its copy, so that no row is torn, and each that was overwritten counts as late. Any thread takes them.
//!
//! A reader that looks for the next frame all the time follows right behind the writer, and takes each cache line
//! from it while it still writes there: both then need three times as long for a frame. So the batches of a dense
//! stream are not looked for more often than every few microseconds.

use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::shm::slot::HeaderPattern;
use tensorpool_core::shm::tensor::{Tensor, item_size};
use tensorpool_core::wire::descriptor::FrameDescriptor;
use tensorpool_core::wire::layout::NULL_U64;

use super::reader::{Frame, RowPattern};
use super::{Consumer, MAX_MESSAGES_PER_POLL};

/// Messages and bytes that are read under one lock at most, so that the conductor can take it in between.
const MESSAGES_PER_LOCK: usize = 256;
const BYTES_PER_LOCK: usize = 4 << 20;
/// Rows that are padded begin at multiples of a cache line.
const ROW_ALIGNMENT: usize = 64;

/// The pause between two looks at a dense stream. Longer ones bring little more, and delay the frames.
const LOOK_PAUSE_NS: u64 = 10_000;
/// A stream of this rate is dense: at a lower one the writer has time for its cache lines.
const DENSE_FRAMES_PER_MS: u64 = 1_000;
/// How long frames are counted for the rate.
const RATE_WINDOW_NS: u64 = 100_000;
/// A look that found as many is far enough behind the writer.
const FRAMES_BEHIND: usize = 256;

/// When to look for the frames of a dense stream again. Pure.
#[derive(Debug, Default)]
pub(crate) struct LookPace {
    window_began_ns: u64,
    frames_in_window: u64,
    is_dense: bool,
    next_look_ns: u64,
}

impl LookPace {
    /// A look ended, and has found so many frames.
    fn on_look(&mut self, now_ns: u64, frames: usize) {
        self.frames_in_window += frames as u64;
        let window_ns = now_ns.saturating_sub(self.window_began_ns);
        if window_ns >= RATE_WINDOW_NS {
            self.is_dense =
                self.frames_in_window.saturating_mul(1_000_000) / window_ns >= DENSE_FRAMES_PER_MS;
            (self.window_began_ns, self.frames_in_window) = (now_ns, 0);
        }
        self.next_look_ns = if self.is_dense && frames < FRAMES_BEHIND { now_ns + LOOK_PAUSE_NS } else { 0 };
    }
}

/// What all frames of a batch have in common.
#[derive(Clone, Copy, Debug)]
pub struct BatchLayout {
    pub epoch: u64,
    pub meta_version: u32,
    pub tensor: Tensor,
    /// Bytes that the tensor spans in a slot, and that are copied.
    pub extent_bytes: usize,
    /// Bytes from one row of the batch to the next.
    pub row_bytes: usize,
    /// Slots of the ring.
    pub nslots: u32,
}

impl BatchLayout {
    fn from_frame(frame: &Frame) -> Self {
        let tensor = frame.slot_ref.info.tensor;
        let item = item_size(tensor.dtype).unwrap_or(1) as usize;
        let n = usize::from(tensor.ndims);
        let extent_bytes = if tensor.shape().contains(&0) {
            0
        } else {
            // `locate` held this sum against the payload.
            let steps = (0..n).map(|i| (tensor.dims[i] as usize - 1) * tensor.strides[i] as usize);
            steps.sum::<usize>() + item
        };
        let mut layout = Self {
            epoch: frame.mapping.epoch,
            meta_version: frame.slot_ref.info.meta_version,
            tensor,
            extent_bytes,
            row_bytes: extent_bytes,
            nslots: frame.mapping.nslots,
        };
        if !layout.is_contiguous() {
            layout.row_bytes = extent_bytes.next_multiple_of(ROW_ALIGNMENT);
        }
        layout
    }

    /// Whether the elements lie in the order of C without padding.
    pub fn is_contiguous(&self) -> bool {
        let tensor = &self.tensor;
        let mut expected = i64::from(item_size(tensor.dtype).unwrap_or(1));
        for i in (0..usize::from(tensor.ndims)).rev() {
            if tensor.dims[i] > 1 && tensor.strides[i] != expected {
                return false;
            }
            expected *= i64::from(tensor.dims[i].max(1));
        }
        true
    }

    fn holds(&self, frame: &Frame) -> bool {
        let (ours, theirs) = (&self.tensor, &frame.slot_ref.info.tensor);
        self.epoch == frame.mapping.epoch
            && self.meta_version == frame.slot_ref.info.meta_version
            && (ours.dtype, ours.major_order, ours.ndims) == (theirs.dtype, theirs.major_order, theirs.ndims)
            && ours.dims == theirs.dims
            && ours.strides == theirs.strides
    }
}

/// What is known of each frame beside its payload.
#[derive(Debug, Default)]
pub struct BatchRows {
    pub seqs: Vec<u64>,
    pub timestamps_ns: Vec<u64>,
    /// `NULL_U64` for a frame without one.
    pub publish_timestamps_ns: Vec<u64>,
    /// 0 for a frame without one.
    pub trace_ids: Vec<u64>,
}

impl BatchRows {
    pub fn reserve(&mut self, rows: usize) {
        let Self { seqs, timestamps_ns, publish_timestamps_ns, trace_ids } = self;
        [seqs, timestamps_ns, publish_timestamps_ns, trace_ids].into_iter().for_each(|v| v.reserve(rows));
    }

    pub fn len(&self) -> usize {
        self.seqs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    #[inline]
    fn push(&mut self, seq: u64, timestamp_ns: u64, publish_timestamp_ns: Option<u64>, trace_id: u64) {
        self.seqs.push(seq);
        self.timestamps_ns.push(timestamp_ns);
        self.publish_timestamps_ns.push(publish_timestamp_ns.unwrap_or(NULL_U64));
        self.trace_ids.push(trace_id);
    }
}

/// Why no more frames were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchEnd {
    /// No more frames wait, or the batch is full.
    Taken,
    /// The next frame has another layout. It stays, and is the first of the next batch.
    OtherLayout,
}

/// Copies a frame to its row. `None` if the writer overwrote it meanwhile; else what its header has in common
/// with the next ones.
///
/// # Safety
/// `memory` has room for one more row.
unsafe fn copy_row(
    layout: &BatchLayout,
    rows: &mut BatchRows,
    memory: *mut u8,
    frame: Frame,
) -> Option<RowPattern> {
    let Frame { mapping, slot_ref, publish_timestamp_ns, trace_id } = &frame;
    let header = mapping.header_bytes(slot_ref.seq);
    // SAFETY: by the caller; `locate` held the extent against the payload.
    let is_whole = unsafe {
        let row = memory.add(rows.len() * layout.row_bytes);
        mapping.copy_out_first(slot_ref, row, layout.extent_bytes)
    };
    if !is_whole {
        return None;
    }
    rows.push(slot_ref.seq, slot_ref.info.timestamp_ns, *publish_timestamp_ns, *trace_id);
    Some(RowPattern { header: HeaderPattern::new(&header), extent_bytes: layout.extent_bytes, frame })
}

impl Consumer {
    /// The layout of the next frame, which stays and is the first of the next batch.
    pub fn next_layout(&self) -> Option<BatchLayout> {
        self.await_look();
        let mut state = self.lock();
        if state.held.is_none() {
            let mut next = None;
            state.drain_while(
                self.config.stream_id,
                &self.counters,
                MAX_MESSAGES_PER_POLL,
                &mut (),
                |reader, counters, descriptor, ()| {
                    next = reader.accept(counters, &descriptor, &mut ());
                    next.is_none()
                },
            );
            state.held = next;
        }
        if state.held.is_none() {
            state.pace.on_look(monotonic_ns(), 0);
        }
        state.held.as_ref().map(BatchLayout::from_frame)
    }

    /// Pauses until the frames of a dense stream are to be looked for: a few microseconds.
    fn await_look(&self) {
        let next_look_ns = self.lock().pace.next_look_ns;
        while monotonic_ns() < next_look_ns {
            std::hint::spin_loop();
        }
    }

    /// Copies the frames that wait to `memory`, row by row after those of `rows`, up to `limit` rows in all.
    ///
    /// # Safety
    /// `memory` is writable for `limit` rows of `layout`, and no other code uses it during the call.
    pub unsafe fn take_into(
        &self,
        layout: &BatchLayout,
        rows: &mut BatchRows,
        memory: *mut u8,
        limit: usize,
    ) -> BatchEnd {
        // Descriptors of other streams do not hold the caller for long.
        let mut messages_left = 2 * limit + MAX_MESSAGES_PER_POLL;
        let first = rows.len();
        if first > 0 {
            // The batch is continued.
            self.await_look();
        }
        let mut short_drains = 0;
        let mut like: Option<RowPattern> = None;
        while rows.len() < limit && messages_left > 0 {
            let before = rows.len();
            let mut state = self.lock();
            if let Some(frame) = state.held.take() {
                if !layout.holds(&frame) {
                    state.held = Some(frame);
                    return BatchEnd::OtherLayout;
                }
                let seq = frame.slot_ref.seq;
                // SAFETY: there is room, by the condition of the loop.
                like = unsafe { copy_row(layout, rows, memory, frame) };
                if like.is_none() {
                    self.counters.received_to_late();
                    state.reader.on_overwritten(seq);
                }
            }
            let (mut bytes, mut other) = (0, None);
            let limit_of_lock = MESSAGES_PER_LOCK.min(limit - rows.len()).min(messages_left);
            let taken = state.drain_while(
                self.config.stream_id,
                &self.counters,
                limit_of_lock,
                &mut (),
                |reader, counters, descriptor, ()| {
                    if let Some(like) = &like {
                        // SAFETY: no more messages are read than there are rows left.
                        let timestamp_ns = unsafe {
                            let row = memory.add(rows.len() * layout.row_bytes);
                            reader.accept_row(&descriptor, like, row)
                        };
                        if let Some(timestamp_ns) = timestamp_ns {
                            let FrameDescriptor { seq, timestamp_ns: published_ns, trace_id, .. } =
                                descriptor;
                            rows.push(seq, timestamp_ns, published_ns, trace_id);
                            bytes += layout.extent_bytes;
                            return bytes < BYTES_PER_LOCK;
                        }
                    }
                    let Some(frame) = reader.accept(counters, &descriptor, &mut ()) else { return true };
                    if !layout.holds(&frame) {
                        other = Some(frame);
                        return false;
                    }
                    // SAFETY: no more messages are read than there are rows left.
                    like = unsafe { copy_row(layout, rows, memory, frame) };
                    if like.is_none() {
                        counters.received_to_late();
                        reader.on_overwritten(descriptor.seq);
                    }
                    bytes += layout.extent_bytes;
                    bytes < BYTES_PER_LOCK
                },
            );
            let has_other = other.is_some();
            state.held = other;
            let is_end = taken == 0 && rows.len() == before;
            // Twice, because a drain also ends where a term of the log does.
            let is_short = taken < limit_of_lock && bytes < BYTES_PER_LOCK;
            short_drains = if is_short { short_drains + 1 } else { 0 };
            // The frames that are just being written are left for the next look.
            let is_next_to_writer = state.pace.is_dense && short_drains > 1;
            let ends = has_other || is_end || is_next_to_writer || rows.len() == limit;
            if ends {
                state.pace.on_look(monotonic_ns(), rows.len() - first);
            }
            drop(state);
            self.record_rows(rows, before);
            if has_other {
                return BatchEnd::OtherLayout;
            }
            if ends {
                break;
            }
            messages_left = messages_left.saturating_sub(taken.max(1));
        }
        BatchEnd::Taken
    }

    /// Records the latency of the rows from `first` on. The clock is read once for all of them.
    fn record_rows(&self, rows: &BatchRows, first: usize) {
        if rows.len() == first {
            return;
        }
        let latency = &self.counters.latency;
        let now_ns = latency.now_ns();
        let times_of = |row: usize| (rows.publish_timestamps_ns[row], rows.timestamps_ns[row]);
        // Frames that were offered together have one time.
        let mut row = first;
        while row < rows.len() {
            let times = times_of(row);
            let end = (row + 1..rows.len()).find(|other| times_of(*other) != times).unwrap_or(rows.len());
            let publish_ns = Some(times.0).filter(|ns| *ns != NULL_U64);
            latency.record_many(publish_ns, times.1, now_ns, (end - row) as u64);
            row = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN_NS: u64 = 1 << 40;

    /// A pace after looks every 10 µs, each of which found so many frames.
    fn after_looks(pace: &mut LookPace, from_ns: u64, looks: u64, frames: usize) -> u64 {
        let end_ns = from_ns + looks * LOOK_PAUSE_NS;
        (1..=looks).for_each(|look| pace.on_look(from_ns + look * LOOK_PAUSE_NS, frames));
        end_ns
    }

    #[test]
    fn looks_at_a_stream_are_paused_only_while_it_is_dense() {
        let mut pace = LookPace::default();
        pace.on_look(BEGIN_NS, 200);
        assert_eq!(pace.next_look_ns, 0, "nothing is known of the rate");
        let at_ns = after_looks(&mut pace, BEGIN_NS, 20, 9);
        assert_eq!(pace.next_look_ns, 0, "900 frames in a millisecond");
        let at_ns = after_looks(&mut pace, at_ns, 20, 11);
        assert_eq!(pace.next_look_ns, at_ns + LOOK_PAUSE_NS, "1,100 frames in a millisecond");
        pace.on_look(at_ns + 5, FRAMES_BEHIND);
        assert_eq!(pace.next_look_ns, 0, "it is not right behind the writer");
        after_looks(&mut pace, at_ns, 20, 0);
        assert_eq!(pace.next_look_ns, 0, "nothing comes any more");
    }

    #[test]
    fn pause_is_never_longer_than_microseconds() {
        let mut pace = LookPace::default();
        let mut at_ns = BEGIN_NS;
        for frames in [0, 1, 255, 256, 40_000, 17, 3, 0, 9_999].into_iter().cycle().take(1_000) {
            at_ns += 1_234;
            pace.on_look(at_ns, frames);
            assert!(pace.next_look_ns <= at_ns + LOOK_PAUSE_NS);
        }
        // A clock that another thread read earlier does not matter.
        pace.on_look(at_ns - 1_000, 5);
        assert!(pace.next_look_ns <= at_ns + LOOK_PAUSE_NS);
    }
}
