//! What the tools share that copy disks: opening them, watching the copy, the file that is made.

mod fixed_name;
pub mod made;
pub mod new_device;
pub mod new_elsewhere;
pub mod new_file;
pub mod object;
pub mod passing;
pub mod pipe;
pub mod report;
pub mod watch;
pub mod whole_image;
mod write_behind;

use std::error::Error;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use graph::names::{Policy, beside, directory_of};
use graph::options::DiskOptions;
use graph::{Disk, FoundImage, MAP_MEMORY_MIN, OpenRules};
use qcow2::Budget;
use reactor::Reactor;
use tool::failure::Failure;
use tool::info::name::is_same_file;
use tool::voice;

use crate::drive::parse_bytes;

/// Default memory of a tool that copies, for maps and for data in flight.
pub const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// Bytes of a copy that wait for writeback at most: they occupy page cache that cannot be dropped.
pub const WAITING_BYTES_MAX: u64 = 32 << 20;
/// Less is not enough for the maps of a few images.
pub const MEMORY_BYTES_MIN: u64 = 4 * MAP_MEMORY_MIN;

/// How many bytes of memory go where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// For what is read and not written yet.
    pub copy_bytes: u64,
    /// For the maps of all images.
    pub map_bytes: u64,
}

impl Memory {
    /// A quarter for what is under way, a half for maps: the rest is the program's.
    pub fn of(limit_bytes: u64) -> Self {
        Self { copy_bytes: limit_bytes / 4, map_bytes: (limit_bytes / 2).max(MAP_MEMORY_MIN) }
    }

    /// How the images are opened.
    pub fn rules(&self, policy: Policy) -> OpenRules {
        OpenRules { policy, ..OpenRules::within(Budget::new(self.map_bytes)) }
    }
}

/// The argument of `--memory-limit`.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes < MEMORY_BYTES_MIN => Err("allowed: 4M and more".to_owned()),
        bytes => Ok(bytes),
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::of(MEMORY_BYTES_DEFAULT)
    }
}

/// The loop of a tool.
pub fn reactor() -> Result<Reactor, Failure> {
    reactor_over(reactor::Backend::Ring)
}

/// The loop of a tool that reads little and ends: making a ring takes longer than that.
pub fn small_reactor() -> Result<Reactor, Failure> {
    reactor_over(reactor::Backend::Threads)
}

fn reactor_over(backend: reactor::Backend) -> Result<Reactor, Failure> {
    Reactor::new(backend).map_err(|error| Failure::because("cannot start an event loop", &error))
}

/// Opens a disk; `doing` is the verb of the command.
pub async fn open(options: &DiskOptions, rules: &OpenRules, doing: &str) -> Result<Arc<Disk>, Failure> {
    let disk = graph::open(options, rules).await.map_err(|error| {
        let failure = because(doing, options, &error);
        if options.layer.read_only { failure.with_hint_about_lock(&error) } else { failure }
    })?;
    let disk = Arc::new(disk);
    disk.start_upkeep();
    Ok(disk)
}

/// Closes `disk`, whatever became of what was `done` with it, and waits for its work in the background: its lock is free then. The
/// first failure counts; `failed` says one of closing.
pub async fn finish<T>(
    disk: &Disk,
    done: Result<T, Failure>,
    failed: impl FnOnce(&dyn Error) -> Failure,
) -> Result<T, Failure> {
    let closed = disk.close().await.map_err(|error| failed(&error));
    disk.idle().await;
    done.and_then(|done| closed.map(|()| done))
}

/// Whether `name` is what the image above calls `found`, or another name of the same file. QEMU's tools have it begin at the directory of
/// the image above, ours at the working directory.
pub fn is_named(name: &Path, above: Option<&FoundImage>, found: &FoundImage) -> bool {
    let named = above.filter(|above| is_what_image_names(above, found)).and_then(backing_name);
    let begin =
        above.filter(|_| voice::is_qemu()).map(|above| directory_of(Path::new(above.storage().name())));
    let name_here = begin.map_or_else(|| name.to_owned(), |begin| begin.join(name));
    named.map(OsStr::new) == Some(name.as_os_str())
        || is_same_file(&name_here, Path::new(found.storage().name()))
}

/// Whether the header of `above` leads to `found`. Options of the user may have put another file there.
pub fn is_what_image_names(above: &FoundImage, found: &FoundImage) -> bool {
    let name = || Some(beside(Path::new(above.storage().name()), backing_name(above)?));
    !found.is_named_by_options()
        || name().is_some_and(|name| is_same_file(&name, Path::new(found.storage().name())))
}

fn backing_name(image: &FoundImage) -> Option<&str> {
    image.header.as_ref()?.backing.as_deref()
}

/// `doing` the disk of `options` failed.
pub fn because(doing: &str, options: &DiskOptions, error: &dyn Error) -> Failure {
    Failure::because(format!("cannot {doing} {}", options.filename.display()), error)
}
