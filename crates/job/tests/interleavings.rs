//! Laws of jobs beside guests under explored thread interleavings: `cargo xtask interleave`.
//!
//! Guests write on threads of their own through the filter of a job, which copies on another thread. Everything that they share is the code that ships.

#![cfg(feature = "shuttle")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use block::{Block, BlockFuture, BlockStatus, Capabilities, Error, Hints, ReadKind, ZeroOptions};
use futures_util::future::join;
use job::{Backup, BackupPace, BeforeWrite, End, Ended, Guarded, Life, Mirror, Notice, Status, Stream};
use job::{Terms, Tracked, What};
use memory::{IoBuf, IoBytes, IoVec};
use sync::explore::{block_on, explore, pause, thread};
use sync::{Event, Mutex};

/// Bytes that a job knows together.
const UNIT: u64 = 512;
const DISK: u64 = 4 * UNIT;

/// Bytes in memory; others run before and after each request.
#[derive(Debug)]
struct Memory(&'static str, Mutex<Vec<u8>>);

impl Memory {
    fn new(name: &'static str, value: u8) -> Arc<Self> {
        Arc::new(Self(name, Mutex::new(vec![value; DISK as usize])))
    }

    fn bytes(&self) -> Vec<u8> {
        self.1.lock().clone()
    }

    fn fill(&self, offset: u64, bytes: &[u8]) {
        self.1.lock()[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }
}

impl Block for Memory {
    fn driver(&self) -> &'static str {
        "memory"
    }

    fn name(&self) -> &str {
        self.0
    }

    fn size(&self) -> u64 {
        DISK
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: false, alignment: 1, cached: false, cluster_bytes: None }
    }

    fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        _hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            pause();
            let range = offset as usize..offset as usize + buf.len();
            buf.copy_from_slice(&self.1.lock()[range]);
            pause();
            (Ok(ReadKind::Data), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            pause();
            self.fill(offset, &data.to_bytes());
            pause();
            Ok(())
        })
    }

    fn zero(&self, offset: u64, len: u64, _options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        self.write(offset, IoBytes::zeroed(len as usize).into(), Hints::NONE)
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move { Ok(BlockStatus::data(len, 0, Some(offset))) })
    }
}

fn assert_same(found: &[u8], expected: &[u8]) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(differs.map(|at| (at, found[at], expected[at])), None, "where, what is there, what should be");
}

/// Two guests that write to the same places, each the values that are its own.
fn guests(disk: &Arc<impl Block>) -> Vec<thread::JoinHandle<()>> {
    let guest = |value: u8| {
        let disk = Arc::clone(disk);
        thread::spawn(move || {
            for (at, len) in [(UNIT / 2, UNIT as usize), (u64::from(value) * UNIT, 100)] {
                let data = IoBytes::copy_from(&vec![value; len]);
                block_on(disk.write(at, data.into(), Hints::NONE)).unwrap();
            }
        })
    };
    [1, 2].map(guest).into()
}

fn begun(tell: impl Fn(Notice) + 'static) -> Life {
    let life = Life::new(Terms::default(), 0, tell);
    life.begin();
    life
}

/// A job that keeps a copy in step with the disk, and is completed as soon as it is ready, whatever is written.
fn mirrored(synchronous: bool) {
    let (disk, copy) = (Memory::new("disk", 7), Memory::new("copy", 9));
    let tracked = Tracked::new("mirror", Arc::clone(&disk) as _, Arc::clone(&copy) as _, UNIT, synchronous);
    let writing = guests(&tracked);
    let job = thread::spawn(move || {
        let ready = Arc::new(Event::new());
        let heard = Arc::clone(&ready);
        let life = begun(move |notice| {
            if notice == Notice::Status(Status::Ready) {
                heard.notify(usize::MAX);
            }
        });
        let mirror = Mirror::new(tracked);
        let completed = async {
            loop {
                let ready = ready.listen();
                if life.status() == Status::Ready {
                    break;
                }
                ready.await;
            }
            life.ask_to_end(End::Complete).unwrap();
        };
        block_on(mirror.mark(What::Everything)).unwrap();
        let (ended, ()) = block_on(join(mirror.run(&life), completed));
        assert_eq!(ended.unwrap(), Ended::Complete);
        block_on(mirror.keep_durable()).unwrap();
        // The disk is drained.
        writing.into_iter().for_each(|guest| guest.join().unwrap());
        block_on(mirror.catch_up()).unwrap();
    });
    job.join().unwrap();
    assert_same(&copy.bytes(), &disk.bytes());
}

