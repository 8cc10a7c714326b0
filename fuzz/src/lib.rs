//! Fuzz targets: everything that reads foreign bytes.
//!
//! A target is a plain function of bytes. Its callers - libFuzzer (`cargo xtask fuzz`), the
//! corpus replay of `cargo test` - give bytes; the target decodes from them what it does, so that
//! one short input means one small deterministic case. Where random bytes would die at the magic,
//! the bytes choose a valid image ([`base`]) and edits of it ([`mutate`]).
//!
//! A finding is a panic: of the code under test, of an assertion of the target, or of a bound on
//! memory ([`memory`]), on storage operations ([`medium`]) or on steps ([`executor`]).

pub mod base;
pub mod executor;
pub mod input;
pub mod medium;
pub mod memory;
pub mod mutate;
pub mod targets;

pub use targets::{TARGETS, Target};

/// Most heap bytes that one case may hold beyond those it started with. Opening may take 32 MiB of
/// map cache beside tables no larger than the file, and files here have a few hundred KiB; a check
/// keeps counters in proportion to the bytes a file has.
pub const MEMORY_BYTES_MAX: usize = 256 << 20;

/// Longest input that is looked at: a case is an image of a few clusters and some operations.
pub const INPUT_BYTES_MAX: usize = 16 << 10;

/// Runs one case within the bounds.
///
/// # Panics
/// This is how a finding looks.
pub fn run(target: &Target, data: &[u8]) {
    let data = data.get(..INPUT_BYTES_MAX).unwrap_or(data);
    let peak = memory::peak_of(|| (target.run)(data));
    assert!(
        peak <= MEMORY_BYTES_MAX,
        "target {} held {peak} bytes at once; {MEMORY_BYTES_MAX} are allowed",
        target.name
    );
}

/// The target called `name`.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
