//! An object of a store that takes a copy: written from the first byte to the last, and visible when it is whole.

use std::io;
use std::ops::Range;

use block::{Blame, Block, BlockFuture, Capabilities, Error, Hints, ZeroOptions};
use futures_util::future::join_all;
use futures_util::lock::Mutex;
use memory::{IoBytes, IoVec};
use qcow2::{CreateError, InOrder, InOrderCluster, Packer};
use remote::s3::{Service, StoreError, Upload};
use tool::failure::Failure;

/// Zeroes that are appended at a time.
const ZEROES_BYTES: usize = 64 << 10;

/// What the object becomes.
#[derive(Debug)]
pub enum Shape {
    /// The bytes of a disk of so many.
    Raw(u64),
    /// A qcow2 image.
    Qcow2(Box<InOrder>),
    /// A qcow2 image of compressed clusters.
    Compressed(Box<InOrder>),
}

/// The object.
#[derive(Debug)]
pub struct ObjectTarget {
    name: String,
    size: u64,
    /// What writes must be whole multiples of.
    align_bytes: u64,
    /// There with [`Shape::Compressed`].
    packer: Option<Packer>,
    // A future's lock: writes await the store while they hold it. They come one at a time.
    making: Mutex<Making>,
}

#[derive(Debug)]
struct Making {
    upload: Upload,
    /// Without it the object is the disk itself.
    image: Option<Box<InOrder>>,
    /// Bytes of a disk that were appended.
    bytes: u64,
}

impl ObjectTarget {
    /// For the object `name`, which `upload` makes.
    pub fn new(name: String, upload: Upload, shape: Shape) -> Self {
        let (size, image, packer) = match shape {
            Shape::Raw(size) => (size, None, None),
            Shape::Qcow2(image) => (image.size(), Some(image), None),
            Shape::Compressed(image) => {
                let packer = image.packer();
                (image.size(), Some(image), Some(packer))
            }
        };
        let align_bytes = image.as_ref().map_or(1, |image| image.cluster_bytes());
        Self { name, size, align_bytes, packer, making: Mutex::new(Making { upload, image, bytes: 0 }) }
    }

    /// What writes must begin at and end at multiples of, but at the end of the disk.
    pub fn align_bytes(&self) -> u64 {
        self.align_bytes
    }

    /// Everything was written: the object becomes visible.
    ///
    /// # Errors
    /// When the store does not take it.
    pub async fn finish(&self) -> Result<(), Failure> {
        let mut making = self.making.lock().await;
        let finished = async {
            let start = making.end(self.size).await?;
            making.upload.finish(&start).await.map_err(Broken::Store)
        };
        finished.await.map_err(|error| {
            let failure = Failure::because(format!("cannot upload {}", self.name), &error);
            if let Broken::Store(error) = &error { hinted(failure, error) } else { failure }
        })
    }

    /// Takes away what was sent.
    ///
    /// # Errors
    /// When the store does not answer: the parts that were sent stay there, unseen.
    pub async fn abort(&self) -> Result<(), StoreError> {
        self.making.lock().await.upload.abort().await
    }

    /// What the store calls the upload while parts of it are there.
    pub async fn upload_id(&self) -> Option<String> {
        self.making.lock().await.upload.id().map(str::to_owned)
    }

    fn blame(&self) -> Blame {
        Blame::new(&self.name)
    }

    async fn append(&self, offset: u64, data: IoVec) -> Result<(), Error> {
        let mut making = self.making.lock().await;
        let written = async {
            match self.packer {
                _ if making.image.is_none() => making.raw(offset, &data).await,
                None => making.clusters(offset / self.align_bytes, &self.split(&data), &[]).await,
                Some(packer) => {
                    let clusters = self.split(&data);
                    let packed = pack(packer, &clusters).await.map_err(Broken::Pack)?;
                    making.clusters(offset / self.align_bytes, &clusters, &packed).await
                }
            }
        };
        written.await.map_err(|error| self.blame().io("uploading")(io::Error::other(error)))
    }

    fn split(&self, data: &IoVec) -> Vec<IoBytes> {
        let cluster = usize::try_from(self.align_bytes).unwrap_or(usize::MAX);
        let starts = (0..data.len()).step_by(cluster);
        starts.map(|at| data.slice(at, (at + cluster).min(data.len())).to_bytes()).collect()
    }

