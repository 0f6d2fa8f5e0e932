//! Copies into and out of memory that another process reads or writes at the same time.
//!
//! The compiler may move, split or repeat a plain `memcpy` on raced memory. On x86-64 the copy is assembly,
//! which the compiler cannot analyse; elsewhere it goes word by word through relaxed atomics. The order
//! against the commit word comes from the fences in [`crate::shm::seqlock`].
//!
//! Small frames are copied by one routine. For large ones several are measured once in a process, because
//! processors differ, and frames of a ring that takes much of the last-level cache go past the caches.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::os::cache;
use crate::shm::copy_thread::CopyThread;

/// Frames from this size on are copied by the routine that was measured to be the fastest.
pub const LARGE_BYTES: usize = 512 << 10;

/// Where a payload is written: its address, and by which stores.
pub struct Target<'a> {
    at: *mut u8,
    is_beyond_cache: bool,
    copy_thread: Option<&'a mut CopyThread>,
}

impl<'a> Target<'a> {
    /// A slot at `at`. `is_beyond_cache`: of a ring that the caches do not hold.
    pub fn new(at: *mut u8, is_beyond_cache: bool, copy_thread: Option<&'a mut CopyThread>) -> Self {
        Self { at, is_beyond_cache, copy_thread }
    }

    pub fn at(&self) -> *mut u8 {
        self.at
    }

    /// Copies `len` bytes to the beginning of the slot. They are visible before anything that the caller
    /// stores afterwards, and nothing of them before what it stored earlier.
    ///
    /// # Safety
    /// `src` is readable and the slot writable for `len` bytes, and they do not overlap.
    #[inline]
    pub unsafe fn write(&mut self, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            if len < LARGE_BYTES {
                opaque(self.at, src, len);
            } else if let Some(thread) = &mut self.copy_thread {
                thread.copy(self.at, src, len, self.is_beyond_cache);
            } else {
                large(self.at, src, len, self.is_beyond_cache);
            }
        }
    }
}

/// A ring from this part of the last-level cache on is written past the caches. Other cores use that cache too, and
/// an ordinary store fetches its line first, from wherever the reader of the slot's last frame left it.
const MAX_CACHE_SHARE: usize = 4;

/// Whether large frames of a ring of so many bytes are written past the caches.
pub fn is_beyond_cache(ring_bytes: usize) -> bool {
    cache::last_level_bytes().is_some_and(|cache_bytes| ring_bytes >= cache_bytes / MAX_CACHE_SHARE)
}

/// Copies a large frame, or a piece of one.
///
/// # Safety
/// As for [`to_shared`].
pub(super) unsafe fn large(dst: *mut u8, src: *const u8, len: usize, is_beyond_cache: bool) {
    let routine = if is_beyond_cache { Routine::Streaming } else { Routine::chosen() };
    // SAFETY: passed on from the caller.
    unsafe { routine.copy(dst, src, len) }
}

/// How a large frame is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Routine {
    /// Wide registers.
    Wide,
    /// The same, with the destination prefetched so many bytes ahead: the processor's own prefetchers follow
    /// loads, and fewer of them follow stores.
    Ahead2KiB,
    Ahead4KiB,
    /// `rep movsb`: on some processors it does not read the lines that it overwrites.
    String,
    /// Stores past the caches.
    Streaming,
}

/// The routine for large frames in the caches, as a number of `Routine`.
static CHOSEN: AtomicU8 = AtomicU8::new(Routine::Wide as u8);

impl Routine {
    /// Those that are measured; the first is used until then, and wherever none is clearly faster.
    const MEASURED: [Self; 4] = [Self::Wide, Self::Ahead2KiB, Self::Ahead4KiB, Self::String];

    fn chosen() -> Self {
        // Relaxed: any of the values is right at any time.
        Self::MEASURED[usize::from(CHOSEN.load(Ordering::Relaxed)) % Self::MEASURED.len()]
    }

