//! Disks for virtual machine monitors, in process: qcow2 and raw images with their backing chains, cache modes, limits, snapshots
//! and file locks. Images stay plain: QEMU opens everything that is written here, and the reverse, at any moment.
//!
//! # A disk
//!
//! [`create`] makes an image, [`Disk::open`] and [`OpenOptions`] open one. All options have QEMU's names and rules. What takes time
//! gives a [`Pending`], which is under way already: `.await` it in any executor, [`wait`](Pending::wait) for it on any thread, or
//! give it a callback with [`on_completion`](Pending::on_completion). There is no runtime to choose and none to start.
//!
//! ```
//! use cowhand::{Cache, Disk, Error, NewImage, OpenOptions, create};
//!
//! # fn main() -> Result<(), Error> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("disk.qcow2");
//! create(&path, NewImage::qcow2(20 << 30)).wait()?;
//! let disk = OpenOptions::new(&path).cache(Cache::Writeback).discard(true).open().wait()?;
//!
//! disk.write(4096, vec![7; 4096]).wait()?;
//! disk.flush().wait()?;
//! let mut bytes = [0; 512];
//! disk.read_at(4096, &mut bytes)?;
//! assert_eq!(bytes, [7; 512]);
//!
//! disk.close().wait()
//! # }
//! ```
//!
//! # Futures
//!
//! ```
//! # use cowhand::{Buffer, Disk, Error, NewImage, create};
//! async fn copy_sector(disk: &Disk, from: u64, to: u64) -> Result<(), Error> {
//!     let sector = disk.read(from, Buffer::new(512)).await?;
//!     disk.write(to, sector).await?;
//!     disk.flush().await
//! }
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("disk.qcow2");
//! # create(&path, NewImage::qcow2(1 << 20)).wait().unwrap();
//! # let disk = Disk::open(&path).wait().unwrap();
//! # futures_executor::block_on(copy_sector(&disk, 0, 512)).unwrap();
//! # disk.close().wait().unwrap();
//! ```
//!
//! A future that is dropped cancels nothing: the request still happens, and its bytes are freed when it is done.
//!
//! # Queues
//!
//! A device model with an event loop of its own uses a [`Queue`]: it submits with a number, is woken by an eventfd, and takes
//! completions in batches.
//!
//! ```
//! # use cowhand::{Buffer, Disk, Error, NewImage, Request, create};
//! # fn main() -> Result<(), Error> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("disk.qcow2");
//! # create(&path, NewImage::qcow2(1 << 20)).wait()?;
//! # let disk = Disk::open(&path).wait()?;
//! let mut queue = disk.queue(256)?;
//! for descriptor in 0..16 {
//!     let buffer = Buffer::new(4096);
//!     queue.submit(Request::Read { offset: descriptor * 4096, buffer }, descriptor)?;
//! }
//! let event = queue.completion_fd()?; // for epoll: readable while there are completions
//! # let _ = event;
//! let mut done = Vec::new();
//! while queue.in_flight() > 0 {
//!     queue.completions(&mut done, 1, None)?; // or a minimum of 0 after the event: never waits
//! }
//! assert!(done.iter().all(|completion| completion.result.is_ok()));
//! # disk.close().wait()
//! # }
//! ```
//!
//! # Bytes
//!
//! A request owns its bytes while it is in flight and gives them back when it is done, also when it failed
//! ([`Error::into_buffer`]). Bytes in a [`Buffer`] of ours are not copied: the device reads and writes them. A `Vec<u8>` and the
//! slices of [`Disk::read_at`] and [`Disk::write_at`] are copied once, except where a read finds its bytes in memory.
//!
//! Memory of a guest is lent as [`ForeignBytes`], ranges that an owner keeps mapped: the device fills and reads them in place, and what
//! has to be looked at is copied first, because the guest may change it.
//!
//! ```
//! # use std::ptr::NonNull;
//! # use std::sync::Arc;
//! # use cowhand::{Disk, Error, ForeignBytes, NewImage, create};
//! # fn main() -> Result<(), Error> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("disk.qcow2");
//! # create(&path, NewImage::qcow2(1 << 20)).wait()?;
//! # let disk = Disk::open(&path).wait()?;
//! # struct Mapping(Vec<u8>);
//! # let map_guest = || Mapping(vec![0; 8192]);
//! let mut mapping = map_guest(); // the type that unmaps when it is dropped
//! # mapping.0.fill(7);
//! let start = NonNull::new(mapping.0.as_mut_ptr()).unwrap();
//! let owner = Arc::new(mapping);
//! // SAFETY: the owner keeps the 8192 bytes mapped, and nothing refers to them.
//! let page = unsafe { ForeignBytes::new([(start, 4096)], owner.clone()) };
//! disk.write_from(0, page.clone()).wait()?;
//! disk.read_into(4096, page).wait()?;
//! # assert_eq!(owner.0[..4096], [0; 4096]);
//! # disk.close().wait()
//! # }
//! ```
//!
//! # Jobs
//!
//! With the feature `jobs` a disk that is in use is committed, streamed, mirrored or backed up: `Disk::commit`, `Disk::stream`, `Disk::mirror` and
//! `Disk::backup` give a `Job`, on which a caller waits, and which it pauses, slows down, cancels and completes.
//!
//! # Checkpoints
//!
//! With the feature `checkpoints` a disk that is in use gets checkpoints (`Disk::checkpoint`), which are layers in the directory `layers` beside it; they are
//! listed, forked into new disks, compared, deleted and merged, and the disk continues from one of them (`Disk::rollback`). With the feature `s3`, too, they are
//! uploaded to object stores while the disk is in use (`Disk::publish`), and disks begin as one that is there (`restore`); a disk without checkpoints is
//! uploaded as it is at one moment (`Disk::push`). The program `cowhand` and its server do the same on the same files.
//!
//! # Threads
//!
//! Each disk has a thread with an event loop, or shares the threads of [`Loops`]. A submission from another thread costs a lock,
//! and a system call only if the loop sleeps; what comes while it wakes up costs none. Reads of up to 64 KiB whose bytes are in
//! memory do not go there at all.
//!
//! Every method may be called from any thread. Nothing panics for the state of a disk: one that is closed, or whose loop has
//! ended, gives an [`Error`]. In a callback, which runs on the loop, waiting is refused with [`ErrorKind::WouldDeadlock`].
//!
//! # The end
//!
//! Close a disk: [`Disk::close`] says whether everything reached the device. A disk that is dropped is closed in the background,
//! as far as the process lives; then a crash is the worst that it looks like, and what was flushed is there.
//!
//! # Encrypted images
//!
//! With the feature `luks` encrypted qcow2 images and LUKS files are opened, and made ([`NewImage::encrypted`]). [`add_secret`] adds a password by an id, and an option of the disk names that:
//! `OpenOptions::new(path).set("encrypt.key-secret", id)`, of a LUKS file `key-secret`. Each image of a chain has its own (`backing.encrypt.key-secret`).
//!
//! # Hostile images
//!
//! Names inside an image are followed only to regular files in its own directory, or under [`OpenOptions::allow_path`], and to
//! NBD servers only where [`OpenOptions::allow_name`] says so. Nothing is
//! allocated in proportion to what an image says before that is checked; damage is an [`ErrorKind::Corrupt`].

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod buffer;
#[cfg(feature = "checkpoints")]
mod checkpoints;
mod completions;
mod create;
mod disk;
mod error;
mod formats;
mod in_flight;
#[cfg(feature = "jobs")]
mod jobs;
mod loops;
mod options;
mod pending;
mod queue;
mod request;
mod secrets;

