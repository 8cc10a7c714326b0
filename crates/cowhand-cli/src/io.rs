//! `cowhand io`: requests on a disk, one by one, in the words of qemu-io.

mod breakpoints;
mod command;
mod failed;
mod look;
pub(crate) mod opening;
pub mod report;
mod request;
mod session;
mod waiting;
mod words;

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use graph::OpenRules;
use tool::failure::{FAILED, Failure};

use self::opening::Manner;
use self::session::Session;
use crate::copying;
use crate::drive::DRIVE_HELP;
use crate::drive::{NamesArgs, drivers, option_tree};

/// The longest line of a script, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Arguments of `cowhand io`.
#[derive(Debug, clap::Args)]
#[command(
    version,
    long_about = "Do requests on a disk, one by one, as a script says: read, write, write zeroes, discard, and show what is there. \
        Commands, options and results are those of qemu-io; `cowhand io -c help` lists them.\n\n\
        Without -c the script is read from standard input. The exit code is 1 if a command failed.",
    after_help = DRIVE_HELP
)]
pub struct Args {
    /// The disk: a path, or a DRIVE (see below); without it, a command opens one
    #[arg(value_name = "DRIVE")]
    drive: Option<OsString>,

    /// Do this command (may be repeated)
    #[arg(short = 'c', long = "cmd", value_name = "COMMAND", allow_hyphen_values = true)]
    commands: Vec<String>,

    /// Format of the disk: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', long, value_name = "FORMAT", value_parser = drivers(), hide_possible_values = true)]
    format: Option<String>,

    /// Open the disk read-only
    #[arg(short = 'r', long)]
    read_only: bool,

    /// Write to an overlay that goes at the end, not to the disk
    #[arg(short = 's', long)]
    snapshot: bool,

    /// Bypass the host's page cache: -t none
    #[arg(short = 'n', long)]
    nocache: bool,

    /// Cache mode: writeback, writethrough, none, directsync, unsafe [default: writethrough]
    #[arg(short = 't', long, value_name = "MODE")]
    cache: Option<String>,

    /// How requests reach the kernel: threads or io_uring
    #[arg(short = 'i', long, value_name = "MODE")]
    aio: Option<String>,

    /// What a discard does: ignore or unmap [default: unmap]
    #[arg(short = 'd', long, value_name = "MODE")]
    discard: Option<String>,

    /// Read the disk without regard for who is writing it (results may be inconsistent)
    #[arg(short = 'U', long)]
    force_share: bool,

    /// Read DRIVE as key=value options, even if a file of that name exists
    #[arg(long, conflicts_with = "format")]
    image_opts: bool,

    #[command(flatten)]
    names: NamesArgs,

    /// Keep in the image what is read from below it
    #[arg(short = 'C', long)]
    copy_on_read: bool,

    /// Of qemu-io; not supported
    #[arg(short = 'm', long, hide = true)]
    misalign: bool,

    /// Of qemu-io; not supported
    #[arg(short = 'k', long, hide = true)]
    native_aio: bool,

    /// Of qemu-io; not supported
    #[arg(short = 'T', long, value_name = "PATTERN", hide = true)]
    trace: Option<String>,
}

impl Args {
    /// Options of qemu-io that mean nothing here are refused, not ignored.
    fn check(&self) -> Result<(), Failure> {
        let refused = [
            ("-m (--misalign)", self.misalign, "buffers are aligned as the disk asks for"),
            ("-k (--native-aio)", self.native_aio, "-i io_uring and -i threads are there"),
            ("-T (--trace)", self.trace.is_some(), "there are no trace events"),
        ];
        match refused.into_iter().find(|(_, given, _)| *given) {
            Some((option, _, why)) => {
                Err(Failure::explained(format!("option {option} of qemu-io is not supported"), why))
            }
            None => Ok(()),
        }
    }

    fn manner(&self) -> Manner {
        Manner {
            format: self.format.clone(),
            read_only: self.read_only,
            snapshot: self.snapshot,
            force_share: self.force_share,
            cache: self.cache.clone().or_else(|| self.nocache.then(|| "none".to_owned())),
            discard: self.discard.clone(),
            aio: self.aio.clone(),
            copy_on_read: self.copy_on_read,
        }
    }
}

/// Does what the script says.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    args.check()?;
    let rules = OpenRules { policy: args.names.policy()?, ..OpenRules::default() };
    let exists = |path: &Path| !args.image_opts && path.symlink_metadata().is_ok();
    let drive = args.drive.as_ref().map(|drive| option_tree(drive, exists)).transpose()?;
    let reactor = copying::reactor()?;
    let succeeded = reactor.run(async {
        let mut session = Session::new(rules, out);
        if let Some(tree) = drive {
            session.open(&args.manner(), tree).await?;
        }
        match args.commands.is_empty() {
            true => interpret(&mut session).await?,
            false => {
                for command in &args.commands {
                    if session.is_ended() {
                        break;
                    }
                    session.line(command).await?;
                }
            }
        }
        session.end().await
    })?;
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Does what standard input says, line by line.
async fn interpret(session: &mut Session<'_>) -> Result<(), Failure> {
    while !session.is_ended() {
        session.prompt()?;
        let line = session.rest_for(reactor::blocking(next_line)).await?;
        match line.map_err(|error| Failure::because("cannot read the script", &error))? {
            Some(line) => session.line(&line).await?,
            None => break,
        }
    }
    Ok(())
}

/// The next line of standard input, without its end; `None` if there is none.
fn next_line() -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line)?;
    if read as u64 == LINE_BYTES_MAX {
        let what = format!("a line has more than {LINE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok((read > 0).then(|| line.trim_end_matches('\n').to_owned()))
}
