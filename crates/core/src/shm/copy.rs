//! Copies into and out of memory that another process reads or writes at the same time.
//!
//! The compiler may move, split or repeat a plain `memcpy` on raced memory. On x86-64 the copy is assembly,
//! which the compiler cannot analyse; elsewhere it goes word by word through relaxed atomics. The order
//! against the commit word comes from the fences in [`crate::shm::seqlock`].

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
    #[test]
    fn copy_is_exact_for_every_length_and_alignment() {
        let src: Vec<u8> = (0..300u32).map(|i| i as u8).collect();
        for skew in 0..9 {
            for len in 0..280 {
                let mut dst = vec![0xAAu8; 300];
                // SAFETY: both vectors hold skew + len bytes.
                unsafe { super::to_shared(dst.as_mut_ptr().add(skew), src.as_ptr().add(skew), len) };
                assert_eq!(dst[skew..skew + len], src[skew..skew + len]);
                assert!(dst[skew + len..].iter().all(|b| *b == 0xAA));
            }
        }
    }
}
