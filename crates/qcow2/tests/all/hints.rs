//! What a caller knows of a request reaches the storage that carries it out: it once stayed with the thread, where another request could find
//! it, and a filter or a job between them knew nothing of it.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::io;
use std::sync::{Arc, Mutex};

use block::{Block, Raw};
use qcow2::{CreateOptions, Files, Options, Qcow2, create};
use storage::{ForeignBytes, Hints, IoBuf, IoBytes, IoFuture, IoVec, MemoryStorage, Storage};

use crate::on_reactor::{Loop, reactor_run};

const SIZE: u64 = 4 << 20;
const CLUSTER: u64 = 64 << 10;

/// Memory that notes the hints of each read and write.
#[derive(Debug)]
struct Noting {
    bytes: MemoryStorage,
    noted: Mutex<Vec<(&'static str, Hints)>>,
}

impl Noting {
    fn over(bytes: MemoryStorage) -> Arc<Self> {
        Arc::new(Self { bytes, noted: Mutex::default() })
    }

    fn note(&self, what: &'static str, hints: Hints) {
        self.noted.lock().unwrap().push((what, hints));
    }

    /// What requests with [`Hints::MORE_WAITING`] there were since the last call.
    fn more_waiting(&self) -> Vec<&'static str> {
        let noted = std::mem::take(&mut *self.noted.lock().unwrap());
        noted.into_iter().filter(|(_, hints)| *hints == Hints::MORE_WAITING).map(|(what, _)| what).collect()
    }
}

impl Storage for Noting {
    fn over(&self) -> Option<&dyn Storage> {
        Some(&self.bytes)
    }

    fn name(&self) -> &str {
        "noting"
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        self.note("try_read", hints);
        self.bytes.try_read(offset, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> bool {
        self.note("try_read_into", hints);
        self.bytes.try_read_into(offset, memory, hints)
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        self.note("read", hints);
        self.bytes.read(offset, buf, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        self.note("write", hints);
        self.bytes.write(offset, data, hints)
    }

    fn read_into(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        self.note("read_into", hints);
        self.bytes.read_into(offset, memory, hints)
    }

    fn write_from(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        self.note("write_from", hints);
        self.bytes.write_from(offset, memory, hints)
    }
}

fn bytes(len: u64) -> IoVec {
    IoVec::from(IoBytes::copy_from(&vec![7; len as usize]))
}

#[test]
fn what_is_known_of_a_request_reaches_the_storage_of_each_layer() {
    reactor_run(async {
        let below = Noting::over(MemoryStorage::from_bytes(&vec![1; SIZE as usize]));
        let own = Noting::over(MemoryStorage::new(0));
        let options = CreateOptions { size: SIZE, ..CreateOptions::default() };
        create(&*own, None, &options).await.unwrap();
        let backing: Arc<dyn Block> = Arc::new(Raw::new(Arc::clone(&below) as Arc<dyn Storage>));
        let files = Files { file: Arc::clone(&own) as Arc<dyn Storage>, data: None, backing: Some(backing) };
        let options = Options { writable: true, ..Options::default() };
        let image = Qcow2::open(files, options, Arc::new(Loop)).await.unwrap();
        let hints = Hints::MORE_WAITING;
        let noted = || (own.more_waiting(), below.more_waiting());

        image.read(0, IoBuf::uninit(4096), hints).await.0.unwrap();
        assert_eq!(noted(), (vec![], vec!["read"]));
        image.try_read(0, &mut [0; 4096], hints).unwrap();
        assert_eq!(noted(), (vec![], vec!["try_read"]));
        Block::try_read_into(&image, 0, &ForeignBytes::zeroed(4096), hints).unwrap();
        assert_eq!(noted(), (vec![], vec!["try_read_into"]));
        image.read_into(0, ForeignBytes::zeroed(4096), hints).await.unwrap();
        assert_eq!(noted(), (vec![], vec!["read_into"]));
        // Allocates: what stands around is read below, and all is one write. A cluster in the middle.
        image.write(CLUSTER + 512, bytes(512), hints).await.unwrap();
        assert_eq!(noted(), (vec!["write"], vec!["read", "read"]));
        // In place.
        image.write(CLUSTER, bytes(4096), hints).await.unwrap();
        assert_eq!(noted(), (vec!["write"], vec![]));
        image.write_from(CLUSTER, ForeignBytes::zeroed(4096), hints).await.unwrap();
        assert_eq!(noted(), (vec!["write_from"], vec![]));
        image.write_from(2 * CLUSTER, ForeignBytes::zeroed(CLUSTER as usize), hints).await.unwrap();
        assert_eq!(noted(), (vec!["write"], vec![]));
        // Two places: a piece of each.
        image.read(2 * CLUSTER, IoBuf::uninit(2 * CLUSTER as usize), hints).await.0.unwrap();
        assert_eq!(noted(), (vec!["read"], vec!["read"]));

        image.write(CLUSTER, bytes(4096), Hints::NONE).await.unwrap();
        image.read(0, IoBuf::uninit(4096), Hints::NONE).await.0.unwrap();
        image.close().await.unwrap();
        assert_eq!(noted(), (vec![], vec![]), "nothing stays behind a request");
    });
}
