//! Path containment: opening an announced path only below allowed directories (wire §15.21a.5).
//!
//! All six steps: absolute, canonical, inside a canonical allowed base, a regular file, opened without
//! following a link, and the opened file compared with the one that was checked. The walk below the base goes
//! directory by directory with `O_NOFOLLOW`, so the kernel rejects a link that is swapped in between check
//! and open.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, statat};

/// The canonical directories that may contain regions. Resolved once, when configured.
#[derive(Clone, Debug)]
pub struct AllowedBases(Vec<Base>);

#[derive(Clone, Debug)]
struct Base {
    configured: PathBuf,
    canonical: PathBuf,
}

#[derive(Debug)]
pub enum ContainmentError {
    Relative,
    /// `.`, `..` or an empty name in the path. A valid announce has none.
    NotNormal,
    Outside,
    Missing,
    Denied,
    Symlink(PathBuf),
    NotRegular(&'static str),
    /// The opened file differs from the one that was checked.
    Swapped,
    Io(io::Error),
}

impl fmt::Display for ContainmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Relative => write!(f, "the path is not absolute"),
            Self::NotNormal => write!(f, "the path holds . or .. or an empty name"),
            Self::Outside => {
                write!(
                    f,
                    "the path is outside the allowed base directories; add its base to allowed_base_dirs"
                )
            }
            Self::Missing => write!(f, "no such file"),
            Self::Denied => write!(f, "permission denied; check owner, group and mode of the region"),
            Self::Symlink(p) => write!(f, "{} is a symbolic link", p.display()),
            Self::NotRegular(kind) => write!(f, "it is a {kind}, not a regular file"),
            Self::Swapped => write!(f, "the file was replaced while it was being opened"),
            Self::Io(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for ContainmentError {}

impl From<io::Error> for ContainmentError {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Io(e),
        }
    }
}

impl From<rustix::io::Errno> for ContainmentError {
    fn from(e: rustix::io::Errno) -> Self {
        io::Error::from(e).into()
    }
}

impl AllowedBases {
    /// Resolves each base. A base that cannot be resolved is an error, because it would allow nothing.
    pub fn new<P: AsRef<Path>>(bases: impl IntoIterator<Item = P>) -> io::Result<Self> {
        let mut all = Vec::new();
        for base in bases {
            let configured = base.as_ref().to_path_buf();
            let canonical = configured.canonicalize().map_err(|e| {
                io::Error::new(e.kind(), format!("base directory {}: {e}", configured.display()))
            })?;
            all.push(Base { configured, canonical });
        }
        Ok(Self(all))
    }

    /// The canonical base that contains `path`, and the path below it.
    fn locate<'p>(&self, path: &'p Path) -> Option<(&Path, &'p Path)> {
        self.0.iter().find_map(|base| {
            let rest =
                path.strip_prefix(&base.canonical).or_else(|_| path.strip_prefix(&base.configured)).ok()?;
            (!rest.as_os_str().is_empty()).then_some((base.canonical.as_path(), rest))
        })
    }
}

fn kind_of(meta: &std::fs::Metadata) -> &'static str {
    let t = meta.file_type();
    if t.is_dir() {
        "directory"
    } else if t.is_fifo() {
        "FIFO"
    } else if t.is_socket() {
        "socket"
    } else if t.is_block_device() {
        "block device"
    } else if t.is_char_device() {
        "character device"
    } else {
        "special file"
    }
}

fn is_normal(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    !bytes.windows(2).any(|w| w == b"//")
        && !bytes.ends_with(b"/")
        && bytes.split(|b| *b == b'/').all(|name| name != b"." && name != b"..")
}

/// Opens the announced `path` if every check passes.
pub fn open(path: &Path, bases: &AllowedBases, writable: bool) -> Result<File, ContainmentError> {
    open_with(path, bases, writable, || ())
}

/// As [`open`]. `between` runs after the checks and before the opening, for tests that swap files.
pub fn open_with(
    path: &Path,
    bases: &AllowedBases,
    writable: bool,
    between: impl FnOnce(),
) -> Result<File, ContainmentError> {
    if !path.is_absolute() {
        return Err(ContainmentError::Relative);
    }
    if !is_normal(path) {
        return Err(ContainmentError::NotNormal);
    }
    let (base, rest) = bases.locate(path).ok_or(ContainmentError::Outside)?;
    let canonical = path.canonicalize()?;
    if !canonical.starts_with(base) {
        return Err(ContainmentError::Outside);
    }
    if canonical != base.join(rest) {
        return Err(ContainmentError::Symlink(path.to_path_buf()));
    }
    let checked = canonical.symlink_metadata()?;
    if !checked.is_file() {
        return Err(ContainmentError::NotRegular(kind_of(&checked)));
    }
    between();
    let file = walk(base, rest, writable)?;
    let opened = file.metadata()?;
    if !opened.is_file() {
        return Err(ContainmentError::NotRegular(kind_of(&opened)));
    }
    if (opened.dev(), opened.ino()) != (checked.dev(), checked.ino()) {
        return Err(ContainmentError::Swapped);
    }
    Ok(file)
}

