//! Images of the simulation: the engine over simulated files.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Block, Raw};
use futures_executor::{LocalPool, LocalSpawner};
use futures_util::task::LocalSpawnExt;
use job::{Life, Terms};
use qcow2::{CreateOptions, Files as OfImage, Options, Qcow2, Work};
use qcow2_layout::Header;
use storage::{
    Allocation, Capabilities, Extent, ExtentKind, Hints, IoBuf, IoFuture, IoVec, Storage, Zeroing,
};

use super::files::{Files, User};
use crate::deliberate::{Bug, has};
use crate::{MergedLayer, NewOverlay, Shape};

/// Bytes that a stamp fills.
pub const SECTOR: u64 = 512;
/// The largest cluster of a simulated image.
const HEADER_BYTES: usize = 4096;

/// What each sector of a disk was written with last; 0 is zeroes.
pub type Content = Vec<u32>;

thread_local! {
    static SPAWNER: RefCell<Option<LocalSpawner>> = const { RefCell::new(None) };
}

/// Runs work of the engine to its end, with all that it starts.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    let mut pool = LocalPool::new();
    let before = SPAWNER.replace(Some(pool.spawner()));
    let done = pool.run_until(work);
    pool.run();
    SPAWNER.set(before);
    done
}

#[derive(Debug)]
struct Host;

impl qcow2::Host for Host {
    fn spawn(&self, work: Work) {
        SPAWNER.with_borrow(|spawner| spawner.as_ref().map(|spawner| spawner.spawn_local(work)));
    }
}

/// A simulated file as storage.
struct Bytes {
    files: Files,
    node: u64,
    name: String,
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Bytes {
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        if len == 0 { Ok(()) } else { self.files.write(self.node, offset, &vec![0; len]) }
    }

    fn grow(&self, length: u64) -> io::Result<()> {
        if length > self.length() { self.files.set_length(self.node, length) } else { Ok(()) }
    }
}

fn now<'a, T: 'a>(done: T) -> IoFuture<'a, T> {
    Box::pin(std::future::ready(done))
}

impl Storage for Bytes {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::REGULAR_FILE
    }

    fn length(&self) -> u64 {
        self.files.length(self.node)
    }

    fn read(&self, offset: u64, mut buf: IoBuf, _: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        let read = self.files.read(self.node, offset, &mut buf);
        let read = read.map(|count| buf[count..].fill(0));
        now((read, buf))
    }

    fn write(&self, offset: u64, data: IoVec, _: Hints) -> IoFuture<'_, io::Result<()>> {
        let mut bytes = Vec::with_capacity(data.len());
        data.parts().iter().for_each(|part| bytes.extend_from_slice(part));
        now(self.files.write(self.node, offset, &bytes))
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        now(self.files.sync_node(self.node))
    }

    fn zero(&self, offset: u64, len: u64, _: Zeroing) -> IoFuture<'_, io::Result<()>> {
        now(self.write_zeroes(offset, len))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        let len = len.min(self.length().saturating_sub(offset));
        now(self.write_zeroes(offset, len))
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        now(self.grow(length))
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        now(if length < self.length() { self.files.set_length(self.node, length) } else { Ok(()) })
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        now(match how {
            Allocation::Reserve => self.grow(offset + len),
            Allocation::Write => self.write_zeroes(offset, len),
        })
    }

    fn extent(&self, _: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        now(Ok(Extent { len, kind: ExtentKind::Data }))
    }
}

/// An open image with all that its header names below it.
#[derive(Debug)]
pub struct Chain {
    /// From the uppermost down.
    blocks: Vec<Arc<dyn Block>>,
    image: Option<Qcow2>,
    /// Which files they are.
    pub nodes: Vec<u64>,
    _users: Vec<User>,
}

/// How a chain is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For a look, which other processes do not notice.
    Look,
    /// By a process that reads.
    Read,
    /// By a process that writes the uppermost image.
    Write,
}

pub fn in_words(error: impl fmt::Display) -> String {
    error.to_string()
}

/// The backing file in the header of an image, and its format.
pub fn backing(files: &Files, node: u64) -> Result<Option<(String, Option<String>)>, String> {
    let mut start = vec![0; HEADER_BYTES];
    let filled = files.read(node, 0, &mut start).map_err(in_words)?;
    start.truncate(filled);
    let header = Header::decode(&start).map_err(in_words)?;
    Ok(header.backing.map(|name| (name, header.extensions.backing_format)))
}

/// What the headers of images name.
pub struct Named {
    places: Vec<PathBuf>,
    /// Which files they are, from the uppermost down.
    pub nodes: Vec<u64>,
    /// The lowest is raw.
    is_raw: bool,
}

impl Named {
    /// The image at `path` and those below it.
    pub fn by(files: &Files, path: &Path) -> Result<Self, String> {
        let mut named = Self { places: vec![path.to_owned()], nodes: Vec::new(), is_raw: false };
        while let Some(path) = named.places.last() {
            let node = files.node(path).map_err(|error| format!("{}: {error}", path.display()))?;
            named.nodes.push(node);
            let below = if named.is_raw { None } else { backing(files, node)? };
            let Some((name, format)) = below else { break };
            named.is_raw = format.as_deref() == Some("raw");
            named.places.push(path.parent().unwrap_or(Path::new("/")).join(name));
        }
        Ok(named)
    }
}

