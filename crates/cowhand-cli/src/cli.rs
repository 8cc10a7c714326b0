//! The command line: what may be written after `cowhand`.

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};
use tool::failure::FAILED;

use crate::deferred::Deferred;
use crate::{
    amend, backup, bench, bitmap, broker, cache, check, checkpoint, commit, compact, compare, compat,
    completion, convert, create, dd, diff, flatten, forget, fork, gc, info, io, log, manual, map, measure,
    mirror, mount, pack, prune, publish, pull, push, rebase, reopen, resize, restore, rollback, serve, show,
    snapshot, status, stream, throttle, top, verify,
};

/// Where an option of all commands stands in the help of each: behind the command's own, before `--help`.
const LAST: usize = 900;

/// qcow2 and raw disks: served, created, examined, copied and repaired.
#[derive(Debug, Parser)]
#[command(
    name = "cowhand",
    version,
    about = "qcow2 and raw disks: served, created, examined, copied and repaired",
    long_about = "qcow2 and raw disks: served over NBD, vhost-user-blk, FUSE and ublk, created, examined, copied and repaired.\n\n\
        Images are plain qcow2: QEMU opens what cowhand writes, and the reverse, at any moment. The tools \
        take qemu-img's options and give its exit codes and JSON.",
    after_help = "Start with:  cowhand serve --create 20G disk.qcow2",
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// A password, certificates or shared limits that drives name by ID: TYPE,id=ID,...
    ///
    /// May be repeated. A password: secret,id=ID and file=PATH or data=TEXT, or secret_keyring,id=ID,serial=NUMBER, with format=base64 if it
    /// is; certificates for nbds: tls-creds-x509,id=ID,endpoint=client,dir=DIR; limits that drives of driver=throttle share:
    /// throttle-group,id=ID,limits.iops-total=N,...
    #[arg(long = "object", global = true, value_name = "OBJECT", display_order = LAST)]
    pub objects: Vec<OsString>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
// No doc comment: clap would take it for the whole help, and lose `long_about`.
pub enum Command {
    #[command(about = "Serve disks over NBD, vhost-user-blk and as files")]
    Serve(Deferred<serve::config::Given>),
    #[command(about = "Mount a disk as a file")]
    Mount(Deferred<mount::Args>),
    #[command(about = "Create an image")]
    Create(Deferred<create::Args>),
    #[command(about = "Show what an image says about itself")]
    Info(Deferred<info::Args>),
    #[command(about = "Show where each part of a disk is stored")]
    Map(Deferred<map::Args>),
    #[command(about = "Draw what an image holds and where")]
    Show(Deferred<show::Args>),
    #[command(about = "Check an image's metadata, and repair it")]
    Check(Deferred<check::Args>),
    #[command(about = "Say whether two disks have the same content")]
    Compare(Deferred<compare::Args>),
    #[command(about = "Copy disks into an image, of another format or shape")]
    Convert(Deferred<Box<convert::Args>>),
    #[command(about = "Copy a part of a disk into an image, in dd's words")]
    Dd(Deferred<dd::Args>),
    #[command(about = "Write what an overlay holds to its backing file")]
    Commit(Deferred<commit::Args>),
    #[command(about = "Give an overlay another backing file")]
    Rebase(Deferred<rebase::Args>),
    #[command(about = "Copy what the backing files hold into an image")]
    Flatten(Deferred<flatten::Args>),
    #[command(about = "Make an image's file smaller, in place")]
    Compact(Deferred<compact::Args>),
    #[command(about = "Upload what of a disk is new to an object store, as a chunked image")]
    Push(Deferred<push::Args>),
    #[command(about = "Make an image of a chunked image in an object store")]
    Pull(Deferred<pull::Args>),
    #[command(about = "Copy the chunks that a start reads into few objects of the store")]
    Pack(Deferred<pack::Args>),
    #[command(about = "List or remove chunks in an object store that no image leads to")]
    Prune(Deferred<prune::Args>),
    #[command(about = "Print or check checksums of what disks hold")]
    Verify(Deferred<verify::Args>),
    #[command(about = "Say how large the file of a new image will be")]
    Measure(Deferred<measure::Args>),
    #[command(about = "Change the size of a disk, in an image or while it is served")]
    Resize(Deferred<resize::Args>),
    #[command(about = "List, take, go back to and delete internal snapshots")]
    Snapshot(Deferred<snapshot::Args>),
    #[command(about = "Seal what a disk holds as a checkpoint, also while it is served")]
    Checkpoint(Deferred<checkpoint::Args>),
    #[command(about = "Make disks that begin as a checkpoint is")]
    Fork(Deferred<fork::Args>),
    #[command(about = "Have a disk continue from a checkpoint, also while it is served")]
    Rollback(Deferred<rollback::Args>),
    #[command(about = "Show the checkpoints of a disk, and the disks over them")]
    Log(Deferred<log::Args>),
    #[command(about = "Show which ranges of two checkpoints may differ")]
    Diff(Deferred<diff::Args>),
    #[command(about = "List or remove layers that no checkpoint and no disk needs")]
    Gc(Deferred<gc::Args>),
    #[command(about = "Forget checkpoints by a policy, and merge layers that nothing needs")]
    Forget(Deferred<forget::Args>),
    #[command(about = "Upload a checkpoint to an object store, also while its disk is served")]
    Publish(Deferred<publish::Args>),
    #[command(about = "Make a disk that begins as a published checkpoint is")]
    Restore(Deferred<restore::Args>),
    #[command(about = "Change what an image is: version, refcounts, size")]
    Amend(Deferred<amend::Args>),
    #[command(about = "Copy a disk of a running server, and move it there")]
    Mirror(Deferred<mirror::Args>),
    #[command(about = "Copy what the backing files hold into a disk of a running server")]
    Stream(Deferred<stream::Args>),
    #[command(about = "Keep full and incremental backups of a disk in a directory")]
    Backup(Deferred<Box<backup::Args>>),
    #[command(about = "Make, remove and change persistent bitmaps")]
    Bitmap(Deferred<bitmap::Args>),
    #[command(about = "Measure reads or writes of an image, in process")]
    Bench(Deferred<bench::Args>),
    #[command(about = "Do requests on a disk, one by one, as a script says")]
    Io(Deferred<Box<io::Args>>),
    #[command(about = "Memory for the map of an image: what it takes, and what to set")]
    #[command(subcommand, arg_required_else_help = true)]
    Cache(cache::Command),
    #[command(about = "Limits on I/O: what they mean, and those of a running server")]
    #[command(subcommand, arg_required_else_help = true)]
    Throttle(throttle::Command),
    #[command(about = "Show what a running server has open, and how it goes")]
    Status(Deferred<status::Args>),
    #[command(about = "Watch the disks of a running server")]
    Top(Deferred<top::Args>),
    #[command(about = "Change options of a disk while it is served")]
    Reopen(Deferred<reopen::Args>),
    #[command(about = "Print a completion script for a shell")]
    Completion(Deferred<completion::Args>),
    #[command(about = "Make connections for a server", hide = true)]
    Broker(Deferred<broker::Args>),
    #[command(name = remote::rbd::starter::STARTER, about = "Start processes for RBD images", hide = true)]
    RbdStarter,
    #[command(name = remote::rbd::starter::WORKER, about = "Serve an RBD image to a server", hide = true)]
    RbdWorker,
    #[command(about = "Run under the names of QEMU's programs")]
    #[command(subcommand, arg_required_else_help = true)]
    Compat(compat::links::Command),
    #[command(about = "Write the manual pages")]
    Manual(Deferred<manual::Args>),
}

