//! Writing compressed clusters: a filter over an image, for tools that fill one.

pub(crate) mod pack;

use std::io;
use std::sync::Arc;

use block::{Block, BlockFuture, Stored, Takes};
use futures_util::future::try_join_all;
use qcow2_layout::{CompressedCluster, HostOffset, L2Entry, compressed_end_max};
use storage::{Hints, IoBytes, IoVec, Step};
use sync::{AsyncMutex, Semaphore};

use crate::guest_range::GuestRange;
use crate::host::HandedOver;
use crate::image::Inner;
use crate::{Error, ErrorKind, Qcow2};
pub(crate) use pack::zstd_error;

/// What compressed entries count the bytes of a cluster in (specification, "Compressed clusters descriptor").
const SECTOR_BYTES: u64 = 512;

/// Bytes that a thread compresses at a time at most: for a cluster alone, waking it costs a tenth of the work.
const JOB_BYTES_MAX: usize = 256 << 10;
/// What a copy has under way, in whole: two jobs for each processor.
const UNDER_WAY_BYTES: usize = 8 << 20;

/// Clusters as they are compressed; `None` where that is not smaller.
type Packed = Vec<Option<IoBytes>>;

/// An image to which whole clusters are written compressed, one behind the other without gaps.
///
/// A write of anything but whole clusters (the last one of the disk may be short) goes to the image as it is, and so does a
/// cluster that does not get smaller. Clusters are compressed on threads, several at a time. A flush gives back what was set
/// aside for the next cluster; without one a reference to one cluster of the file is leaked.
#[derive(Debug)]
pub struct Compressing {
    image: Qcow2,
    /// The same.
    over: Arc<dyn Block>,
    tail: Arc<AsyncMutex<Tail>>,
    threads: Semaphore,
    /// What a thread compresses at a time.
    job_bytes: usize,
}

impl Compressing {
    /// Compresses for `image` on `processors` processors. Twice as many jobs run at a time: while the loop takes what one has made, another
    /// goes on.
    ///
    /// # Errors
    /// When the image keeps its data in another file, or is encrypted: there is no compression there.
    pub fn new(image: Qcow2, processors: usize) -> Result<Self, Error> {
        if image.inner.medium.geometry.external_data {
            let what = "an image with a data file has no compressed clusters";
            return Err(image.inner.medium.blame.unsupported(what));
        }
        if image.is_encrypted() {
            let what = "an encrypted image takes no compressed clusters: they would not be encrypted";
            return Err(image.inner.medium.blame.unsupported(what));
        }
        let jobs = 2 * processors.max(1);
        let cluster_bytes = 1 << image.inner.medium.geometry.cluster_bits;
        Ok(Self {
            over: Arc::new(image.clone()),
            image,
            tail: Arc::default(),
            threads: Semaphore::new(jobs),
            job_bytes: (UNDER_WAY_BYTES / jobs).min(JOB_BYTES_MAX).next_multiple_of(cluster_bytes),
        })
    }

    /// Size of a cluster: what writes should be multiples of.
    pub fn cluster_bytes(&self) -> u64 {
        self.image.inner.medium.geometry.cluster_size()
    }

    async fn write_clusters(&self, offset: u64, data: IoVec, hints: Hints) -> Result<(), Error> {
        let image = &self.image.inner;
        let size = image.medium.geometry.cluster_size();
        let range = image.check_range(offset, data.len() as u64)?;
        let is_whole =
            offset.is_multiple_of(size) && (range.end.is_multiple_of(size) || range.end == image.size());
        if !is_whole || data.is_empty() {
            return self.image.write(offset, data, hints).await;
        }
        let result = async {
            image.check_writable()?;
            let packed = self.pack_all(&data).await?;
            let pass = image.enter_to_change(range).await?;
            let (owner, pass, tail) = (Arc::clone(image), pass.detach(), Arc::clone(&self.tail));
            let write = HandedOver::new(&*image.medium.host, async move {
                let _pass = owner.turns.gate.attach(pass);
                owner.write_packed(&tail, offset, &data, &packed).await
            });
            write.await
        };
        image.reporting(result.await).await
    }

    /// Each cluster of `data` compressed.
    async fn pack_all(&self, data: &IoVec) -> Result<Packed, Error> {
        let jobs = (0..data.len()).step_by(self.job_bytes).map(|start| {
            let end = (start + self.job_bytes).min(data.len());
            self.pack(data.slice(start, end))
        });
        Ok(try_join_all(jobs).await?.into_iter().flatten().collect())
    }