    /// # Safety
    /// As for [`to_shared`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn copy(self, dst: *mut u8, src: *const u8, len: usize) {
        let blocks = len / BLOCK;
        let has_avx = std::arch::is_x86_feature_detected!("avx");
        // A streaming store needs an aligned address. Slots have one; a piece of a frame may not.
        let is_aligned = (dst as usize).is_multiple_of(32);
        // SAFETY: the processor has AVX where it is needed, and whole blocks lie inside both ranges.
        unsafe {
            match self {
                Self::Wide => return opaque(dst, src, len),
                Self::String => return string(dst, src, len),
                _ if !has_avx || blocks == 0 => return opaque(dst, src, len),
                Self::Ahead2KiB => ahead::<2048>(dst, src, blocks),
                Self::Ahead4KiB => ahead::<4096>(dst, src, blocks),
                Self::Streaming if is_aligned => streaming(dst, src, blocks),
                Self::Streaming => return opaque(dst, src, len),
            }
            opaque(dst.add(blocks * BLOCK), src.add(blocks * BLOCK), len % BLOCK);
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn copy(self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { opaque(dst, src, len) }
    }
}

/// Bytes of a measured copy, and of the memory that the copies go to in turn: more than the second-level cache
/// of a core, less than the last level.
const MEASURED_BYTES: usize = 1 << 20;
const MEASURED_TARGETS: usize = 4;
const MEASURED_ROUNDS: usize = 6;
/// Another routine is used if its best time is below this part of that of the first: less is chance.
const CLEARLY_FASTER: f64 = 0.9;

/// Measures which routine copies large frames fastest on this processor: once in a process, in a few
/// milliseconds. Called when slots of that size are mapped for writing, so that no frame waits for it.
pub fn choose_routine() {
    // Not a `Once`: a child that is forked during the measurement would wait for it forever.
    static IS_MEASURED: AtomicBool = AtomicBool::new(false);
    if !IS_MEASURED.swap(true, Ordering::Relaxed) {
        let best = fastest(&measure());
        CHOSEN.store(best as u8, Ordering::Relaxed);
    }
}

/// The best time of each routine: a thread that loses its core during one round is faster in another.
fn measure() -> [Duration; Routine::MEASURED.len()] {
    let src = vec![1u8; MEASURED_BYTES];
    let mut dst = vec![1u8; MEASURED_TARGETS * MEASURED_BYTES];
    let mut best = [Duration::MAX; Routine::MEASURED.len()];
    for round in 0..MEASURED_ROUNDS {
        for (number, routine) in Routine::MEASURED.iter().enumerate() {
            let offset = (round + number) % MEASURED_TARGETS * MEASURED_BYTES;
            let began = Instant::now();
            // SAFETY: both vectors hold so many bytes.
            unsafe { routine.copy(dst.as_mut_ptr().add(offset), src.as_ptr(), MEASURED_BYTES) };
            best[number] = best[number].min(began.elapsed());
        }
    }
    best
}

/// The fastest routine by these times, and the first unless another is clearly faster. Pure.
fn fastest(times: &[Duration; Routine::MEASURED.len()]) -> Routine {
    let limit = times[0].mul_f64(CLEARLY_FASTER);
    let (mut best, mut best_time) = (Routine::MEASURED[0], limit);
    for (routine, time) in Routine::MEASURED.into_iter().zip(times).skip(1) {
        if *time < best_time {
            (best, best_time) = (routine, *time);
        }
    }
    best
}

/// Copies `len` bytes into shared memory.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
#[inline]
pub unsafe fn to_shared(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { opaque(dst, src, len) }
}

/// Copies `len` bytes out of shared memory. The result may be torn until the second check has passed.
///
/// # Safety
/// As for [`to_shared`].
#[inline]
pub unsafe fn from_shared(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { opaque(dst, src, len) }
}

/// Prefetches the cache line of `at` for reading. A hint: it reads nothing, so it orders nothing, and any
/// address is valid.
#[inline]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the cache line of `at` for writing. As [`prefetch`].
#[inline]
pub fn prefetch_for_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults; where the processor has no such instruction, it does nothing.
    unsafe {
        core::arch::asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn opaque(mut dst: *mut u8, mut src: *const u8, len: usize) {
    let blocks = len / BLOCK;
    if blocks > 0 && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the feature is there, and whole blocks lie inside both ranges.
        unsafe {
            wide(dst, src, blocks);
            dst = dst.add(blocks * BLOCK);
            src = src.add(blocks * BLOCK);
        }
    } else if blocks > 0 {
        // SAFETY: as above.
        unsafe { string(dst, src, len) };
        return;
    }
    let (lines, rest) = (len % BLOCK / LINE, len % LINE);
    // SAFETY: what is left of both ranges.
    unsafe {
        if lines > 0 {
            narrow(dst, src, lines);
        }
        if rest > 0 {
            string(dst.add(lines * LINE), src.add(lines * LINE), rest);
        }
    }
}

#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 128;
#[cfg(target_arch = "x86_64")]
const LINE: usize = 16;

/// Faster than `rep movsb` by a quarter from 64 KiB on where the page size is 4 KiB; ordinary stores,
/// because a frame is usually read at once, from the cache that they leave it in.
///
/// # Safety
/// Both ranges hold `blocks` times 128 bytes, `blocks` is not 0, and the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn wide(dst: *mut u8, src: *const u8, blocks: usize) {
    // SAFETY: by the caller; every register touched is named.
    unsafe {
        core::arch::asm!(
            "2:",
            "vmovdqu {a}, [{src}]",
            "vmovdqu {b}, [{src} + 32]",
            "vmovdqu {c}, [{src} + 64]",
            "vmovdqu {d}, [{src} + 96]",
            "vmovdqu [{dst}], {a}",
            "vmovdqu [{dst} + 32], {b}",
            "vmovdqu [{dst} + 64], {c}",
            "vmovdqu [{dst} + 96], {d}",
            "add {src}, 128",
            "add {dst}, 128",
            "dec {n}",
            "jnz 2b",
            "vzeroupper",
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            n = inout(reg) blocks => _,
            options(nostack)
        );
    }
}

