//! A producer's lock on its header ring, which the kernel releases the moment the producer dies, in any pid
//! namespace. The owner of the regions watches it.
//!
//! It is an open-file-description write lock on byte 0, through a descriptor that is used for nothing else
//! and that forked children do not have. So no other close can release it and no child can keep it.

use std::fmt;
use std::io;
use std::path::Path;

use crate::os::file_lock;
use crate::os::fork::ForkGuardedFile;
use crate::shm::containment::{self, AllowedBases, ContainmentError};
use crate::shm::region::{RegionError, RegionFault};
use crate::wire::region_uri::RegionUri;

#[derive(Debug)]
pub enum RegionLockError {
    /// Another producer holds the lock.
    Held,
    /// Path containment refuses the path.
    Refused(RegionError),
    Io(io::Error),
}

impl fmt::Display for RegionLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => write!(f, "another producer holds the header ring; wait until it has detached"),
            Self::Refused(error) => write!(f, "{error}"),
            Self::Io(error) => write!(f, "cannot lock the header ring: {error}"),
        }
    }
}

impl std::error::Error for RegionLockError {}

/// Opens the region of `uri`, on a descriptor that forked children do not have.
fn open(uri: &str, bases: &AllowedBases, writable: bool) -> Result<ForkGuardedFile, RegionLockError> {
    let refused = |fault| RegionLockError::Refused(RegionError { uri: uri.to_owned(), fault });
    let parsed = RegionUri::parse(uri).map_err(|e| refused(RegionFault::Uri(e)))?;
    ForkGuardedFile::open(|| containment::open(Path::new(&parsed.path), bases, writable)).map_err(|e| match e
    {
        ContainmentError::Io(error) => RegionLockError::Io(error),
        other => refused(RegionFault::Path(other)),
    })
}

/// The producer's side. Released on drop.
#[derive(Debug)]
pub struct RegionLock {
    _file: ForkGuardedFile,
}

impl RegionLock {
    /// Acquires the lock on the header ring at `header_uri`.
    pub fn acquire(header_uri: &str, bases: &AllowedBases) -> Result<Self, RegionLockError> {
        let file = open(header_uri, bases, true)?;
        match file_lock::try_lock(&file) {
            Ok(true) => Ok(Self { _file: file }),
            Ok(false) => Err(RegionLockError::Held),
            Err(error) => Err(RegionLockError::Io(error)),
        }
    }
}

/// The owner's side: reports once that a held lock was released.
#[derive(Debug)]
pub struct LockWatch {
    file: ForkGuardedFile,
    was_held: bool,
}

impl LockWatch {
    pub fn open(header_uri: &str, bases: &AllowedBases) -> Result<Self, RegionLockError> {
        Ok(Self { file: open(header_uri, bases, false)?, was_held: false })
    }

    /// True once: the lock was held at an earlier check and now is free. A lock that was never held says
    /// nothing: a producer without one is checked by its keepalives.
    pub fn is_released(&mut self) -> bool {
        match file_lock::is_held(&self.file) {
            Ok(true) => {
                self.was_held = true;
                false
            }
            Ok(false) => std::mem::take(&mut self.was_held),
            // The error says nothing about the producer.
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn ring() -> (tempfile::TempDir, AllowedBases, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("header.ring");
        fs::write(&path, [0; 64]).unwrap();
        let bases = AllowedBases::new([dir.path()]).unwrap();
        let uri = format!("shm:file?path={}", path.display());
        (dir, bases, uri)
    }

    #[test]
    fn second_lock_is_refused_until_release() {
        let (_dir, bases, uri) = ring();
        let first = RegionLock::acquire(&uri, &bases).unwrap();
        assert!(matches!(RegionLock::acquire(&uri, &bases), Err(RegionLockError::Held)));
        drop(first);
        assert!(RegionLock::acquire(&uri, &bases).is_ok());
    }

    #[test]
    fn closing_another_descriptor_keeps_the_lock() {
        let (dir, bases, uri) = ring();
        let _lock = RegionLock::acquire(&uri, &bases).unwrap();
        drop(fs::OpenOptions::new().write(true).open(dir.path().join("header.ring")).unwrap());
        assert!(matches!(RegionLock::acquire(&uri, &bases), Err(RegionLockError::Held)));
    }

    #[test]
    fn watch_reports_a_release_once() {
        let (_dir, bases, uri) = ring();
        let mut watch = LockWatch::open(&uri, &bases).unwrap();
        assert!(!watch.is_released());
        let lock = RegionLock::acquire(&uri, &bases).unwrap();
        assert!(!watch.is_released());
        drop(lock);
        assert!(watch.is_released());
        assert!(!watch.is_released());
    }

    #[test]
    fn lock_checks_path_containment() {
        let (dir, bases, uri) = ring();
        let link = dir.path().canonicalize().unwrap().join("link");
        symlink(dir.path().join("header.ring"), &link).unwrap();
        let reason = |uri: &str| match RegionLock::acquire(uri, &bases) {
            Err(RegionLockError::Refused(error)) => error.reason(),
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(&format!("shm:file?path={}", link.display())), "symlink");
        assert_eq!(reason("shm:file?path=/etc/passwd"), "outside");
        assert_eq!(reason(&format!("{uri}.gone")), "missing");
        assert_eq!(reason("header.ring"), "scheme");
    }

    #[test]
    fn forked_child_neither_keeps_nor_ends_the_lock() {
        let (_dir, bases, uri) = ring();
        let lock = RegionLock::acquire(&uri, &bases).unwrap();
        let (mut ours, mut theirs) = ([0; 2], [0; 2]);
        // SAFETY: two pipes into arrays of two. The child makes only system calls, then waits for our
        // word and leaves without running anything of ours.
        let child = unsafe {
            assert_eq!((libc::pipe(ours.as_mut_ptr()), libc::pipe(theirs.as_mut_ptr())), (0, 0));
            libc::fork()
        };
        if child == 0 {
            let mut byte = 0_u8;
            // SAFETY: as above.
            unsafe {
                libc::write(theirs[1], (&raw const byte).cast(), 1);
                libc::read(ours[0], (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
        let mut byte = 0_u8;
        // SAFETY: the pipes are open; the child runs by now.
        assert_eq!(unsafe { libc::read(theirs[0], (&raw mut byte).cast(), 1) }, 1);
        let held = matches!(RegionLock::acquire(&uri, &bases), Err(RegionLockError::Held));
        drop(lock);
        let free = RegionLock::acquire(&uri, &bases).is_ok();
        // SAFETY: lets the child go, and reaps it.
        unsafe {
            libc::write(ours[1], (&raw const byte).cast(), 1);
            libc::waitpid(child, std::ptr::null_mut(), 0);
            ours.iter().chain(&theirs).for_each(|fd| {
                libc::close(*fd);
            });
        }
        assert!(held, "the child's start must not end the lock");
        assert!(free, "the child must not keep the lock");
    }
}
