//! A file lock that the kernel releases when its holder dies: an open-file-description write lock on a small
//! file that names the holder.
//!
//! Forked children close it, so that a child never keeps its parent's lock. An orderly release removes the
//! file, so a new holder checks that the locked file is still the one at its path.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::os::fork::ForkGuardedFile;

#[derive(Debug)]
pub enum LockError {
    /// Another process holds the lock. The text is what the file says about the holder.
    Held(String),
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

#[derive(Debug)]
pub struct FileLock {
    file: ForkGuardedFile,
    path: PathBuf,
}

/// A write lock on byte 0.
fn write_lock() -> libc::flock {
    // SAFETY: a zeroed flock is valid; l_pid must be 0 for OFD locks.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_len = 1;
    lock
}

/// Tries to acquire the write lock on byte 0. False: another open file description holds it.
pub fn try_lock(file: &File) -> io::Result<bool> {
    let lock = write_lock();
    // SAFETY: the descriptor is open and the struct lives through the call.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if rc == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Whether another open file description holds the write lock on byte 0. Acquires nothing.
pub fn is_held(file: &File) -> io::Result<bool> {
    let mut lock = write_lock();
    // SAFETY: the descriptor is open and the struct lives through the call.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // A read lock of another program would block ours, but its holder is no writer.
    Ok(lock.l_type == libc::F_WRLCK as libc::c_short)
}

/// Whether no process holds the lock at `path`, or there is none. Acquires nothing.
pub fn is_free(path: &Path) -> bool {
    File::open(path).map_or(true, |file| is_held(&file).is_ok_and(|held| !held))
}

impl FileLock {
    /// Acquires the lock at `path` and writes `holder` into it.
    pub fn acquire(path: &Path, holder: &str) -> Result<Self, LockError> {
        let file = loop {
            let file = ForkGuardedFile::open(|| {
                OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
                    .open(path)
            })?;
            if !try_lock(&file)? {
                let mut text = String::new();
                let _ = Read::take(&*file, 1024).read_to_string(&mut text);
                return Err(LockError::Held(text.trim().to_owned()));
            }
            // The previous holder may have removed the file between our open and our lock.
            let (ours, there) = (file.metadata()?, path.symlink_metadata());
            if there.is_ok_and(|t| (t.dev(), t.ino()) == (ours.dev(), ours.ino())) {
                break file;
            }
        };
        file.set_len(0)?;
        file.write_all_at(holder.as_bytes(), 0)?;
        Ok(Self { file, path: path.to_path_buf() })
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.file.is_owner() {
            // Still locked, so no other process can have acquired it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_holder_learns_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::acquire(&path, "pid 1").unwrap();
        assert!(matches!(FileLock::acquire(&path, "pid 2"), Err(LockError::Held(who)) if who == "pid 1"));
        assert!(!is_free(&path));
        drop(held);
        assert!(is_free(&path));
        assert!(!path.exists(), "an orderly end leaves nothing");
        assert!(FileLock::acquire(&path, "pid 2").is_ok());
    }
}
