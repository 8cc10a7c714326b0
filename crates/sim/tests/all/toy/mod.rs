//! A tiny mapped disk: correct, or broken in one of the ways that disks of this kind break.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;

use futures_util::lock::Mutex;
use sim::{
    Abilities, Content, DiscardedReads, Durability, Management, Model, SimStorage, Subject, Target, World,
};
use storage::{Capabilities, Hints, IoBuf, IoBytes, Storage, Zeroing};

const CLUSTER: u64 = 1024;
const CLUSTERS: u64 = 32;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Nothing.
    None,
    /// Flush answers without asking the storage.
    MissingFlush,
    /// The table entry is written before the data it points to.
    TableBeforeData,
    /// No flush between the data and the table entry.
    NoBarrier,
    /// A discarded cluster is given out again while its punch is in flight.
    LatePunch,
    /// A failed write of data is answered with success.
    SwallowedError,
    /// Writers do not exclude each other.
    NoLock,
    /// Writing into the second half of a fresh cluster panics.
    Panics,
}

/// The file: one sector with the table (8 bytes a cluster, 0 or 1 + number), then clusters.
pub struct ToyTarget {
    pub bug: Bug,
}

pub struct Toy {
    bug: Bug,
    disk: SimStorage,
    lock: Mutex<()>,
    map: RefCell<Map>,
}

struct Map {
    table: Vec<u64>,
    free: Vec<u64>,
    next: u64,
    /// The table in the file may differ: writing it failed.
    doubtful: bool,
}

impl Target for ToyTarget {
    type Subject = Toy;

    fn name(&self) -> String {
        format!("toy with {:?}", self.bug)
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            size: CLUSTER * CLUSTERS,
            unit: CLUSTER,
            alignment: 1,
            discarded: DiscardedReads::ZeroesInUnits(CLUSTER),
            variants: 1,
            resize: false,
            snapshots: false,
            change: false,
            second_writer: false,
        }
    }

    async fn build(&self, world: &World, _model: &mut Model) -> Result<(), String> {
        world.add_disk("toy", Capabilities::REGULAR_FILE, Content::zeroed(CLUSTER));
        Ok(())
    }

    async fn open(&self, world: &World, _variant: u32) -> Result<Toy, io::Error> {
        let disk = world.open(0);
        let table = read_table(&disk).await?;
        let end = disk.length().div_ceil(CLUSTER);
        let used: BTreeSet<u64> = table.iter().copied().collect();
        // A lost growth leaves entries that point beyond the end.
        let end = used.last().map_or(end, |&last| end.max(last + 1));
        let free = (1..end).filter(|host| !used.contains(host)).collect();
        let map = RefCell::new(Map { table, free, next: end, doubtful: false });
        Ok(Toy { bug: self.bug, disk, lock: Mutex::new(()), map })
    }

    async fn check(&self, world: &World) -> Result<u64, String> {
        let disk = world.open(0);
        let table = read_table(&disk).await.map_err(|error| error.to_string())?;
        let used: Vec<u64> = table.into_iter().filter(|&host| host != 0).collect();
        let distinct: BTreeSet<u64> = used.iter().copied().collect();
        if distinct.len() == used.len() { Ok(0) } else { Err(format!("a cluster is used twice: {used:?}")) }
    }
}

async fn read_table(disk: &SimStorage) -> io::Result<Vec<u64>> {
    let (result, buf) = disk.read(0, IoBuf::zeroed(CLUSTERS as usize * 8), Hints::NONE).await;
    result?;
    Ok(buf.as_chunks::<8>().0.iter().map(|entry| u64::from_be_bytes(*entry)).collect())
}

impl Toy {
    async fn write_part(&self, at: u64, data: &[u8]) -> io::Result<()> {
        let (cluster, within) = ((at / CLUSTER) as usize, at % CLUSTER);
        let host = self.map.borrow().table[cluster];
        if host != 0 {
            return self.write_data(host * CLUSTER + within, data).await;
        }
        assert!(self.bug != Bug::Panics || within < 512, "only the second half");
        let host = self.allocate();
        let mut whole = vec![0; CLUSTER as usize];
        whole[within as usize..within as usize + data.len()].copy_from_slice(data);
        if self.bug == Bug::TableBeforeData {
            self.publish(cluster, host).await?;
            return self.write_data(host * CLUSTER, &whole).await;
        }
        self.write_data(host * CLUSTER, &whole).await?;
        if self.bug != Bug::NoBarrier {
            self.disk.flush().await?;
        }
        self.publish(cluster, host).await
    }

