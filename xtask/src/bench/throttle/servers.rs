//! cowhand and QEMU's throttle filter, each with the same limits over the same images.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::Bench;
use crate::bench::server::Daemon;

/// Whose limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Cowhand,
    /// `driver=throttle` in a qemu-storage-daemon.
    Qemu,
}

impl Program {
    pub const BOTH: [Self; 2] = [Self::Cowhand, Self::Qemu];
}

/// Limits, as `throttling.*` names them, and their values; none: no limit.
pub type Limits<'a> = &'a [(&'static str, u64)];

/// A disk to be served: its export's name, and its image.
#[derive(Clone, Debug)]
pub struct Disk {
    pub export: String,
    pub image: PathBuf,
}

impl Disk {
    /// `image` as `bench`.
    pub fn bench(image: &Path) -> Self {
        Self { export: "bench".to_owned(), image: image.to_owned() }
    }
}

/// Serves `disks`, which share `limits` in one group, at a socket called `name`.
pub fn serve(
    bench: &Bench,
    program: Program,
    name: &str,
    disks: &[Disk],
    limits: Limits<'_>,
) -> Result<Daemon, String> {
    match program {
        Program::Cowhand => {
            let drive = |disk: &Disk| {
                let mut drive = format!("file={},id={}", disk.image.display(), disk.export);
                limits.iter().for_each(|(name, value)| drive += &format!(",throttling.{name}={value}"));
                if disks.len() > 1 && !limits.is_empty() {
                    drive += ",throttling.group=g";
                }
                drive
            };
            let drives: Vec<String> = disks.iter().map(drive).collect();
            cowhand(bench, name, &drives, &[])
        }
        Program::Qemu => Daemon::start_qemu(qemu(disks, limits, &bench.path(name)), bench.path(name)),
    }
}

/// Serves drives with cowhand.
pub fn cowhand(bench: &Bench, name: &str, drives: &[String], more: &[&str]) -> Result<Daemon, String> {
    let socket = bench.path(name);
    let mut command = Command::new(&bench.cowhand);
    command.args(["serve", "--socket"]).arg(&socket).args(more).args(drives);
    Daemon::start(command, socket)
}

fn qemu(disks: &[Disk], limits: Limits<'_>, socket: &Path) -> Command {
    let limits: String = limits.iter().map(|(name, value)| format!(",limits.{name}={value}")).collect();
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--object").arg(format!("throttle-group,id=group{limits}"));
    command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={}", socket.display()));
    for Disk { export, image } in disks {
        let add = |node: String| ["--blockdev".to_owned(), node];
        command.args(add(format!("driver=file,node-name={export}-file,filename={}", image.display())));
        command.args(add(format!("driver=qcow2,node-name={export}-image,file={export}-file")));
        // Without limits QEMU has no filter at all.
        let top = match limits.is_empty() {
            true => format!("{export}-image"),
            false => format!("{export}-limit"),
        };
        if !limits.is_empty() {
            let filter = format!("driver=throttle,node-name={top},throttle-group=group,file={export}-image");
            command.args(add(filter));
        }
        let shown = format!("type=nbd,id={export}-nbd,node-name={top},name={export},writable=on");
        command.args(["--export".to_owned(), shown]);
    }
    command
}
