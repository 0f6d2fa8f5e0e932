use super::*;
use crate::shm::containment::AllowedBases;
use crate::shm::create::{EpochSpec, create_epoch};
use crate::shm::epoch::MappedEpoch;
use crate::shm::region_lock::RegionLock;
use crate::wire::announce::{AnnouncedPool, PoolAnnounce};
use crate::wire::layout::{CLOCK_DOMAIN_MONOTONIC, HEADER_SLOT_BYTES};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;

const POOLS: [PoolSpec; 2] =
    [PoolSpec { pool_id: 1, stride_bytes: 64 }, PoolSpec { pool_id: 2, stride_bytes: 4096 }];

struct CreatedEpoch {
    _dir: tempfile::TempDir,
    bases: AllowedBases,
    old: EpochFiles,
    assignment: Assignment,
}

fn created_epoch() -> CreatedEpoch {
    let dir = tempfile::tempdir().unwrap();
    let spec = EpochSpec {
        base: dir.path().to_path_buf(),
        user: "me".into(),
        namespace: "n".into(),
        stream_id: 7,
        epoch: 10,
        nslots: 4,
        pools: POOLS.to_vec(),
        require_hugepages: false,
        prefault: false,
        dir_mode: 0o700,
        file_mode: 0o600,
        group: None,
    };
    let old = create_epoch(&spec, 1, 100).unwrap();
    let bases = AllowedBases::new([dir.path()]).unwrap();
    let assignment = Assignment {
        directory: old.directory.clone(),
        epoch: 11,
        stream_id: 7,
        nslots: 4,
        pools: POOLS.to_vec(),
        require_hugepages: false,
    };
    CreatedEpoch { _dir: dir, bases, old, assignment }
}

impl CreatedEpoch {
    fn stream(&self) -> &Path {
        self.old.directory.parent().unwrap()
    }

    fn map(&self, files: &EpochFiles, epoch: u64) -> Result<MappedEpoch, RegionError> {
        let pool = |(p, uri): &(PoolSpec, String)| AnnouncedPool {
            pool_id: p.pool_id,
            nslots: 4,
            stride_bytes: p.stride_bytes,
            uri: uri.clone(),
        };
        let announce = PoolAnnounce {
            stream_id: 7,
            producer_id: 0,
            epoch,
            timestamp_ns: 0,
            clock_domain: CLOCK_DOMAIN_MONOTONIC,
            layout_version: LAYOUT_VERSION,
            header_nslots: 4,
            header_slot_bytes: HEADER_SLOT_BYTES as u16,
            pools: files.pools.iter().map(pool).collect(),
            header_uri: files.header_uri.clone(),
        };
        MappedEpoch::open(&announce, &self.bases, Access::Read)
    }

