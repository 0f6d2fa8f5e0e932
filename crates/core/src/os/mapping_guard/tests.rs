//! Mappings whose files are truncated while threads use them.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::*;

const PAGE: usize = 4096;

/// A mapping of a memory file that is all ones.
struct Mapped {
    file: File,
    ptr: *mut u8,
    len: usize,
    mark: LostMark,
    guard: Option<MappingGuard>,
}

impl Mapped {
    fn new(len: usize, is_writable: bool) -> Self {
        let file = File::from(memfd_create("guard", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, len as u64).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; len], 0).unwrap();
        let access = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let ptr =
            unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file.as_fd(), 0) }.unwrap();
        let mark = LostMark::default();
        let guard = Some(MappingGuard::new(ptr.cast(), len, is_writable, mark.clone()));
        Self { file, ptr: ptr.cast(), len, mark, guard }
    }

    fn read(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: inside the mapping.
        unsafe { self.ptr.add(at).read_volatile() }
    }

    fn write(&self, at: usize, value: u8) {
        assert!(at < self.len);
        // SAFETY: inside the mapping, which is writable.
        unsafe { self.ptr.add(at).write_volatile(value) }
    }

    fn lost_at(&self) -> Option<usize> {
        self.guard.as_ref().and_then(MappingGuard::lost_at)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: mapped by `new`.
        unsafe { munmap(self.ptr.cast(), self.len) }.unwrap();
    }
}

// SAFETY: tests only read through the pointer.
unsafe impl Sync for Mapped {}

#[test]
fn truncated_mapping_reads_zeros_and_is_marked() {
    let (lost, other) = (Mapped::new(8 * PAGE, false), Mapped::new(8 * PAGE, false));
    assert_eq!((lost.read(0), lost.mark.is_set(), lost.lost_at()), (1, false, None));
    ftruncate(&lost.file, 2 * PAGE as u64).unwrap();
    assert_eq!(lost.read(PAGE), 1, "before the end of the file nothing is lost");
    assert_eq!(lost.read(5 * PAGE + 7), 0);
    assert_eq!((lost.mark.is_set(), lost.lost_at()), (true, Some(5 * PAGE + 7)));
    assert_eq!(lost.read(0), 0, "all of it is replaced");
    assert_eq!((other.read(7 * PAGE), other.mark.is_set()), (1, false));
}

#[test]
fn write_beyond_the_end_of_the_file_is_survived() {
    let lost = Mapped::new(4 * PAGE, true);
    ftruncate(&lost.file, 0).unwrap();
    lost.write(3 * PAGE, 9);
    assert_eq!((lost.read(3 * PAGE), lost.read(0), lost.mark.is_set()), (9, 0, true));
    assert_eq!(lost.file.metadata().unwrap().len(), 0, "nothing is written to the file");
}

#[test]
fn many_threads_lose_many_mappings_at_once() {
    let mappings: Vec<Mapped> = (0..CHUNK * 3).map(|_| Mapped::new(4 * PAGE, false)).collect();
    for mapped in mappings.iter().step_by(2) {
        ftruncate(&mapped.file, 0).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mappings = &mappings;
            scope.spawn(move || {
                for (i, mapped) in mappings.iter().enumerate() {
                    assert_eq!(mapped.read((thread + i) % 4 * PAGE), (i % 2) as u8);
                    // Registrations of others change the entries meanwhile.
                    assert_eq!(Mapped::new(PAGE, true).read(0), 1);
                }
            });
        }
    });
    for (i, mapped) in mappings.iter().enumerate() {
        assert_eq!(mapped.mark.is_set(), i % 2 == 0, "mapping {i}");
    }
}

#[test]
fn entry_of_a_forgotten_mapping_is_used_again() {
    let first = Mapped::new(PAGE, false);
    ftruncate(&first.file, 0).unwrap();
    assert_eq!((first.read(0), first.lost_at()), (0, Some(0)));
    drop(first);
    let again = Mapped::new(PAGE, false);
    assert_eq!((again.read(0), again.lost_at(), again.mark.is_set()), (1, None, false));
}