/// Commands that open no image, in whose help `--object` would be noise; it is taken all the same.
const WITHOUT_OBJECTS: [&str; 10] =
    ["checkpoint", "compat", "completion", "fork", "gc", "log", "manual", "rollback", "status", "top"];

/// The command line, with `--object` in the help of commands that have a use for it.
pub fn command() -> clap::Command {
    let mut cli = Cli::command();
    let objects = cli.get_arguments().find(|argument| argument.get_id() == "objects").cloned();
    let names: Vec<String> = cli.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let uses = |name: &str| !WITHOUT_OBJECTS.contains(&name);
    for name in names.iter().filter(|name| uses(name)) {
        // An argument of its own is there before the hidden one of the program would be copied to it.
        cli = cli.mut_subcommand(name, |command| command.args(objects.clone()));
    }
    cli.mut_arg("objects", |argument| argument.hide(true))
}

/// The exit code of wrong usage: one that is no verdict of the command in `words`, the program's name before it.
pub fn usage_code(words: &[OsString]) -> u8 {
    match words.get(1) {
        Some(command) if command == "compare" => compare::code::CANNOT_OPEN,
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_free_of_contradictions() {
        command().debug_assert();
    }

    #[test]
    fn the_help_of_a_subcommand_has_its_long_text() {
        // Doc comments of the variants replaced it: the exit codes of `check` were not shown.
        let mut cli = command();
        cli.build();
        let check = cli.find_subcommand_mut("check").expect("it is there");
        assert!(check.render_long_help().to_string().contains("Exit codes:\n  0   nothing is wrong"));
        assert!(check.render_help().to_string().starts_with("Check an image's metadata, and repair it\n"));
    }

    /// It was a third of the help of `completion`.
    #[test]
    fn the_help_of_a_command_has_objects_where_it_opens_an_image() {
        let mut cli = command();
        cli.build();
        let mut shown = |name: &str| {
            let command = cli.find_subcommand_mut(name).expect("it is there");
            command.render_long_help().to_string().contains("--object")
        };
        assert!(["info", "serve", "convert", "restore"].iter().all(|name| shown(name)));
        assert!(WITHOUT_OBJECTS.iter().all(|name| !shown(name)));
    }

    /// A line that a terminal of 100 columns breaks cannot be pasted, and prose that is broken by hand is broken twice.
    #[test]
    fn examples_fit_and_prose_is_broken_by_the_terminal_alone() {
        let mut cli = command();
        cli.build();
        for subcommand in cli.get_subcommands() {
            let help = subcommand.get_after_long_help().map_or_else(String::new, ToString::to_string);
            let lines: Vec<&str> = help.lines().collect();
            for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
                let name = subcommand.get_name();
                assert!(!line.starts_with("  ") || line.chars().count() <= 100, "{name}: {line}");
                let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
                let goes_over = is_prose(line) && is_prose(next) && !line.ends_with(['.', ':', ',']);
                assert!(!goes_over, "{name}: {line}\n{next}");
            }
        }
    }

    #[test]
    fn every_option_of_every_subcommand_explains_itself() {
        let mut cli = command();
        cli.build();
        for subcommand in cli.get_subcommands() {
            for argument in subcommand.get_arguments().filter(|argument| argument.get_id() != "help") {
                let name = format!("{} {}", subcommand.get_name(), argument.get_id());
                assert!(argument.get_help().is_some(), "{name} has no help");
            }
        }
    }
}
