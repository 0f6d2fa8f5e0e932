//! Assignment of a later epoch to regions that no writer ever held, instead of creating them again: the
//! directory is renamed and every superblock rewritten before the epoch is announced (`<stream>/<old>` →
//! `<stream>/<new>`).
//!
//! Everything is validated before anything changes, so a refusal leaves all regions unchanged. A failure
//! after that removes the regions: no process may find regions of two epochs in one directory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::fs::{fstat, fsync, openat, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::os::file_lock;
use crate::os::mapping_guard::LostMark;
use crate::shm::create::{CreateError, DIRECTORY, EpochFiles, HEADER_RING_FILE, PoolSpec};
use crate::shm::create::{check_layout, io_error, pool_file, pool_kind, region_uri, remove_files};
use crate::shm::region::{Access, Region, RegionError, RegionFault, validate_file};
use crate::shm::superblock::{Expected, RegionKind, Superblock};
use crate::wire::layout::LAYOUT_VERSION;

/// Which regions get which epoch, and what they must be before.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// As `create_epoch` returned it: absolute and without links.
    pub directory: PathBuf,
    /// Higher than the epoch that the regions have.
    pub epoch: u64,
    pub stream_id: u32,
    pub nslots: u32,
    pub pools: Vec<PoolSpec>,
    pub require_hugepages: bool,
}

/// The epoch directory, held by descriptors so that no other process can replace it.
struct LocatedEpoch {
    parent: OwnedFd,
    parent_path: PathBuf,
    directory: OwnedFd,
    old: u64,
}

/// A validated region, mapped for writing.
struct RegionRewrite {
    path: PathBuf,
    file: File,
    region: Region,
    block: Superblock,
}

/// Renames the epoch's directory and rewrites all superblocks with `pid` and a fresh activity timestamp,
/// synced.
pub fn assign_epoch(assignment: &Assignment, pid: u64, now_ns: u64) -> Result<EpochFiles, CreateError> {
    assign_with(assignment, pid, now_ns, |_| Ok(()))
}

/// `before` is called before each superblock is rewritten. Tests fail there.
fn assign_with(
    assignment: &Assignment,
    pid: u64,
    now_ns: u64,
    mut before: impl FnMut(usize) -> Result<(), CreateError>,
) -> Result<EpochFiles, CreateError> {
    check_layout(assignment.nslots, &assignment.pools)?;
    let located = assignment.locate()?;
    let name = assignment.epoch.to_string();
    let path = located.parent_path.join(&name);
    let files = assignment.files(&path)?;
    let rewrites = assignment.validate(&located, pid, now_ns)?;
    let old = located.old.to_string();
    renameat_with(&located.parent, &old, &located.parent, &name, RenameFlags::NOREPLACE).map_err(
        |e| match e {
            Errno::EXIST => CreateError::Exists(path.clone()),
            e => io_error(&path, e),
        },
    )?;
    let rewritten = rewrites.iter().enumerate().try_for_each(|(i, rewrite)| {
        before(i)?;
        rewrite.region.write_superblock(&rewrite.block);
        if rewrite.region.is_lost() {
            return Err(CreateError::Invalid(format!("{} was truncated", rewrite.path.display())));
        }
        rewrite.file.sync_all().map_err(|e| io_error(&rewrite.path, e))
    });
    let synced = rewritten
        .and_then(|()| fsync(&located.directory).map_err(|e| io_error(&path, e)))
        .and_then(|()| fsync(&located.parent).map_err(|e| io_error(&located.parent_path, e)));
    match synced {
        Ok(()) => Ok(files),
        Err(error) => {
            let _ = remove_files(&located.directory);
            let _ = unlinkat(&located.parent, &name, AtFlags::REMOVEDIR);
            Err(error)
        }
    }
}

impl Assignment {
    /// Every region's file and kind. The header ring comes last, because readers open it first.
    fn regions(&self) -> Vec<(String, RegionKind)> {
        let pools = self.pools.iter().map(|p| (pool_file(p.pool_id), pool_kind(*p)));
        pools.chain([(HEADER_RING_FILE.to_owned(), RegionKind::HeaderRing)]).collect()
    }

    fn expected(&self, epoch: u64, kind: RegionKind) -> Expected {
        let (stream_id, nslots) = (self.stream_id, self.nslots);
        Expected { layout_version: LAYOUT_VERSION, epoch, stream_id, kind, nslots }
    }

    fn files(&self, path: &Path) -> Result<EpochFiles, CreateError> {
        let uri = |name: &str| region_uri(&path.join(name), self.require_hugepages);
        let pools = self.pools.iter().map(|p| Ok((*p, uri(&pool_file(p.pool_id))?)));
        Ok(EpochFiles {
            directory: path.to_path_buf(),
            header_uri: uri(HEADER_RING_FILE)?,
            pools: pools.collect::<Result<_, CreateError>>()?,
        })
    }

