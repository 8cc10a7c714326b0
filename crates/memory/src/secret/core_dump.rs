//! No file holds what the process had in memory when it crashed.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// From now on the process leaves no core dump when it crashes.
///
/// # Errors
/// When the system does not let us.
pub fn leave_no_core_dump() -> io::Result<()> {
    // No dump has so little room, and the kernel starts no program that would take one (core(5)); a limit of 0 does not keep it from that.
    let limit = Rlimit { current: Some(1), maximum: Some(1) };
    // A hard limit of 0 (limits.conf, LimitCORE=0, containers) cannot be raised to 1. Then the process is marked as one that is not dumped at all, which
    // also takes its /proc from others of the same user.
    setrlimit(Resource::Core, limit).or_else(|_| set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    Ok(())
}