pub use block::ZeroOptions;
pub use graph::front::{Kind, KindStatistics, Statistics};
pub use graph::options::Aio;
pub use graph::probe::Format;
pub use luks::NewVolume;
pub use memory::{ForeignBytes, ForeignPart};
pub use qcow2::{CreateOptions, Preallocation, ResizeOptions};
pub use qcow2_layout::{Compression, Version};

pub use crate::buffer::Buffer;
#[cfg(feature = "checkpoints")]
pub use crate::checkpoints::{
    Checkpoint, Collect, Difference, Differences, Forget, Forgotten, Keep, MergedLayers, NeededLayer,
    NewCheckpoint, Removal, Removed, Says,
};
#[cfg(all(feature = "checkpoints", feature = "s3"))]
pub use crate::checkpoints::{Publish, Published, Push, Restore, Restored, restore};
pub use crate::completions::Completion;
pub use crate::create::{Existing, NewImage, create, create_whole};
pub use crate::disk::{Disk, Extent, Info, Snapshot};
pub use crate::error::{Error, ErrorKind, Place};
pub use crate::formats::{format_called, formats};
#[cfg(feature = "jobs")]
pub use crate::jobs::{Backup, Commit, Copied, Job, JobInfo, JobStatus, Mirror, Stream};
pub use crate::loops::Loops;
pub use crate::options::{Cache, MapMemory, OpenOptions, map_memory, set_map_memory_max};
pub use crate::pending::Pending;
pub use crate::queue::Queue;
pub use crate::request::Request;
pub use crate::secrets::{add_secret, remove_secret};

/// The page of the crate, whose example runs with those above.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
