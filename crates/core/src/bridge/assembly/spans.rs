//! The received byte ranges of a payload: disjoint spans in order, neighbours joined. Chunks in order make
//! one span. Pure.

#[derive(Default)]
pub struct Spans(Vec<(u32, u32)>);

impl Spans {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds `start..end`. False, and nothing changes, if a part of it is present already.
    #[inline]
    pub fn add(&mut self, start: u32, end: u32) -> bool {
        if start == end {
            return true;
        }
        if let Some((_, last)) = self.0.last_mut()
            && *last == start
        {
            *last = end;
            return true;
        }
        self.insert(start, end)
    }

    fn insert(&mut self, start: u32, end: u32) -> bool {
        let at = self.0.partition_point(|(s, _)| *s < start);
        let before = at.checked_sub(1).map(|i| self.0[i].1);
        let after = self.0.get(at).map(|(s, _)| *s);
        if before.is_some_and(|e| e > start) || after.is_some_and(|s| s < end) {
            return false;
        }
        match (before == Some(start), after == Some(end)) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = end,
            (false, true) => self.0[at].0 = start,
            (false, false) => self.0.insert(at, (start, end)),
        }
        true
    }

    /// How many bytes are present.
    pub fn total(&self) -> u32 {
        self.0.iter().map(|(s, e)| e - s).sum()
    }

    /// How many bytes are present from the start without a hole.
    pub fn prefix(&self) -> u32 {
        self.0.first().filter(|(s, _)| *s == 0).map_or(0, |(_, e)| *e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_join_neighbours_in_any_order() {
        let mut spans = Spans::default();
        assert!(spans.add(10, 20) && spans.add(30, 40) && spans.add(0, 10) && spans.add(20, 30));
        assert_eq!(spans.0, [(0, 40)]);
        assert!(!spans.add(39, 41) && !spans.add(0, 1) && spans.add(40, 40));
        assert_eq!((spans.total(), spans.prefix()), (40, 40));
    }

    proptest! {
        #[test]
        fn spans_equal_a_set_of_bytes(adds in proptest::collection::vec((0u32..40, 0u32..9), 0..20)) {
            let (mut spans, mut bytes) = (Spans::default(), [false; 64]);
            for (start, length) in adds {
                let range = start as usize..(start + length) as usize;
                let is_free = !bytes[range.clone()].iter().any(|b| *b);
                prop_assert_eq!(spans.add(start, start + length), is_free);
                if is_free {
                    bytes[range].fill(true);
                }
                prop_assert_eq!(spans.total() as usize, bytes.iter().filter(|b| **b).count());
                prop_assert_eq!(spans.prefix() as usize, bytes.iter().take_while(|b| **b).count());
            }
        }
    }
}