#[test]
fn a_mirror_is_the_disk_whatever_guests_write_while_it_copies() {
    explore(|| mirrored(false));
}

#[test]
fn a_mirror_that_guests_write_through_is_the_disk() {
    explore(|| mirrored(true));
}

#[test]
fn a_backup_is_of_one_moment_whatever_guests_overwrite() {
    explore(|| {
        let (disk, copy) = (Memory::new("disk", 7), Memory::new("copy", 9));
        let filter =
            BeforeWrite::new(Arc::clone(&disk) as _, Arc::clone(&copy) as _, UNIT, Some(UNIT), false);
        block_on(filter.mark(What::Everything)).unwrap();
        let writing = guests(&filter);
        let since = Arc::clone(&filter);
        let job = thread::spawn(move || {
            let pace = BackupPace { workers: 2, piece_bytes: 2 * UNIT };
            let backup = Backup { filter, what: What::Everything, pace };
            block_on(backup.run(&begun(|_| ()))).unwrap();
        });
        job.join().unwrap();
        writing.into_iter().for_each(|guest| guest.join().unwrap());
        assert_same(&copy.bytes(), &[7; DISK as usize]);
        let changed = since.since().unwrap();
        assert_eq!(changed.run(0..DISK), (true, 3 * UNIT), "what was written since is known");
    });
}

/// An image over another one: a unit is its own once it was written.
#[derive(Debug)]
struct Overlay {
    own: Arc<Memory>,
    below: Arc<Memory>,
    written: Mutex<[bool; 4]>,
}

impl Block for Overlay {
    fn driver(&self) -> &'static str {
        "overlay"
    }

    fn name(&self) -> &'static str {
        "overlay"
    }

    fn size(&self) -> u64 {
        DISK
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { cluster_bytes: Some(UNIT), ..self.own.capabilities() }
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        Some(Arc::clone(&self.below) as _)
    }

    fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        _hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            pause();
            let written = *self.written.lock();
            let (own, below) = (self.own.bytes(), self.below.bytes());
            for (at, byte) in (offset as usize..).zip(buf.iter_mut()) {
                *byte = if written[at / UNIT as usize] { own[at] } else { below[at] };
            }
            pause();
            (Ok(ReadKind::Data), buf)
        })
    }

    /// Whole units at a time, each filled from below in the moment in which it becomes the image's own, as the engine does it.
    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            pause();
            let data = data.to_bytes();
            let mut written = self.written.lock();
            let below = self.below.bytes();
            for unit in offset / UNIT..(offset + data.len() as u64).div_ceil(UNIT) {
                if !std::mem::replace(&mut written[unit as usize], true) {
                    let range = (unit * UNIT) as usize..((unit + 1) * UNIT) as usize;
                    self.own.fill(unit * UNIT, &below[range]);
                }
            }
            self.own.fill(offset, &data);
            drop(written);
            pause();
            Ok(())
        })
    }

    fn zero(&self, offset: u64, len: u64, _options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        self.write(offset, IoBytes::zeroed(len as usize).into(), Hints::NONE)
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            let written = *self.written.lock();
            let first = (offset / UNIT) as usize;
            let same = written[first..].iter().take_while(|own| **own == written[first]).count() as u64;
            let len = ((offset / UNIT + same) * UNIT - offset).min(len);
            Ok(BlockStatus::data(len, u32::from(!written[first]), None))
        })
    }
}

#[test]
fn a_stream_never_puts_old_bytes_over_what_a_guest_wrote() {
    explore(|| {
        let (own, below) = (Memory::new("own", 0), Memory::new("below", 7));
        let overlay = Arc::new(Overlay { own: Arc::clone(&own), below, written: Mutex::default() });
        let guarded = Guarded::new(Arc::clone(&overlay) as _);
        let writer = Arc::clone(&guarded);
        let guest = thread::spawn(move || {
            for unit in [1, 2, 0] {
                let data = IoBytes::copy_from(&[1; 100]);
                block_on(writer.write(unit * UNIT + 50, data.into(), Hints::NONE)).unwrap();
            }
        });
        let job = thread::spawn(move || {
            let stream = Stream::of_everything(guarded);
            block_on(stream.run(&begun(|_| ()))).unwrap();
        });
        job.join().unwrap();
        guest.join().unwrap();
        let mut expected = vec![7; DISK as usize];
        for unit in 0..3 {
            let at = (unit * UNIT + 50) as usize;
            expected[at..at + 100].fill(1);
        }
        assert_eq!(*overlay.written.lock(), [true; 4], "everything is its own");
        assert_same(&own.bytes(), &expected);
    });
}
