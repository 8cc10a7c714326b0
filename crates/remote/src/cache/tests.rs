//! The laws of a cache over files in memory: what is read is the remote file, whatever happens to server and image.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memory::{ForeignBytes, IoBuf, IoVec};
use qcow2::{CreateOptions, Host, Repair, Work};
use storage::{Hints, IoFuture, MemoryStorage, Storage};

use crate::cache::image::CLUSTER_BYTES;
use crate::cache::{BYTES_MAX_LEAST, CacheFile, CacheState, CachedStorage, Figures, Identity, create, look};

/// Not a whole number of clusters, nor of sectors.
const LENGTH: usize = (40 << 20) + 12_345;

/// A file that counts its reads, and fails when it is asked to: reads if it is the remote one, writes if it is the image.
#[derive(Debug)]
struct Watched {
    bytes: MemoryStorage,
    reads: AtomicU64,
    reads_fail: AtomicBool,
    writes_fail: AtomicBool,
}

impl Watched {
    fn new(bytes: MemoryStorage) -> Arc<Self> {
        let (reads_fail, writes_fail) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { bytes, reads: AtomicU64::new(0), reads_fail, writes_fail })
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn fails(flag: &AtomicBool) -> io::Result<()> {
        match flag.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl Storage for Watched {
    fn over(&self) -> Option<&dyn Storage> {
        Some(&self.bytes)
    }

    fn name(&self) -> &str {
        "watched"
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            reactor::yield_now().await;
            match Self::fails(&self.reads_fail) {
                Ok(()) => self.bytes.read(offset, buf, hints).await,
                failed => (failed, buf),
            }
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            Self::fails(&self.writes_fail)?;
            self.bytes.write(offset, data, hints).await
        })
    }
}

#[derive(Debug)]
struct Loop;

impl Host for Loop {
    fn spawn(&self, work: Work) {
        reactor::spawn(work).detach();
    }
}

struct Scene {
    content: Vec<u8>,
    remote: Arc<Watched>,
    file: Arc<Watched>,
    identity: Identity,
}

impl Scene {
    async fn new() -> Self {
        let content: Vec<u8> = (0..LENGTH as u32).map(|at| (at / 509 + at / 65_537) as u8 | 1).collect();
        let remote = Watched::new(MemoryStorage::from_bytes(&content));
        let file = Watched::new(MemoryStorage::new(0));
        let identity =
            Identity { name: "http://h/x".into(), length: LENGTH as u64, version: "ETag \"1\"".into() };
        create(&*file, &identity).await.unwrap();
        Self { content, remote, file, identity }
    }

    async fn open(&self, bytes_max: u64) -> CachedStorage {
        assert_eq!(look(&*self.file, &self.identity).await.unwrap(), CacheState::Usable);
        let file = CacheFile { storage: self.file.clone(), held: Box::new(()), bytes_max };
        CachedStorage::open(self.remote.clone(), self.identity.clone(), file, Arc::new(Loop)).await.unwrap()
    }

    /// Reads, also beyond the end, and compares.
    async fn read(&self, cached: &CachedStorage, offset: usize, len: usize) -> io::Result<()> {
        let (result, buf) = cached.read(offset as u64, IoBuf::uninit(len), Hints::NONE).await;
        result?;
        self.compare(offset, &buf);
        Ok(())
    }

    fn compare(&self, offset: usize, found: &[u8]) {
        let byte = |at: usize| self.content.get(at).copied().unwrap_or(0);
        assert!(found.iter().enumerate().all(|(at, found)| *found == byte(offset + at)), "{offset}");
    }

