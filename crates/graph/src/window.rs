//! `raw` over a node: a block over a block, which loses nothing of what the node says of its bytes.

use std::sync::Arc;

use block::{Block, BlockFuture, BlockStatus, Capabilities, Error, Raw, ReadKind, Stored, Takes};
use storage::{ForeignBytes, Hints, IoBuf, IoVec};

use crate::child::Child;
use crate::node_storage::NodeStorage;

/// The raw disk that `raw` is: a window over the node that its storage is, where it is one.
pub fn of_raw(raw: Raw) -> Arc<dyn Block> {
    let node = raw.storage.downcast_ref::<NodeStorage>().map(|storage| Arc::clone(&storage.child));
    let raw = Arc::new(raw);
    match node {
        Some(node) => Arc::new(Window { raw, node }),
        None => raw,
    }
}

/// Raw bytes of a node. What the node says of its bytes, and takes as they are, is not lost.
#[derive(Debug)]
pub(crate) struct Window {
    /// The same over the node as storage.
    raw: Arc<dyn Block>,
    node: Arc<Child>,
}

impl Window {
    /// The bytes, and which of the node they are.
    pub(crate) fn raw(&self) -> Option<&Raw> {
        self.raw.downcast_ref()
    }

    /// Where `len` bytes at `offset` begin in the node, if it has all of them.
    fn in_node(&self, offset: u64, len: u64) -> Option<u64> {
        let host = self.raw()?.host(offset, len).ok()?;
        (host + len <= self.node.size()).then_some(host)
    }

    /// Whether units of so many bytes of the node are units of the window.
    fn is_aligned(&self, unit_bytes: u64) -> bool {
        self.raw().is_some_and(|raw| raw.offset.is_multiple_of(unit_bytes))
    }
}

impl Block for Window {
    fn driver(&self) -> &'static str {
        self.raw.driver()
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.raw)
    }

    fn capabilities(&self) -> Capabilities {
        let cluster_bytes = Block::capabilities(&*self.node).cluster_bytes;
        let cluster_bytes = cluster_bytes.filter(|bytes| self.is_aligned(*bytes));
        Capabilities { cluster_bytes, ..self.raw.capabilities() }
    }

    fn subcluster_bytes(&self) -> Option<u64> {
        self.node.subcluster_bytes().filter(|bytes| self.is_aligned(*bytes))
    }

    fn awaits_backing(&self) -> bool {
        self.node.awaits_backing()
    }

    fn changes(&self) -> bool {
        self.node.changes()
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        None
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.node.try_read(self.in_node(offset, buf.len() as u64)?, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        self.node.try_read_into(self.in_node(offset, memory.len() as u64)?, memory, hints)
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        match self.in_node(offset, buf.len() as u64) {
            Some(host) => self.node.read(host, buf, hints),
            None => self.raw.read(offset, buf, hints),
        }
    }

    fn write_compressed(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        let is_guarded = self.raw().is_none_or(|raw| raw.start.is_some());
        match self.in_node(offset, data.len() as u64).filter(|_| !is_guarded) {
            Some(host) => self.node.write_compressed(host, data, hints),
            None => self.raw.write(offset, data, hints),
        }
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        let begin = self.raw().map_or(0, |raw| raw.offset).saturating_add(offset);
        let there = self.node.size().saturating_sub(begin).min(len);
        match self.in_node(offset, there).filter(|_| there > 0) {
            Some(host) => self.node.block_status(host, there),
            None => self.raw.block_status(offset, len),
        }
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        match self.in_node(offset, len) {
            Some(host) => self.node.stored(host, len, wanted),
            None => self.raw.stored(offset, len, wanted),
        }
    }

    fn takes(&self) -> Option<Takes> {
        self.raw().filter(|raw| raw.start.is_none())?;
        self.node.takes().filter(|takes| match takes {
            Takes::File => true,
            Takes::Packed { unit_bytes, .. } => self.is_aligned(*unit_bytes),
        })
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        match self.in_node(offset, stored.disk_bytes()) {
            Some(host) => self.node.take(host, stored),
            None => self.raw.take(offset, stored),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;

    use storage::IoBytes;

    use crate::disk::Disk;
    use crate::drive::parse_drive;
    use crate::open_rules::OpenRules;
    use crate::options::DiskOptions;

    use super::*;

    async fn make(path: &Path, backing: Option<&str>) {
        std::fs::File::create(path).unwrap();
        let file = storage::FileStorage::open(path, &storage::FileOptions::default()).unwrap();
        let backing_format = backing.map(|_| "qcow2".to_owned());
        let backing_file = backing.map(str::to_owned);
        let size = 1 << 20;
        let created =
            qcow2::CreateOptions { size, backing_file, backing_format, ..qcow2::CreateOptions::default() };
        qcow2::create(&file, None, &created).await.unwrap();
    }

    /// Through `raw` everything counted as data of the node itself: `copy-on-read` copied nothing.
    #[test]
    fn raw_over_a_node_passes_on_which_layer_has_the_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let [base, top] = ["base", "top"].map(|name| directory.path().join(name));
        let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
        reactor.run(async {
            make(&base, None).await;
            make(&top, Some("base")).await;
            let open = async |drive: &str| {
                let tree = parse_drive(OsStr::new(drive), |_| false).unwrap();
                crate::open(&DiskOptions::of_tree(tree).unwrap(), &OpenRules::default()).await.unwrap()
            };
            let disk = open(&base.display().to_string()).await;
            let bytes = IoVec::from(IoBytes::copy_from(&[7; 4096]));
            disk.write(128 << 10, bytes, false, Hints::NONE).await.unwrap();
            disk.close().await.unwrap();
            drop(disk);
            let shown = top.display();
            let window = format!(
                "driver=raw,offset=64k,file.driver=qcow2,file.file.driver=file,file.file.filename={shown}"
            );
            let depth_of = async |disk: &Disk, at| {
                let status = disk.block_status(at, 4096).await.unwrap();
                (status.depth, status.present)
            };
            let disk = open(&window).await;
            assert_eq!(depth_of(&disk, 64 << 10).await, (1, true));
            disk.close().await.unwrap();
            drop(disk);
            let over = window
                .split(',')
                .fold("driver=copy-on-read".to_owned(), |all, option| all + ",file." + option);
            let disk = open(&over).await;
            let (read, buf) = disk.read(64 << 10, IoBuf::uninit(4096), Hints::NONE).await;
            read.unwrap();
            assert!(buf.iter().all(|byte| *byte == 7));
            disk.close().await.unwrap();
            drop(disk);
            let disk = open(&shown.to_string()).await;
            assert_eq!(depth_of(&disk, 128 << 10).await, (0, true));
        });
    }
}
