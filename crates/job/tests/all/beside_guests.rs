//! Jobs copy while guests write. Every request of the blocks waits here and there, in an order that a seed decides.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use block::{Block, BlockFuture, Error, Hints, ReadKind, ZeroOptions};
use futures_executor::block_on;
use futures_util::future::{join, join_all};
use job::{Backup, BackupPace, BeforeWrite, End, Ended, Life, Mirror, Terms, Tracked, What};
use memory::{IoBuf, IoBytes, IoVec};

use crate::made_up::{MadeUp, SECTOR, Sector};

const SECTORS: usize = 256;
/// Larger than most writes, and no multiple of them.
const UNIT: u64 = 4096;
const SEEDS: u64 = 40;

/// Numbers that a seed decides.
#[derive(Debug)]
struct Dice(AtomicU64);

impl Dice {
    fn below(&self, end: u64) -> u64 {
        let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % end
    }
}

pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A block whose requests take their time before and after what they do.
#[derive(Debug)]
struct Slow {
    over: Arc<dyn Block>,
    dice: Arc<Dice>,
}

impl Slow {
    async fn wait(&self) {
        for _ in 0..self.dice.below(6) {
            yield_now().await;
        }
    }
}

impl Block for Slow {
    fn driver(&self) -> &'static str {
        "slow"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            self.wait().await;
            let read = self.over.read(offset, buf, hints).await;
            self.wait().await;
            read
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.wait().await;
            let written = self.over.write(offset, data, hints).await;
            self.wait().await;
            written
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.wait().await;
            let zeroed = self.over.zero(offset, len, options).await;
            self.wait().await;
            zeroed
        })
    }
}

/// Blocks for a job, with what they are made of.
struct World {
    dice: Arc<Dice>,
    disk: Arc<MadeUp>,
    copy: Arc<MadeUp>,
    source: Arc<dyn Block>,
    target: Arc<dyn Block>,
    life: Life,
}

impl World {
    fn new(seed: u64) -> Self {
        Self::of_size(seed, SECTORS)
    }

    fn of_size(seed: u64, sectors: usize) -> Self {
        let dice = Arc::new(Dice(AtomicU64::new(seed)));
        let disk = Arc::new(MadeUp::new("disk", &vec![Sector::Data; sectors], 7));
        let copy = Arc::new(MadeUp::used("copy", sectors));
        let slow = |over: &Arc<MadeUp>| -> Arc<dyn Block> {
            Arc::new(Slow { over: Arc::clone(over) as _, dice: Arc::clone(&dice) })
        };
        let (source, target) = (slow(&disk), slow(&copy));
        let life = Life::new(Terms::default(), 0, |_| ());
        life.begin();
        Self { dice, disk, copy, source, target, life }
    }

    /// Four guests that write and zero at random places, of any alignment.
    async fn guests(&self, block: &dyn Block) {
        let guest = async |_| {
            for _ in 0..30 {
                let offset = self.dice.below((SECTORS * SECTOR) as u64 - 9000);
                let len = 1 + self.dice.below(9000);
                if self.dice.below(4) == 0 {
                    block.zero(offset, len, ZeroOptions::default()).await.unwrap();
                } else {
                    let bytes = vec![self.dice.below(255) as u8 + 1; len as usize];
                    block.write(offset, IoVec::from(IoBytes::copy_from(&bytes)), Hints::NONE).await.unwrap();
                }
                for _ in 0..self.dice.below(12) {
                    yield_now().await;
                }
            }
        };
        join_all((0..4).map(guest)).await;
    }
}

