//! Messages that came in several fragments: a peer may send chunks longer than the MTU. Ours never are. Bounded:
//! a few sessions, each as much as the longest chunk that is borne.

use crate::aeron::Header;

const MAX_SESSIONS: usize = 8;

pub(super) struct Fragments {
    most: usize,
    underway: Vec<(i32, Vec<u8>)>,
    dropped: u64,
}

impl Fragments {
    pub fn new(most: usize) -> Self {
        Self { most, underway: Vec::new(), dropped: 0 }
    }

    /// How many messages were not put together.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Hands every whole message and its session to `f`; what came in one piece is not copied.
    #[inline]
    pub fn take(&mut self, bytes: &[u8], header: Header, f: impl FnOnce(&[u8], i32)) {
        let (session, begins, ends) = header.fragment();
        if begins && ends {
            return f(bytes, session);
        }
        self.put_together(bytes, session, begins, ends, |message| f(message, session));
    }

    #[cold]
    fn put_together(&mut self, bytes: &[u8], session: i32, begins: bool, ends: bool, f: impl FnOnce(&[u8])) {
        let at = self.underway.iter().position(|(s, _)| *s == session);
        let at = match (at, begins) {
            (Some(at), true) => {
                self.underway[at].1.clear();
                at
            }
            (None, true) => {
                if self.underway.len() == MAX_SESSIONS {
                    self.underway.remove(0);
                    self.dropped += 1;
                }
                self.underway.push((session, Vec::new()));
                self.underway.len() - 1
            }
            (Some(at), false) => at,
            (None, false) => return,
        };
        let (_, message) = &mut self.underway[at];
        if message.len() + bytes.len() > self.most {
            self.underway.swap_remove(at);
            self.dropped += 1;
            return;
        }
        message.extend_from_slice(bytes);
        if ends {
            let (_, message) = self.underway.swap_remove(at);
            f(&message);
        }
    }
}
