//! Reading compressed clusters.

use std::io;
use std::sync::Arc;

use flate2::{Decompress, FlushDecompress, Status};
use qcow2_layout::{CompressedCluster, Compression};
use storage::IoBuf;
use sync::{Mutex, Semaphore};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use crate::Error;
use crate::medium::Medium;

/// Decompressed clusters kept: neighbouring small reads then decompress once. At the largest
/// cluster size this is 8 MiB an image.
const KEPT_CLUSTERS: usize = 4;

/// Clusters of one image that are unpacked at the same time on threads beside the loops, as many as QEMU's.
const THREADS_MAX: usize = 4;

/// Smaller clusters are unpacked where they are asked for: another thread would take longer to wake than
/// this takes.
const ELSEWHERE_BYTES_MIN: usize = 16 << 10;

/// The compressed clusters that were read last, by their place in the file. Compressed clusters
/// are never rewritten in place, so an entry stays right as long as the map leads to it.
#[derive(Debug)]
pub(crate) struct Decompressed {
    /// How all of them are packed.
    compression: Compression,
    latest: Mutex<Vec<(u64, Arc<Vec<u8>>)>>,
    /// Places for those who unpack on another thread.
    threads: Semaphore,
}

impl Decompressed {
    /// How the image compresses.
    pub(crate) fn compression(&self) -> Compression {
        self.compression
    }

    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, latest: Mutex::default(), threads: Semaphore::new(THREADS_MAX) }
    }

    /// The content of a compressed cluster: one cluster of bytes.
    pub(crate) async fn content(
        &self,
        medium: &Medium,
        cluster: CompressedCluster,
    ) -> Result<Arc<Vec<u8>>, Error> {
        if let Some(bytes) = self.get(cluster.host.0) {
            return Ok(bytes);
        }
        medium.check_data(cluster.host, cluster.len)?;
        // At most two clusters: the entry has no room for a larger length.
        let buf = IoBuf::uninit(cluster.len as usize);
        // Never ciphered, and never in another file.
        let (result, packed) = medium.file.read(cluster.host.0, buf).await;
        result.map_err(medium.blame.io("reading a compressed cluster"))?;
        let size = 1 << medium.geometry.cluster_bits;
        let bytes = self.unpack(medium, packed, size).await?.map_err(|error| {
            medium
                .blame
                .corrupt(format!("the compressed cluster at {} does not decompress: {error}", cluster.host))
        })?;
        let bytes = Arc::new(bytes);
        self.keep(cluster.host.0, Arc::clone(&bytes));
        Ok(bytes)
    }

    /// Decompresses `packed` to `size` bytes without holding up the loop for long.
    async fn unpack(
        &self,
        medium: &Medium,
        packed: IoBuf,
        size: usize,
    ) -> Result<io::Result<Vec<u8>>, Error> {
        let compression = self.compression;
        if size < ELSEWHERE_BYTES_MIN {
            return Ok(unpack(compression, &packed, size));
        }
        let _place = self.threads.acquire().await;
        let (done, unpacked) = futures_channel::oneshot::channel();
        let calculation = move || {
            // Nobody waits any more if the request was dropped.
            let _ = done.send(unpack(compression, &packed, size));
        };
        medium.host.calculate(Box::new(calculation)).await;
        unpacked.await.map_err(|_| medium.blame.refused("the program is stopping"))
    }

    fn get(&self, host: u64) -> Option<Arc<Vec<u8>>> {
        let mut latest = self.latest.lock();
        let at = latest.iter().position(|(its_host, _)| *its_host == host)?;
        latest[..=at].rotate_right(1);
        latest.first().map(|(_, bytes)| Arc::clone(bytes))
    }

    fn keep(&self, host: u64, bytes: Arc<Vec<u8>>) {
        let mut latest = self.latest.lock();
        latest.truncate(KEPT_CLUSTERS - 1);
        latest.insert(0, (host, bytes));
    }

    /// Forgets everything: clusters were freed, and something else may be compressed in their place.
    pub(crate) fn clear(&self) {
        self.latest.lock().clear();
    }
}

/// Decompresses `packed`, which may have anything behind its end, to exactly `size` bytes.
fn unpack(compression: Compression, packed: &[u8], size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    let got = match compression {
        Compression::Deflate => inflate(packed, &mut bytes)?,
        Compression::Zstd => unpack_zstd(packed, &mut bytes)?,
    };
    if got == size {
        Ok(bytes)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("it ends after {got} of {size} bytes")))
    }
}

fn inflate(packed: &[u8], bytes: &mut [u8]) -> io::Result<usize> {
    let mut stream = Decompress::new(false);
    loop {
        let (read, written) = (stream.total_in() as usize, stream.total_out() as usize);
        let status = stream.decompress(&packed[read..], &mut bytes[written..], FlushDecompress::None)?;
        let stuck = (read, written) == (stream.total_in() as usize, stream.total_out() as usize);
        if status == Status::StreamEnd || stuck || stream.total_out() as usize == bytes.len() {
            return Ok(stream.total_out() as usize);
        }
    }
}

fn unpack_zstd(packed: &[u8], bytes: &mut [u8]) -> io::Result<usize> {
    let size = bytes.len();
    let mut stream = Decoder::new()?;
    let mut input = InBuffer::around(packed);
    let mut output = OutBuffer::around(bytes);
    loop {
        let before = (input.pos(), output.pos());
        let hint = stream.run(&mut input, &mut output)?;
        if output.pos() == size || hint == 0 || (input.pos(), output.pos()) == before {
            return Ok(output.pos());
        }
    }
}