    async fn append_zeroes(&self, offset: u64, len: u64) -> Result<(), Error> {
        let mut making = self.making.lock().await;
        let clusters = offset / self.align_bytes..(offset + len).div_ceil(self.align_bytes);
        // Of a disk what is left out is filled when more comes, or it ends.
        let written = making.zeroes(clusters).await;
        written.map_err(|error| self.blame().io("uploading")(io::Error::other(error)))
    }
}

/// Why an object was not made.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Store(StoreError),
    #[error(transparent)]
    Image(CreateError),
    #[error("a cluster cannot be compressed: {0}")]
    Pack(io::Error),
}

/// Compresses clusters on all threads that there are for it; `None` of those that do not get smaller.
async fn pack(packer: Packer, clusters: &[IoBytes]) -> io::Result<Vec<Option<IoBytes>>> {
    let packed = clusters.iter().map(|cluster| {
        let cluster = cluster.clone();
        reactor::blocking(move || packer.pack(&cluster))
    });
    join_all(packed).await.into_iter().collect()
}

impl Making {
    async fn raw(&mut self, offset: u64, data: &IoVec) -> Result<(), Broken> {
        self.fill_to(offset).await?;
        for part in data.parts() {
            self.upload.append(part).await.map_err(Broken::Store)?;
        }
        self.bytes += data.len() as u64;
        Ok(())
    }

    /// Appends zeroes up to `offset` of a disk.
    async fn fill_to(&mut self, offset: u64) -> Result<(), Broken> {
        let zeroes = [0; ZEROES_BYTES];
        while self.bytes < offset {
            let now = (offset - self.bytes).min(ZEROES_BYTES as u64);
            let piece = zeroes.get(..usize::try_from(now).unwrap_or(ZEROES_BYTES)).unwrap_or(&zeroes);
            self.upload.append(piece).await.map_err(Broken::Store)?;
            self.bytes += now;
        }
        Ok(())
    }

    async fn clusters(
        &mut self,
        first: u64,
        clusters: &[IoBytes],
        packed: &[Option<IoBytes>],
    ) -> Result<(), Broken> {
        let Some(image) = &mut self.image else { return Ok(()) };
        let packed = packed.iter().map(Option::as_deref).chain(std::iter::repeat(None));
        for ((index, cluster), packed) in (first..).zip(clusters).zip(packed) {
            let cluster = packed.map_or(InOrderCluster::Data(cluster), InOrderCluster::Packed);
            image.add(index, cluster).map_err(Broken::Image)?;
            self.upload.append(&image.take()).await.map_err(Broken::Store)?;
        }
        Ok(())
    }

    /// As [`Making::clusters`], for clusters of zeroes. An image of version 2 over another one stores them.
    async fn zeroes(&mut self, clusters: Range<u64>) -> Result<(), Broken> {
        let Some(image) = &mut self.image else { return Ok(()) };
        for index in clusters {
            image.add(index, InOrderCluster::Zeroes).map_err(Broken::Image)?;
            self.upload.append(&image.take()).await.map_err(Broken::Store)?;
        }
        Ok(())
    }

    /// Appends what stands at the end; gives what is to stand at the start.
    async fn end(&mut self, size: u64) -> Result<Vec<u8>, Broken> {
        let Some(image) = &mut self.image else {
            self.fill_to(size).await?;
            return Ok(Vec::new());
        };
        let start = image.finish().map_err(Broken::Image)?;
        self.upload.append(&image.take()).await.map_err(Broken::Store)?;
        Ok(start)
    }
}

/// With what the user can do about `error`.
pub fn hinted(failure: Failure, error: &StoreError) -> Failure {
    match error {
        StoreError::Exists { .. } => failure.with_hint("--force replaces it, when the new one is whole"),
        StoreError::Unconditional { .. } => {
            failure.with_hint("--force makes it without that; no other process may make it at the same time")
        }
        _ => failure,
    }
}

impl Block for ObjectTarget {
    fn driver(&self) -> &'static str {
        Service::of_name(&self.name).unwrap_or_default().scheme()
    }

    fn refusal(&self) -> &'static str {
        "an object that is made is only written"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: false, alignment: 1, cached: false, cluster_bytes: None }
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.append(offset, data))
    }

    fn zero(&self, offset: u64, len: u64, _: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.append_zeroes(offset, len))
    }
}
