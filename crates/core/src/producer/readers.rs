//! The number of consumers that read an epoch, from their QoS reports. Pure.

use std::collections::BTreeMap;

/// Consumers kept at most. The one whose report is oldest is evicted first.
const MAX_READERS: usize = 1024;

#[derive(Debug)]
pub struct Readers {
    stale_ns: u64,
    /// By consumer: its mapped epoch, and the time of the report.
    reports: BTreeMap<u32, (u64, u64)>,
}

impl Readers {
    /// A consumer without a report for `stale_ns` does not count.
    pub fn new(stale_ns: u64) -> Self {
        Self { stale_ns, reports: BTreeMap::new() }
    }

    pub fn on_qos(&mut self, consumer_id: u32, epoch: u64, now_ns: u64) {
        self.reports.insert(consumer_id, (epoch, now_ns));
        if self.reports.len() > MAX_READERS
            && let Some((oldest, _)) = self.reports.iter().min_by_key(|(_, (_, received_ns))| *received_ns)
        {
            let oldest = *oldest;
            self.reports.remove(&oldest);
        }
    }

    pub fn on_leave(&mut self, consumer_id: u32) {
        self.reports.remove(&consumer_id);
    }

    /// How many consumers have mapped this epoch.
    pub fn count(&self, epoch: u64, now_ns: u64) -> usize {
        let is_fresh = |at: u64| now_ns.saturating_sub(at) <= self.stale_ns;
        self.reports.values().filter(|(mapped, at)| *mapped == epoch && is_fresh(*at)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_counts_for_its_last_epoch() {
        let mut readers = Readers::new(10);
        readers.on_qos(1, 5, 100);
        readers.on_qos(2, 5, 100);
        assert_eq!((readers.count(5, 100), readers.count(6, 100)), (2, 0));
        readers.on_qos(2, 6, 101);
        assert_eq!((readers.count(5, 101), readers.count(6, 101)), (1, 1));
    }

    #[test]
    fn stale_and_left_readers_do_not_count() {
        let mut readers = Readers::new(10);
        readers.on_qos(1, 5, 100);
        readers.on_qos(2, 5, 105);
        assert_eq!((readers.count(5, 110), readers.count(5, 111), readers.count(5, 116)), (2, 1, 0));
        readers.on_leave(2);
        assert_eq!(readers.count(5, 105), 1);
    }

    #[test]
    fn too_many_readers_evict_the_oldest() {
        let mut readers = Readers::new(u64::MAX);
        for id in 0..=MAX_READERS as u32 {
            readers.on_qos(id, 5, u64::from(id));
        }
        assert_eq!(readers.count(5, 0), MAX_READERS);
        readers.on_qos(0, 6, 9_999);
        assert_eq!((readers.count(5, 0), readers.count(6, 0)), (MAX_READERS - 1, 1));
    }
}
