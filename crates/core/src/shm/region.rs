//! A mapped region: safe opening, superblock check, mapping (wire §6, §7.1).

use std::fmt;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::fstatfs;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, munmap};

use crate::os::fork;
use crate::os::hugepages::HUGE_PAGE_BYTES;
use crate::os::mapping_guard::{LostMark, MappingGuard};
use crate::shm::containment::{self, AllowedBases, ContainmentError};
use crate::shm::superblock::RegionKind;
use crate::shm::superblock::{Expected, Mismatch, Superblock, nslots_is_valid, stride_is_valid};
use crate::wire::layout::*;
use crate::wire::region_uri::{RegionUri, UriError};

const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

#[derive(Debug)]
pub enum RegionFault {
    Uri(UriError),
    Path(ContainmentError),
    TooShort { found: u64, needed: u64 },
    Superblock(Mismatch),
    Stride(u32),
    Nslots(u32),
    NotHugepages,
    Map(std::io::Error),
}

/// A region that was refused. Nothing of it is mapped.
#[derive(Debug)]
pub struct RegionError {
    pub uri: String,
    pub fault: RegionFault,
}

impl RegionError {
    /// A short stable name of the reason, for counters and tests.
    pub fn reason(&self) -> &'static str {
        match &self.fault {
            RegionFault::Uri(UriError::Scheme) => "scheme",
            RegionFault::Uri(UriError::RelativePath) => "relative",
            RegionFault::Uri(_) => "uri",
            RegionFault::Path(e) => match e {
                ContainmentError::Relative => "relative",
                ContainmentError::NotNormal => "not_normal",
                ContainmentError::Outside => "outside",
                ContainmentError::Missing => "missing",
                ContainmentError::Denied => "denied",
                ContainmentError::Symlink(_) => "symlink",
                ContainmentError::NotRegular(_) => "not_regular",
                ContainmentError::Swapped => "swapped",
                ContainmentError::Io(_) => "io",
            },
            RegionFault::TooShort { .. } => "too_short",
            RegionFault::Superblock(m) => m.field,
            RegionFault::Stride(_) => "stride",
            RegionFault::Nslots(_) => "nslots",
            RegionFault::NotHugepages => "not_hugepages",
            RegionFault::Map(_) => "map",
        }
    }
}

/// Characters of a text from outside that an error or event quotes.
const MAX_QUOTED: usize = 200;

/// A text from outside as one line of bounded length, for errors and events.
pub fn one_line(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.chars().take(MAX_QUOTED).map(printable).collect();
    if text.chars().nth(MAX_QUOTED).is_some() {
        line.pop();
        line.push('…');
    }
    line
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {} refused: ", one_line(&self.uri))?;
        match &self.fault {
            RegionFault::Uri(e) => write!(f, "{}", one_line(&e.to_string())),
            RegionFault::Path(e) => write!(f, "{}", one_line(&e.to_string())),
            RegionFault::TooShort { found, needed } => {
                write!(f, "the file has {found} bytes, its superblock needs {needed}")
            }
            RegionFault::Superblock(m) => write!(f, "{m}"),
            RegionFault::Stride(s) => write!(f, "stride {s} is not a power of two of at least 64"),
            RegionFault::Nslots(n) => write!(f, "{n} slots is not a power of two"),
            RegionFault::NotHugepages => {
                write!(f, "require_hugepages is set, and the file is not on hugetlbfs")
            }
            RegionFault::Map(e) => write!(f, "cannot be mapped: {e}"),
        }
    }
}

impl std::error::Error for RegionError {}

/// Whether a region is mapped for a reader or for its one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// The mapped memory of a region. Unmapped when its last owner drops it, so a view outlives its consumer.
#[derive(Debug)]
pub struct Region {
    ptr: *mut u8,
    len: usize,
    access: Access,
    /// Every page of the file has memory, so that touching one allocates nothing.
    is_allocated: bool,
    /// Dropped first, in `drop`.
    guard: ManuallyDrop<MappingGuard>,
    lost: LostMark,
}

