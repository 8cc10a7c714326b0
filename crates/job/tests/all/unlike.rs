//! Copies between disks whose clusters are unlike.
//!
//! A shallow mirror, an incremental backup and a stream to a base went wrong in seven ways before: the rest of a target's cluster became zeroes, or
//! zeroes smaller than a cluster were dropped, and the disk then showed what lies below. Users lost data of whole clusters.

use std::sync::{Arc, Mutex};

use block::{Block, BlockFuture, BlockStatus, Capabilities, Error, Hints, ReadKind, ZeroOptions};
use futures_executor::block_on;
use futures_util::future::join;
use job::{
    Content, Copy, CopyOptions, Counters, Dirty, End, Ended, Life, Marked, Mirror, Scope, Terms, Tracked,
    What,
};
use memory::{IoBuf, IoBytes, IoVec};
use proptest::prelude::*;

use crate::beside_guests::yield_now;

const SECTOR: usize = 512;
/// Not a multiple of most clusters.
const SECTORS: usize = 131;
const BYTES: usize = SECTORS * SECTOR;

/// What an image has of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    Nothing,
    Zero,
    Data,
}

/// An image in memory. It drops zeroes of a part of a cluster where it reads as zeroes, as images may.
#[derive(Debug)]
struct Image {
    cluster: usize,
    /// What lies below, or will; nothing shows of it unless `is_over`.
    behind: Vec<u8>,
    is_over: bool,
    state: Mutex<(Vec<u8>, Vec<Own>)>,
}

impl Image {
    fn new(cluster: usize, behind: &[u8], is_over: bool) -> Arc<Self> {
        let state = Mutex::new((vec![0; BYTES], vec![Own::Nothing; BYTES.div_ceil(cluster)]));
        Arc::new(Self { cluster, behind: behind.to_vec(), is_over, state })
    }

    /// What it reads as over what is behind it.
    fn over(&self, behind: &[u8]) -> Vec<u8> {
        let (bytes, own) = &*self.state.lock().unwrap();
        let byte = |at: usize| match own[at / self.cluster] {
            Own::Nothing => behind[at],
            Own::Zero => 0,
            Own::Data => bytes[at],
        };
        (0..BYTES).map(byte).collect()
    }

    fn now(&self) -> Vec<u8> {
        let nothing = vec![0; BYTES];
        self.over(if self.is_over { &self.behind } else { &nothing })
    }

    fn put(&self, offset: usize, data: &[u8]) {
        let now = self.now();
        let (bytes, own) = &mut *self.state.lock().unwrap();
        let clusters = offset / self.cluster..(offset + data.len()).div_ceil(self.cluster);
        for (cluster, own) in own.iter_mut().enumerate().take(clusters.end).skip(clusters.start) {
            let whole = cluster * self.cluster..((cluster + 1) * self.cluster).min(BYTES);
            bytes[whole.clone()].copy_from_slice(&now[whole]);
            *own = Own::Data;
        }
        bytes[offset..offset + data.len()].copy_from_slice(data);
    }

    fn make_zero(&self, offset: usize, len: usize) {
        let mut at = offset;
        while at < offset + len {
            let whole = at / self.cluster * self.cluster..((at / self.cluster + 1) * self.cluster).min(BYTES);
            let end = whole.end.min(offset + len);
            if at == whole.start && end == whole.end {
                self.state.lock().unwrap().1[at / self.cluster] = Own::Zero;
            } else if self.now()[at..end].iter().any(|byte| *byte != 0) {
                self.put(at, &vec![0; end - at]);
            }
            at = end;
        }
    }

    fn status(&self, offset: usize, len: usize) -> BlockStatus {
        let own = self.state.lock().unwrap().1[offset / self.cluster];
        let end = ((offset / self.cluster + 1) * self.cluster).min(offset + len).min(BYTES);
        let zeroes = |len: usize, depth: u32, present: bool| BlockStatus {
            present,
            zero: true,
            hole: true,
            data: false,
            ..BlockStatus::data(len as u64, depth, None)
        };
        match own {
            Own::Data => BlockStatus::data((end - offset) as u64, 0, None),
            Own::Zero => zeroes(end - offset, 0, true),
            Own::Nothing if !self.is_over => zeroes(end - offset, 0, false),
            Own::Nothing => {
                // What lies below knows single sectors.
                let end = ((offset / SECTOR + 1) * SECTOR).min(end);
                match self.behind[offset..end].iter().all(|byte| *byte == 0) {
                    true => zeroes(end - offset, 1, true),
                    false => BlockStatus::data((end - offset) as u64, 1, None),
                }
            }
        }
    }
}

impl Block for Image {
    fn driver(&self) -> &'static str {
        "image"
    }

    fn name(&self) -> &str {
        "image"
    }

    fn size(&self) -> u64 {
        BYTES as u64
    }

    fn capabilities(&self) -> Capabilities {
        let cluster_bytes = Some(self.cluster as u64);
        Capabilities { read_only: false, alignment: 1, cached: false, cluster_bytes }
    }

    fn awaits_backing(&self) -> bool {
        !self.is_over
    }

    fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        _: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            let len = buf.len();
            buf.copy_from_slice(&self.now()[offset as usize..offset as usize + len]);
            (Ok(ReadKind::Data), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, _: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.put(offset as usize, &data.to_bytes());
            Ok(())
        })
    }

    fn zero(&self, offset: u64, len: u64, _: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.make_zero(offset as usize, len as usize);
            Ok(())
        })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move { Ok(self.status(offset as usize, len as usize)) })
    }
}

