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
    let for_wheel = env::var_os("TENSORPOOL_WHEEL_TARGET").is_some();
    stand_in(directory, "bsd", true, for_wheel)?;
    stand_in(directory, "uuid", true, for_wheel)?;
    // The compiler of a wheel brings its own atomic functions and has no libatomic.
    stand_in(directory, "atomic", for_wheel, for_wheel)?;
    println!("cargo:rustc-link-search=native={}", directory.display());
    Ok(())
}

/// Writes or removes the empty archive of a library. The linker of a wheel looks for shared libraries alone, so that it
/// also gets a linker script of that name, which names the archive.
fn stand_in(directory: &Path, name: &str, is_wanted: bool, with_script: bool) -> io::Result<()> {
    let archive = directory.join(format!("lib{name}.a"));
    let script = directory.join(format!("lib{name}.so"));
    if is_wanted {
        fs::write(&archive, EMPTY_ARCHIVE)?;
    } else if archive.exists() {
        fs::remove_file(&archive)?;
    }
    if with_script {
        fs::write(script, format!("INPUT({})\n", archive.display()))?;
    } else if script.exists() {
        fs::remove_file(script)?;
    }
    Ok(())
}
