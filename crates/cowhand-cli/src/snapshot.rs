//! `cowhand snapshot`: internal snapshots of an image that is not in use elsewhere.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ArgGroup;
use graph::options::Backing;
use graph::{Disk, OpenRules};
use qcow2::bitmap::out_of_date;
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use reactor::Reactor;
use serde_json::json;
use tool::failure::{Failure, warn};
use tool::info::read::snapshot_info;
use tool::output::write_json;
use tool::voice;

use crate::drive::DRIVE_HELP;
use crate::drive::DriveArgs;
use crate::info::keys::SNAPSHOTS_JSON;
use crate::info::show_snapshots;
use crate::output::{OutputFormat, with_json};
use crate::remote::Remote;

/// Arguments of `cowhand snapshot`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "List, take, go back to and delete the internal snapshots of an image.\n\n\
        The image must not be open elsewhere. With --live it is the disk of a running server, and DRIVE is the server's control socket: \
        -c and -d take and delete internal snapshots there, --overlay puts a new image over the disk, which holds what is written from \
        then on (cowhand commit --live undoes it). \
        Going back to a snapshot brings back its data and its size, and everything written since is lost.",
    after_help = DRIVE_HELP,
    after_long_help = with_json(DRIVE_HELP, &["A list of snapshots.", SNAPSHOTS_JSON]),
    group = ArgGroup::new("action").multiple(false)
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// List the snapshots (also without any other action)
    #[arg(short = 'l', group = "action")]
    list: bool,

    /// Take a snapshot of this name
    #[arg(short = 'c', value_name = "NAME", group = "action")]
    create: Option<String>,

    /// Go back to the snapshot of this id, or else of this name
    #[arg(short = 'a', value_name = "SNAPSHOT", group = "action")]
    apply: Option<String>,

    /// Delete the snapshot of this name (the oldest of several)
    #[arg(short = 'd', value_name = "NAME", group = "action")]
    delete: Option<String>,

    /// Put a new image over the disk of a running server, of this moment on
    #[arg(long, value_name = "FILE", group = "action", requires = "live")]
    overlay: Option<PathBuf>,

    /// DRIVE is the control socket of a running server (cowhand serve --qmp)
    #[arg(long, conflicts_with_all = ["list", "apply", "format", "image_opts", "force_share"])]
    live: bool,

    /// The disk of the server, by its node's name [default: the only one]
    #[arg(long, value_name = "NAME", requires = "live")]
    disk: Option<String>,

    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the list
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// Lists or changes the snapshots.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.live {
        return run_live(args, out);
    }
    let changes = args.create.is_some() || args.apply.is_some() || args.delete.is_some();
    let mut options = args.drive.options()?;
    options.layer.read_only |= !changes;
    // A snapshot is of the image alone, and its backing file may be anywhere.
    options.layer.backing = Backing::None;
    let failed = |error: &dyn std::error::Error| {
        let what = if changes { "cannot change the snapshots of" } else { "cannot list the snapshots of" };
        Failure::because(format!("{what} {}", options.filename.display()), error)
    };
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    let reactor = Reactor::new(reactor::Backend::Ring).map_err(|error| failed(&error))?;
    reactor.run(async {
        let disk = graph::open(&options, &rules).await.map_err(|error| match changes {
            true => failed(&error),
            false => failed(&error).with_hint_about_lock(&error),
        })?;
        let done = act(args, &disk, out, &failed).await;
        let closed = disk.close().await.map_err(|error| failed(&error));
        let bitmaps = disk.bitmaps_out_of_date();
        if !bitmaps.is_empty() {
            warn(&format!("{}: {}", options.filename.display(), out_of_date(&bitmaps)));
        }
        done.and(closed)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Makes a server change the snapshots of one of its disks.
fn run_live(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut remote = Remote::connect(Path::new(&args.drive.drive))?;
    let disk = remote.disk_of_job(args.disk.as_deref())?;
    let done = match (&args.create, &args.delete, &args.overlay) {
        (Some(name), _, _) => {
            remote.ask("blockdev-snapshot-internal-sync", json!({ "device": disk, "name": name }))?;
            format!("{disk}: snapshot {name} is taken")
        }
        (_, Some(name), _) => {
            remote.ask("blockdev-snapshot-delete-internal-sync", json!({ "device": disk, "name": name }))?;
            format!("{disk}: snapshot {name} is deleted")
        }
        (_, _, Some(file)) => {
            // The server may be in another directory.
            let path = std::path::absolute(file)
                .map_err(|error| Failure::because(format!("cannot find {}", file.display()), &error))?;
            remote.ask("blockdev-snapshot-sync", json!({ "node-name": disk, "snapshot-file": path }))?;
            format!("{disk} writes to {}: name that image at the next start", path.display())
        }
        _ => return Err(Failure::new("--live goes with -c, -d or --overlay")),
    };
    if !args.quiet {
        writeln!(out, "{done}")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn act(
    args: &Args,
    disk: &Disk,
    out: &mut dyn Write,
    failed: &dyn Fn(&dyn std::error::Error) -> Failure,
) -> Result<(), Failure> {
    let done = if let Some(name) = &args.create {
        disk.create_snapshot(of_this_moment(name)).await.map(drop)
    } else if let Some(name) = &args.apply {
        disk.apply_snapshot(SnapshotName::IdOrName(name.clone())).await
    } else if let Some(name) = &args.delete {
        disk.delete_snapshot(SnapshotName::Name(name.clone())).await.map(drop)
    } else {
        let found = disk.snapshots().await.map_err(|error| failed(&error))?;
        let infos: Vec<_> = found.into_iter().map(snapshot_info).collect();
        match args.output {
            _ if args.quiet => {}
            OutputFormat::Human => show_snapshots(out, &infos)?,
            OutputFormat::Json => write_json(out, &infos)?,
        }
        return Ok(());
    };
    done.map_err(|error| failed(&error))
}

fn of_this_moment(name: &str) -> NewSnapshot {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    NewSnapshot {
        name: name.to_owned(),
        // The format ends in 2106.
        date_sec: u32::try_from(now.as_secs()).unwrap_or(u32::MAX),
        date_nsec: now.subsec_nanos(),
        vm_clock_nsec: 0,
        // qemu-img records that there were none.
        icount: voice::is_qemu().then_some(0),
    }
}