#[test]
fn a_mirror_is_what_the_disk_is_whatever_is_written_meanwhile() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let is_synchronous = seed % 2 == 0;
        let tracked =
            Tracked::new("t", Arc::clone(&world.source), Arc::clone(&world.target), UNIT, is_synchronous);
        let mirror = Mirror::new(Arc::clone(&tracked));
        let ended = block_on(async {
            mirror.mark(What::Everything).await.unwrap();
            let guests = async {
                world.guests(&*tracked).await;
                while world.life.ask_to_end(End::Complete).is_err() {
                    yield_now().await;
                }
            };
            let (ended, ()) = join(mirror.run(&world.life), guests).await;
            mirror.catch_up().await.unwrap();
            ended
        });
        assert_eq!(ended.unwrap(), Ended::Complete);
        assert!(world.copy.bytes() == world.disk.bytes(), "seed {seed}");
        assert!(world.copy.flushes() > 0);
    }
}

/// A guest that writes the whole disk again and again while it is copied: after one round that gained nothing its writes go to both sides.
#[test]
fn a_mirror_of_a_disk_that_is_written_without_end_becomes_ready() {
    const DISK_BYTES: u64 = 16 << 20;
    const WRITE_BYTES: u64 = 256 << 10;
    const PASSES_MAX: u32 = 8;
    for seed in 0..4 {
        let world = World::of_size(seed, DISK_BYTES as usize / SECTOR);
        let tracked = Tracked::new("t", Arc::clone(&world.source), Arc::clone(&world.target), UNIT, false);
        let (mirror, block): (_, &dyn Block) = (Mirror::new(Arc::clone(&tracked)), &*tracked);
        let guest = async {
            let mut passes = 0;
            while world.life.ask_to_end(End::Complete).is_err() {
                passes += 1;
                assert!(passes <= PASSES_MAX, "seed {seed}: the mirror does not gain on its guest");
                let write = |at| {
                    let bytes = vec![world.dice.below(255) as u8 + 1; WRITE_BYTES as usize];
                    block.write(at * WRITE_BYTES, IoVec::from(IoBytes::copy_from(&bytes)), Hints::NONE)
                };
                let written = join_all((0..DISK_BYTES / WRITE_BYTES).map(write)).await;
                assert!(written.iter().all(Result::is_ok));
            }
        };
        let ended = block_on(async {
            mirror.mark(What::Everything).await.unwrap();
            let (ended, ()) = join(mirror.run(&world.life), guest).await;
            mirror.catch_up().await.unwrap();
            ended
        });
        assert_eq!(ended.unwrap(), Ended::Complete);
        assert!(world.copy.bytes() == world.disk.bytes(), "seed {seed}");
    }
}

#[test]
fn a_backup_is_what_the_disk_was_whatever_is_written_meanwhile() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let before = world.disk.bytes();
        let filter =
            BeforeWrite::new(Arc::clone(&world.source), Arc::clone(&world.target), UNIT, None, false);
        let backup =
            Backup { filter: Arc::clone(&filter), what: What::Everything, pace: BackupPace::default() };
        let ended = block_on(async {
            filter.mark(What::Everything).await.unwrap();
            let (ended, ()) = join(backup.run(&world.life), world.guests(&*filter)).await;
            ended
        });
        ended.unwrap();
        assert!(world.copy.bytes() == before, "seed {seed}");
        assert!(world.disk.bytes() != before, "guests wrote something");
    }
}

