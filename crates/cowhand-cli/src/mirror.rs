//! `cowhand mirror`: a disk of a running server is copied while guests write, and may move to the copy.

mod bitmaps;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cowhand::Existing;
use graph::drivers::elsewhere;
use graph::probe::Format;
use remote::nbd::{Credentials, ExportName, Server};
use serde_json::{Value, json};
use tool::create::options::NewImage;
use tool::failure::Failure;

use self::bitmaps::{Bitmaps, Place};
use crate::copying::watch::Watch;
use crate::create::make;
use crate::drive::{made_formats, parse_bytes};
use crate::remote::jobs::{LiveArgs, Until};
use crate::remote::{Remote, RemoteArgs};

/// Arguments of `cowhand mirror`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Copy a disk of a running server while guests write, until the copy is in step; then leave the copy as it is (of one moment, \
        the command's end), or with --switch have the server use it: clients notice nothing. TARGET is a new image, or with -n one \
        that is there, or an export of an NBD server (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH) as large as the disk.\n\n\
        Ctrl-C cancels the job; the server continues as before, and a file that was made is removed. A command that was killed leaves the job \
        at work: the same command again watches it further.",
    after_help = "\
Examples:
  cowhand mirror /run/vm1.qmp /fast/disk.qcow2 --switch
  cowhand mirror /run/vm1.qmp --disk data nbd://other-host/data --switch
  cowhand mirror /run/vm1.qmp --disk data nbd://other-host/data --switch \\
    --bitmaps-to other-host.qmp"
)]
pub struct Args {
    #[command(flatten)]
    remote: RemoteArgs,

    /// Where the copy goes: a path, or an export
    #[arg(value_name = "TARGET")]
    target: OsString,

    #[command(flatten)]
    live: LiveArgs,

    /// Have the server use the copy in the end
    #[arg(long)]
    switch: bool,

    /// Give the copy the disk's bitmaps, too: the control socket of the server that has TARGET open (of a file: SOCKET itself)
    #[arg(long, value_name = "SOCKET", requires = "switch")]
    bitmaps_to: Option<PathBuf>,

    /// The file is there; it is as large as the disk
    #[arg(short = 'n')]
    no_create: bool,

    /// Format of the file: qcow2 or raw
    #[arg(short = 'O', value_name = "FORMAT", value_parser = made_formats(), hide_possible_values = true, default_value = "qcow2")]
    format: Format,

    /// Bytes a second at most
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    rate: Option<u64>,
}

/// What the copy goes to.
struct Target {
    /// The options of blockdev-add.
    node: Value,
    name: String,
    /// A file that was made and goes if nothing becomes of it.
    made: Option<PathBuf>,
}

