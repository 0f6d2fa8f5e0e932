//! Copies into and out of memory that another process reads or writes at the same time.
//!
//! A plain `memcpy` on raced memory may be moved, split or repeated by the compiler. On x86-64 the
//! copy is one opaque string instruction; elsewhere it goes word by word through relaxed atomics.
//! The order against the commit word comes from the fences in [`crate::seqlock`].

/// Copies `len` bytes into shared memory.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
#[inline]
pub unsafe fn to_shared(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { opaque(dst, src, len) }
}

/// Copies `len` bytes out of shared memory. The result may be torn until the second look says no.
///
/// # Safety
/// As for [`to_shared`].
#[inline]
pub unsafe fn from_shared(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { opaque(dst, src, len) }
}

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn opaque(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller vouches for both ranges; the direction flag is clear by the ABI.
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
    let words = if aligned { len / 8 } else { 0 };
    for i in 0..words {
        // SAFETY: aligned and inside both ranges.
        let (d, s) = unsafe {
            (
                &*dst.cast::<AtomicU64>().add(i),
                &*src.cast::<AtomicU64>().add(i),
            )
        };
        d.store(s.load(Relaxed), Relaxed);
    }
    for i in words * 8..len {
        // SAFETY: inside both ranges.
        let (d, s) = unsafe {
            (
                &*dst.cast::<AtomicU8>().add(i),
                &*src.cast::<AtomicU8>().add(i),
            )
        };
        d.store(s.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_length_and_alignment_arrives_whole() {
        let src: Vec<u8> = (0..300u32).map(|i| i as u8).collect();
        for skew in 0..9 {
            for len in 0..257 {
                let mut dst = vec![0xAAu8; 300];
                // SAFETY: both vectors hold skew + len bytes.
                unsafe {
                    super::to_shared(dst.as_mut_ptr().add(skew), src.as_ptr().add(skew), len)
                };
                assert_eq!(dst[skew..skew + len], src[skew..skew + len]);
                assert!(dst[skew + len..].iter().all(|b| *b == 0xAA));
            }
        }
    }
}
