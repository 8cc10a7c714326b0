//! More descriptors of one mount: each takes requests, and answers those that it took.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::ioctl::{Setter, ioctl, opcode};

/// `FUSE_DEV_IOC_CLONE`: makes a descriptor of /dev/fuse one more of the mount whose descriptor's number is given.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// `device`, which a mount gave, and more of the same: `count` in all, or as many as the kernel gives. Without the right to open /dev/fuse
/// there is one.
pub(crate) fn with_clones(device: OwnedFd, count: usize) -> Vec<OwnedFd> {
    let mut devices = vec![device];
    while devices.len() < count {
        match clone_of(&devices[0]) {
            Ok(clone) => devices.push(clone),
            Err(error) => {
                tracing::info!(%error, "one loop alone serves the mount");
                break;
            }
        }
    }
    devices
}

fn clone_of(device: &OwnedFd) -> io::Result<OwnedFd> {
    let clone = OwnedFd::from(File::options().read(true).write(true).open("/dev/fuse")?);
    let number = device.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: the command takes the address of four bytes.
    let command = unsafe { Setter::<CLONE, u32>::new(number) };
    // SAFETY: it reads them, and nothing else.
    unsafe { ioctl(&clone, command)? };
    Ok(clone)
}
