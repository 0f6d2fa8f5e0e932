//! Transparent hugepages of files on tmpfs.
//!
//! Whether a mounted tmpfs has them is its own option, `huge=`. With `always` and `within_size` the kernel uses
//! them by itself. With `advise` it uses them where a mapping asks for them before its pages exist.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{major, minor};

/// The size of a transparent hugepage on x86-64, and on aarch64 with pages of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Whether a file lies on a tmpfs with `huge=advise`.
pub fn are_advised(file: &File) -> bool {
    let Ok(status) = file.metadata() else { return false };
    let device = format!("{}:{}", major(status.dev()), minor(status.dev()));
    fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| has_option(&mounts, &device, "huge=advise"))
}

/// Whether a tmpfs on `device` has an option, by the text of `/proc/self/mountinfo`. Pure.
fn has_option(mounts: &str, device: &str, option: &str) -> bool {
    mounts.lines().any(|line| {
        let Some((mount, filesystem)) = line.split_once(" - ") else { return false };
        let mut filesystem = filesystem.split(' ');
        mount.split(' ').nth(2) == Some(device)
            && filesystem.next() == Some("tmpfs")
            && filesystem.nth(1).is_some_and(|options| options.split(',').any(|o| o == option))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 0:21 / /sys rw - sysfs sysfs rw\n\
        30 1 0:26 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw,size=1024k,huge=advise\n\
        31 1 0:27 / /run rw - tmpfs tmpfs rw,size=1024k\n\
        32 1 0:28 / /mnt/huge=advise rw - ext4 /dev/sda1 rw,huge=advise\n";

    #[test]
    fn option_counts_for_its_own_tmpfs() {
        let devices = ["0:26", "0:27", "0:28", "0:21", "0:99"];
        assert_eq!(devices.map(|d| has_option(MOUNTS, d, "huge=advise")), [true, false, false, false, false]);
    }
}
