//! What the kernel says about a file when it is asked. Nothing is written, nothing is changed, and no call waits for the disk longer than
//! finding the file's last extent takes; what only trying would tell is noted when the driver tries.

use std::io::IoSliceMut;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{AtFlags, IFlags, SeekFrom, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::alignment::{self, DirectAlignment, Stated};
use super::extent;
use super::kind::{Kind, kind_of, length_of};
use super::open_error::{OpenError, failed};
use crate::medium::{Answer, DirectRequests, Medium, XFS};

/// The end of a file in which a hole is looked for: few extents, so that looking is cheap whatever the file.
const TAIL: u64 = 64 << 10;

/// What the kernel says about an open file or device, `name` in messages. Costs a handful of system calls; reads and writes none of its bytes.
///
/// # Errors
/// If it is neither a regular file nor a block device, or has no length.
pub fn ask_medium(fd: impl AsFd, name: &str) -> Result<Medium, OpenError> {
    let kind = kind_of(&fd, name)?;
    let length = length_of(&fd, kind).map_err(|errno| failed(name, "open", errno))?;
    let is_direct =
        rustix::fs::fcntl_getfl(&fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT));
    Ok(match is_direct {
        true => ask(&fd, kind, length, alignment::find(&fd, kind)),
        false => ask(&fd, kind, length, None),
    })
}

/// The same for a caller that has found out the rest already. `direct`: what requests beside the page cache have to keep to, if
/// the file is opened for them.
pub(super) fn ask(fd: impl AsFd, kind: Kind, length: u64, direct: Option<DirectAlignment>) -> Medium {
    let cached = direct.is_none();
    let medium = Medium {
        reads_without_waiting: if cached { reads_without_waiting(&fd, length) } else { Answer::NotTried },
        direct: direct.map_or_else(|| stated(&fd), DirectAlignment::demands),
        ..Medium::default()
    };
    match kind {
        Kind::Regular => of_file(fd, length, medium),
        Kind::BlockDevice => of_device(fd, medium),
        Kind::CharacterDevice => medium,
    }
}

fn of_file(fd: impl AsFd, length: u64, known: Medium) -> Medium {
    let file_system = rustix::fs::fstatfs(&fd).ok().map(|stat| stat.f_type.cast_unsigned());
    let medium = Medium {
        file_system,
        tells_holes: tells_holes(&fd, length),
        shares_extents: shares_extents(&fd, file_system),
        ..known
    };
    let in_place = || rustix::fs::ioctl_getflags(&fd).is_ok_and(|flags| flags.contains(IFlags::NOCOW));
    Medium { overwrite_room: medium.overwrite_room(in_place()), ..medium }
}

/// A device is all data, and in no file system. Whether it overwrites in place is between it and what it is made of.
fn of_device(fd: impl AsFd, known: Medium) -> Medium {
    Medium {
        tells_holes: Answer::No,
        shares_extents: Answer::No,
        logical_block_bytes: rustix::fs::ioctl_blksszget(&fd).ok(),
        discard_granularity_bytes: discard_granularity(&fd),
        ..known
    }
}

/// Reads a byte behind the end, where there is nothing to wait for.
fn reads_without_waiting(fd: impl AsFd, length: u64) -> Answer {
    let mut byte = [0];
    match rustix::io::preadv2(fd, &mut [IoSliceMut::new(&mut byte)], length, ReadWriteFlags::NOWAIT) {
        Ok(_) | Err(Errno::AGAIN) => Answer::Yes,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Answer::No,
        Err(_) => Answer::NotTried,
    }
}

/// A file system that cannot tell says that all is data, like one that finds no hole: only a hole proves anything.
fn tells_holes(fd: impl AsFd, length: u64) -> Answer {
    if length == 0 {
        return Answer::NotTried;
    }
    match rustix::fs::seek(fd, SeekFrom::Hole(length.saturating_sub(TAIL))) {
        Ok(hole) if hole < length => Answer::Yes,
        Ok(_) => Answer::NotTried,
        Err(_) => Answer::No,
    }
}

fn shares_extents(fd: impl AsFd, file_system: Option<u64>) -> Answer {
    match extent::has_remapping(&fd) {
        Ok(true) if file_system == Some(XFS) => {
            // XFS knows the call even where it was made without what it needs for it.
            extent::xfs_has_reflink(&fd).map_or(Answer::NotTried, Answer::of)
        }
        Ok(remaps) => Answer::of(remaps),
        Err(_) => Answer::NotTried,
    }
}

/// What `statx` says of direct requests to a file that is not opened for them.
fn stated(fd: impl AsFd) -> DirectRequests {
    match alignment::stated(fd) {
        Stated::Alignment(alignment) => alignment.demands(),
        Stated::Refused => DirectRequests::Refused,
        Stated::Unknown => DirectRequests::NotTried,
    }
}

/// From sysfs: no call says it. A partition has it in the directory above its own.
fn discard_granularity(fd: impl AsFd) -> Option<u32> {
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE).ok()?;
    let device = format!("/sys/dev/block/{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor);
    let read = |queue: &str| std::fs::read_to_string(format!("{device}/{queue}/discard_granularity")).ok();
    read("queue").or_else(|| read("../queue"))?.trim().parse().ok()
}

/// Answers that came by trying.
#[derive(Debug, Default)]
pub(super) struct Tried {
    pub(super) tells_holes: Learned,
    pub(super) punches_holes: Learned,
    pub(super) zeroes_ranges: Learned,
    /// The kernel copies from other files into this one.
    pub(super) copies_between: Learned,
}

impl Tried {
    /// What was asked, and what was learned since.
    pub(super) fn added_to(&self, asked: Medium) -> Medium {
        Medium {
            tells_holes: self.tells_holes.get().unwrap_or(asked.tells_holes),
            punches_holes: self.punches_holes.get().unwrap_or(asked.punches_holes),
            zeroes_ranges: self.zeroes_ranges.get().unwrap_or(asked.zeroes_ranges),
            ..asked
        }
    }
}

/// One of them: 0 is no answer yet. Any thread may learn it; who learns last is right, or a moment early.
#[derive(Debug, Default)]
pub(super) struct Learned(AtomicU8);

impl Learned {
    const YES: u8 = 1;
    const NO: u8 = 2;

    pub(super) fn note(&self, yes: bool) {
        let value = if yes { Self::YES } else { Self::NO };
        // Written once: every request comes by here.
        if self.0.load(Ordering::Relaxed) != value {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> Option<Answer> {
        match self.0.load(Ordering::Relaxed) {
            Self::YES => Some(Answer::Yes),
            Self::NO => Some(Answer::No),
            _ => None,
        }
    }
}
