//! One fuzz target under libFuzzer; the variable `FUZZ_TARGET` names it.

#![no_main]

#[path = "../../crates/core/tests/fuzz_targets/mod.rs"]
mod fuzz_targets;

use std::sync::OnceLock;

use fuzz_targets::TARGETS;

fn target() -> fn(&[u8]) {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(known, _)| *known == name);
        let names: Vec<_> = TARGETS.iter().map(|(known, _)| *known).collect();
        found.unwrap_or_else(|| panic!("FUZZ_TARGET is one of {names:?}, not {name:?}")).1
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| target()(data));