/// Mirrors.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let watch = args.live.watch()?;
    let mut remote = args.remote.connect()?;
    let disk = remote.disk_of_job(args.live.disk.as_deref())?;
    let job = format!("mirror-{}", disk.replace('#', ""));
    let name = format!("{job}-to");
    let is_at_work = remote.has_job(&job)?;
    let mut target = None;
    let mut bitmaps = None;
    if !is_at_work {
        let made = Target::make(args, &mut remote, &disk, name.clone())?;
        begin(args, &mut remote, &disk, &job, &made)?;
        target = Some(made);
    }
    let mirrored = find_bitmaps(args, &mut remote, &disk, &name, is_at_work)
        .inspect_err(|_| remote.cancel_job(&job, &watch))
        .and_then(|found| {
            bitmaps = found;
            mirror(args, &mut remote, (&disk, &job), bitmaps.as_mut(), &watch)
        });
    if mirrored.is_err() {
        bitmaps.into_iter().for_each(Bitmaps::take_back);
    }
    if mirrored.is_err() || !args.switch {
        // Its image is closed: it is whole now, or goes.
        let closed = remote.remove_node(&name);
        if mirrored.is_err() {
            target.iter().for_each(Target::remove);
        } else {
            closed?;
        }
    }
    mirrored?;
    if !args.live.quiet {
        let place = args.target.display();
        match args.switch {
            true => writeln!(out, "{disk} has switched to {place}: name that at the next start")?,
            false => writeln!(out, "{disk} is copied to {place}")?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn begin(args: &Args, remote: &mut Remote, disk: &str, job: &str, target: &Target) -> Result<(), Failure> {
    let begun = remote.ask("blockdev-add", target.node.clone()).and_then(|_| {
        let mirror = json!({ "job-id": job, "device": disk, "target": target.name, "sync": "full",
            "speed": args.rate.unwrap_or(0), "auto-dismiss": false });
        let begun = remote.ask("blockdev-mirror", mirror);
        if begun.is_err() {
            // Why the job is not begun is what the user has to know.
            let _ = remote.remove_node(&target.name);
        }
        begun
    });
    begun.map(drop).inspect_err(|_| target.remove())
}

/// The bitmaps that go along, if they are to. `goes_on`: an earlier command, which was killed, may have given some.
fn find_bitmaps(
    args: &Args,
    remote: &mut Remote,
    disk: &str,
    node: &str,
    goes_on: bool,
) -> Result<Option<Bitmaps>, Failure> {
    let Some(socket) = &args.bitmaps_to else {
        return Ok(None);
    };
    let target = args.target.to_string_lossy();
    let export = is_export(Path::new(&args.target)).then(|| export_name(&target)).transpose()?;
    let place = export.as_ref().map_or(Place::Node(node), |name| Place::Export(&name.export));
    Bitmaps::find(remote, disk, Remote::connect(socket)?, &place, goes_on).map(Some)
}

fn mirror(
    args: &Args,
    remote: &mut Remote,
    (disk, job): (&str, &str),
    bitmaps: Option<&mut Bitmaps>,
    watch: &Watch,
) -> Result<(), Failure> {
    if remote.watch_job(job, watch, Until::Ready)? == Until::Ended {
        return Ok(());
    }
    if let Some(bitmaps) = bitmaps {
        bitmaps.give(remote, disk, watch).inspect_err(|_| remote.cancel_job(job, watch))?;
    }
    let (command, arguments) = match args.switch {
        true => ("job-complete", json!({ "id": job })),
        false => ("block-job-cancel", json!({ "device": job })),
    };
    remote.ask(command, arguments)?;
    remote.watch_job(job, watch, Until::Ended).map(drop)
}

impl Target {
    fn make(args: &Args, remote: &mut Remote, disk: &str, name: String) -> Result<Self, Failure> {
        let path = Path::new(&args.target);
        if is_export(path) {
            let file = export(&args.target.to_string_lossy())?;
            let node = json!({ "driver": "raw", "node-name": name, "file": file });
            return Ok(Self { node, name, made: None });
        }
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot find {}", path.display()), error)
        };
        if !args.no_create {
            let image = NewImage::parse(&[], args.format).map_err(|error| failed(&error))?;
            make(path, &image, remote.disk_bytes(disk)?, Existing::Refuse)?;
        }
        // The server may be in another directory.
        let path = path.canonicalize().map_err(|error| failed(&error))?;
        let file = json!({ "driver": "file", "filename": path });
        let node =
            json!({ "driver": args.format.name(), "node-name": name, "discard": "unmap", "file": file });
        Ok(Self { node, name, made: (!args.no_create).then_some(path) })
    }

    fn remove(&self) {
        self.made.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Whether TARGET is an export, not a file.
fn is_export(path: &Path) -> bool {
    elsewhere(path).is_some() && path.symlink_metadata().is_err()
}

fn export_name(name: &str) -> Result<ExportName, Failure> {
    ExportName::parse(name)
        .map_err(|error| Failure::because(format!("{name} is no place for a copy"), &error))
}

/// The options of an export.
fn export(name: &str) -> Result<Value, Failure> {
    let export = export_name(name)?;
    let server = match export.server {
        Server::Unix(path) => json!({ "type": "unix", "path": path }),
        Server::Abstract(name) => {
            let (path, tight) = name.parts();
            json!({ "type": "unix", "path": path, "abstract": true, "tight": tight })
        }
        Server::Passed(name) => json!({ "type": "fd", "str": name }),
        Server::Tcp { host, port } => json!({ "type": "inet", "host": host, "port": port.to_string() }),
    };
    let mut options = json!({ "driver": "nbd", "server": server, "export": export.export });
    if let Some(tls) = export.tls {
        let Credentials::Id(id) = tls.credentials else {
            return Err(Failure::new(format!("{name}: give ?tls-creds=ID of an object of the server"))
                .with_hint(
                    "object-add, or --object tls-creds-x509,id=ID,endpoint=client,dir=DIR of cowhand serve",
                ));
        };
        options["tls-creds"] = json!(id);
        if let Some(hostname) = tls.hostname {
            options["tls-hostname"] = json!(hostname);
        }
    }
    Ok(options)
}