/// As [`wide`], with the destination prefetched for writing.
///
/// # Safety
/// As for [`wide`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn ahead<const BYTES: usize>(dst: *mut u8, src: *const u8, blocks: usize) {
    // SAFETY: by the caller; every register touched is named. A prefetch beyond the range does nothing.
    unsafe {
        core::arch::asm!(
            "2:",
            "prefetchw [{dst} + {bytes}]",
            "prefetchw [{dst} + {bytes} + 64]",
            "vmovdqu {a}, [{src}]",
            "vmovdqu {b}, [{src} + 32]",
            "vmovdqu {c}, [{src} + 64]",
            "vmovdqu {d}, [{src} + 96]",
            "vmovdqu [{dst}], {a}",
            "vmovdqu [{dst} + 32], {b}",
            "vmovdqu [{dst} + 64], {c}",
            "vmovdqu [{dst} + 96], {d}",
            "add {src}, 128",
            "add {dst}, 128",
            "dec {n}",
            "jnz 2b",
            "vzeroupper",
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            n = inout(reg) blocks => _,
            bytes = const BYTES,
            options(nostack)
        );
    }
}

/// Stores past the caches. Such stores are ordered against no other store, neither an earlier nor a later one,
/// so there is a fence on both sides. Without the first, a reader could see new bytes under the commit word of the
/// old frame; without the second, old bytes under that of the new one.
///
/// # Safety
/// As for [`wide`], and `dst` is a multiple of 32.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn streaming(dst: *mut u8, src: *const u8, blocks: usize) {
    // SAFETY: by the caller; every register touched is named.
    unsafe {
        core::arch::asm!(
            "sfence",
            "2:",
            "vmovdqu {a}, [{src}]",
            "vmovdqu {b}, [{src} + 32]",
            "vmovdqu {c}, [{src} + 64]",
            "vmovdqu {d}, [{src} + 96]",
            "vmovntdq [{dst}], {a}",
            "vmovntdq [{dst} + 32], {b}",
            "vmovntdq [{dst} + 64], {c}",
            "vmovntdq [{dst} + 96], {d}",
            "add {src}, 128",
            "add {dst}, 128",
            "dec {n}",
            "jnz 2b",
            "vzeroupper",
            "sfence",
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            n = inout(reg) blocks => _,
            options(nostack)
        );
    }
}

