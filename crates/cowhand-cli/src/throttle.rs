//! `cowhand throttle`: limits, explained, set and shown.

pub mod explain;
pub mod limit_args;
pub mod set;
pub mod show;

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;
use tool::failure::Failure;

/// What stands under the help of everything that takes limits.
pub const LIMITS_HELP: &str = "\
Limits are written in any of these ways, which may be mixed:
  throttling.iops-total=100,throttling.iops-total-max=2000   as on a drive line
  iops=100,iops_max=2000,bps_rd=10M                          the short names of old drive lines
  --total-iops-sec 100 --read-bytes-sec 10M                  as virsh blkdeviotune takes them

  {iops,bps}-{total,read,write}  what may pass per second in the long run
  ...-max                        what may pass per second in a burst
  ...-max-length                 seconds that a burst may last, from an idle start
  iops-size                      bytes that count as one operation
  group, weight                  disks of one group share its limits by weight (1 to 10000; 100)";

/// What to do.
#[derive(Debug, Subcommand)]
// No doc comment: clap would take it for the whole help, and lose `long_about`.
pub enum Command {
    #[command(about = "Say in sentences what limits mean, and draw what they let through")]
    Explain(explain::Args),
    #[command(about = "Change the limits of a disk that is served")]
    Set(set::Args),
    #[command(about = "Show the limits of a running server's disks, and what they did")]
    Show(show::Args),
}

/// Does it.
pub fn run(command: &Command, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    match command {
        Command::Explain(args) => explain::run(args, out),
        Command::Set(args) => set::run(args, out),
        Command::Show(args) => show::run(args, out),
    }
}