    async fn pack(&self, clusters: IoVec) -> Result<Packed, Error> {
        let image = &self.image.inner;
        let (compression, size) = (image.decompressed.compression(), 1 << image.medium.geometry.cluster_bits);
        let _place = self.threads.acquire().await;
        let (done, packed) = sync::oneshot::channel();
        let calculation = move || {
            let cluster = |start: usize| clusters.slice(start, (start + size).min(clusters.len())).to_bytes();
            let starts = (0..clusters.len()).step_by(size);
            // No task waits any more if the request was dropped.
            let _ = done.send(starts.map(|start| pack::pack(compression, &cluster(start), size)).collect());
        };
        image.medium.host.calculate(Box::new(calculation)).await;
        let packed: io::Result<Packed> =
            packed.await.map_err(|_| image.medium.blame.refused("the program is stopping"))?;
        packed.map_err(image.medium.blame.io("compressing a cluster"))
    }

    /// Writes clusters that another image has packed in the same way.
    async fn take_packed(&self, offset: u64, stored: Stored) -> Result<(), Error> {
        let image = &self.image.inner;
        let size = image.medium.geometry.cluster_size();
        let range = image.check_range(offset, stored.disk_bytes())?;
        let Stored::Packed { units, unit_bytes } = stored else {
            return Err(image.medium.blame.unsupported("what is compressed here has to be read"));
        };
        let fits = |unit: &IoBytes| (1..size).contains(&(unit.len() as u64));
        if unit_bytes != size || !offset.is_multiple_of(size) || !units.iter().all(fits) {
            return Err(image.medium.blame.unsupported("these compressed clusters are of another size"));
        }
        let result = async {
            image.check_writable()?;
            let pass = image.enter_to_change(range).await?;
            let (owner, pass, tail) = (Arc::clone(image), pass.detach(), Arc::clone(&self.tail));
            let write = HandedOver::new(&*image.medium.host, async move {
                let _pass = owner.turns.gate.attach(pass);
                let packed: Vec<_> = units.into_iter().map(Some).collect();
                owner.write_packed(&tail, offset, &IoVec::new(), &packed).await
            });
            write.await
        };
        image.reporting(result.await).await
    }

    async fn flush_all(&self) -> Result<(), Error> {
        self.tail.lock().await.leave(&self.image.inner).await;
        self.image.flush().await
    }
}

impl Block for Compressing {
    fn driver(&self) -> &'static str {
        "compress"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.write_clusters(offset, data, hints))
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.flush_all())
    }

    fn takes(&self) -> Option<Takes> {
        let packing = self.image.inner.decompressed.compression().name();
        Some(Takes::Packed { packing, unit_bytes: self.cluster_bytes() })
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.take_packed(offset, stored))
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.tail.lock().await.leave(&self.image.inner).await;
            self.image.close().await
        })
    }
}

impl Inner {
    /// Writes whole clusters from `offset` on: those that were packed behind each other, the rest as they are in `data`, which is not looked at
    /// where all were packed. Runs to its end.
    async fn write_packed(
        self: &Arc<Self>,
        tail: &AsyncMutex<Tail>,
        offset: u64,
        data: &IoVec,
        packed: &[Option<IoBytes>],
    ) -> Result<(), Error> {
        let size = self.medium.geometry.cluster_size();
        {
            let end = (offset + packed.len() as u64 * size).min(self.size().next_multiple_of(size));
            let _owned = self.own_clusters(GuestRange { start: offset, end }).await;
            let mut first = 0;
            // A run of one kind, inside one L2 table.
            let table = |index: usize| self.medium.geometry.l1_index(offset + index as u64 * size);
            let indices: Vec<usize> = (0..packed.len()).collect();
            let alike =
                |a: &usize, b: &usize| packed[*a].is_some() == packed[*b].is_some() && table(*a) == table(*b);
            for run in indices.chunk_by(alike) {
                let guest = offset + first as u64 * size;
                let end = first + run.len();
                let some: Vec<_> = packed[first..end].iter().flatten().cloned().collect();
                if some.is_empty() {
                    let to = (end << self.medium.geometry.cluster_bits).min(data.len());
                    let plain = data.slice(first << self.medium.geometry.cluster_bits, to);
                    self.write_owned(guest, &plain.into()).await?;
                } else {
                    self.write_packed_run(tail, guest, &some).await?;
                }
                first = end;
            }
        }
        if self.wants_commit() {
            self.commit().await?;
        }
        Ok(())
    }

    /// Data first, then the entries that lead to it, which wait for data and refcounts (docs/internals/write-order.md).
    async fn write_packed_run(
        self: &Arc<Self>,
        tail: &AsyncMutex<Tail>,
        guest: u64,
        packed: &[IoBytes],
    ) -> Result<(), Error> {
        let mut old = Vec::with_capacity(packed.len());
        for index in 0..packed.len() as u64 {
            let guest = guest + index * self.medium.geometry.cluster_size();
            old.push(self.map.entry(&self.medium, guest).await?);
        }
        // Before anything is written: a table that cannot be had must fail the request early.
        self.table_for_writing(guest).await?;
        let mut placed = Vec::with_capacity(packed.len());
        if let Err(error) = self.place_packed(tail, packed, &mut placed).await {
            for cluster in placed {
                self.space.lower_and_give(&self.medium, self.touched_by(&cluster)).await;
            }
            return Err(error);
        }
        let entries: Vec<_> = placed.into_iter().map(L2Entry::Compressed).collect();
        // If this fails, some entries may lead there by now: better leaked than freed.
        self.set_entries(guest, &entries).await?;
        let punch = self.discards().pass_discard_other;
        old.iter().for_each(|entry| self.space.free_entry(&self.medium, entry, punch));
        Ok(())
    }

