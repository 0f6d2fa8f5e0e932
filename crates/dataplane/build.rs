//! Empty stand-ins for two libraries that the build of Aeron names and this one does without.
//!
//! The build scripts of the rusteron crates ask the linker for libbsd and libuuid. `cmake/aeron-toolchain.cmake`
//! keeps Aeron's sources from using them, since a plain Linux may lack both and a wheel must run there. An
//! archive without members satisfies the linker; the directory of a build script comes before the system's.

use std::path::Path;
use std::{env, fs, io};

/// An archive without members is its magic number alone.
const EMPTY_ARCHIVE: &[u8] = b"!<arch>\n";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=TENSORPOOL_WHEEL_TARGET");
    let directory = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let directory = Path::new(&directory);
    fs::write(directory.join("libbsd.a"), EMPTY_ARCHIVE)?;
    fs::write(directory.join("libuuid.a"), EMPTY_ARCHIVE)?;
    // The compiler of a wheel brings its own atomic functions and has no libatomic.
    let atomic = directory.join("libatomic.a");
    if env::var_os("TENSORPOOL_WHEEL_TARGET").is_some() {
        fs::write(atomic, EMPTY_ARCHIVE)?;
    } else if atomic.exists() {
        fs::remove_file(atomic)?;
    }
    println!("cargo:rustc-link-search=native={}", directory.display());
    Ok(())
}
