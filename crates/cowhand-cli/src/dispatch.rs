//! From a command and its arguments to the tool that does it.

use std::io::Write;
use std::process::ExitCode;

use tool::failure::Failure;

use crate::cli::{self, Command};
use crate::deferred::Deferred;
use crate::{
    amend, backup, bench, bitmap, broker, cache, check, checkpoint, commit, compact, compare, compat,
    completion, convert, create, dd, diff, flatten, forget, fork, gc, info, log, manual, map, measure,
    mirror, mount, pack, prune, publish, pull, push, rbd, rebase, reopen, resize, restore, rollback, serve,
    show, snapshot, status, stream, throttle, top, verify,
};

/// Does what the command line said.
///
/// # Errors
/// As the command.
pub fn run(command: Command, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    match command {
        Command::Serve(Deferred(given)) => serve::run(given, out),
        Command::Mount(Deferred(args)) => mount::run(args, out),
        Command::Create(Deferred(args)) => create::run(&args, out),
        Command::Map(Deferred(args)) => map::run(&args, out),
        Command::Show(Deferred(args)) => show::run(&args, out),
        Command::Info(Deferred(args)) => info::run(&args, out),
        Command::Check(Deferred(args)) => check::run(&args, out),
        Command::Compare(Deferred(args)) => compare::run(&args, out),
        Command::Convert(Deferred(args)) => convert::run(&args, out),
        Command::Dd(Deferred(args)) => dd::run(&args),
        Command::Commit(Deferred(args)) => commit::run(&args, out),
        Command::Rebase(Deferred(args)) => rebase::run(&args),
        Command::Flatten(Deferred(args)) => flatten::run(&args, out),
        Command::Compact(Deferred(args)) => compact::run(&args, out),
        Command::Pull(Deferred(args)) => pull::run(&args, out),
        Command::Push(Deferred(args)) => push::run(&args, out),
        Command::Publish(Deferred(args)) => publish::run(&args, out),
        Command::Restore(Deferred(args)) => restore::run(&args, out),
        Command::Pack(Deferred(args)) => pack::run(&args, out),
        Command::Prune(Deferred(args)) => prune::run(&args, out),
        Command::Verify(Deferred(args)) => verify::run(&args, out),
        Command::Measure(Deferred(args)) => measure::run(&args, out),
        Command::Resize(Deferred(args)) => resize::run(&args, out),
        Command::Snapshot(Deferred(args)) => snapshot::run(&args, out),
        Command::Checkpoint(Deferred(args)) => checkpoint::run(&args, out),
        Command::Fork(Deferred(args)) => fork::run(&args, out),
        Command::Rollback(Deferred(args)) => rollback::run(&args, out),
        Command::Log(Deferred(args)) => log::run(&args, out),
        Command::Diff(Deferred(args)) => diff::run(&args, out),
        Command::Gc(Deferred(args)) => gc::run(&args, out),
        Command::Forget(Deferred(args)) => forget::run(&args, out),
        Command::Amend(Deferred(args)) => amend::run(&args, out),
        Command::Backup(Deferred(args)) => backup::run(&args, out),
        Command::Mirror(Deferred(args)) => mirror::run(&args, out),
        Command::Stream(Deferred(args)) => stream::run(&args, out),
        Command::Bitmap(Deferred(args)) => bitmap::run(&args),
        Command::Bench(Deferred(args)) => bench::run(&args, out),
        Command::Io(Deferred(args)) => crate::io::run(&args, out),
        Command::Broker(Deferred(args)) => broker::run(args),
        Command::RbdStarter => rbd::start(),
        Command::RbdWorker => rbd::work(),
        Command::Cache(command) => cache::run(&command, out),
        Command::Throttle(command) => throttle::run(&command, out),
        Command::Status(Deferred(args)) => status::run(&args, out),
        Command::Top(Deferred(args)) => top::run(&args, out),
        Command::Reopen(Deferred(args)) => reopen::run(&args, out),
        Command::Completion(Deferred(args)) => completion::run(&args, cli::command(), out),
        Command::Manual(Deferred(args)) => manual::run(&args, cli::command(), out),
        Command::Compat(command) => compat::links::run(&command, out),
    }
}