/// A change of a disk: where, how many sectors, and which byte; 0 is written as zeroes.
type Change = (usize, usize, u8);

fn range((at, sectors, _): &Change) -> std::ops::Range<u64> {
    (at * SECTOR) as u64..((at + sectors).min(SECTORS) * SECTOR) as u64
}

async fn change(disk: &dyn Block, change: &Change) {
    let range = range(change);
    let len = range.end - range.start;
    match change.2 {
        0 => disk.zero(range.start, len, ZeroOptions::default()).await.unwrap(),
        byte => {
            let data = IoVec::from(IoBytes::copy_from(&vec![byte; len as usize]));
            disk.write(range.start, data, Hints::NONE).await.unwrap();
        }
    }
}

fn cluster() -> impl Strategy<Value = usize> {
    prop_oneof![Just(SECTOR), Just(2048), Just(4096), Just(16384), Just(65536)]
}

fn changes(count: usize) -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec((0..SECTORS, 1_usize..20, prop_oneof![Just(0_u8), 1..=255_u8]), 0..count)
}

/// Data and zeroes in runs of sectors.
fn base() -> impl Strategy<Value = Vec<u8>> {
    let runs = prop::collection::vec((1_usize..12, prop_oneof![Just(0_u8), 1..=255_u8]), SECTORS);
    runs.prop_map(|runs| {
        let sectors = runs.into_iter().flat_map(|(sectors, byte)| vec![byte; sectors * SECTOR]);
        sectors.take(BYTES).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    /// `convert -B` with the target's backing file left closed, and what a shallow copy does first.
    #[test]
    fn a_copy_of_the_uppermost_layer_reads_over_the_base_as_the_disk_does(
        base in base(), own in changes(8), from in cluster(), to in cluster(), is_reported in any::<bool>(),
    ) {
        let (source, target) = (Image::new(from, &base, true), Image::new(to, &base, false));
        block_on(async {
            for one in &own {
                change(&*source, one).await;
            }
            let copy = Copy {
                source: &*source, from: 0..BYTES as u64, target: &*target, to: 0, scope: Scope::Layers(1),
                content: if is_reported { Content::Overlay } else { Content::Unknown }, options: CopyOptions::default(),
            };
            copy.run(&Counters::default()).await.unwrap();
        });
        prop_assert_eq!(target.over(&base), source.now());
    }

    #[test]
    fn an_increment_reads_over_the_point_before_as_the_disk_does(
        base in base(), own in changes(8), since in changes(8), from in cluster(), to in cluster(), unit in cluster(),
    ) {
        let source = Image::new(from, &base, true);
        block_on(async {
            for one in &own {
                change(&*source, one).await;
            }
        });
        let before = source.now();
        let target = Image::new(to, &before, false);
        block_on(async {
            let marks = Dirty::new(BYTES as u64, unit as u64);
            for one in &since {
                change(&*source, one).await;
                marks.mark(range(one));
            }
            let marked = Marked { over: Arc::clone(&source) as Arc<dyn Block>, marks };
            job::copies::incremental(&marked, &*target, CopyOptions::default()).run(&Counters::default()).await.unwrap();
        });
        prop_assert_eq!(target.over(&before), source.now());
    }

    /// Where data of the new base begins inside a cluster of the image, zeroes of the image were lost.
    #[test]
    fn an_image_reads_the_same_over_another_base(
        old in base(), new in base(), own in changes(8), cluster in cluster(),
    ) {
        let image = Image::new(cluster, &old, true);
        let base = Image::new(SECTOR, &new, true);
        block_on(async {
            for one in &own {
                change(&*image, one).await;
            }
        });
        let before = image.now();
        block_on(async {
            let copy = job::copies::rebase(&*image, &*image, Some(&*base as &dyn Block), CopyOptions::default());
            copy.run(&Counters::default()).await.unwrap();
        });
        prop_assert_eq!(image.over(&new), before);
    }

    /// Guests write less than a cluster of the target, through both sides or not, in units that are smaller than the target's clusters.
    #[test]
    fn a_shallow_mirror_reads_over_the_base_as_the_disk_does(
        base in base(), own in changes(6), meanwhile in changes(6), from in cluster(), to in cluster(), unit in cluster(),
        is_synchronous in any::<bool>(), is_full in any::<bool>(),
    ) {
        let (source, target) = (Image::new(from, &base, true), Image::new(to, &base, false));
        block_on(async {
            for one in &own {
                change(&*source, one).await;
            }
            let over: Arc<dyn Block> = Arc::clone(&source) as Arc<dyn Block>;
            let tracked = Tracked::new("mirror_top", over, Arc::clone(&target) as Arc<dyn Block>, unit as u64, is_synchronous);
            let mirror = Mirror::new(Arc::clone(&tracked));
            mirror.mark(if is_full { What::Everything } else { What::Layers(1) }).await.unwrap();
            let life = Life::new(Terms::default(), 0, |_| ());
            life.begin();
            let guests = async {
                for one in &meanwhile {
                    change(&*tracked, one).await;
                    yield_now().await;
                }
                while life.ask_to_end(End::Complete).is_err() {
                    yield_now().await;
                }
            };
            let (ended, ()) = join(mirror.run(&life), guests).await;
            assert_eq!(ended.unwrap(), Ended::Complete);
            mirror.catch_up().await.unwrap();
        });
        prop_assert_eq!(target.over(&base), source.now());
    }
}