    fn locate(&self) -> Result<LocatedEpoch, CreateError> {
        let invalid = |why: String| CreateError::Invalid(format!("{}: {why}", self.directory.display()));
        let name = |path: &Path| path.file_name().and_then(|n| n.to_str()).map(str::to_owned);
        let (Some(parent_path), Some(epoch)) = (self.directory.parent(), name(&self.directory)) else {
            return Err(invalid("not the directory of an epoch".into()));
        };
        let old: u64 = match epoch.parse() {
            Ok(old) if format!("{old}") == epoch => old,
            _ => return Err(invalid(format!("{epoch:?} is no epoch"))),
        };
        if name(parent_path) != Some(self.stream_id.to_string()) {
            return Err(invalid(format!("not of stream {}", self.stream_id)));
        }
        if self.epoch <= old {
            return Err(invalid(format!("epoch {} is not above it: epochs only grow", self.epoch)));
        }
        let parent = walk(parent_path)?;
        let directory =
            openat(&parent, &epoch, DIRECTORY, Mode::empty()).map_err(|e| io_error(&self.directory, e))?;
        let uid = fstat(&directory).map_err(|e| io_error(&self.directory, e))?.st_uid;
        let me = rustix::process::geteuid();
        // The root user may give regions to other users and still work on them.
        if uid != me.as_raw() && !me.is_root() {
            return Err(CreateError::ForeignOwner { path: self.directory.clone(), uid });
        }
        Ok(LocatedEpoch { parent, parent_path: parent_path.to_path_buf(), directory, old })
    }

    /// Opens, validates and maps every region. Changes nothing yet.
    fn validate(
        &self,
        located: &LocatedEpoch,
        pid: u64,
        now_ns: u64,
    ) -> Result<Vec<RegionRewrite>, CreateError> {
        let regions = self.regions();
        let entries = Dir::read_from(&located.directory).map_err(|e| io_error(&self.directory, e))?;
        for entry in entries {
            let entry = entry.map_err(|e| io_error(&self.directory, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." && !regions.iter().any(|(n, _)| *n == name) {
                let path = self.directory.join(name);
                return Err(CreateError::Invalid(format!("{} is no region of these", path.display())));
            }
        }
        let open = |(name, kind): &(String, RegionKind)| {
            let path = self.directory.join(name);
            // NONBLOCK: opening a FIFO must not block.
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let fd =
                openat(&located.directory, name, flags, Mode::empty()).map_err(|e| io_error(&path, e))?;
            let mode = fstat(&fd).map_err(|e| io_error(&path, e))?.st_mode;
            if FileType::from_raw_mode(mode) != FileType::RegularFile {
                return Err(CreateError::Invalid(format!("{} is no regular file", path.display())));
            }
            let file = File::from(fd);
            let map = || {
                let len = validate_file(&file, &self.expected(located.old, *kind), self.require_hugepages)?;
                Region::map(&file, len, Access::Write, &LostMark::default())
            };
            let region = map().map_err(|fault| refused(&path, fault))?;
            if *kind == RegionKind::HeaderRing && file_lock::is_held(&file).map_err(|e| io_error(&path, e))? {
                return Err(CreateError::Held(path));
            }
            let block = Superblock::new(&self.expected(self.epoch, *kind), pid, now_ns);
            Ok(RegionRewrite { path, file, region, block })
        };
        regions.iter().map(open).collect()
    }
}

fn refused(path: &Path, fault: RegionFault) -> CreateError {
    match fault {
        RegionFault::Map(error) => io_error(path, error),
        RegionFault::NotHugepages => CreateError::NotHugepages(path.to_path_buf()),
        fault => CreateError::Invalid(RegionError { uri: path.display().to_string(), fault }.to_string()),
    }
}

/// Opens a directory from the root, name by name, following no link.
fn walk(path: &Path) -> Result<OwnedFd, CreateError> {
    let at_root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, "/", at_root, Mode::empty()).map_err(|e| io_error("/", e))?;
    let mut names = path.components().peekable();
    if names.next() != Some(Component::RootDir) {
        return Err(CreateError::Invalid(format!("{} is not absolute", path.display())));
    }
    while let Some(name) = names.next() {
        let Component::Normal(name) = name else {
            return Err(CreateError::Invalid(format!("{} holds ..", path.display())));
        };
        // The last directory is synced, which an O_PATH descriptor does not allow.
        let flags = if names.peek().is_some() { at_root | OFlags::NOFOLLOW } else { DIRECTORY };
        at = openat(&at, name, flags, Mode::empty()).map_err(|e| io_error(path, e))?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests;