/// Opens `rest` below `base`, one name at a time, following no link.
fn walk(base: &Path, rest: &Path, writable: bool) -> Result<File, ContainmentError> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, base, directory, Mode::empty())?;
    let mut names = rest.components().peekable();
    while let Some(Component::Normal(name)) = names.next() {
        if names.peek().is_some() {
            at = openat(&at, name, directory | OFlags::NOFOLLOW, Mode::empty())
                .map_err(|e| met_link(&at, name, e))?;
        } else {
            let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
            // NONBLOCK: opening a FIFO that was swapped in must not block.
            let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
            let fd = openat(&at, name, flags, Mode::empty()).map_err(|e| met_link(&at, name, e))?;
            return Ok(File::from(fd));
        }
    }
    Err(ContainmentError::NotNormal)
}

/// `O_DIRECTORY | O_NOFOLLOW` on a link fails with "not a directory". Report the link instead.
fn met_link(at: &OwnedFd, name: &OsStr, e: rustix::io::Errno) -> ContainmentError {
    let is_link = statat(at.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Symlink);
    if is_link { ContainmentError::Symlink(PathBuf::from(name)) } else { e.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn setup() -> (tempfile::TempDir, AllowedBases, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap().join("base");
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::write(base.join("a/b/file"), b"x").unwrap();
        fs::write(dir.path().join("outside"), b"secret").unwrap();
        let bases = AllowedBases::new([&base]).unwrap();
        (dir, bases, base)
    }

    /// requirement: wire-15.21a.5-3, wire-15.21a.5-5
    #[test]
    fn file_swapped_for_a_link_is_refused() {
        let (dir, bases, base) = setup();
        let path = base.join("a/b/file");
        let outside = dir.path().join("outside");
        let swap = || {
            fs::remove_file(&path).unwrap();
            symlink(&outside, &path).unwrap();
        };
        assert!(matches!(open_with(&path, &bases, false, swap), Err(ContainmentError::Symlink(_))));
    }

    /// requirement: wire-15.21a.5-3, wire-15.21a.5-4
    #[test]
    fn file_swapped_for_another_is_refused() {
        let (dir, bases, base) = setup();
        let path = base.join("a/b/file");
        let swap = || {
            fs::write(dir.path().join("other"), b"y").unwrap();
            fs::rename(dir.path().join("other"), &path).unwrap();
        };
        assert!(matches!(open_with(&path, &bases, false, swap), Err(ContainmentError::Swapped)));
    }

    /// requirement: wire-15.21a.5-3
    #[test]
    fn directory_swapped_for_a_link_is_refused() {
        let (dir, bases, base) = setup();
        let evil = dir.path().join("evil");
        fs::create_dir_all(evil.join("b")).unwrap();
        fs::write(evil.join("b/file"), b"evil").unwrap();
        let swap = || {
            fs::rename(base.join("a"), base.join("old")).unwrap();
            symlink(&evil, base.join("a")).unwrap();
        };
        assert!(matches!(
            open_with(&base.join("a/b/file"), &bases, false, swap),
            Err(ContainmentError::Symlink(_))
        ));
    }

    /// requirement: wire-15.21a.5-2
    #[test]
    fn swapped_in_fifo_is_refused_without_blocking() {
        let (_dir, bases, base) = setup();
        let path = base.join("a/b/file");
        let swap = || {
            fs::remove_file(&path).unwrap();
            let status = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
            assert!(status.success());
        };
        assert!(matches!(open_with(&path, &bases, false, swap), Err(ContainmentError::NotRegular("FIFO"))));
    }

    /// requirement: wire-15.21a.5-1
    #[test]
    fn base_behind_a_link_is_resolved_once() {
        let (dir, _, base) = setup();
        let alias = dir.path().join("alias");
        symlink(&base, &alias).unwrap();
        let bases = AllowedBases::new([&alias]).unwrap();
        assert!(open(&base.join("a/b/file"), &bases, false).is_ok());
        assert!(open(&alias.join("a/b/file"), &bases, false).is_ok());
        fs::remove_file(&alias).unwrap();
        symlink(dir.path(), &alias).unwrap();
        assert!(matches!(open(&alias.join("outside"), &bases, false), Err(ContainmentError::Outside)));
    }
}