// SAFETY: the memory is shared between processes anyway; every access goes through atomics, opaque
// copies or the single-writer rule.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: dropped here and nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        fork::forget_mapping(self.ptr);
        // SAFETY: mapped by `map` with this length, and no pointer into it is left.
        let _ = unsafe { munmap(self.ptr.cast(), self.len) };
    }
}

/// A region that passed every check and is not mapped yet, so that several regions can be validated before
/// any is mapped.
pub struct ValidatedRegion {
    uri: String,
    file: File,
    len: u64,
    access: Access,
}

impl ValidatedRegion {
    pub fn open(
        uri: &str,
        expected: &Expected,
        bases: &AllowedBases,
        access: Access,
    ) -> Result<Self, RegionError> {
        let refused = |fault| RegionError { uri: uri.to_owned(), fault };
        let (file, len) = validate_uri(uri, expected, bases, access).map_err(refused)?;
        Ok(Self { uri: uri.to_owned(), file, len, access })
    }

    /// Maps the region. `lost` is marked when its memory is lost, as by a truncated file.
    pub fn map(self, lost: &LostMark) -> Result<Region, RegionError> {
        let Self { uri, file, len, access } = self;
        Region::map(&file, len, access, lost).map_err(|fault| RegionError { uri, fault })
    }
}

/// Returns the opened file and its bytes to map. The superblock is read from the file, not mapped.
fn validate_uri(
    uri: &str,
    expected: &Expected,
    bases: &AllowedBases,
    access: Access,
) -> Result<(File, u64), RegionFault> {
    check_shape(expected)?;
    let parsed = RegionUri::parse(uri).map_err(RegionFault::Uri)?;
    let file = containment::open(Path::new(&parsed.path), bases, access == Access::Write)
        .map_err(RegionFault::Path)?;
    let len = validate_file(&file, expected, parsed.require_hugepages)?;
    Ok((file, len))
}

fn check_shape(expected: &Expected) -> Result<(), RegionFault> {
    if !nslots_is_valid(expected.nslots) {
        return Err(RegionFault::Nslots(expected.nslots));
    }
    match expected.kind {
        RegionKind::PayloadPool { stride_bytes, .. } if !stride_is_valid(stride_bytes) => {
            Err(RegionFault::Stride(stride_bytes))
        }
        _ => Ok(()),
    }
}

/// Returns the bytes to map of an open file that matches `expected`.
pub(crate) fn validate_file(
    file: &File,
    expected: &Expected,
    require_hugepages: bool,
) -> Result<u64, RegionFault> {
    let huge_page = huge_page_bytes(file).map_err(RegionFault::Map)?;
    if require_hugepages && huge_page.is_none() {
        return Err(RegionFault::NotHugepages);
    }
    let found = file.metadata().map_err(RegionFault::Map)?.size();
    if found < SUPERBLOCK_SIZE as u64 {
        return Err(RegionFault::TooShort { found, needed: SUPERBLOCK_SIZE as u64 });
    }
    let needed = expected.kind.region_bytes(expected.nslots);
    // Superblock first: its fields explain more than a wrong length.
    let mut head = [0; SUPERBLOCK_SIZE];
    file.read_exact_at(&mut head, 0).map_err(RegionFault::Map)?;
    Superblock::decode(&head).check(expected).map_err(RegionFault::Superblock)?;
    if found < needed {
        return Err(RegionFault::TooShort { found, needed });
    }
    // A hugetlbfs mapping consists of complete pages.
    Ok(huge_page.map_or(needed, |page| needed.next_multiple_of(page)))
}

impl Region {
    /// Opens, validates and maps the region of `uri`. On any error nothing is mapped.
    pub fn open(
        uri: &str,
        expected: &Expected,
        bases: &AllowedBases,
        access: Access,
    ) -> Result<Self, RegionError> {
        ValidatedRegion::open(uri, expected, bases, access)?.map(&LostMark::default())
    }