    /// Checks that nothing was changed.
    fn untouched(&self) {
        assert_eq!(self.map(&self.old, 10).unwrap().activity_ns(), 100);
    }
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn assigned_regions_have_the_new_epoch_only() {
    let created = created_epoch();
    let files = assign_epoch(&created.assignment, 42, 500).unwrap();
    assert_eq!(files.directory, created.stream().join("11"));
    assert_eq!(names(created.stream()), ["11"]);
    assert_eq!(names(&files.directory), ["1.pool", "2.pool", "header.ring"]);
    for (pool, uri) in &files.pools {
        assert_eq!(*uri, format!("shm:file?path={}/{}.pool", files.directory.display(), pool.pool_id));
    }
    let mapping = created.map(&files, 11).unwrap();
    assert_eq!((mapping.activity_ns(), mapping.pid()), (500, 42));
    assert_eq!(created.map(&files, 10).unwrap_err().reason(), "epoch");
    assert_eq!(created.map(&created.old, 10).unwrap_err().reason(), "missing");
}

#[test]
fn failed_assignment_leaves_no_epoch() {
    for fails_at in 0..3 {
        let created = created_epoch();
        let fail = |i| {
            if i == fails_at {
                return Err(io_error("x", io::Error::other("broken")));
            }
            Ok(())
        };
        let failed = assign_with(&created.assignment, 42, 500, fail);
        assert!(matches!(failed, Err(CreateError::Io { .. })), "{failed:?}");
        assert!(names(created.stream()).is_empty(), "{fails_at}");
    }
}

/// A killed process cannot clean up: what it leaves must be unusable.
#[test]
fn partly_rewritten_regions_are_refused() {
    for stopped_at in 0..3 {
        let created = created_epoch();
        let aside = created.stream().join("aside");
        let killed = |i| {
            if i == stopped_at {
                fs::create_dir(&aside).unwrap();
                for file in names(&created.stream().join("11")) {
                    fs::copy(created.stream().join("11").join(&file), aside.join(&file)).unwrap();
                }
                return Err(io_error("x", io::Error::other("killed")));
            }
            Ok(())
        };
        assign_with(&created.assignment, 42, 500, killed).unwrap_err();
        fs::rename(&aside, created.stream().join("11")).unwrap();
        let left = created.assignment.files(&created.stream().join("11")).unwrap();
        assert_eq!(created.map(&created.old, 10).unwrap_err().reason(), "missing");
        assert_eq!(created.map(&left, 11).unwrap_err().reason(), "epoch", "{stopped_at}");
    }
}

#[test]
fn existing_target_is_left_alone() {
    let created = created_epoch();
    let target = created.stream().join("11");
    fs::create_dir(&target).unwrap();
    assert!(
        matches!(assign_epoch(&created.assignment, 42, 500), Err(CreateError::Exists(path)) if path == target)
    );
    assert!(names(&target).is_empty());
    created.untouched();
}

#[test]
fn invalid_assignment_changes_nothing() {
    let created = created_epoch();
    let assignment = &created.assignment;
    let other_pool = PoolSpec { pool_id: 2, stride_bytes: 8192 };
    let other_path = created.old.directory.join("../10");
    for wrong in [
        Assignment { epoch: 10, ..assignment.clone() },
        Assignment { epoch: 9, ..assignment.clone() },
        Assignment { stream_id: 8, ..assignment.clone() },
        Assignment { nslots: 8, ..assignment.clone() },
        Assignment { nslots: 3, ..assignment.clone() },
        Assignment { pools: vec![POOLS[0]], ..assignment.clone() },
        Assignment { pools: vec![POOLS[0], other_pool], ..assignment.clone() },
        Assignment { directory: created.stream().to_path_buf(), ..assignment.clone() },
        Assignment { directory: other_path, ..assignment.clone() },
        Assignment { directory: PathBuf::from("7/10"), ..assignment.clone() },
    ] {
        let refused = assign_epoch(&wrong, 42, 500);
        assert!(matches!(refused, Err(CreateError::Invalid(_))), "{wrong:?}: {refused:?}");
    }
    created.untouched();
}

#[test]
fn symlinks_are_not_followed() {
    let created = created_epoch();
    let header = created.old.directory.join(HEADER_RING_FILE);
    let outside = created.stream().join("outside");
    fs::rename(&header, &outside).unwrap();
    symlink(&outside, &header).unwrap();
    assert!(matches!(assign_epoch(&created.assignment, 42, 500), Err(CreateError::Io { .. })));
    fs::remove_file(&header).unwrap();
    fs::rename(&outside, &header).unwrap();
    created.untouched();

    let real = created.stream().join("real");
    fs::rename(&created.old.directory, &real).unwrap();
    symlink(&real, &created.old.directory).unwrap();
    assert!(matches!(assign_epoch(&created.assignment, 42, 500), Err(CreateError::Io { .. })));
    fs::remove_file(&created.old.directory).unwrap();
    fs::rename(&real, &created.old.directory).unwrap();
    created.untouched();

    let moved = created.stream().with_file_name("moved");
    fs::rename(created.stream(), &moved).unwrap();
    symlink(&moved, created.stream()).unwrap();
    assert!(matches!(assign_epoch(&created.assignment, 42, 500), Err(CreateError::Io { .. })));
}

#[test]
fn locked_regions_are_not_assigned() {
    let created = created_epoch();
    let _lock = RegionLock::acquire(&created.old.header_uri, &created.bases).unwrap();
    assert!(matches!(assign_epoch(&created.assignment, 42, 500), Err(CreateError::Held(_))));
    created.untouched();
}
