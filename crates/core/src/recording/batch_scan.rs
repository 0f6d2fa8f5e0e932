//! Scan of a segment for record batches that have the layout of the one before. Pure.
//!
//! A writer changes only numbers from batch to batch. So Python parses and checks the flatbuffer of one
//! batch, and those that follow are found by comparing bytes. A batch that differs in anything else, is
//! truncated or was changed ends the scan, and the caller parses it completely.

use std::ops::Range;

use crate::checksum;

/// A marker, and the size of the metadata that follows.
pub const PREFIX_BYTES: usize = 8;
const CONTINUATION: [u8; 4] = [0xff; 4];
const PAIR_BYTES: usize = 16;
/// Eight hex digits of the checksum, a colon, and twelve of the body bytes it covers.
const CHECK_BYTES: usize = 21;
const DIGITS: usize = 8;
const ZEROS: [u8; DIGITS] = [b'0'; DIGITS];

/// Where the numbers are in the metadata of the batches.
#[derive(Clone, Debug)]
pub struct BatchTemplate {
    pub body_bytes_at: usize,
    pub rows_at: usize,
    /// The tables of columns and of buffers.
    pub nodes: Range<usize>,
    pub buffers: Range<usize>,
    pub check_at: usize,
    /// The index of the buffer with the sequences, and of those that describe the tensors.
    pub seq: usize,
    pub sources: Vec<usize>,
}

/// A complete batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    pub start: usize,
    pub body: usize,
    pub end: usize,
    pub rows: usize,
    pub first_seq: u64,
    pub last_seq: u64,
    /// The start of the first earlier batch that describes its tensors identically, at the same offsets of
    /// its body. Its own start if there is none.
    pub like: usize,
}

/// The batches behind the one at `model` that have its layout. The model itself is already checked.
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
        if !message.has_same_fields(&last, shape) {
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
    /// The byte ranges between the numbers. `None` if the numbers overlap or exceed the metadata.
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

/// One message of the stream that is completely in the data.
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

    fn has_same_fields(&self, other: &Self, shape: &BatchTemplate) -> bool {
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

/// Lower-case digits, as our writer writes them. Other forms are left to the caller.
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
