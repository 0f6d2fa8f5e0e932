//! The rules of a join, and why they are invalid.

/// Inputs of one join at most.
pub const MAX_INPUTS: usize = 64;
/// Frames that one input may hold back at most.
const MAX_DEPTH: usize = 1 << 20;

/// What frames are matched by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    Sequence,
    Time,
    /// The newest frame of each input; offsets and windows do not apply.
    Latest,
}

/// Which frames of an input belong to an output. In sequences, or in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// The frame at output + offset: exactly by sequence, the nearest within the tolerance by time.
    Offset(i64),
    /// By sequence `[out - n + 1, out]`, by time `[out - n, out]`. Frames of the window may be missing.
    Window(u64),
}

/// What sets the pace of the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// Each frame of that input is an output.
    Input(usize),
    /// Each frame of any input; by `Latest` only.
    Any,
    /// An output in every `period_ns`: of the frames' own time, or by `Latest` of the local clock.
    Clock { period_ns: u64 },
}

#[derive(Clone, Debug)]
pub struct JoinRules {
    pub basis: Basis,
    pub inputs: Vec<Select>,
    pub drive: Drive,
    /// By time: how far the frame of an offset may be from its time.
    pub tolerance_ns: u64,
    /// By time: an output is attempted this much before its inputs have reached their time.
    pub lateness_ns: u64,
    /// An input without a frame for longer may be absent from an output. `None`: a missing input blocks.
    pub stale_after_ns: Option<u64>,
    /// Frames that each input holds back at most.
    pub depth: usize,
}

impl JoinRules {
    /// Why the rules are invalid. `None` if they are valid.
    pub fn fault(&self) -> Option<String> {
        let count = self.inputs.len();
        if !(1..=MAX_INPUTS).contains(&count) {
            return Some(format!("{count} inputs: a join has 1 to {MAX_INPUTS}"));
        }
        if self.inputs.contains(&Select::Window(0)) {
            return Some("a window of 0: use 1 or more".to_owned());
        }
        if self.inputs.iter().any(|select| matches!(select, Select::Window(n) if *n > i64::MAX as u64)) {
            return Some("a window that no stream can fill".to_owned());
        }
        if !(1..=MAX_DEPTH).contains(&self.depth) {
            return Some(format!("a depth of {}: use 1 to {MAX_DEPTH}", self.depth));
        }
        match self.drive {
            Drive::Input(at) if at >= count => Some("the drive is none of the inputs".to_owned()),
            Drive::Any if self.basis != Basis::Latest => {
                Some("only a join of the newest frames can be driven by any input".to_owned())
            }
            Drive::Clock { .. } if self.basis == Basis::Sequence => {
                Some("a clock cannot drive a join by sequence".to_owned())
            }
            Drive::Clock { period_ns: 0 } => Some("a clock with a period of 0".to_owned()),
            _ => None,
        }
    }

    /// The keys of an input that an output needs: from, to. `None` if there can be none: the output is
    /// never attempted.
    pub(super) fn needed(&self, input: usize, out: u64) -> Option<(u64, u64)> {
        match (self.inputs[input], self.basis) {
            (Select::Offset(offset), _) => {
                let key = out.checked_add_signed(offset)?;
                Some((key, key))
            }
            (Select::Window(n), Basis::Sequence) => Some((out.checked_add(1)?.checked_sub(n)?, out)),
            (Select::Window(n), _) => Some((out.checked_sub(n)?, out)),
        }
    }

    /// The output that a frame of the driving input names.
    pub(super) fn output_of(&self, input: usize, key: u64) -> Option<u64> {
        match self.inputs[input] {
            Select::Offset(offset) if offset < 0 => key.checked_add(offset.unsigned_abs()),
            Select::Offset(offset) => key.checked_sub(offset.unsigned_abs()),
            Select::Window(_) => Some(key),
        }
    }
}
