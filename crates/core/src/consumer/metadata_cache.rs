//! The metadata of one source: its name, and the attributes of the last metadata versions (wire §10.3). Pure.
//!
//! `DataSourceMeta` names no epoch, and a restarted producer may count its versions from the beginning. So
//! the versions of a session belong to the epoch that the session announced last, and versions of two
//! producers are kept apart. Versions of a session that announced no epoch count for every epoch.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::wire::metadata::{Attribute, DataSourceAnnounce, DataSourceMeta};

/// Versions kept. The one received longest ago is evicted first.
pub const MAX_VERSIONS: usize = 64;
/// Bytes kept if there is more than one version.
pub const MAX_BYTES: usize = 16 << 20;
/// Sessions whose epoch is kept.
pub const MAX_SESSIONS: usize = 16;

/// The attributes of one version. Immutable: other attributes are another version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataVersion {
    pub epoch: Option<u64>,
    pub version: u32,
    pub timestamp_ns: u64,
    pub attributes: Vec<Attribute>,
}

impl MetadataVersion {
    fn bytes(&self) -> usize {
        self.attributes.iter().map(|a| a.key.len() + a.format.len() + a.value.len() + 96).sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedSource {
    pub epoch: u64,
    pub name: String,
    pub summary: String,
}

struct CachedVersion {
    session_id: i32,
    metadata: Arc<MetadataVersion>,
}

/// The metadata of one stream, by the Aeron session that its messages come from.
#[derive(Default)]
pub struct MetadataCache {
    /// Ordered by time of receipt, the latest last.
    versions: VecDeque<CachedVersion>,
    bytes: usize,
    sessions: VecDeque<(i32, u64)>,
    source: Option<AnnouncedSource>,
}

impl MetadataCache {
    /// The epoch that a session announced, if any.
    pub fn epoch_of(&self, session_id: i32) -> Option<u64> {
        self.sessions.iter().find(|(s, _)| *s == session_id).map(|(_, epoch)| *epoch)
    }

    pub fn on_announce(&mut self, session_id: i32, announce: DataSourceAnnounce) {
        let DataSourceAnnounce { epoch, name, summary, meta_version, .. } = announce;
        self.sessions.retain(|(s, _)| *s != session_id);
        self.sessions.push_back((session_id, epoch));
        if self.sessions.len() > MAX_SESSIONS {
            self.sessions.pop_front();
        }
        // A closing producer may announce once more after its successor. An announce without metadata says
        // nothing about the name: behind a bridge another session has it.
        let known = self.source.as_ref().map_or(0, |s| s.epoch);
        if epoch > known || (epoch == known && meta_version != 0) || self.source.is_none() {
            self.source = Some(AnnouncedSource { epoch, name, summary });
        }
        // Versions received before the session's announce belong to its epoch too.
        for cached in
            self.versions.iter_mut().filter(|k| k.session_id == session_id && k.metadata.epoch.is_none())
        {
            cached.metadata = Arc::new(MetadataVersion { epoch: Some(epoch), ..(*cached.metadata).clone() });
        }
    }

    pub fn on_meta(&mut self, session_id: i32, meta: DataSourceMeta) {
        let DataSourceMeta { meta_version: version, timestamp_ns, attributes, .. } = meta;
        let metadata =
            MetadataVersion { epoch: self.epoch_of(session_id), version, timestamp_ns, attributes };
        let same = |k: &CachedVersion| k.metadata.version == version && k.metadata.epoch == metadata.epoch;
        if let Some(known) = self.versions.iter().position(same).and_then(|at| self.versions.remove(at)) {
            if *known.metadata == metadata {
                // Received again: the same object is kept.
                self.versions.push_back(CachedVersion { session_id, ..known });
                return;
            }
            self.bytes -= known.metadata.bytes();
        }
        self.bytes += metadata.bytes();
        self.versions.push_back(CachedVersion { session_id, metadata: Arc::new(metadata) });
        while self.versions.len() > MAX_VERSIONS || (self.bytes > MAX_BYTES && self.versions.len() > 1) {
            let Some(oldest) = self.versions.pop_front() else { return };
            self.bytes -= oldest.metadata.bytes();
        }
    }

    /// The version that applies to frames of `epoch` with metadata version `version`.
    pub fn at(&self, epoch: u64, version: u32) -> Option<&Arc<MetadataVersion>> {
        let of = |meta_epoch: Option<u64>| {
            let fits = |k: &&CachedVersion| k.metadata.version == version && k.metadata.epoch == meta_epoch;
            self.versions.iter().rev().find(fits).map(|k| &k.metadata)
        };
        of(Some(epoch)).or_else(|| of(None))
    }

    /// The latest version of the latest epoch.
    pub fn newest(&self) -> Option<&Arc<MetadataVersion>> {
        self.versions.iter().map(|k| &k.metadata).max_by_key(|d| (d.epoch, d.version))
    }

    pub fn source(&self) -> Option<&AnnouncedSource> {
        self.source.as_ref()
    }

    pub fn len(&self) -> usize {
        self.versions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn announce(epoch: u64, name: &str) -> DataSourceAnnounce {
        DataSourceAnnounce {
            stream_id: 1,
            producer_id: 1,
            epoch,
            meta_version: 1,
            name: name.into(),
            summary: String::new(),
        }
    }

    fn meta(version: u32, value: u8) -> DataSourceMeta {
        let attribute = Attribute { key: "k".into(), format: "text/plain".into(), value: vec![value] };
        DataSourceMeta { stream_id: 1, meta_version: version, timestamp_ns: 0, attributes: vec![attribute] }
    }

    fn value(found: Option<&Arc<MetadataVersion>>) -> Option<u8> {
        found.map(|d| d.attributes[0].value[0])
    }

    #[test]
    fn versions_of_a_restarted_producer_are_kept_apart() {
        let mut cache = MetadataCache::default();
        cache.on_announce(1, announce(10, "old"));
        cache.on_meta(1, meta(1, 7));
        cache.on_announce(2, announce(11, "new"));
        assert_eq!(value(cache.at(11, 1)), None, "not yet announced");
        cache.on_meta(2, meta(1, 8));
        assert_eq!((value(cache.at(10, 1)), value(cache.at(11, 1))), (Some(7), Some(8)));
        cache.on_announce(1, announce(10, "old"));
        cache.on_meta(1, meta(2, 9));
        assert_eq!(value(cache.newest()), Some(8));
        assert_eq!(cache.source().map(|s| s.name.as_str()), Some("new"));
    }

    #[test]
    fn announce_without_metadata_keeps_the_name_of_its_epoch() {
        let mut cache = MetadataCache::default();
        let undescribed = |epoch| DataSourceAnnounce { meta_version: 0, ..announce(epoch, "") };
        let name = |cache: &MetadataCache| cache.source().map(|s| (s.epoch, s.name.clone()));
        cache.on_announce(1, undescribed(10));
        assert_eq!(name(&cache), Some((10, String::new())));
        cache.on_announce(2, announce(10, "camera"));
        cache.on_announce(1, undescribed(10));
        assert_eq!(name(&cache), Some((10, "camera".to_owned())));
        cache.on_announce(1, undescribed(11));
        assert_eq!(name(&cache), Some((11, String::new())));
    }

    #[test]
    fn source_without_announces_counts_for_every_epoch() {
        let mut cache = MetadataCache::default();
        cache.on_meta(1, meta(3, 5));
        assert_eq!(value(cache.at(99, 3)), Some(5));
        cache.on_announce(1, announce(7, ""));
        assert_eq!((value(cache.at(99, 3)), value(cache.at(7, 3))), (None, Some(5)));
    }

    #[test]
    fn repeated_version_is_shared_and_kept_longest() {
        let mut cache = MetadataCache::default();
        cache.on_announce(1, announce(1, ""));
        cache.on_meta(1, meta(1, 0));
        let first = cache.at(1, 1).cloned();
        for version in 2..500 {
            cache.on_meta(1, meta(version, version as u8));
            cache.on_meta(1, meta(1, 0));
        }
        assert_eq!(cache.len(), MAX_VERSIONS);
        assert!(matches!((&first, cache.at(1, 1)), (Some(a), Some(b)) if Arc::ptr_eq(a, b)));
        assert!(cache.at(1, 2).is_none());
    }

    #[test]
    fn cache_is_bounded_by_attribute_bytes() {
        let mut cache = MetadataCache::default();
        for version in 1..40 {
            let mut large = meta(version, 0);
            large.attributes[0].value = vec![0; 1 << 20];
            cache.on_meta(1, large);
        }
        assert!(cache.bytes <= MAX_BYTES && cache.len() >= 15, "{}", cache.len());
        assert!(cache.at(0, 39).is_some());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Announce(i32, u64),
        Meta(i32, u32, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..3i32, 1..4u64).prop_map(|(s, e)| Step::Announce(s, e)),
            (0..3i32, 1..6u32, any::<u8>()).prop_map(|(s, v, b)| Step::Meta(s, v, b)),
        ]
    }

    proptest! {
        /// Against a model without eviction: the last version of an epoch and version number is found.
        #[test]
        fn cache_returns_the_last_version(steps in proptest::collection::vec(step(), 0..60)) {
            let (mut cache, mut announced) = (MetadataCache::default(), HashMap::new());
            let mut model: HashMap<(u64, u32), u8> = HashMap::new();
            for session_id in 0..3 {
                cache.on_announce(session_id, announce(1, ""));
                announced.insert(session_id, 1);
            }
            for step in steps {
                match step {
                    Step::Announce(session_id, epoch) => {
                        cache.on_announce(session_id, announce(epoch, ""));
                        announced.insert(session_id, epoch);
                    }
                    Step::Meta(session_id, version, byte) => {
                        cache.on_meta(session_id, meta(version, byte));
                        model.insert((announced[&session_id], version), byte);
                    }
                }
                for epoch in 1..4 {
                    for version in 1..6 {
                        prop_assert_eq!(value(cache.at(epoch, version)), model.get(&(epoch, version)).copied());
                    }
                }
                let newest = model.keys().max().map(|key| model[key]);
                prop_assert_eq!(value(cache.newest()), newest);
                prop_assert_eq!(cache.len(), model.len());
            }
        }
    }
}
