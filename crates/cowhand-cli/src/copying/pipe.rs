//! Pipes, as the source of a copy and as the target of a raw copy.
//!
//! `-` is standard input for a source and standard output for a target. So are `/dev/stdin` and
//! `/dev/stdout`, and any path of a FIFO. If standard input or output is a file, that file is used.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Blame, Block, BlockFuture, Capabilities, Error, Hints, ZeroOptions};
use graph::fd_sets::FdSets;
use graph::probe::Format;
use memory::{IoBytes, IoVec};
use rustix::fs::{CWD, Mode, OFlags};
use tool::failure::Failure;

/// Read from a pipe at a time. Zeroes of that length stay holes.
const PIECE_BYTES: usize = 64 << 10;

/// Which end of a pipe is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Input,
    Output,
}

impl End {
    const fn path(self) -> &'static str {
        match self {
            Self::Input => "/dev/stdin",
            Self::Output => "/dev/stdout",
        }
    }

    fn standard(self) -> io::Result<OwnedFd> {
        match self {
            Self::Input => io::stdin().as_fd().try_clone_to_owned(),
            Self::Output => io::stdout().as_fd().try_clone_to_owned(),
        }
    }

    /// The pipe that `name` leads to, if it leads to one.
    fn pipe(self, name: &OsStr) -> Option<io::Result<File>> {
        let is_standard = name == "-" || name == self.path();
        let path = Path::new(if is_standard { OsStr::new(self.path()) } else { name });
        let kind = std::fs::metadata(path).ok()?.file_type();
        // Standard output is written in order whatever it is; standard input that is a file is read as one.
        let is_file = self == Self::Input && (kind.is_file() || kind.is_block_device());
        if !(kind.is_fifo() || (is_standard && !is_file)) {
            return None;
        }
        Some(match (is_standard, self) {
            (true, _) => self.standard().map(File::from),
            (false, Self::Input) => File::open(path),
            (false, Self::Output) => File::options().write(true).open(path),
        })
    }
}

/// What stands for `name` among the sources: what comes out of a pipe is put into a file without a name in `TMPDIR` (or `/var/tmp`),
/// which is in `sets` then and takes the space of what is not zero. `-` becomes the path of standard input.
///
/// # Errors
/// When the pipe cannot be read to its end, or the file has no room.
pub fn source(name: &OsStr, sets: &FdSets) -> Result<OsString, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot read {} to its end", Path::new(name).display()), error)
    };
    let Some(pipe) = End::Input.pipe(name) else {
        return Ok(if name == "-" { End::Input.path().into() } else { name.to_owned() });
    };
    let file = pipe.and_then(spool).map_err(|error| failed(&error))?;
    let (set, _) = sets.add(None, file.into(), None).map_err(|error| failed(&error))?;
    Ok(format!("/dev/fdset/{set}").into())
}

fn spool(mut pipe: File) -> io::Result<File> {
    let directory = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, &directory, flags, Mode::RUSR | Mode::WUSR);
    let explained = |error: rustix::io::Errno| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("no file in {} to put it into: {error}", directory.display()))
    };
    let mut file = File::from(file.map_err(explained)?);
    let (mut piece, mut len) = (vec![0; PIECE_BYTES], 0_u64);
    loop {
        let mut filled = 0;
        while filled < piece.len() {
            match pipe.read(&mut piece[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        len += filled as u64;
        if piece[..filled].iter().any(|&byte| byte != 0) {
            file.write_all(&piece[..filled])?;
        } else {
            file.seek(SeekFrom::Start(len))?;
        }
        if filled < piece.len() {
            file.set_len(len)?;
            return Ok(file);
        }
    }
}

/// A pipe that takes the bytes of a disk from the first to the last.
#[derive(Debug)]
pub struct PipeTarget {
    name: String,
    size: u64,
    pipe: Arc<File>,
    /// What has been written. Only the one write that is under way changes it.
    bytes: AtomicU64,
}

impl PipeTarget {
    /// The pipe that `name` leads to, for a disk of `size` bytes; None if it leads to none. Waits for a reader of a FIFO.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(name: &OsStr, size: u64) -> Option<Result<Self, Failure>> {
        let name_shown = Path::new(name).display().to_string();
        let opened = End::Output.pipe(name)?;
        let opened =
            opened.map_err(|error| Failure::because(format!("cannot write to {name_shown}"), &error));
        Some(opened.map(|pipe| Self {
            name: name_shown,
            size,
            pipe: Arc::new(pipe),
            bytes: AtomicU64::new(0),
        }))
    }

    /// Refuses a disk that does not go through a pipe.
    ///
    /// # Errors
    /// For any format but raw.
    pub fn check_format(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Raw => Ok(()),
            other => Err(self.refused(&format!("{other} is not written in that order"))),
        }
    }

    /// The failure of writing an image of which this is so.
    pub fn refused(&self, why: &str) -> Failure {
        Failure::explained(
            format!("cannot write to {}", self.name),
            format!("a pipe takes bytes from the first to the last, and {why}"),
        )
        .with_hint("-O raw, or a file as the target")
    }

    /// Writes `data` at `offset`, zeroes up to there.
    ///
    /// # Errors
    /// When the pipe is closed.
    pub async fn write_behind(&self, offset: u64, data: IoVec) -> Result<(), Error> {
        let end = self.bytes.load(Ordering::Relaxed);
        if offset > end {
            self.zero(end, offset - end, ZeroOptions::default()).await?;
        }
        self.append(offset, data).await
    }

    fn blame(&self) -> Blame {
        Blame::new(&self.name)
    }

    async fn append(&self, offset: u64, data: IoVec) -> Result<(), Error> {
        debug_assert_eq!(offset, self.bytes.load(Ordering::Relaxed), "a pipe takes bytes in their order");
        let (pipe, len) = (Arc::clone(&self.pipe), data.len() as u64);
        let written =
            reactor::blocking(move || data.parts().iter().try_for_each(|part| (&*pipe).write_all(part)));
        written.await.map_err(self.blame().io("writing data"))?;
        self.bytes.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }
}

impl Block for PipeTarget {
    fn driver(&self) -> &'static str {
        "pipe"
    }

    fn refusal(&self) -> &'static str {
        "a pipe is only written"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: false, alignment: 1, cached: false, cluster_bytes: None }
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.append(offset, data))
    }

    fn zero(&self, offset: u64, len: u64, _: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let zeroes = IoBytes::zeroed(PIECE_BYTES);
            let mut at = offset;
            while at < offset + len {
                let piece = (offset + len - at).min(PIECE_BYTES as u64);
                self.append(at, zeroes.slice(0, piece as usize).into()).await?;
                at += piece;
            }
            Ok(())
        })
    }
}
