//! One fuzz target under libFuzzer: which, says `COWHAND_FUZZ_TARGET`. `cargo xtask fuzz` builds and
//! runs this.

#![no_main]

use std::sync::OnceLock;

use cowhand_fuzz::{TARGETS, Target, find, run};

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("COWHAND_FUZZ_TARGET").unwrap_or_default();
        find(&name).unwrap_or_else(|| {
            let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            eprintln!("COWHAND_FUZZ_TARGET={name} names no target; known: {}", known.join(", "));
            std::process::exit(2);
        })
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(target(), data));
