//! Random chains in memory, with what they read as.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use crate::on_reactor::Loop;
use block::{Block, Raw};
use qcow2::{BlockStatus, CreateOptions, Files, Options, Preallocation, Qcow2, ZeroOptions, create};
use qcow2_layout::Version;
use storage::{
    Allocation, Capabilities, Extent, ForeignBytes, Hints, IoBuf, IoBytes, IoFuture, IoVec, MemoryStorage,
    Storage, Zeroing,
};

/// xorshift: a test needs numbers that look random and are the same every time.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Which of the following reads fails, over all files of a chain.
#[derive(Debug, Default)]
struct Fault {
    left: AtomicI64,
    failed: Mutex<Option<String>>,
}

/// Memory with a name, whose reads can fail.
#[derive(Debug)]
struct Medium {
    name: String,
    bytes: MemoryStorage,
    fault: Arc<Fault>,
}

impl Storage for Medium {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.bytes.capabilities()
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        self.bytes.try_read(offset, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> bool {
        self.bytes.try_read_into(offset, memory, hints)
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        if self.fault.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            *self.fault.failed.lock().unwrap() = Some(self.name.clone());
            return Box::pin(async { (Err(io::Error::other("a bad sector")), buf) });
        }
        self.bytes.read(offset, buf, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        self.bytes.write(offset, data, hints)
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        self.bytes.flush()
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        self.bytes.zero(offset, len, how)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        self.bytes.discard(offset, len)
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        self.bytes.grow_to(length)
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        self.bytes.shorten_to(length)
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        self.bytes.allocate(offset, len, how)
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        self.bytes.extent(offset, len)
    }
}

/// The files of one layer.
struct Stored {
    what: String,
    file: Arc<Medium>,
    data: Option<Arc<Medium>>,
    raw: bool,
}

/// A chain, the bottom first, and what it reads as.
pub struct Built {
    layers: Vec<Stored>,
    pub flat: Vec<u8>,
    fault: Arc<Fault>,
}

impl fmt::Debug for Built {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.layers.iter().rev().map(|layer| &layer.what)).finish()
    }
}

/// Cluster size, extended L2, version.
const SHAPES: [(u64, bool, Version); 10] = [
    (512, false, Version::V3),
    (512, false, Version::V2),
    (1024, false, Version::V3),
    (4096, false, Version::V2),
    (4096, false, Version::V3),
    (16384, true, Version::V3),
    (65536, false, Version::V3),
    (65536, true, Version::V3),
    (65536, false, Version::V2),
    (1 << 20, false, Version::V3),
];

impl Built {
    /// So many layers, each with a few changes of its own.
    pub async fn new(random: &mut Random, layers: usize) -> Self {
        let mut built = Self::empty();
        // Half of the chains have layers of one size only, as most real ones do.
        let uniform = random.below(2) == 0;
        let shapes: Vec<_> = (0..1 + random.below(3)).map(|_| SHAPES[random.below(10) as usize]).collect();
        let usual = (64 + random.below(6000)) * 512;
        for _ in 0..layers {
            let size = if uniform || random.below(3) > 0 { usual } else { (64 + random.below(8000)) * 512 };
            if built.layers.is_empty() && random.below(2) == 0 {
                built.add_raw(random, size).await;
            } else {
                let shape = shapes[random.below(shapes.len() as u64) as usize];
                built.add(random, size, shape).await;
            }
        }
        built
    }

    /// As [`Built::new`], with no raw file at the bottom.
    pub async fn qcow2_only(random: &mut Random, layers: usize) -> Self {
        let mut built = Self::empty();
        for _ in 0..layers {
            let shape = SHAPES[random.below(SHAPES.len() as u64) as usize];
            built.add(random, 3 << 20, shape).await;
        }
        built
    }

