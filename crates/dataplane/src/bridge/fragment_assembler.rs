//! Reassembly of chunks in several fragments: a peer may send chunks longer than the MTU, our sender does
//! not. Bounded: a few sessions, each with at most the longest accepted chunk.

use crate::aeron::Header;

const MAX_SESSIONS: usize = 8;

pub(super) struct FragmentAssembler {
    max_bytes: usize,
    partial: Vec<(i32, Vec<u8>)>,
    dropped: u64,
}

impl FragmentAssembler {
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, partial: Vec::new(), dropped: 0 }
    }

    /// How many messages were dropped incomplete.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Passes every complete message and its session to `f`. A message in one fragment is not copied.
    #[inline]
    pub fn take(&mut self, bytes: &[u8], header: Header, f: impl FnOnce(&[u8], i32)) {
        let (session, begins, ends) = header.fragment();
        if begins && ends {
            return f(bytes, session);
        }
        self.join(bytes, session, begins, ends, |message| f(message, session));
    }

    #[cold]
    fn join(&mut self, bytes: &[u8], session: i32, begins: bool, ends: bool, f: impl FnOnce(&[u8])) {
        let at = self.partial.iter().position(|(s, _)| *s == session);
        let at = match (at, begins) {
            (Some(at), true) => {
                self.partial[at].1.clear();
                at
            }
            (None, true) => {
                if self.partial.len() == MAX_SESSIONS {
                    self.partial.remove(0);
                    self.dropped += 1;
                }
                self.partial.push((session, Vec::new()));
                self.partial.len() - 1
            }
            (Some(at), false) => at,
            (None, false) => return,
        };
        let (_, message) = &mut self.partial[at];
        if message.len() + bytes.len() > self.max_bytes {
            self.partial.swap_remove(at);
            self.dropped += 1;
            return;
        }
        message.extend_from_slice(bytes);
        if ends {
            let (_, message) = self.partial.swap_remove(at);
            f(&message);
        }
    }
}
