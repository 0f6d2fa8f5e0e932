//! The caches of the processor.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Bytes of the last-level cache of the first core. `None` where the system does not say.
pub fn last_level_bytes() -> Option<usize> {
    static BYTES: OnceLock<Option<usize>> = OnceLock::new();
    *BYTES.get_or_init(|| read_last_level(Path::new("/sys/devices/system/cpu/cpu0/cache")))
}

/// The size of the cache with the highest level in `directory`, one of those that the kernel has for each core.
fn read_last_level(directory: &Path) -> Option<usize> {
    let caches = fs::read_dir(directory).ok()?.flatten().filter_map(|entry| {
        let text = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
        let level: u32 = text("level")?.trim().parse().ok()?;
        Some((level, parse_size(text("size")?.trim())?))
    });
    caches.max().map(|(_, bytes)| bytes)
}

/// A size as the kernel writes it: `32768K`.
fn parse_size(text: &str) -> Option<usize> {
    let (number, factor) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_level_is_that_with_the_highest_number() {
        let directory = tempfile::tempdir().unwrap();
        for (name, level, size) in [("index0", "1", "32K"), ("index3", "3", "32768K"), ("index2", "2", "1M")]
        {
            let cache = directory.path().join(name);
            fs::create_dir(&cache).unwrap();
            fs::write(cache.join("level"), format!("{level}\n")).unwrap();
            fs::write(cache.join("size"), format!("{size}\n")).unwrap();
        }
        fs::write(directory.path().join("uevent"), "").unwrap();
        assert_eq!(read_last_level(directory.path()), Some(32 << 20));
        assert_eq!(read_last_level(&directory.path().join("absent")), None);
    }

    #[test]
    fn sizes_of_the_kernel_are_read() {
        let texts = ["512", "48K", "96M", "", "K", "many"];
        let expected = [Some(512), Some(48 << 10), Some(96 << 20), None, None, None];
        assert_eq!(texts.map(parse_size), expected);
    }
}
