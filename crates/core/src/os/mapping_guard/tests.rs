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

/// How often the handler below was called.
static REPAIRED: AtomicUsize = AtomicUsize::new(0);

/// A handler of another part of the program, which repairs the page by itself.
extern "C" fn repair(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    REPAIRED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: a page of the test's own mapping.
    unsafe {
        let page = (*info).si_addr() as usize & !(PAGE - 1);
        libc::mmap(
            page as *mut libc::c_void,
            PAGE,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        );
    }
}

#[test]
fn handler_that_left_by_siglongjmp_gets_the_next_fault_too() {
    // In a process of its own, which alone has this handler. The thread of a test is not its main thread.
    const CHILD: &str = "TENSORPOOL_TEST_SIGLONGJMP";
    if std::env::var_os(CHILD).is_none() {
        let name = "os::mapping_guard::tests::handler_that_left_by_siglongjmp_gets_the_next_fault_too";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{:?}: {text}", child.status);
        return;
    }
    // SAFETY: a valid action; the handler lives as long as the program.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = repair as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
    let mut mapped = Mapped::new(4 * PAGE, false);
    // What a handler leaves behind that is left by siglongjmp, in the deepest place.
    // SAFETY: asks for a number.
    CHAINING.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    CALLED.store(EARLIER.load(Ordering::SeqCst), Ordering::SeqCst);
    CALLED_AT.store(usize::MAX, Ordering::SeqCst);
    mapped.guard = None;
    ftruncate(&mapped.file, 0).unwrap();
    assert_eq!((mapped.read(0), mapped.read(PAGE)), (0, 0));
    assert_eq!(REPAIRED.load(Ordering::SeqCst), 2);
    assert_eq!(CHAINING.load(Ordering::SeqCst), 0);
}
