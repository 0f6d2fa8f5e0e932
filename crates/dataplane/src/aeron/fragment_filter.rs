//! A filter of fragments by the first fragment of each message, so that foreign messages are neither joined
//! nor copied.

use crate::aeron::{Header, ImageWatch};

/// Sessions in the middle of a message of several fragments, and whether it is wanted.
#[derive(Default)]
pub struct FragmentFilter(Vec<(i32, bool)>);

impl FragmentFilter {
    /// Whether a fragment belongs to a wanted message. `is_wanted` is called for the first fragment only.
    pub fn wants(&mut self, header: Header, is_wanted: impl FnOnce() -> bool) -> bool {
        let (session, begins, ends) = header.fragment();
        let at = self.0.iter().position(|(s, _)| *s == session);
        let wanted = if begins { is_wanted() } else { at.is_some_and(|i| self.0[i].1) };
        match (at, ends) {
            (Some(i), true) => drop(self.0.swap_remove(i)),
            (Some(i), false) => self.0[i].1 = wanted,
            (None, true) => {}
            (None, false) => self.0.push((session, wanted)),
        }
        wanted
    }

    /// Drops closed sessions. True if no session is in the middle of a message.
    pub fn settle(&mut self, images: &ImageWatch) -> bool {
        self.0.retain(|(session, _)| images.joined_ns(*session).is_some());
        self.0.is_empty()
    }
}
