//! cowhand: qcow2 disks, served, and the tools around them.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// A server keeps memory in reserve (`buffer::keep_reserve`).
#[global_allocator]
static ALLOCATOR: buffer::WithReserve = buffer::WithReserve;

fn main() -> ExitCode {
    cowhand_cli::main()
}
