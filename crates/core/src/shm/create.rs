//! Creation and removal of the files of one epoch, in the canonical layout (wire §15.21a.3):
//! `<base>/tensorpool-<user>/<namespace>/<stream_id>/<epoch>/{header.ring,<pool_id>.pool}`.
//!
//! Only the owner of the regions does this: a standalone producer, or the driver.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, fallocate, fchmod, fchown, fstat, fsync};
use rustix::fs::{chmodat, ftruncate, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use crate::os::hugepages::{self, HUGE_PAGE_BYTES};
use crate::os::mapping_guard::LostMark;
use crate::shm::region::{Access, Region, RegionFault, huge_page_bytes};
use crate::shm::superblock::{Expected, RegionKind, Superblock, nslots_is_valid, stride_is_valid};
use crate::wire::layout::*;
use crate::wire::region_uri::RegionUri;

pub const HEADER_RING_FILE: &str = "header.ring";
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How often creation starts again because a directory was removed meanwhile.
const RETRIES: u32 = 16;

pub fn pool_file(pool_id: u16) -> String {
    format!("{pool_id}.pool")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    pub pool_id: u16,
    pub stride_bytes: u32,
}

#[derive(Clone, Debug)]
pub struct EpochSpec {
    pub base: PathBuf,
    pub user: String,
    pub namespace: String,
    pub stream_id: u32,
    pub epoch: u64,
    pub nslots: u32,
    pub pools: Vec<PoolSpec>,
    pub require_hugepages: bool,
    /// Touch every page now, so that no frame waits for the kernel to clear one.
    pub prefault: bool,
    pub dir_mode: u32,
    pub file_mode: u32,
    /// The group that may map the regions, where the modes give it rights.
    pub group: Option<u32>,
}

/// The paths of the regions of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochFiles {
    pub directory: PathBuf,
    pub header_uri: String,
    pub pools: Vec<(PoolSpec, String)>,
}

#[derive(Debug)]
pub enum CreateError {
    Invalid(String),
    ForeignOwner {
        path: PathBuf,
        uid: u32,
    },
    NotHugepages(PathBuf),
    /// A hugetlbfs mount without enough free pages.
    NoHugepages {
        path: PathBuf,
        bytes: u64,
    },
    NoSpace {
        path: PathBuf,
        bytes: u64,
    },
    Exists(PathBuf),
    /// A producer holds the regions.
    Held(PathBuf),
    Io {
        path: PathBuf,
        error: io::Error,
    },
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => write!(f, "{why}"),
            Self::ForeignOwner { path, uid } => write!(
                f,
                "{} belongs to user id {uid}, not to this process; remove it or choose another base directory",
                path.display()
            ),
            Self::NotHugepages(path) => write!(
                f,
                "hugepages are required and {} is not on hugetlbfs; set the base directory to a hugetlbfs mount",
                path.display()
            ),
            Self::NoHugepages { path, bytes } => write!(
                f,
                "too few free hugepages for {bytes} bytes at {}; raise vm.nr_hugepages, or use fewer slots or smaller pools",
                path.display()
            ),
            Self::NoSpace { path, bytes } => write!(
                f,
                "no room for {bytes} bytes at {}; use fewer slots or smaller pools, or enlarge the filesystem",
                path.display()
            ),
            Self::Exists(path) => write!(f, "{} exists already", path.display()),
            Self::Held(path) => {
                write!(
                    f,
                    "a producer holds {}; wait until it detaches, or make fresh regions",
                    path.display()
                )
            }
            Self::Io { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for CreateError {}

pub(crate) fn io_error(path: impl Into<PathBuf>, error: impl Into<io::Error>) -> CreateError {
    CreateError::Io { path: path.into(), error: error.into() }
}

/// A user name that is safe as part of a directory name: no path separators, no leading dot.
pub fn sanitize_user(name: &str) -> String {
    let clean: String = name
        .chars()
        .take(64)
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' })
        .collect();
    let clean = clean.trim_start_matches('.').to_owned();
    if clean.is_empty() { "_".to_owned() } else { clean }
}

fn check_namespace(name: &str) -> Result<(), CreateError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(legal) {
        return Err(CreateError::Invalid(format!(
            "namespace {name:?}: use 1 to 64 letters, digits, - _ . and no leading dot"
        )));
    }
    Ok(())
}

/// Checks that regions of this layout can be created.
pub(crate) fn check_layout(nslots: u32, pools: &[PoolSpec]) -> Result<(), CreateError> {
    if !nslots_is_valid(nslots) {
        return Err(CreateError::Invalid(format!("{nslots} slots: the number must be a power of two")));
    }
    if pools.is_empty() {
        return Err(CreateError::Invalid("a stream needs at least one payload pool".into()));
    }
    for (i, pool) in pools.iter().enumerate() {
        if !stride_is_valid(pool.stride_bytes) {
            return Err(CreateError::Invalid(format!(
                "pool {}: stride {} must be a power of two of at least 64",
                pool.pool_id, pool.stride_bytes
            )));
        }
        if pool.pool_id == 0 || pools[..i].iter().any(|p| p.pool_id == pool.pool_id) {
            return Err(CreateError::Invalid(format!("pool id {} is 0 or used twice", pool.pool_id)));
        }
    }
    Ok(())
}

impl EpochSpec {
    fn check(&self) -> Result<(), CreateError> {
        check_namespace(&self.namespace)?;
        if !self.base.is_absolute() {
            return Err(CreateError::Invalid(format!("base directory {:?} is not absolute", self.base)));
        }
        check_layout(self.nslots, &self.pools)
    }