impl Chain {
    /// Opens the image at `path`, and those below it as their headers name them.
    pub async fn open(files: &Files, path: &Path, access: Access) -> Result<Self, String> {
        if access == Access::Write && !has(Bug::DiskNotAwaited) {
            // As crate `storage` does.
            let directory = files.node(path.parent().unwrap_or(Path::new("/"))).map_err(in_words)?;
            files.sync_node(directory).map_err(in_words)?;
        }
        let Named { places, nodes, is_raw } = Named::by(files, path)?;
        let (mut blocks, mut users): (Vec<Arc<dyn Block>>, _) = (Vec::new(), Vec::new());
        let mut image = None;
        for (at, node) in nodes.iter().enumerate().rev() {
            let name = places[at].display().to_string();
            let file = Arc::new(Bytes { files: files.clone(), node: *node, name }) as Arc<dyn Storage>;
            let writable = at == 0 && access == Access::Write;
            if is_raw && at + 1 == nodes.len() {
                blocks.push(Arc::new(Raw::new(file)));
            } else {
                let backing = blocks.last().map(Arc::clone);
                // Without a reserve: it is larger than the disks.
                let options = Options { writable, allocation_reserve: Some(0), ..Options::default() };
                let opened = Qcow2::open(OfImage { file, data: None, backing }, options, Arc::new(Host));
                let opened = opened.await.map_err(|error| format!("{}: {error}", places[at].display()))?;
                image = Some(opened.clone());
                blocks.push(Arc::new(opened));
            }
            if access != Access::Look {
                users.push(files.user(*node, writable));
            }
        }
        blocks.reverse();
        Ok(Self { blocks, image, nodes, _users: users })
    }

    pub fn top(&self) -> &dyn Block {
        &*self.blocks[0]
    }

    pub fn sectors(&self) -> u64 {
        self.top().size() / SECTOR
    }

    pub async fn read(&self) -> Result<Content, String> {
        let size = usize::try_from(self.top().size()).map_err(in_words)?;
        let (read, bytes) = self.top().read(0, IoBuf::zeroed(size), Hints::NONE).await;
        read.map_err(in_words)?;
        let sector = |bytes: &[u8]| {
            let stamp = [bytes[0], bytes[1], bytes[2], bytes[3]];
            let is_whole = bytes[4..] == bytes[..bytes.len() - 4];
            if is_whole { Ok(u32::from_le_bytes(stamp)) } else { Err("a sector of two writes".to_owned()) }
        };
        bytes.chunks(512).map(sector).collect()
    }

    /// Writes a stamp to sectors, durably; 0 zeroes them.
    pub async fn write(&self, first: u64, count: u64, stamp: u32) -> Result<(), String> {
        let bytes = stamp.to_le_bytes().repeat(usize::try_from(count * SECTOR / 4).map_err(in_words)?);
        let written = match stamp {
            0 => self.top().zero(first * SECTOR, count * SECTOR, block::ZeroOptions::default()).await,
            _ => {
                self.top().write(first * SECTOR, IoBuf::copy_from(&bytes).freeze().into(), Hints::NONE).await
            }
        };
        written.map_err(in_words)?;
        self.top().flush().await.map_err(in_words)
    }

    pub async fn resize(&self, sectors: u64) -> Result<(), String> {
        let image = self.image.as_ref().ok_or("a raw disk")?;
        let options = qcow2::ResizeOptions { shrink: true, ..Default::default() };
        image.resize(sectors * SECTOR, options).await.map_err(in_words)?;
        image.flush().await.map_err(in_words)
    }

    /// Writes what is in memory. Files stay in use until this is dropped.
    pub async fn close(&self) -> Result<(), String> {
        for block in &self.blocks {
            block.close().await.map_err(in_words)?;
        }
        Ok(())
    }
}

/// Makes an image at `path`: durable, its name too, as crate `checkpoints` does.
pub async fn make(
    files: &Files,
    path: &Path,
    (shape, mode): (&Shape, u32),
    backing: Option<(String, Option<String>)>,
) -> Result<(), String> {
    let node = files.make_file(path, mode | 0o600).map_err(in_words)?;
    let (backing_file, backing_format) = backing.unzip();
    let options = CreateOptions {
        size: shape.disk_bytes,
        version: shape.version,
        cluster_size: shape.cluster_bytes,
        refcount_bits: shape.refcount_bits,
        extended_l2: shape.extended_l2,
        compression: shape.compression,
        backing_file,
        backing_format: backing_format.flatten(),
        ..CreateOptions::default()
    };
    let file = Bytes { files: files.clone(), node, name: path.display().to_string() };
    qcow2::create(&file, None, &options).await.map_err(in_words)?;
    let directory = files.node(path.parent().unwrap_or(Path::new("/"))).map_err(in_words)?;
    files.sync_node(directory).map_err(in_words)
}

pub async fn make_overlay(files: &Files, at: &Path, overlay: &NewOverlay) -> Result<(), String> {
    let backing = (overlay.backing_name.clone(), Some("qcow2".to_owned()));
    make(files, at, (&overlay.shape, overlay.access.mode), Some(backing)).await
}

/// Makes one layer of several, by the copy engine that ships.
pub async fn make_merged(files: &Files, at: &Path, merged: &MergedLayer) -> Result<(), String> {
    make(files, at, (&merged.shape, merged.access.mode), merged.backing.clone()).await?;
    let source = Chain::open(files, &merged.top, Access::Read).await?;
    let target = Chain::open(files, at, Access::Write).await?;
    let life = Life::new(Terms::default(), 0, |_| {});
    life.begin();
    let layers = u32::try_from(merged.layers).map_err(in_words)?;
    job::merge_into(source.top(), layers, target.top(), &life).await.map_err(in_words)?;
    target.close().await?;
    files.sync_node(target.nodes[0]).map_err(in_words)
}

pub async fn check(files: &Files, path: &Path) -> Result<qcow2::CheckReport, String> {
    let node = files.node(path).map_err(in_words)?;
    let file = Bytes { files: files.clone(), node, name: path.display().to_string() };
    qcow2::check(&file, qcow2::Repair::None, &mut |_| {}).await.map_err(in_words)
}
