//! Under whose name the program speaks: its own, or that of the QEMU program as which it was started.
//!
//! Set once, before anything is said; messages begin with it, and results have the form of the program that has the name.

use std::sync::OnceLock;

/// QEMU's version whose options and forms the programs have, as a text that `concat!` takes.
#[macro_export]
macro_rules! qemu_version {
    () => {
        "11.1.0"
    };
}

/// The same as a value.
pub const QEMU_VERSION: &str = qemu_version!();

/// Our own name.
pub const OWN: &str = "cowhand";

static NAME: OnceLock<&'static str> = OnceLock::new();

/// From now on the program speaks as `name`. A second call changes nothing.
pub fn speak_as(name: &'static str) {
    let _ = NAME.set(name);
}

/// The name that messages begin with.
pub fn name() -> &'static str {
    NAME.get().copied().unwrap_or(OWN)
}

/// Whether results have the form of a QEMU program.
pub fn is_qemu() -> bool {
    name() != OWN
}