    fn expected(&self, kind: RegionKind) -> Expected {
        Expected {
            layout_version: LAYOUT_VERSION,
            epoch: self.epoch,
            stream_id: self.stream_id,
            kind,
            nslots: self.nslots,
        }
    }

    /// Bytes of all regions of the epoch.
    pub fn total_bytes(&self) -> u64 {
        let pools = self.pools.iter().map(|p| pool_kind(*p).region_bytes(self.nslots)).sum::<u64>();
        RegionKind::HeaderRing.region_bytes(self.nslots) + pools
    }
}

pub(crate) fn pool_kind(pool: PoolSpec) -> RegionKind {
    RegionKind::PayloadPool { pool_id: pool.pool_id, stride_bytes: pool.stride_bytes }
}

/// Creates the directory and every region, fully allocated and synced. On any error nothing remains.
pub fn create_epoch(spec: &EpochSpec, pid: u64, now_ns: u64) -> Result<EpochFiles, CreateError> {
    spec.check()?;
    let user = format!("tensorpool-{}", sanitize_user(&spec.user));
    let names = [user, spec.namespace.clone(), spec.stream_id.to_string(), spec.epoch.to_string()];
    let base = spec.base.canonicalize().map_err(|e| io_error(&spec.base, e))?;
    let mut tries = 0;
    loop {
        let mut fresh = Vec::new();
        let created = make_directories(&base, &names, spec, &mut fresh).and_then(|(dir, path)| {
            fill(&dir, spec, &path, pid, now_ns).inspect_err(|_| {
                let _ = remove_files(&dir);
            })
        });
        if created.is_err() {
            for path in fresh.iter().rev() {
                let _ = unlinkat(CWD, path, AtFlags::REMOVEDIR);
            }
        }
        match created {
            // An owner that leaves removes empty directories, possibly at this moment.
            Err(CreateError::Io { error, .. })
                if error.kind() == io::ErrorKind::NotFound && tries < RETRIES =>
            {
                tries += 1;
            }
            created => return created,
        }
    }
}

/// Walks down from the base and creates missing directories. The last one must be new. `fresh` lists the
/// created directories, also after a failure.
fn make_directories(
    base: &Path,
    names: &[String],
    spec: &EpochSpec,
    fresh: &mut Vec<PathBuf>,
) -> Result<(OwnedFd, PathBuf), CreateError> {
    let mut path = base.to_path_buf();
    let mut at = openat(CWD, base, DIRECTORY, Mode::empty()).map_err(|e| io_error(base, e))?;
    for (i, name) in names.iter().enumerate() {
        path.push(name);
        at = make_directory(&at, name, &path, spec, i + 1 == names.len(), fresh)?;
    }
    Ok((at, path))
}

fn make_directory(
    at: &OwnedFd,
    name: &str,
    path: &PathBuf,
    spec: &EpochSpec,
    must_be_new: bool,
    created: &mut Vec<PathBuf>,
) -> Result<OwnedFd, CreateError> {
    let fresh = match mkdirat(at, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => {
            created.push(path.clone());
            // A strict umask may deny access to our own directory.
            chmodat(at, name, Mode::from_raw_mode(0o700), AtFlags::empty()).map_err(|e| io_error(path, e))?;
            true
        }
        Err(Errno::EXIST) if must_be_new => return Err(CreateError::Exists(path.clone())),
        Err(Errno::EXIST) => false,
        Err(e) => return Err(io_error(path, e)),
    };
    let fd = openat(at, name, DIRECTORY, Mode::empty()).map_err(|e| io_error(path, e))?;
    let stat = fstat(&fd).map_err(|e| io_error(path, e))?;
    let me = rustix::process::geteuid().as_raw();
    // A user who may write in the base could have created this directory first, as a trap.
    if stat.st_uid != me {
        return Err(CreateError::ForeignOwner { path: path.clone(), uid: stat.st_uid });
    }
    if fresh {
        set_group(&fd, spec, path)?;
        // After mkdir, so that the umask does not apply.
        fchmod(&fd, Mode::from_raw_mode(spec.dir_mode)).map_err(|e| io_error(path, e))?;
    }
    Ok(fd)
}

fn set_group(fd: &OwnedFd, spec: &EpochSpec, path: &PathBuf) -> Result<(), CreateError> {
    match spec.group {
        Some(gid) => fchown(fd, None, Some(Gid::from_raw(gid))).map_err(|e| io_error(path, e)),
        None => Ok(()),
    }
}

/// The URI that announces a region.
pub(crate) fn region_uri(path: &Path, require_hugepages: bool) -> Result<String, CreateError> {
    let text = path.to_str().ok_or_else(|| CreateError::Invalid(format!("{path:?} is not UTF-8")))?;
    let uri = RegionUri { path: text.to_owned(), require_hugepages }.to_string();
    RegionUri::parse(&uri).map_err(|e| CreateError::Invalid(format!("{uri}: {e}")))?;
    Ok(uri)
}

fn fill(
    dir: &OwnedFd,
    spec: &EpochSpec,
    path: &Path,
    pid: u64,
    now_ns: u64,
) -> Result<EpochFiles, CreateError> {
    let make = |name: &str, kind| {
        let path = path.join(name);
        make_region(dir, name, &path, spec, kind, pid, now_ns)?;
        region_uri(&path, spec.require_hugepages)
    };
    let mut pools = Vec::with_capacity(spec.pools.len());
    for pool in &spec.pools {
        pools.push((*pool, make(&pool_file(pool.pool_id), pool_kind(*pool))?));
    }
    let header_uri = make(HEADER_RING_FILE, RegionKind::HeaderRing)?;
    fsync(dir).map_err(|e| io_error(path, e))?;
    Ok(EpochFiles { directory: path.to_path_buf(), header_uri, pools })
}

fn make_region(
    dir: &OwnedFd,
    name: &str,
    path: &PathBuf,
    spec: &EpochSpec,
    kind: RegionKind,
    pid: u64,
    now_ns: u64,
) -> Result<(), CreateError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(dir, name, flags, Mode::from_raw_mode(0o600)).map_err(|e| io_error(path, e))?;
    set_group(&fd, spec, path)?;
    fchmod(&fd, Mode::from_raw_mode(spec.file_mode)).map_err(|e| io_error(path, e))?;
    let file = File::from(fd);
    let huge_page = huge_page_bytes(&file).map_err(|e| io_error(path, e))?;
    if spec.require_hugepages && huge_page.is_none() {
        return Err(CreateError::NotHugepages(path.clone()));
    }
    let needed = kind.region_bytes(spec.nslots);
    let bytes = huge_page.map_or(needed, |page| needed.next_multiple_of(page));
    if huge_page.is_none() && bytes >= HUGE_PAGE_BYTES as u64 && hugepages::are_advised(&file) {
        // The pages of `fallocate` are small ones. Those that do not fit are its error to report.
        ftruncate(&file, bytes).map_err(|e| io_error(path, e))?;
        if let Ok(region) = Region::map(&file, bytes, Access::Write, &LostMark::default()) {
            region.prefault();
        }
    }
    // Allocate every page now: a full filesystem must be an error here, not a SIGBUS at a later frame.
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => {}
        Err(Errno::NOSPC | Errno::NOMEM) if huge_page.is_some() => {
            return Err(CreateError::NoHugepages { path: path.clone(), bytes });
        }
        Err(Errno::NOSPC | Errno::NOMEM | Errno::DQUOT | Errno::FBIG) => {
            return Err(CreateError::NoSpace { path: path.clone(), bytes });
        }
        Err(e) => return Err(io_error(path, e)),
    }
    let region =
        Region::map(&file, bytes, Access::Write, &LostMark::default()).map_err(|fault| match fault {
            // Another process may have reserved the pages meanwhile.
            RegionFault::Map(error)
                if huge_page.is_some() && error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) =>
            {
                CreateError::NoHugepages { path: path.clone(), bytes }
            }
            RegionFault::Map(error) => CreateError::Io { path: path.clone(), error },
            other => CreateError::Invalid(format!("{other:?}")),
        })?;
    if spec.prefault {
        region.prefault();
    }
    region.write_superblock(&Superblock::new(&spec.expected(kind), pid, now_ns));
    if region.is_lost() {
        return Err(CreateError::Invalid(format!("{} was truncated while it was created", path.display())));
    }
    file.sync_all().map_err(|e| io_error(path, e))
}

/// Removes the region files in `dir`: canonical names only.
pub(crate) fn remove_files(dir: &OwnedFd) -> io::Result<()> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        let pool = name.strip_suffix(".pool").is_some_and(|id| id.parse::<u16>().is_ok());
        if pool || name == HEADER_RING_FILE {
            unlinkat(dir, entry.file_name(), AtFlags::empty())?;
        }
    }
    Ok(())
}

/// Removes an epoch directory and its regions. Existing mappings stay valid. A directory with any other file
/// is kept and reported as an error.
pub fn remove_epoch(directory: &Path) -> io::Result<()> {
    let dir = openat(CWD, directory, DIRECTORY, Mode::empty())?;
    remove_files(&dir)?;
    Ok(unlinkat(CWD, directory, AtFlags::REMOVEDIR)?)
}