/// A target that fails at any request: guests do not notice, and the backup is not called a success.
#[test]
fn a_backup_whose_target_fails_fails_and_its_guests_do_not() {
    let mut failed = 0;
    for at in 0..60 {
        let mut world = World::new(at);
        let copy = Arc::new(MadeUp::used("copy", SECTORS).failing(at));
        world.target = Arc::new(Slow { over: Arc::clone(&copy) as _, dice: Arc::clone(&world.dice) });
        let before = world.disk.bytes();
        let filter =
            BeforeWrite::new(Arc::clone(&world.source), Arc::clone(&world.target), UNIT, None, false);
        let backup =
            Backup { filter: Arc::clone(&filter), what: What::Everything, pace: BackupPace::default() };
        let ended = block_on(async {
            filter.mark(What::Everything).await.unwrap();
            join(backup.run(&world.life), world.guests(&*filter)).await.0
        });
        match ended {
            Ok(()) => assert!(copy.bytes() == before, "request {at}"),
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 0, "no request of the target failed");
}

/// What was dropped may reach the copy at any time, also behind what the job copies there.
#[test]
fn a_mirror_fails_of_a_write_to_both_sides_that_was_dropped() {
    let world = World::new(1);
    let tracked = Tracked::new("mirror_top", world.source, world.target, UNIT, true);
    let mirror = Mirror::new(Arc::clone(&tracked));
    let data = IoVec::from(IoBytes::copy_from(&[1; 512]));
    let mut write = Block::write(&*tracked, 0, data, Hints::NONE);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(write.as_mut().poll(&mut context).is_pending(), "it ended before it could be dropped");
    drop(write);
    let failed = [block_on(mirror.run(&world.life)).map(drop), block_on(mirror.catch_up())];
    for failed in failed {
        assert!(matches!(failed, Err(job::Error::Dropped { .. })), "{failed:?}");
    }
}

/// A copy whose flushes fail.
#[derive(Debug)]
struct NeverDurable(Arc<dyn Block>);

impl Block for NeverDurable {
    fn driver(&self) -> &'static str {
        "never-durable"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.0)
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { Err(block::Blame::new("copy").refused("the medium is broken")) })
    }
}

/// Over `world`, whose copy is in step.
fn in_step(world: &World, target: Arc<dyn Block>) -> (Arc<Tracked>, Mirror) {
    let tracked = Tracked::new("t", Arc::clone(&world.source), target, UNIT, true);
    let mirror = Mirror::new(Arc::clone(&tracked));
    let completed = async {
        while world.life.ask_to_end(End::Complete).is_err() {
            yield_now().await;
        }
    };
    block_on(async {
        mirror.mark(What::Everything).await.unwrap();
        assert_eq!(join(mirror.run(&world.life), completed).await.0.unwrap(), Ended::Complete);
    });
    (tracked, mirror)
}

/// Guests waited 24 ms at the end of each commit.
#[test]
fn the_last_step_flushes_nothing_that_flushes_of_guests_have_made_durable() {
    let write = |tracked: &Tracked, at| {
        let data = IoVec::from(IoBytes::copy_from(&[1; 512]));
        block_on(Block::write(tracked, at, data, Hints::NONE)).unwrap();
    };
    for discards in [false, true] {
        let world = World::new(1);
        let (tracked, mirror) = in_step(&world, Arc::clone(&world.target));
        block_on(Block::flush(&*tracked)).unwrap();
        assert_eq!(world.copy.flushes(), 0, "guests make only the disk durable until the copy is to be it");
        block_on(mirror.keep_durable()).unwrap();
        write(&tracked, 4096);
        block_on(Block::flush(&*tracked)).unwrap();
        assert_eq!(world.copy.flushes(), 2);
        write(&tracked, 8192);
        if discards {
            block_on(Block::discard(&*tracked, 0, 65536)).unwrap();
        }
        block_on(mirror.catch_up()).unwrap();
        // What a discard left is copied late, and a guest may have flushed it.
        assert_eq!(world.copy.flushes(), if discards { 3 } else { 2 });
        assert!(world.copy.bytes() == world.disk.bytes());
    }
}

#[test]
fn a_mirror_fails_of_a_flush_that_failed_in_the_copy_and_its_guest_does_not() {
    let world = World::new(1);
    let (tracked, mirror) = in_step(&world, Arc::new(NeverDurable(Arc::clone(&world.target))));
    assert!(block_on(mirror.keep_durable()).is_err());
    block_on(Block::flush(&*tracked)).unwrap();
    let failed = block_on(mirror.catch_up());
    assert!(matches!(failed, Err(job::Error::Request { .. })), "{failed:?}");
}
