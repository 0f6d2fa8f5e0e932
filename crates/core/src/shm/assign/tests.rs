use super::*;
use crate::shm::containment::AllowedBases;
use crate::shm::create::{EpochSpec, create_epoch};
use crate::shm::epoch::Mapping;
use crate::shm::region_lock::RegionLock;
use crate::wire::announce::{AnnouncedPool, PoolAnnounce};
use crate::wire::layout::{CLOCK_DOMAIN_MONOTONIC, HEADER_SLOT_BYTES};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;

const POOLS: [PoolSpec; 2] =
    [PoolSpec { pool_id: 1, stride_bytes: 64 }, PoolSpec { pool_id: 2, stride_bytes: 4096 }];

struct Made {
    _dir: tempfile::TempDir,
    bases: AllowedBases,
    old: EpochFiles,
    wanted: Assignment,
}

fn made() -> Made {
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
    let wanted = Assignment {
        directory: old.directory.clone(),
        epoch: 11,
        stream_id: 7,
        nslots: 4,
        pools: POOLS.to_vec(),
        require_hugepages: false,
    };
    Made { _dir: dir, bases, old, wanted }
}

impl Made {
    fn stream(&self) -> &Path {
        self.old.directory.parent().unwrap()
    }

    fn map(&self, files: &EpochFiles, epoch: u64) -> Result<Mapping, RegionError> {
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
        Mapping::open(&announce, &self.bases, Access::Read)
    }

    /// Everything is as it was made.
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
fn the_same_regions_are_found_under_the_further_epoch_and_no_longer_under_the_old_one() {
    let made = made();
    let files = assign_epoch(&made.wanted, 42, 500).unwrap();
    assert_eq!(files.directory, made.stream().join("11"));
    assert_eq!(names(made.stream()), ["11"]);
    assert_eq!(names(&files.directory), ["1.pool", "2.pool", "header.ring"]);
    for (pool, uri) in &files.pools {
        assert_eq!(*uri, format!("shm:file?path={}/{}.pool", files.directory.display(), pool.pool_id));
    }
    let mapping = made.map(&files, 11).unwrap();
    assert_eq!((mapping.activity_ns(), mapping.pid()), (500, 42));
    assert_eq!(made.map(&files, 10).unwrap_err().reason(), "epoch");
    assert_eq!(made.map(&made.old, 10).unwrap_err().reason(), "missing");
}

#[test]
fn after_a_failure_half_way_nothing_is_left_to_be_found() {
    for fails_at in 0..3 {
        let made = made();
        let fail = |i| {
            if i == fails_at {
                return Err(io_error("x", io::Error::other("broken")));
            }
            Ok(())
        };
        let failed = assign_with(&made.wanted, 42, 500, fail);
        assert!(matches!(failed, Err(CreateError::Io { .. })), "{failed:?}");
        assert!(names(made.stream()).is_empty(), "{fails_at}");
    }
}

/// A process that is killed half-way cannot tidy up: what it leaves must be useless by itself.
#[test]
fn regions_that_were_rewritten_in_part_are_refused_under_either_epoch() {
    for stopped_at in 0..3 {
        let made = made();
        let aside = made.stream().join("aside");
        let killed = |i| {
            if i == stopped_at {
                fs::create_dir(&aside).unwrap();
                for file in names(&made.stream().join("11")) {
                    fs::copy(made.stream().join("11").join(&file), aside.join(&file)).unwrap();
                }
                return Err(io_error("x", io::Error::other("killed")));
            }
            Ok(())
        };
        assign_with(&made.wanted, 42, 500, killed).unwrap_err();
        fs::rename(&aside, made.stream().join("11")).unwrap();
        let left = made.wanted.files(&made.stream().join("11")).unwrap();
        assert_eq!(made.map(&made.old, 10).unwrap_err().reason(), "missing");
        assert_eq!(made.map(&left, 11).unwrap_err().reason(), "epoch", "{stopped_at}");
    }
}

#[test]
fn a_target_that_exists_is_neither_replaced_nor_filled() {
    let made = made();
    let target = made.stream().join("11");
    fs::create_dir(&target).unwrap();
    assert!(matches!(assign_epoch(&made.wanted, 42, 500), Err(CreateError::Exists(path)) if path == target));
    assert!(names(&target).is_empty());
    made.untouched();
}

#[test]
fn what_does_not_fit_is_refused_and_stays_as_it_was() {
    let made = made();
    let wanted = &made.wanted;
    let other_pool = PoolSpec { pool_id: 2, stride_bytes: 8192 };
    let elsewhere = made.old.directory.join("../10");
    for wrong in [
        Assignment { epoch: 10, ..wanted.clone() },
        Assignment { epoch: 9, ..wanted.clone() },
        Assignment { stream_id: 8, ..wanted.clone() },
        Assignment { nslots: 8, ..wanted.clone() },
        Assignment { nslots: 3, ..wanted.clone() },
        Assignment { pools: vec![POOLS[0]], ..wanted.clone() },
        Assignment { pools: vec![POOLS[0], other_pool], ..wanted.clone() },
        Assignment { directory: made.stream().to_path_buf(), ..wanted.clone() },
        Assignment { directory: elsewhere, ..wanted.clone() },
        Assignment { directory: PathBuf::from("7/10"), ..wanted.clone() },
    ] {
        let refused = assign_epoch(&wrong, 42, 500);
        assert!(matches!(refused, Err(CreateError::Invalid(_))), "{wrong:?}: {refused:?}");
    }
    made.untouched();
}

#[test]
fn a_link_in_place_of_a_region_or_a_directory_is_not_followed() {
    let made = made();
    let header = made.old.directory.join(HEADER_RING_FILE);
    let outside = made.stream().join("outside");
    fs::rename(&header, &outside).unwrap();
    symlink(&outside, &header).unwrap();
    assert!(matches!(assign_epoch(&made.wanted, 42, 500), Err(CreateError::Io { .. })));
    fs::remove_file(&header).unwrap();
    fs::rename(&outside, &header).unwrap();
    made.untouched();

    let real = made.stream().join("real");
    fs::rename(&made.old.directory, &real).unwrap();
    symlink(&real, &made.old.directory).unwrap();
    assert!(matches!(assign_epoch(&made.wanted, 42, 500), Err(CreateError::Io { .. })));
    fs::remove_file(&made.old.directory).unwrap();
    fs::rename(&real, &made.old.directory).unwrap();
    made.untouched();

    let moved = made.stream().with_file_name("moved");
    fs::rename(made.stream(), &moved).unwrap();
    symlink(&moved, made.stream()).unwrap();
    assert!(matches!(assign_epoch(&made.wanted, 42, 500), Err(CreateError::Io { .. })));
}

#[test]
fn regions_that_a_producer_holds_are_not_taken_from_under_it() {
    let made = made();
    let _lock = RegionLock::take(&made.old.header_uri, &made.bases).unwrap();
    assert!(matches!(assign_epoch(&made.wanted, 42, 500), Err(CreateError::Held(_))));
    made.untouched();
}
