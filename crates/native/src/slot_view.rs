//! `SlotView`: `valid()` and the `with` block of an object over slots that a producer may reuse.

use pyo3::prelude::*;
use tensorpool_core::os::fork::ForkGuard;

use crate::errors;

pub trait SlotView {
    /// Which frame was overwritten.
    type Overwritten;

    fn fork_guard(&self) -> ForkGuard;

    /// The first frame whose slot was reused; `None` if every slot still holds its frame. Counts all of them
    /// as late.
    fn first_overwritten(&self) -> Option<Self::Overwritten>;

    /// `FrameOverwritten` for that frame.
    fn overwritten_error(&self, py: Python<'_>, overwritten: Self::Overwritten) -> PyErr;

    fn is_valid(&self, py: Python<'_>) -> PyResult<bool> {
        errors::check_fork(py, self.fork_guard())?;
        Ok(self.first_overwritten().is_none())
    }

    /// The result of `__exit__`. The slots are always checked, so that the ledger is correct; an exception that
    /// leaves the block is not replaced, in a forked child either.
    fn end_block(&self, py: Python<'_>, is_raising: bool) -> PyResult<bool> {
        if is_raising && !self.fork_guard().is_owner() {
            return Ok(false);
        }
        errors::check_fork(py, self.fork_guard())?;
        match self.first_overwritten() {
            Some(overwritten) if !is_raising => Err(self.overwritten_error(py, overwritten)),
            _ => Ok(false),
        }
    }
}

/// `FrameOverwritten`, with the frame as its fields.
pub fn frame_overwritten(
    py: Python<'_>,
    stream_id: u32,
    epoch: Option<u64>,
    seq: u64,
    message: &str,
) -> PyErr {
    errors::raise(py, "FrameOverwritten", message, |f| {
        f.set_item("stream_id", stream_id)?;
        f.set_item("epoch", epoch)?;
        f.set_item("seq", seq)
    })
}