/// For frames of a few cache lines, where `rep movsb` takes longer to begin than to copy.
///
/// # Safety
/// Both ranges hold `lines` times 16 bytes, and `lines` is not 0.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn narrow(dst: *mut u8, src: *const u8, lines: usize) {
    // SAFETY: by the caller; every register touched is named.
    unsafe {
        core::arch::asm!(
            "2:",
            "movdqu {a}, [{src}]",
            "movdqu [{dst}], {a}",
            "add {src}, 16",
            "add {dst}, 16",
            "dec {n}",
            "jnz 2b",
            a = out(xmm_reg) _,
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            n = inout(reg) lines => _,
            options(nostack)
        );
    }
}

/// # Safety
/// Both ranges hold `len` bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn string(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: by the caller; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn opaque(dst: *mut u8, src: *const u8, len: usize) {
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
    let aligned = dst as usize % 8 == 0 && src as usize % 8 == 0;
    let word_count = if aligned { len / 8 } else { 0 };
    for i in 0..word_count {
        // SAFETY: aligned and inside both ranges.
        let (d, s) = unsafe { (&*dst.cast::<AtomicU64>().add(i), &*src.cast::<AtomicU64>().add(i)) };
        d.store(s.load(Relaxed), Relaxed);
    }
    for i in word_count * 8..len {
        // SAFETY: inside both ranges.
        let (d, s) = unsafe { (&*dst.cast::<AtomicU8>().add(i), &*src.cast::<AtomicU8>().add(i)) };
        d.store(s.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_is_exact_for_every_length_and_alignment() {
        let src: Vec<u8> = (0..300u32).map(|i| i as u8).collect();
        for skew in 0..9 {
            for len in 0..280 {
                let mut dst = vec![0xAAu8; 300];
                // SAFETY: both vectors hold skew + len bytes.
                unsafe { to_shared(dst.as_mut_ptr().add(skew), src.as_ptr().add(skew), len) };
                assert_eq!(dst[skew..skew + len], src[skew..skew + len]);
                assert!(dst[skew + len..].iter().all(|b| *b == 0xAA));
            }
        }
    }

    #[test]
    fn every_routine_copies_every_byte_and_no_more() {
        let all = Routine::MEASURED.into_iter().chain([Routine::Streaming]);
        for (number, routine) in all.enumerate() {
            for (skew, len) in [(0, 0), (0, 127), (0, 128), (32, 4096), (0, 4097), (3, 5000), (64, 9999)] {
                let src: Vec<u8> = (0..10_240u32).map(|i| (i * 7 + number as u32) as u8).collect();
                let mut dst = vec![0xAAu8; 10_240];
                // SAFETY: both vectors hold skew + len bytes.
                unsafe { routine.copy(dst.as_mut_ptr().add(skew), src.as_ptr(), len) };
                assert!(dst[skew..skew + len] == src[..len], "{routine:?}, {len} bytes");
                assert!(dst[..skew].iter().chain(&dst[skew + len..]).all(|b| *b == 0xAA), "{routine:?}");
            }
        }
    }

    #[test]
    fn another_routine_is_used_only_if_it_is_clearly_faster() {
        let us = Duration::from_micros;
        assert_eq!(fastest(&[us(100), us(91), us(95), us(100)]), Routine::Wide, "chance");
        assert_eq!(fastest(&[us(100), us(80), us(70), us(75)]), Routine::Ahead4KiB);
        assert_eq!(fastest(&[us(100), us(120), us(110), us(60)]), Routine::String);
    }

    #[test]
    fn measured_routine_is_one_of_those_measured() {
        choose_routine();
        assert!(Routine::MEASURED.contains(&Routine::chosen()));
    }

    #[test]
    fn frames_are_whole_within_and_beyond_the_cache() {
        let src: Vec<u8> = (0..LARGE_BYTES + 77).map(|i| (i / 3) as u8).collect();
        for is_beyond_cache in [false, true] {
            let mut dst = vec![0u8; src.len() + 64];
            let at = dst.as_mut_ptr().wrapping_add(dst.as_ptr().align_offset(64));
            let mut target = Target::new(at, is_beyond_cache, None);
            // SAFETY: the vector holds the bytes behind its first aligned address.
            let written = unsafe {
                target.write(src.as_ptr(), src.len());
                std::slice::from_raw_parts(at, src.len())
            };
            assert!(written == src, "beyond the cache: {is_beyond_cache}");
        }
    }
}
