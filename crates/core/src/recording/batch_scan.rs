//! Batches of a recording's segment that are written like the one before them.
//!
//! A writer changes only numbers from batch to batch. So the flatbuffer of one is walked and checked elsewhere, and
//! those that follow are found by comparing bytes. Whatever differs in anything else, or is torn, or was changed,
//! ends the run: whoever asked looks at that one more closely.

use std::ops::Range;

use crate::checksum;

/// A mark, and the size of the metadata that follow.
pub const PREFIX_BYTES: usize = 8;
const CONTINUATION: [u8; 4] = [0xff; 4];
const PAIR_BYTES: usize = 16;
/// Eight digits of the checksum, a colon, and twelve of how much of the body it covers.
const CHECK_BYTES: usize = 21;
const DIGITS: usize = 8;
const ZEROS: [u8; DIGITS] = [b'0'; DIGITS];

/// Where the numbers stand in the metadata of the batches.
#[derive(Clone, Debug)]
pub struct BatchTemplate {
    pub body_bytes_at: usize,
    pub rows_at: usize,
    /// The tables of columns and of buffers.
    pub nodes: Range<usize>,
    pub buffers: Range<usize>,
    pub check_at: usize,
    /// Which buffer has the sequences, and which ones describe the tensors.
    pub seq: usize,
    pub sources: Vec<usize>,
}

/// A batch that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    pub start: usize,
    pub body: usize,
    pub end: usize,
    pub rows: usize,
    pub first_seq: u64,
    pub last_seq: u64,
    /// Where the first of those before it begins that say the same of their tensors, at the same places of their
    /// bodies; its own start if there is none.
    pub like: usize,
}

/// The batches behind the one at `model`, as long as they are like it. The model itself was checked already.
#[must_use]
pub fn scan_alike(data: &[u8], model: usize, shape: &BatchTemplate) -> Vec<Batch> {
    let mut found = Vec::new();
    let Some(mut last) = Message::at(data, model, shape) else { return found };
    let Some(common) = shape.common(last.metadata.len()) else { return found };
    let (mut at, mut like) = (last.end, model);
    while let Some(message) = Message::at(data, at, shape) {
        let is_alike = message.metadata.len() == last.metadata.len()
            && common.iter().all(|part| message.metadata[part.clone()] == last.metadata[part.clone()]);
        let Some((rows, first_seq, last_seq)) = message.sequences(shape) else { break };
        if !is_alike || !message.is_sound(shape) {
            break;
        }
        if !message.says_the_same(&last, shape) {
            like = at;
        }
        found.push(Batch {
            start: at,
            body: message.end - message.body.len(),
            end: message.end,
            rows,
            first_seq,
            last_seq,
            like,
        });
        at = message.end;
        last = message;
    }
    found
}

impl BatchTemplate {
    /// What lies between the numbers; None if they do not all lie in so many bytes of metadata, apart.
    fn common(&self, size: usize) -> Option<Vec<Range<usize>>> {
        let mut numbers = [
            self.body_bytes_at..self.body_bytes_at.checked_add(8)?,
            self.rows_at..self.rows_at.checked_add(8)?,
            self.nodes.clone(),
            self.buffers.clone(),
            self.check_at..self.check_at.checked_add(CHECK_BYTES)?,
        ];
        numbers.sort_by_key(|one| one.start);
        let mut common = Vec::with_capacity(numbers.len() + 1);
        let mut at = 0;
        for one in numbers {
            if one.start < at || one.end < one.start {
                return None;
            }
            common.push(at..one.start);
            at = one.end;
        }
        common.push(at..size);
        (at <= size).then_some(common)
    }
}

/// One message of the stream, which lies in the data as a whole.
struct Message<'a> {
    metadata: &'a [u8],
    body: &'a [u8],
    end: usize,
}

impl<'a> Message<'a> {
    fn at(data: &'a [u8], at: usize, shape: &BatchTemplate) -> Option<Self> {
        let prefix = data.get(at..at.checked_add(PREFIX_BYTES)?)?;
        let (mark, size) = prefix.split_at(CONTINUATION.len());
        let size = u32::from_le_bytes(size.try_into().ok()?) as usize;
        let begin = at + PREFIX_BYTES;
        let body = begin.checked_add(size)?;
        let metadata = data.get(begin..body)?;
        // A size of zero is the end of the stream.
        if mark != CONTINUATION || size == 0 {
            return None;
        }
        let end = body.checked_add(number(metadata, shape.body_bytes_at)?)?;
        Some(Self { metadata, body: data.get(body..end)?, end })
    }

    /// The number of rows, and the first and the last sequence.
    fn sequences(&self, shape: &BatchTemplate) -> Option<(usize, u64, u64)> {
        let rows = number(self.metadata, shape.rows_at)?;
        let seqs = self.buffer(shape, shape.seq)?;
        let last = rows.checked_sub(1)?.checked_mul(8)?;
        let read = |at: usize| Some(u64::from_le_bytes(seqs.get(at..at.checked_add(8)?)?.try_into().ok()?));
        Some((rows, read(0)?, read(last)?))
    }

    fn buffer(&self, shape: &BatchTemplate, which: usize) -> Option<&'a [u8]> {
        let table = self.metadata.get(shape.buffers.clone())?;
        let pair = which.checked_mul(PAIR_BYTES)?;
        let start = number(table, pair)?;
        self.body.get(start..start.checked_add(number(table, pair + 8)?)?)
    }

    fn is_sound(&self, shape: &BatchTemplate) -> bool {
        let Some(check) = self.metadata.get(shape.check_at..shape.check_at + CHECK_BYTES) else {
            return false;
        };
        let (Some(crc), Some(covered)) = (hexadecimal(&check[..DIGITS]), hexadecimal(&check[DIGITS + 1..]))
        else {
            return false;
        };
        let Some(covered) = usize::try_from(covered).ok().and_then(|size| self.body.get(..size)) else {
            return false;
        };
        let found = checksum::crc32c(&self.metadata[..shape.check_at]);
        let found = checksum::crc32c_append(found, &ZEROS);
        let found = checksum::crc32c_append(found, &self.metadata[shape.check_at + DIGITS..]);
        u64::from(checksum::crc32c_append(found, covered)) == crc
    }

    fn says_the_same(&self, other: &Self, shape: &BatchTemplate) -> bool {
        let has_same = |part: Range<usize>| self.metadata.get(part.clone()) == other.metadata.get(part);
        let is_placed_alike = self.body.len() == other.body.len()
            && has_same(shape.rows_at..shape.rows_at + 8)
            && has_same(shape.nodes.clone())
            && has_same(shape.buffers.clone());
        is_placed_alike
            && shape.sources.iter().all(|&one| {
                let mine = self.buffer(shape, one);
                mine.is_some() && mine == other.buffer(shape, one)
            })
    }
}

/// A 64-bit number that is not negative.
fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let read = i64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?);
    usize::try_from(read).ok()
}

/// As we write them: in lower case. Whoever takes others looks for itself.
fn hexadecimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |sum, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((sum << 4) | u64::from(value))
    })
}

#[cfg(test)]
mod tests;