    /// Maps `len` bytes of `file`. `lost` is marked when the memory is lost.
    pub(crate) fn map(file: &File, len: u64, access: Access, lost: &LostMark) -> Result<Self, RegionFault> {
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        let len =
            usize::try_from(len).map_err(|_| RegionFault::Map(std::io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let ptr = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file.as_fd(), 0) }
            .map_err(|e| RegionFault::Map(e.into()))?;
        if len >= HUGE_PAGE_BYTES {
            // Fails where there is no such support, and does nothing where the filesystem has none.
            // SAFETY: a hint for exactly this mapping.
            let _ = unsafe { madvise(ptr, len, Advice::LinuxHugepage) };
        }
        let is_allocated = file.metadata().is_ok_and(|status| status.blocks() * 512 >= len as u64);
        fork::register_mapping(ptr.cast(), len);
        let guard = MappingGuard::new(ptr.cast(), len, access == Access::Write, lost.clone());
        let guard = ManuallyDrop::new(guard);
        Ok(Self { ptr: ptr.cast(), len, access, is_allocated, guard, lost: lost.clone() })
    }

    /// Touches every page now, so that no frame pays for the first fault. Best effort. A reader touches only
    /// memory that is there: it must not allocate what the owner of a sparse file has left out.
    pub fn prefault(&self) {
        let advice = match self.access {
            Access::Read if self.is_allocated => Advice::LinuxPopulateRead,
            Access::Read => return,
            Access::Write => Advice::LinuxPopulateWrite,
        };
        // SAFETY: populating does not change the contents of this mapping.
        let _ = unsafe { madvise(self.ptr.cast(), self.len, advice) };
    }

    /// Locks every page in memory while the region is mapped.
    pub fn lock_memory(&self) -> std::io::Result<()> {
        // SAFETY: exactly this mapping; its contents stay as they are.
        Ok(unsafe { mlock(self.ptr.cast(), self.len) }?)
    }

    /// Touches the first and the last page: a file that was truncated is noticed here, not at the next frame.
    pub fn probe(&self) {
        for at in [0, self.len.saturating_sub(1)] {
            // SAFETY: inside the mapping; the guard handles a page that is gone.
            unsafe { self.at(at).read_volatile() };
        }
    }

    /// The offset at which the memory was found to be lost.
    pub fn lost_at(&self) -> Option<usize> {
        self.guard.lost_at()
    }

    /// Whether this region, or another with the same mark, is lost.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.is_set()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of offset `at`, which the caller keeps inside the region.
    #[inline]
    pub fn at(&self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.len);
        // SAFETY: inside the mapping by the line above and by the callers' arithmetic.
        unsafe { self.ptr.add(at) }
    }

    /// The atomic of a commit word or timestamp.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.len);
        // SAFETY: aligned, inside, and alive as long as self; all processes treat it as atomic.
        unsafe { AtomicU64::from_ptr(self.at(at).cast()) }
    }

    /// A copy of the current superblock.
    pub fn superblock(&self) -> Superblock {
        let mut bytes = [0u8; SUPERBLOCK_SIZE];
        for (i, chunk) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            *chunk = self.word(i * 8).load(Ordering::Acquire).to_le_bytes();
        }
        Superblock::decode(&bytes)
    }

    pub(crate) fn write_superblock(&self, block: &Superblock) {
        debug_assert_eq!(self.access, Access::Write);
        for (i, word) in block.encode().as_chunks().0.iter().enumerate() {
            self.word(i * 8).store(u64::from_le_bytes(*word), Ordering::Release);
        }
    }

    pub fn activity_ns(&self) -> u64 {
        self.word(SHM_REGION_SUPERBLOCK_ACTIVITY_TIMESTAMP_NS).load(Ordering::Acquire)
    }

    /// Refreshes the activity timestamp (wire §7.1). Writers only.
    pub fn set_activity_ns(&self, now_ns: u64) {
        debug_assert_eq!(self.access, Access::Write);
        self.word(SHM_REGION_SUPERBLOCK_ACTIVITY_TIMESTAMP_NS).store(now_ns, Ordering::Release);
    }
}

/// The page size if the file is on hugetlbfs.
pub(crate) fn huge_page_bytes(file: &File) -> std::io::Result<Option<u64>> {
    let fs = fstatfs(file)?;
    Ok((fs.f_type as i64 == HUGETLBFS_MAGIC).then_some(fs.f_bsize as u64))
}
