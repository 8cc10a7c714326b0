//! The binary's rooms: one file per subcommand.
//!
//! Each takes its arguments and an output, and gives an exit code or a [`Failure`];
//! everything that can be decided without doing it is decided in its parts.

#![forbid(unsafe_code)]
// They panic when the output is closed: a server must outlive its terminal.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod amend;
mod ask;
mod background;
pub mod backup;
pub mod bench;
pub mod bitmap;
pub mod broker;
pub mod cache;
pub mod check;
pub mod checkpoint;
pub mod cli;
mod command_groups;
pub mod commit;
pub mod compact;
pub mod compare;
pub mod compat;
pub mod completion;
pub mod convert;
mod copying;
pub mod create;
pub mod dd;
mod deferred;
pub mod diff;
mod dispatch;
pub mod drive;
pub mod exit_codes;
pub mod flatten;
pub mod forget;
pub mod fork;
pub mod gc;
pub mod info;
pub mod io;
pub mod lineages;
pub mod log;
pub mod manual;
pub mod map;
pub mod measure;
pub mod mirror;
pub mod mount;
mod objects;
pub mod output;
pub mod pack;
mod policy;
pub mod progress;
pub mod prune;
pub mod publish;
pub mod pull;
pub mod push;
pub mod rbd;
pub mod rebase;
pub mod remote;
pub mod reopen;
pub mod resize;
pub mod restore;
pub mod rollback;
pub mod serve;
pub mod show;
pub mod snapshot;
pub mod status;
pub mod stream;
pub mod throttle;
pub mod top;
mod usage;
pub mod verify;
pub mod warnings;

use std::ffi::OsString;
use std::io::{BufWriter, Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use tool::failure::Failure;
use tool::voice;

use crate::cli::Command;

/// How long the end of the program waits for images of Ceph clusters to be closed.
const RBD_CLOSES_WITHIN: Duration = Duration::from_secs(5);

/// The whole program: reads the command line, runs the command, returns the exit code.
pub fn main() -> ExitCode {
    catalog::install();
    if let Some(code) = door_fuse::watcher::run_if_asked() {
        return code;
    }
    ::remote::rbd::starter::start_with("/proc/self/exe");
    let words: Vec<OsString> = std::env::args_os().collect();
    let mut out = BufWriter::new(stdout().lock());
    let outcome = match compat::program_of(&words) {
        Some(program) => {
            voice::speak_as(program.name);
            graph::Secrets::default().allow_unneeded();
            program.run(&words, &mut out)
        }
        None => run_own(&words, &mut out),
    };
    ::remote::rbd::settle(RBD_CLOSES_WITHIN);
    objects::warn_of_swap();
    let outcome = outcome.and_then(|code| {
        out.flush()?;
        Ok(code)
    });
    match outcome {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// What `words` say, `cowhand` before them.
fn run_own(words: &[OsString], out: &mut dyn Write) -> Result<ExitCode, Failure> {
    match command_groups::parse(words) {
        Ok(cli) => objects::add_all(&cli.objects).and_then(|()| {
            ask::on_terminal();
            if !matches!(cli.command, Command::Serve(_) | Command::Mount(_)) {
                warnings::show();
            }
            dispatch::run(cli.command, out)
        }),
        Err(error) => Ok(usage::usage(&error, cli::usage_code(words))),
    }
}
