//! fusermount3, which is root's and mounts for everybody (fusermount3(1)). It opens the device, and sends it through a socket.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::{AllowOther, MountError, MountOptions, SOURCE};
use crate::limits::PROGRAM_PATIENCE;

const PROGRAM: &str = "fusermount3";

/// What names the socket to it: its standard input.
const SOCKET: (&str, &str) = ("_FUSE_COMMFD", "0");

/// Bytes of what it says that are reported.
const SAID_BYTES_MAX: u64 = 4096;

pub(super) fn mount(path: &Path, options: MountOptions) -> Result<OwnedFd, MountError> {
    let with = |others: bool| mount_with(path, options.read_only, others);
    match options.allow_other {
        AllowOther::On => with(true),
        AllowOther::Off => with(false),
        // A user may say so only where /etc/fuse.conf has user_allow_other.
        AllowOther::Auto => match with(true) {
            Err(MountError::ProgramRefused(_)) => with(false),
            mounted => mounted,
        },
    }
}

fn mount_with(path: &Path, read_only: bool, others: bool) -> Result<OwnedFd, MountError> {
    let access = if read_only { "ro" } else { "rw" };
    let others = if others { ",allow_other,default_permissions" } else { "" };
    let options = format!("fsname={SOURCE},subtype={SOURCE},nosuid,nodev,{access}{others}");
    let (ours, theirs) = UnixStream::pair().map_err(MountError::NoProgram)?;
    let timeout: Option<Duration> = Some(PROGRAM_PATIENCE);
    ours.set_read_timeout(timeout).map_err(MountError::NoProgram)?;
    let mut command = Command::new(PROGRAM);
    command.args(["-o", &options, "--"]).arg(path).env(SOCKET.0, SOCKET.1);
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(MountError::NoProgram)?;
    // Ours is the only end that stays open here: what the program sends ends with it.
    drop(command);
    let device = receive(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take().map(|stderr| stderr.take(SAID_BYTES_MAX)) {
        // It may say nothing.
        let _ = stderr.read_to_string(&mut said);
    }
    let status = child.wait().map_err(MountError::NoProgram)?;
    match device {
        Ok(Some(device)) if status.success() => Ok(device),
        _ if !said.trim().is_empty() => Err(MountError::ProgramRefused(said.trim().to_owned())),
        _ => Err(MountError::ProgramRefused(status.to_string())),
    }
}

/// The device, with the one byte that comes with it.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut devices = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
        _ => None,
    });
    Ok(devices.next())
}

pub(super) fn unmount(path: &Path) -> io::Result<()> {
    let output = Command::new(PROGRAM)
        .args(["-u", "-z", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
