//! The programs of QEMU whose place cowhand takes, by name, and what they say of their version.

use tool::qemu_version;

/// What the programs call themselves: that version, and ours.
pub(super) const VERSION: &str =
    concat!("version ", qemu_version!(), " (cowhand ", env!("CARGO_PKG_VERSION"), ")");
/// What qemu-nbd calls itself: programs read the second word as the version's number.
pub(super) const NBD_VERSION: &str = concat!(qemu_version!(), " (cowhand ", env!("CARGO_PKG_VERSION"), ")");

/// A program's name.
#[derive(Debug)]
pub(super) struct ProgramName {
    /// The last part of `argv[0]`.
    pub(super) name: &'static str,
    /// What it is for.
    pub(super) about: &'static str,
}

const fn named(name: &'static str, about: &'static str) -> ProgramName {
    ProgramName { name, about }
}

pub(super) const IMG: ProgramName = named("qemu-img", "the image tools");
pub(super) const IO: ProgramName = named("qemu-io", "requests on a disk, one by one");
pub(super) const NBD: ProgramName = named("qemu-nbd", "one disk over NBD");
pub(super) const STORAGE_DAEMON: ProgramName = named("qemu-storage-daemon", "disks over NBD, steered by QMP");

/// All of them.
pub(super) const NAMES: [ProgramName; 4] = [IMG, IO, NBD, STORAGE_DAEMON];
