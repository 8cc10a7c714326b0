//! cowhand: qcow2 disks, served, and the tools around them.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// A server keeps memory in reserve (`memory::keep_reserve`).
#[global_allocator]
static ALLOCATOR: memory::WithReserve = memory::WithReserve;

fn main() -> ExitCode {
    cowhand_cli::main()
}