    /// Finds the places and writes there. The tail is held meanwhile: neighbours share sectors, which a storage may have to
    /// read before it writes a part of them.
    async fn place_packed(
        self: &Arc<Self>,
        tail: &AsyncMutex<Tail>,
        packed: &[IoBytes],
        placed: &mut Vec<CompressedCluster>,
    ) -> Result<(), Error> {
        let mut tail = tail.lock().await;
        let (mut start, mut data) = (0, IoVec::new());
        for cluster in packed {
            let len = cluster.len() as u64;
            let host = tail.place(self, len).await?;
            let end = (host + len).next_multiple_of(SECTOR_BYTES);
            placed.push(CompressedCluster { host: HostOffset(host), len: end - host });
            if end > compressed_end_max(&self.medium.geometry) {
                tail.leave(self).await;
                let error = io::Error::from(io::ErrorKind::FileTooLarge);
                return Err(self.medium.blame.io("placing a compressed cluster")(error));
            }
            if host != start + data.len() as u64 {
                self.write_bytes_of_packed(start, std::mem::take(&mut data)).await?;
                start = host;
            }
            data.push(cluster.clone());
        }
        self.write_bytes_of_packed(start, data).await
    }

    async fn write_bytes_of_packed(&self, host: u64, data: IoVec) -> Result<(), Error> {
        if data.is_empty() {
            return Ok(());
        }
        self.medium.check_data(HostOffset(host), data.len() as u64)?;
        self.medium.about_to(Step::WriteCompressed);
        self.medium
            .file
            .write(host, data, Hints::NONE)
            .await
            .map_err(self.medium.blame.io("writing a compressed cluster"))
    }

    /// The first cluster of the file that a compressed one touches, and how many it touches.
    pub(crate) fn touched_by(&self, cluster: &CompressedCluster) -> std::ops::Range<u64> {
        let first = cluster.host.0 >> self.medium.geometry.cluster_bits;
        let last = (cluster.host.0 + cluster.len - 1) >> self.medium.geometry.cluster_bits;
        first..last + 1
    }
}

/// The cluster of the file that was begun and has room left.
///
/// It holds a reference to that cluster of its own. So the cluster stays when what is in it is freed, and no other request is
/// given it while more is put in.
#[derive(Debug, Default)]
struct Tail {
    begun: Option<StartedCluster>,
}

#[derive(Clone, Copy, Debug)]
struct StartedCluster {
    cluster: u64,
    /// The first byte of the file that is free.
    at: u64,
}

impl Tail {
    /// A place for `len` bytes, less than a cluster, with a reference to each cluster that it touches.
    async fn place(&mut self, image: &Inner, len: u64) -> Result<u64, Error> {
        let bits = image.medium.geometry.cluster_bits;
        debug_assert!(0 < len && len < image.medium.geometry.cluster_size());
        image.medium.about_to(Step::ClusterAllocBytes);
        if let Some(StartedCluster { cluster, at }) = self.begun
            && at + len <= (cluster + 1) << bits
        {
            self.refer(image, cluster, at + len).await?;
            return Ok(at);
        }
        let run = image.space.allocate(&image.medium, 1).await?;
        let host = match self.begun.take() {
            // It goes across: the reference of the one that is left is its own.
            Some(StartedCluster { cluster, at }) if cluster + 1 == run.start => at,
            Some(StartedCluster { cluster, .. }) => {
                image.space.lower_and_give(&image.medium, cluster..cluster + 1).await;
                run.start << bits
            }
            None => run.start << bits,
        };
        self.refer(image, run.start, host + len).await?;
        Ok(host)
    }

    /// Takes a reference to `cluster`, to which the caller has one, for what ends at `end` in it; the rest is free. Where the
    /// refcount is at its highest the caller's becomes that reference.
    async fn refer(&mut self, image: &Inner, cluster: u64, end: u64) -> Result<(), Error> {
        self.begun = None;
        match image.space.refcounts.raise(cluster..cluster + 1).await {
            Ok(()) => self.begun = Some(StartedCluster { cluster, at: end }),
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => return Err(error),
        }
        if end == (cluster + 1) << image.medium.geometry.cluster_bits {
            self.leave(image).await;
        }
        Ok(())
    }

    /// Nothing more is put into the cluster that was begun.
    async fn leave(&mut self, image: &Inner) {
        if let Some(StartedCluster { cluster, .. }) = self.begun.take() {
            image.space.lower_and_give(&image.medium, cluster..cluster + 1).await;
        }
    }
}