    /// Layers of up to 2 GiB and of many lengths, with a few clusters each: `flat` has nothing of them.
    pub async fn sparse(random: &mut Random, layers: usize) -> Self {
        let mut built = Self::empty();
        for _ in 0..layers {
            let (cluster, extended_l2, version) = SHAPES[random.below(9) as usize];
            let size = (1 + random.below(4 << 20)) * 512;
            built.add_image(size, (cluster, extended_l2, version), false).await;
            let top = built.open(Options { writable: true, ..Options::default() }, false).await;
            for _ in 0..random.below(4) {
                let offset = random.below(size / 512) * 512;
                let byte = random.below(256) as u8;
                let data = IoBytes::copy_from(&[byte; 512]);
                top.write(offset, IoVec::from(data), Hints::NONE).await.unwrap();
            }
            top.close().await.unwrap();
        }
        built
    }

    /// One image, all of whose clusters are mapped and read as zeroes.
    pub async fn full(size: u64, cluster_size: u64) -> Self {
        let mut built = Self::empty();
        let preallocation = Preallocation::Metadata;
        let options = CreateOptions { size, cluster_size, preallocation, ..CreateOptions::default() };
        let file = built.medium("qcow2");
        create(&*file, None, &options).await.unwrap();
        built.layers.push(Stored { what: format!("full {size}"), file, data: None, raw: false });
        built.flat = vec![0; size as usize];
        built
    }

    fn empty() -> Self {
        let fault = Arc::new(Fault { left: AtomicI64::new(-1), failed: Mutex::default() });
        Self { layers: Vec::new(), flat: Vec::new(), fault }
    }

    fn medium(&self, what: &str) -> Arc<Medium> {
        let name = format!("layer{}.{what}", self.layers.len());
        Arc::new(Medium { name, bytes: MemoryStorage::new(0), fault: Arc::clone(&self.fault) })
    }

    async fn add_raw(&mut self, random: &mut Random, size: u64) {
        let bytes: Vec<u8> = (0..size).map(|at| (at / 512 % 251) as u8 + random.below(2) as u8).collect();
        let file = self.medium("raw");
        file.write(0, IoBytes::copy_from(&bytes).into(), Hints::NONE).await.unwrap();
        self.layers.push(Stored { what: format!("raw {size}"), file, data: None, raw: true });
        self.flat = bytes;
    }

    async fn add(
        &mut self,
        random: &mut Random,
        size: u64,
        (cluster, extended_l2, version): (u64, bool, Version),
    ) {
        let external = version == Version::V3 && random.below(8) == 0;
        self.add_image(size, (cluster, extended_l2, version), external).await;
        self.flat.resize(size as usize, 0);
        let top = self.open(Options { writable: true, discard: true, ..Options::default() }, false).await;
        for _ in 0..random.below(8) {
            let offset = random.below(size);
            let scale = 9 + random.below(9);
            let len = (1 + random.below(1 << scale)).min(size - offset);
            let range = offset as usize..(offset + len) as usize;
            if random.below(3) == 0 {
                let unmap = random.below(2) == 0;
                top.zero(offset, len, ZeroOptions { unmap, fast_only: false }).await.unwrap();
                self.flat[range].fill(0);
            } else {
                let bytes: Vec<u8> = (0..len).map(|at| (at / 300) as u8 ^ random.below(256) as u8).collect();
                top.write(offset, IoVec::from(IoBytes::copy_from(&bytes)), Hints::NONE).await.unwrap();
                self.flat[range].copy_from_slice(&bytes);
            }
        }
        top.close().await.unwrap();
    }

    /// An empty image over the others.
    async fn add_image(
        &mut self,
        size: u64,
        (cluster, extended_l2, version): (u64, bool, Version),
        external: bool,
    ) {
        let options = CreateOptions {
            size,
            version,
            cluster_size: cluster,
            extended_l2,
            backing_file: (!self.layers.is_empty()).then(|| "below".to_owned()),
            backing_format: (!self.layers.is_empty()).then(|| "qcow2".to_owned()),
            data_file: external.then(|| "data".to_owned()),
            ..CreateOptions::default()
        };
        let file = self.medium("qcow2");
        let data = external.then(|| self.medium("data"));
        create(&*file, data.as_deref().map(|data| data as &dyn Storage), &options).await.unwrap();
        let what =
            format!("qcow2 {size} in {cluster}, extended {extended_l2}, {version:?}, external {external}");
        self.layers.push(Stored { what, file, data, raw: false });
    }