    fn allocate(&self) -> u64 {
        let mut map = self.map.borrow_mut();
        map.free.pop().unwrap_or_else(|| {
            map.next += 1;
            map.next - 1
        })
    }

    async fn write_data(&self, at: u64, data: &[u8]) -> io::Result<()> {
        let result = self.disk.write(at, IoBytes::copy_from(data).into(), Hints::NONE).await;
        if self.bug == Bug::SwallowedError { Ok(()) } else { result }
    }

    async fn publish(&self, cluster: usize, host: u64) -> io::Result<()> {
        let mut table = self.map.borrow().table.clone();
        table[cluster] = host;
        let bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        self.map.borrow_mut().doubtful = true;
        self.disk.write(0, IoBytes::copy_from(&bytes).into(), Hints::NONE).await?;
        let mut map = self.map.borrow_mut();
        map.doubtful = false;
        map.table[cluster] = host;
        Ok(())
    }

    async fn discard_cluster(&self, cluster: usize) -> io::Result<()> {
        let host = self.map.borrow().table[cluster];
        if host == 0 {
            // What a write that failed left in the table there must go.
            let doubtful = self.map.borrow().doubtful;
            return if doubtful { self.publish(cluster, 0).await } else { Ok(()) };
        }
        self.publish(cluster, 0).await?;
        self.disk.flush().await?;
        if self.bug == Bug::LatePunch {
            self.map.borrow_mut().free.push(host);
            drop(self.disk.discard(host * CLUSTER, CLUSTER));
            return Ok(());
        }
        self.disk.discard(host * CLUSTER, CLUSTER).await?;
        self.map.borrow_mut().free.push(host);
        Ok(())
    }

    async fn write_all(&self, offset: u64, data: &[u8], durability: Durability) -> io::Result<()> {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (part, next) = rest.split_at(rest.len().min((CLUSTER - at % CLUSTER) as usize));
            let _alone = if self.bug == Bug::NoLock { None } else { Some(self.lock.lock().await) };
            self.write_part(at, part).await?;
            at += part.len() as u64;
            rest = next;
        }
        if durability == Durability::AtReply { self.flush().await } else { Ok(()) }
    }
}

impl Subject for Toy {
    type Error = io::Error;

    fn size(&self) -> u64 {
        CLUSTER * CLUSTERS
    }

    async fn read(&self, offset: u64, mut buf: IoBuf) -> (io::Result<()>, IoBuf) {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let len = (buf.len() - done).min((CLUSTER - at % CLUSTER) as usize);
            let _alone = self.lock.lock().await;
            let host = self.map.borrow().table[(at / CLUSTER) as usize];
            if host == 0 {
                buf[done..done + len].fill(0);
            } else {
                let (result, part) =
                    self.disk.read(host * CLUSTER + at % CLUSTER, IoBuf::zeroed(len), Hints::NONE).await;
                if result.is_err() {
                    return (result, buf);
                }
                buf[done..done + len].copy_from_slice(&part);
            }
            done += len;
        }
        (Ok(()), buf)
    }

    async fn write(&self, offset: u64, data: storage::IoVec, durability: Durability) -> io::Result<()> {
        self.write_all(offset, &data.to_bytes(), durability).await
    }

    async fn zero(&self, offset: u64, len: u64, _how: Zeroing, durability: Durability) -> io::Result<()> {
        self.write_all(offset, &vec![0; len as usize], durability).await
    }

    async fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        for cluster in offset.div_ceil(CLUSTER)..(offset + len) / CLUSTER {
            let _alone = self.lock.lock().await;
            self.discard_cluster(cluster as usize).await?;
        }
        Ok(())
    }

    async fn flush(&self) -> io::Result<()> {
        if self.bug == Bug::MissingFlush { Ok(()) } else { self.disk.flush().await }
    }

    async fn manage(&self, _operation: Management) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn close(&self) -> io::Result<()> {
        self.disk.flush().await
    }
}