    async fn is_clean(&self) {
        let report = qcow2::check(&*self.file, Repair::None, &mut |_| ()).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}

fn run(test: impl Future<Output = ()>) {
    reactor::Reactor::new(reactor::Backend::Ring).unwrap().run(test);
}

#[test]
fn the_second_start_asks_the_server_for_nothing_and_the_image_is_clean() {
    run(async {
        let scene = Scene::new().await;
        let first = scene.open(0).await;
        for (offset, len) in [(0, 1), (70_000, 4096), (1 << 20, 9 << 20), (65_535, 2), (LENGTH - 5, 600)] {
            scene.read(&first, offset, len).await.unwrap();
        }
        first.settle().await;
        drop(first);
        scene.is_clean().await;
        let before = scene.remote.reads();
        scene.remote.reads_fail.store(true, Ordering::Relaxed);
        let second = scene.open(0).await;
        for (offset, len) in [(3, 10_000), (1 << 20, 9 << 20), (LENGTH - 600, 1000)] {
            scene.read(&second, offset, len).await.unwrap();
        }
        scene.read(&second, 20 << 20, 512).await.unwrap_err();
        assert_eq!(scene.remote.reads(), before + 1);
        let Figures { hits, misses, .. } = second.figures();
        assert_eq!((hits, misses), (3, 1));
        // The server is back.
        scene.remote.reads_fail.store(false, Ordering::Relaxed);
        scene.read(&second, 20 << 20, 512).await.unwrap();
    });
}

#[test]
fn reads_of_one_cluster_at_a_time_fetch_it_once() {
    run(async {
        let scene = Scene::new().await;
        let cached = scene.open(0).await;
        let mut reads: Vec<_> = (0..8).map(|at| Box::pin(scene.read(&cached, at * 1500, 4096))).collect();
        // The first one is not polled again until the others have ended.
        let mut first = reads.remove(0);
        let polled = std::future::poll_fn(|context| std::task::Poll::Ready(first.as_mut().poll(context)));
        assert!(polled.await.is_pending());
        for read in reads {
            read.await.unwrap();
        }
        first.await.unwrap();
        assert_eq!((scene.remote.reads(), cached.figures().fetched_bytes), (1, CLUSTER_BYTES));
    });
}

#[test]
fn memory_of_a_guest_gets_cached_and_fetched_bytes_alike() {
    run(async {
        let scene = Scene::new().await;
        let cached = scene.open(0).await;
        scene.read(&cached, 100_000, 1).await.unwrap();
        cached.settle().await;
        for _ in 0..2 {
            for (offset, len) in [(60_000, 300_000), (LENGTH - 700, 2048), (LENGTH + 9, 512)] {
                let memory = ForeignBytes::zeroed(len);
                cached.read_into(offset as u64, memory.clone(), Hints::NONE).await.unwrap();
                scene.compare(offset, &memory.to_bytes().unwrap());
            }
            cached.settle().await;
        }
        assert!(cached.figures().hits >= 2);
    });
}

#[test]
fn the_image_stays_below_its_ceiling_and_every_byte_stays_right() {
    run(async {
        let scene = Scene::new().await;
        let cached = scene.open(BYTES_MAX_LEAST).await;
        for round in 0..3 {
            for offset in (0..LENGTH).step_by(700_000 + round) {
                scene.read(&cached, offset, 300_000).await.unwrap();
                cached.settle().await;
                assert!(cached.figures().cached_bytes <= BYTES_MAX_LEAST);
            }
        }
        assert!(cached.figures().evictions > 0 && cached.figures().not_kept == 0);
        drop(cached);
        scene.is_clean().await;
        let report = qcow2::check(&*scene.file, Repair::None, &mut |_| ()).await.unwrap();
        assert!(report.allocated_clusters * CLUSTER_BYTES <= BYTES_MAX_LEAST);
        assert!(report.image_end_offset <= BYTES_MAX_LEAST + (1 << 20), "{report:?}");
    });
}

#[test]
fn an_image_that_is_full_fails_no_read() {
    run(async {
        let scene = Scene::new().await;
        let cached = scene.open(0).await;
        scene.read(&cached, 0, 1 << 20).await.unwrap();
        cached.settle().await;
        scene.file.writes_fail.store(true, Ordering::Relaxed);
        for offset in (0..LENGTH).step_by(3_000_000) {
            scene.read(&cached, offset, 200_000).await.unwrap();
        }
        cached.settle().await;
        let figures = cached.figures();
        assert!(figures.failures > 0 && figures.not_kept > 0, "{figures:?}");
        // What it has is still read from it; what it cannot be read from any more is fetched.
        let before = scene.remote.reads();
        scene.read(&cached, 0, 1 << 20).await.unwrap();
        assert_eq!(scene.remote.reads(), before);
        scene.file.reads_fail.store(true, Ordering::Relaxed);
        scene.read(&cached, 0, 1 << 20).await.unwrap();
        assert!(scene.remote.reads() > before);
    });
}

#[test]
fn only_the_cache_of_this_version_is_used_and_nothing_else_is_touched() {
    run(async {
        let scene = Scene::new().await;
        let Identity { name, length, version } = scene.identity.clone();
        for other in [
            Identity { version: "ETag \"2\"".into(), name: name.clone(), length },
            Identity { name: "http://h/y".into(), version: version.clone(), length },
            Identity { name, version, length: length + 1 },
        ] {
            assert!(
                matches!(look(&*scene.file, &other).await.unwrap(), CacheState::Outdated(_)),
                "{other:?}"
            );
        }
        let user = MemoryStorage::new(0);
        let options = CreateOptions { size: length, ..CreateOptions::default() };
        qcow2::create(&user, None, &options).await.unwrap();
        for somebodys in [user, MemoryStorage::new(4096), MemoryStorage::from_bytes(b"letters")] {
            let before = somebodys.to_bytes();
            look(&somebodys, &scene.identity).await.unwrap_err();
            assert_eq!(somebodys.to_bytes(), before);
        }
    });
}

#[test]
fn what_is_read_ahead_waits_for_guests_and_is_counted_when_they_use_it() {
    run(async {
        let scene = Scene::new().await;
        let cached = scene.open(0).await;
        let ahead = cached.ahead();
        // A guest waits for the server: it is polled once, and not again until the look below.
        let mut miss = Box::pin(scene.read(&cached, 0, 512));
        let polled = std::future::poll_fn(|context| std::task::Poll::Ready(miss.as_mut().poll(context)));
        assert!(polled.await.is_pending());
        let mut early = Box::pin(scene.read(&ahead, 2 << 20, 1 << 20));
        for _ in 0..50 {
            let polled = std::future::poll_fn(|context| std::task::Poll::Ready(early.as_mut().poll(context)));
            assert!(polled.await.is_pending());
            reactor::yield_now().await;
        }
        assert_eq!(scene.remote.reads(), 1, "the guest's");
        miss.await.unwrap();
        early.await.unwrap();
        assert_eq!(scene.remote.reads(), 2);
        let Figures { hits, misses, served_bytes, prefetched_bytes, prefetched_used_bytes, .. } =
            cached.figures();
        assert_eq!((hits, misses, served_bytes), (0, 1, 512));
        assert_eq!((prefetched_bytes, prefetched_used_bytes), (1 << 20, 0));
        for _ in 0..2 {
            scene.read(&cached, (2 << 20) + 5, 20_000).await.unwrap();
            assert_eq!(cached.figures().prefetched_used_bytes, 2 * CLUSTER_BYTES);
            cached.settle().await;
        }
        assert_eq!(scene.remote.reads(), 2);
    });
}

#[test]
fn a_guest_joins_a_fetch_that_is_made_ahead() {
    run(async {
        let scene = Scene::new().await;
        let cached = scene.open(0).await;
        let ahead = cached.ahead();
        let mut early = Box::pin(scene.read(&ahead, 0, 1 << 20));
        let polled = std::future::poll_fn(|context| std::task::Poll::Ready(early.as_mut().poll(context)));
        assert!(polled.await.is_pending());
        // The fetch is a task of its own: what started it is not polled any more.
        scene.read(&cached, 70_000, 4096).await.unwrap();
        assert_eq!(scene.remote.reads(), 1);
        assert_eq!(cached.figures().prefetched_used_bytes, CLUSTER_BYTES);
        early.await.unwrap();
    });
}
