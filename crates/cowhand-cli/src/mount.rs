//! `cowhand mount`: one disk as a file, until it is unmounted or the program ends.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use door_fuse::mount::AllowOther;
use graph::probe::Format;
use monitor::endpoint::absolute;
use monitor::sandbox::Sandbox;
use net::dial::Target;
use tool::failure::Failure;

use crate::background::{Background, Side};
use crate::drive::DRIVE_HELP;
use crate::drive::formats;
use crate::serve::args::{Args as ServeArgs, sandboxes};
use crate::serve::settings::{FuseFile, Placed, Settings};
use crate::serve::{Beginning, InBackground, serve};
use crate::warnings;

/// Arguments of `cowhand mount`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    long_about = "Mount a disk as a regular file with its plain bytes, for every program that knows only files: mkfs, losetup, dd, cp.\n\n\
        FILE is a regular file, which the mount covers and leaves as it is. Root mounts by itself; other users need fusermount3 (package fuse3). \
        The program stays until the file is unmounted (umount FILE; fusermount3 -u FILE for users) or until Ctrl-C or SIGTERM, which unmount it: \
        requests in flight are answered, metadata is written. The mount also goes when the program is killed. What programs wrote is \
        durable after fsync, and after the file is closed.",
    after_help = DRIVE_HELP,
    after_long_help = after_long_help()
)]
pub struct Args {
    /// The disk: a path, or a DRIVE with options (see below)
    #[arg(value_name = "DRIVE")]
    pub drive: OsString,

    /// The regular file to mount over; make it with touch
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Format of the disk: qcow2 or raw [default: what the first bytes say; raw must be said to write]
    #[arg(short = 'f', long, value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    pub format: Option<Format>,

    /// Refuse every write
    #[arg(short = 'r', long)]
    pub read_only: bool,

    /// Let programs change the disk's size: by writes behind the end, fallocate and truncate
    #[arg(long)]
    pub growable: bool,

    /// Who may use FILE beside this user: whom its mode permits (on), no one else (off), or what the system lets this user say (auto)
    #[arg(long, value_name = "on|off|auto", default_value = "auto", hide_possible_values = true)]
    pub allow_other: Others,

    /// Go into the background when FILE is there
    #[arg(short = 'b', long)]
    pub background: bool,

    /// Listen for commands (QMP) on a Unix socket at PATH that only this user may use
    #[arg(long, value_name = "PATH")]
    pub qmp: Option<PathBuf>,

    /// Also follow names in images that lead under DIR (may be repeated; the administrator's rules are in /etc/cowhand/policy.d)
    #[arg(long, value_name = "DIR")]
    pub allow_path: Vec<PathBuf>,

    /// Also follow names in images that lead to this server, or to this part of it, as images write it: nbd://HOST:PORT/EXPORT,
    /// https://HOST, s3://BUCKET, chunked:s3://BUCKET/NAME (may be repeated; the administrator's
    /// rules are in /etc/cowhand/policy.d)
    #[arg(long, value_name = "NAME")]
    pub allow_name: Vec<String>,

    /// Also connect to this server, HOST:PORT or unix:PATH: where a redirect leads, or where the disks of commands lie; that of DRIVE is allowed (may be repeated)
    #[arg(long, value_name = "SERVER")]
    pub allow_connect: Vec<Target>,

    /// Event loops, one thread each [default: one: a mount is served on one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    /// Write the process's number to FILE, and remove it at the end
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,

    /// Once everything is open, give up the file system, new programs and connections [default: on]
    #[arg(long, value_name = "on|off", value_parser = sandboxes(), hide_possible_values = true)]
    pub sandbox: Option<Sandbox>,

    /// What to log to standard error: off, error, warn, info, debug, trace, and PART=LEVEL for parts (info,door_fuse=debug)
    /// [default: warn]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,

    /// Say nothing at the start; errors and warnings are printed
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

/// `--allow-other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Others {
    /// [`AllowOther::On`]
    On,
    /// [`AllowOther::Off`]
    Off,
    /// [`AllowOther::Auto`]
    Auto,
}

fn after_long_help() -> String {
    format!("{DRIVE_HELP}\n\n{EXAMPLES}")
}

const EXAMPLES: &str = "\
Examples:
  touch disk.raw && cowhand mount --background disk.qcow2 disk.raw
  losetup --find --show --direct-io=on disk.raw   # then: mount, fsck, partx on the loop device
  umount disk.raw";

/// Mounts, and serves until it is unmounted.
///
/// # Errors
/// When the disk cannot be opened or mounted, or not be closed at the end.
pub fn run(args: Args, _: &mut dyn Write) -> Result<ExitCode, Failure> {
    let background = match args.background.then(Background::begin).transpose()? {
        Some(Side::Started(code)) => return Ok(code),
        Some(Side::Serving(background)) => Some(background),
        None => None,
    };
    let background = background.map(InBackground::Away);
    serve(&settings(args)?, Beginning { background, ..Beginning::default() })
}

/// What a server is to do that has this disk as a file, and no other door.
fn settings(args: Args) -> Result<Settings, Failure> {
    let allow_other = match args.allow_other {
        Others::On => AllowOther::On,
        Others::Off => AllowOther::Off,
        Others::Auto => AllowOther::Auto,
    };
    let serving = ServeArgs {
        drives: vec![args.drive],
        format: args.format,
        read_only: args.read_only,
        allow_path: args.allow_path,
        allow_name: args.allow_name,
        allow_connect: args.allow_connect,
        qmp: args.qmp.as_deref().map(absolute).transpose()?,
        threads: args.threads.or(Some(1)),
        pid_file: args.pid_file.as_deref().map(absolute).transpose()?,
        sandbox: args.sandbox.unwrap_or_default(),
        log: args.log,
        // In the background there is no reader.
        quiet: args.quiet || args.background,
        ..ServeArgs::default()
    };
    let mut settings = warnings::while_reading(|| Settings::new(serving, false))?;
    settings.endpoint = None;
    settings.fuse = settings
        .exports
        .iter()
        .map(|export| FuseFile {
            placed: Placed { export: export.name.clone(), path: args.file.clone() },
            growable: args.growable,
            allow_other,
        })
        .collect();
    settings.ends_with_mounts = true;
    Ok(settings)
}