    /// Opens the whole chain. With `writable_below`, the lower layers are opened for writing too, so that none
    /// of them is taken to be immutable.
    pub async fn open(&self, top: Options, writable_below: bool) -> Qcow2 {
        self.open_through(top, |_| writable_below, |below| below).await
    }

    /// The same, where one layer, counted from the bottom, is opened for writing, as the base of a commit is.
    pub async fn open_with_writable(&self, layer: usize) -> Qcow2 {
        self.open_through(Options::default(), |index| index == layer, |below| below).await
    }

    /// The same, with `put_over` what each layer sees of the one below; `is_writable` says which are opened for writing.
    pub async fn open_through(
        &self,
        top: Options,
        is_writable: impl Fn(usize) -> bool,
        mut put_over: impl FnMut(Arc<dyn Block>) -> Arc<dyn Block>,
    ) -> Qcow2 {
        let mut below: Option<Arc<dyn Block>> = None;
        let last = self.layers.len() - 1;
        for (index, stored) in self.layers.iter().enumerate() {
            let file: Arc<dyn Storage> = Arc::clone(&stored.file) as _;
            if stored.raw {
                below = Some(Arc::new(Raw::new(file)));
                continue;
            }
            let data = stored.data.clone().map(|data| data as Arc<dyn Storage>);
            let backing = below.take().map(&mut put_over);
            let options = match index == last {
                true => top,
                false => Options { writable: is_writable(index), ..Options::default() },
            };
            let files = Files { file, data, backing };
            below = Some(Arc::new(Qcow2::open(files, options, Arc::new(Loop)).await.unwrap()));
        }
        let top = below.as_ref().and_then(|top| top.downcast_ref::<Qcow2>());
        top.cloned().unwrap_or_else(|| panic!("{below:?} is not an overlay"))
    }

    /// A new image of the same size on top of an open one.
    pub async fn overlay(&self, below: Qcow2) -> Qcow2 {
        let file = self.medium("qcow2");
        let options = CreateOptions {
            size: self.flat.len() as u64,
            backing_file: Some("below".to_owned()),
            backing_format: Some("qcow2".to_owned()),
            ..CreateOptions::default()
        };
        create(&*file, None, &options).await.unwrap();
        let files = Files { file, data: None, backing: Some(Arc::new(below)) };
        Qcow2::open(files, Options::default(), Arc::new(Loop)).await.unwrap()
    }

    /// Reads of all files while `work` runs.
    pub async fn reads_of(&self, work: impl Future) -> i64 {
        self.fault.left.store(i64::MAX, Ordering::Relaxed);
        work.await;
        i64::MAX - self.fault.left.swap(-1, Ordering::Relaxed)
    }

    /// From now on the read number `nth` fails.
    pub fn fail_read(&self, nth: i64) {
        *self.fault.failed.lock().unwrap() = None;
        self.fault.left.store(nth, Ordering::Relaxed);
    }

    /// The file whose read failed, if one did.
    pub fn failed_read(&self) -> Option<String> {
        self.fault.left.store(-1, Ordering::Relaxed);
        self.fault.failed.lock().unwrap().clone()
    }
}

/// The state of every sector, asked for in pieces of all sizes.
pub async fn blocks(image: &Qcow2, seed: u64) -> Vec<BlockStatus> {
    let mut random = Random::new(seed);
    let mut sectors = Vec::new();
    let mut at = 0;
    while at < image.size() {
        let asked = (1 + random.below(3000)) * 512;
        let status = image.block_status(at, asked.min(image.size() - at)).await.unwrap();
        for sector in 0..status.len / 512 {
            let offset = status.offset.map(|offset| offset + sector * 512);
            sectors.push(BlockStatus { len: 512, offset, ..status.clone() });
        }
        assert_eq!(status.len % 512, 0, "{status:?}");
        at += status.len;
    }
    sectors
}
