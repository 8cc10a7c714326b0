//! What is put to the test, as the simulation sees it.

use std::fmt;
use std::future::Future;

use storage::{IoBuf, IoVec, Zeroing};

use crate::model::{DiscardedReads, Model};
use crate::world::World;

/// Whether a reply promises that what was written is on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The next flush promises it.
    AtFlush,
    /// The reply itself promises it (FUA).
    AtReply,
}

/// An operation on the disk as a whole; nothing else is in flight while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// Change the size of the disk to so many bytes.
    Resize(u64),
    /// Take a snapshot.
    SnapshotCreate(u32),
    /// Go back to a snapshot.
    SnapshotApply(u32),
    /// Delete a snapshot.
    SnapshotDelete(u32),
    /// Change what can be changed of an open disk to what it would be opened with in this way.
    Change(u32),
}

/// An opened disk. Its operations may run at the same time; a future may be dropped at any point.
pub trait Subject: 'static {
    /// What goes wrong.
    type Error: fmt::Display;

    /// Size in bytes.
    fn size(&self) -> u64;

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: IoBuf) -> impl Future<Output = (Result<(), Self::Error>, IoBuf)>;

    /// Writes `data` at `offset`.
    fn write(
        &self,
        offset: u64,
        data: IoVec,
        durability: Durability,
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Makes the range read as zeroes.
    fn zero(
        &self,
        offset: u64,
        len: u64,
        how: Zeroing,
        durability: Durability,
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Says that no client needs the bytes of the range any more.
    fn discard(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), Self::Error>>;

    /// Changes in one of several ways what is only in memory: drops caches, gives them other sizes.
    fn tidy(&self, _how: u32) -> impl Future<Output = Result<(), Self::Error>> {
        std::future::ready(Ok(()))
    }

    /// Makes durable what has ended before.
    fn flush(&self) -> impl Future<Output = Result<(), Self::Error>>;

    /// Does what [`Abilities`] say it can do; never called with anything else.
    fn manage(&self, operation: Management) -> impl Future<Output = Result<(), Self::Error>>;

    /// Which of the snapshots that clients took are there; `None` if the disk cannot tell.
    fn snapshots(&self) -> impl Future<Output = Result<Option<Vec<u32>>, Self::Error>> {
        std::future::ready(Ok(None))
    }

    /// Errors of work that belongs to no request, as the disk counts them in its figures.
    fn background_errors(&self) -> u64 {
        0
    }

    /// Whether work of its own was given up with requests under way: their failures reach no client.
    fn gave_work_up(&self) -> bool {
        false
    }

    /// Writes back what is only in memory; the last call.
    fn close(&self) -> impl Future<Output = Result<(), Self::Error>>;
}

/// What a target can do, and what its clients may expect of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Size of the disk in bytes, a multiple of 512.
    pub size: u64,
    /// Its unit of allocation in bytes: the sizes of requests are chosen around it.
    pub unit: u64,
    /// Offsets and lengths of all requests are multiples of this.
    pub alignment: u64,
    /// What a discarded range reads as.
    pub discarded: DiscardedReads,
    /// In how many ways it can be opened; 0 is the plain one.
    pub variants: u32,
    /// Its size can change.
    pub resize: bool,
    /// It has snapshots.
    pub snapshots: bool,
    /// How it was opened can change while it is open.
    pub change: bool,
    /// Between closing and opening another process has the disk: it holds the lock while ours is awaited.
    pub second_writer: bool,
}

/// A configuration: how to make the images, open and check them.
pub trait Target {
    /// What is opened.
    type Subject: Subject;

    /// A name for reports.
    fn name(&self) -> String;

    /// What it can do.
    fn abilities(&self) -> Abilities;

    /// Adds the disks with their images to a new world whose requests end at once, and tells the
    /// model what a reader finds in them ([`Model::preload`]).
    fn build(&self, world: &World, model: &mut Model) -> impl Future<Output = Result<(), String>>;

    /// Opens the disk for reading and writing. Where another process may have it ([`Abilities::second_writer`]), waits for
    /// its lock ([`World::find`]); the lock ends with the close, or with the subject.
    fn open(
        &self,
        world: &World,
        variant: u32,
    ) -> impl Future<Output = Result<Self::Subject, <Self::Subject as Subject>::Error>>;

    /// Judges the closed (or crashed) images: an error if anything is worse than leaks, otherwise the number
    /// of those.
    fn check(&self, world: &World) -> impl Future<Output = Result<u64, String>>;

    /// The number of a disk that, read alone, is what a reader sees: a data file that is a raw image.
    fn read_alone(&self) -> Option<usize> {
        None
    }
}
