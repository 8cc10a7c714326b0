//! cowhand: qcow2 disks, served, and the tools around them.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cowhand_cli::main()
}
