//! Reading compressed clusters.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use qcow2_layout::{CompressedCluster, Compression};
use storage::{Hints, IoBuf, IoBytes, Step};
use sync::{Mutex, Semaphore, oneshot};
use zlib_rs::{Inflate, InflateFlush, Status};
use zstd_safe::{DCtx, InBuffer, OutBuffer, ResetDirective};

use crate::Error;
use crate::compressing::zstd_error;
use crate::medium::Medium;

/// Decompressed clusters kept: neighbouring small reads then decompress once. At the largest
/// cluster size this is 8 MiB an image.
const KEPT_CLUSTERS: usize = 4;

/// Clusters of one image that are unpacked at the same time on threads beside the loops, as many as QEMU's.
const THREADS_MAX: usize = 4;

/// Smaller clusters are unpacked where they are asked for: another thread would take longer to wake than
/// this takes.
const ELSEWHERE_BYTES_MIN: usize = 16 << 10;

/// The window of a deflate stream at most: a packer of others may have used all of it.
const INFLATE_WINDOW_BITS: u8 = 15;

thread_local! {
    /// What the thread unpacks zstd with: some 160 KiB, and a sixth of the time of a cluster to make anew.
    static ZSTD: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// The compressed clusters that were read last, by their place in the file. Compressed clusters
/// are never rewritten in place, so an entry stays right as long as the map leads to it.
#[derive(Debug)]
pub(crate) struct Decompressed {
    /// How all of them are packed.
    compression: Compression,
    latest: Mutex<Vec<(u64, Arc<IoBuf>)>>,
    /// Places for unpacking on another thread.
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
    ) -> Result<Arc<IoBuf>, Error> {
        if let Some(bytes) = self.get(cluster.host.0) {
            return Ok(bytes);
        }
        let packed = self.read_packed(medium, cluster).await?;
        let (compression, size) = (self.compression, 1 << medium.geometry.cluster_bits);
        let unpacked = self.calculate(medium, size, move || unpack(compression, &packed, size)).await?;
        let bytes = Arc::new(unpacked.map_err(|error| broken(medium, cluster, &error))?);
        self.keep(cluster.host.0, Arc::clone(&bytes));
        Ok(bytes)
    }

    /// The bytes of a compressed cluster with what is behind them up to the end of a sector.
    async fn read_packed(&self, medium: &Medium, cluster: CompressedCluster) -> Result<IoBuf, Error> {
        medium.check_data(cluster.host, cluster.len)?;
        // At most two clusters: the entry has no room for a larger length.
        let buf = IoBuf::for_request(cluster.len as usize)
            .map_err(medium.blame.io("reading a compressed cluster"))?;
        // Never ciphered, and never in another file.
        medium.about_to(Step::ReadCompressed);
        let (result, packed) = medium.file.read(cluster.host.0, buf, Hints::NONE).await;
        result.map_err(medium.blame.io("reading a compressed cluster"))?;
        Ok(packed)
    }

    /// Decompresses a cluster of `size` bytes without holding up the loop for long.
    async fn calculate<T: Send + 'static>(
        &self,
        medium: &Medium,
        size: usize,
        unpack: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        if size < ELSEWHERE_BYTES_MIN {
            return Ok(unpack());
        }
        let _place = self.threads.acquire().await;
        let (done, unpacked) = oneshot::channel();
        let calculation = move || {
            // No task waits any more if the request was dropped.
            let _ = done.send(unpack());
        };
        medium.host.calculate(Box::new(calculation)).await;
        unpacked.await.map_err(|_| medium.blame.refused("the program is stopping"))
    }

    /// The bytes of a compressed cluster without what is behind their end; `None` if they do not say where that is. They are unpacked on
    /// the way: one that cannot be is an error here as it is for a reader.
    pub(crate) async fn packed(
        &self,
        medium: &Medium,
        cluster: CompressedCluster,
    ) -> Result<Option<IoBytes>, Error> {
        let packed = self.read_packed(medium, cluster).await?.freeze();
        let (compression, size) = (self.compression, 1 << medium.geometry.cluster_bits);
        let bytes = packed.clone();
        let measured = self.calculate(medium, size, move || packed_len(compression, &bytes, size)).await?;
        let len = measured.map_err(|error| broken(medium, cluster, &error))?;
        Ok(len.map(|len| packed.slice(0, len)))
    }

    fn get(&self, host: u64) -> Option<Arc<IoBuf>> {
        let mut latest = self.latest.lock();
        let at = latest.iter().position(|(its_host, _)| *its_host == host)?;
        latest[..=at].rotate_right(1);
        latest.first().map(|(_, bytes)| Arc::clone(bytes))
    }

    fn keep(&self, host: u64, bytes: Arc<IoBuf>) {
        let mut latest = self.latest.lock();
        latest.truncate(KEPT_CLUSTERS - 1);
        latest.insert(0, (host, bytes));
    }

    /// Forgets everything: clusters were freed, and something else may be compressed in their place.
    pub(crate) fn clear(&self) {
        self.latest.lock().clear();
    }
}

fn broken(medium: &Medium, cluster: CompressedCluster, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::OutOfMemory {
        return medium.blame.no_memory("a compressed cluster");
    }
    let what = format!("the compressed cluster at {} does not decompress: {error}", cluster.host);
    medium.blame.corrupt(what)
}

/// How many bytes of `packed` are the cluster, which has `size` bytes unpacked; `None` if it does not say where it ends.
pub(crate) fn packed_len(compression: Compression, packed: &[u8], size: usize) -> io::Result<Option<usize>> {
    match compression {
        Compression::Deflate => {
            // One byte more than it has room for: a stream that goes on is not taken for one that ends.
            let mut bytes = IoBuf::for_request(size + 1)?;
            let mut stream = Inflate::new(false, INFLATE_WINDOW_BITS);
            let status = stream.decompress(packed, &mut bytes, InflateFlush::Finish);
            if status.is_ok_and(|status| status == Status::StreamEnd) && stream.total_out() == size as u64 {
                return Ok(Some(stream.total_in() as usize));
            }
            unpack(compression, packed, size).map(|_| None)
        }
        Compression::Zstd => {
            unpack(compression, packed, size)?;
            Ok(zstd_safe::find_frame_compressed_size(packed).ok())
        }
    }
}

/// Decompresses `packed`, which may have anything behind its end, to exactly `size` bytes.
fn unpack(compression: Compression, packed: &[u8], size: usize) -> io::Result<IoBuf> {
    let mut bytes = IoBuf::for_request(size)?;
    let got = match compression {
        Compression::Deflate => unpack_deflate(packed, &mut bytes)?,
        Compression::Zstd => unpack_zstd(packed, &mut bytes)?,
    };
    if got == size {
        Ok(bytes)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("it ends after {got} of {size} bytes")))
    }
}

/// More comes out than a cluster has room for: it is no cluster that anybody packed, and where it would end is unknown.
fn too_much(size: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {size} bytes"))
}

#[cfg(not(feature = "libdeflate"))]
fn unpack_deflate(packed: &[u8], bytes: &mut [u8]) -> io::Result<usize> {
    inflate(packed, bytes)
}

#[cfg(feature = "libdeflate")]
fn unpack_deflate(packed: &[u8], bytes: &mut [u8]) -> io::Result<usize> {
    match libdeflater::Decompressor::new().deflate_decompress(packed, bytes) {
        Ok(got) => Ok(got),
        // A stream whose end is cut off behind the last byte of the cluster has all of it, for QEMU too; the other library says what
        // is wrong with any other.
        Err(_) => inflate(packed, bytes),
    }
}

fn inflate(packed: &[u8], bytes: &mut [u8]) -> io::Result<usize> {
    let mut stream = Inflate::new(false, INFLATE_WINDOW_BITS);
    // Room for a byte behind the cluster tells whether there is more.
    let mut more = [0; 1];
    loop {
        let (read, written) = (stream.total_in() as usize, stream.total_out() as usize);
        let room = match bytes.get_mut(written..) {
            Some(room) if !room.is_empty() => room,
            _ => more.as_mut_slice(),
        };
        let status = stream.decompress(&packed[read..], room, InflateFlush::NoFlush);
        let status = status.map_err(|error| {
            let why = stream.error_message().unwrap_or(error.as_str());
            io::Error::new(io::ErrorKind::InvalidData, format!("deflate decompression error: {why}"))
        })?;
        let now = (stream.total_in() as usize, stream.total_out() as usize);
        if now.1 > bytes.len() {
            return Err(too_much(bytes.len()));
        }
        if status == Status::StreamEnd || now == (read, written) {
            return Ok(now.1);
        }
    }
}

fn unpack_zstd(packed: &[u8], bytes: &mut [u8]) -> io::Result<usize> {
    ZSTD.with_borrow_mut(|kept| {
        let stream = match kept {
            Some(stream) => stream,
            None => kept.insert(DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?),
        };
        // Also after a cluster that was no good.
        stream.reset(ResetDirective::SessionOnly).map_err(zstd_error)?;
        run_zstd(stream, packed, bytes)
    })
}

/// Unpacks frames until the cluster is full; as with QEMU there may be several. The last one has to end there.
fn run_zstd(stream: &mut DCtx<'_>, packed: &[u8], bytes: &mut [u8]) -> io::Result<usize> {
    let size = bytes.len();
    let mut input = InBuffer::around(packed);
    let mut output = OutBuffer::around(bytes);
    loop {
        let before = (input.pos(), output.pos());
        let hint = stream.decompress_stream(&mut output, &mut input).map_err(zstd_error)?;
        match output.pos() == size {
            true if hint == 0 => return Ok(size),
            true => return ends_now(stream, &mut input, size),
            false if (input.pos(), output.pos()) == before => return Ok(output.pos()),
            false => {}
        }
    }
}

/// The cluster is full, and its last frame has not ended: nothing but its end may follow.
fn ends_now(stream: &mut DCtx<'_>, input: &mut InBuffer<'_>, size: usize) -> io::Result<usize> {
    let mut more = [0; 1];
    let mut output = OutBuffer::around(more.as_mut_slice());
    loop {
        let before = input.pos();
        let hint = stream.decompress_stream(&mut output, input).map_err(zstd_error)?;
        if output.pos() > 0 {
            return Err(too_much(size));
        }
        if hint == 0 {
            return Ok(size);
        }
        if input.pos() == before {
            let what = "its last frame does not end";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 4096;

    fn packed(compression: Compression, content: &[u8]) -> Vec<u8> {
        match compression {
            Compression::Deflate => {
                let mut bytes = vec![0; content.len() + 64];
                let raw = zlib_rs::DeflateConfig { window_bits: -15, ..zlib_rs::DeflateConfig::default() };
                let len = zlib_rs::compress_slice(&mut bytes, content, raw).0.len();
                bytes.truncate(len);
                bytes
            }
            Compression::Zstd => {
                let mut bytes = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
                zstd_safe::compress(&mut bytes, content, 3).unwrap();
                bytes
            }
        }
    }

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 7 % 251) as u8).collect()
    }

    /// A frame of 1 MiB in an image with clusters of 64 KiB was cut off at the cluster's end and read as data.
    #[test]
    fn what_unpacks_to_more_or_less_than_a_cluster_is_an_error() {
        for compression in [Compression::Deflate, Compression::Zstd] {
            for len in [0, 1, SIZE - 1, SIZE + 1, 2 * SIZE, 16 * SIZE] {
                let mut bytes = packed(compression, &content(len));
                bytes.extend([0x5a; 100]);
                let error = unpack(compression, &bytes, SIZE).unwrap_err().to_string();
                let why = match compression {
                    _ if len > SIZE => "it has more than 4096 bytes",
                    Compression::Deflate => "it ends after",
                    // Frames may follow each other, and what follows here is none.
                    Compression::Zstd => "frame",
                };
                assert!(error.contains(why), "{compression:?} {len}: {error}");
            }
            let mut bytes = packed(compression, &content(SIZE));
            bytes.extend([0x5a; 100]);
            assert_eq!(unpack(compression, &bytes, SIZE).unwrap()[..], content(SIZE)[..], "{compression:?}");
        }
    }

    /// As with QEMU: a deflate stream that has all of a cluster and no end is one, a zstd frame is not; frames may follow each other.
    #[test]
    fn what_has_a_cluster_and_no_end_is_judged_as_qemu_does() {
        // A stored block that is not the last one.
        let mut stored = vec![0];
        stored.extend((SIZE as u16).to_le_bytes());
        stored.extend((!(SIZE as u16)).to_le_bytes());
        stored.extend(content(SIZE));
        assert_eq!(unpack(Compression::Deflate, &stored, SIZE).unwrap()[..], content(SIZE)[..]);
        let mut frame = packed(Compression::Zstd, &content(SIZE));
        let whole = content(SIZE);
        let (first, second) = whole.split_at(1000);
        let mut two = packed(Compression::Zstd, first);
        two.extend(packed(Compression::Zstd, second));
        assert_eq!(unpack(Compression::Zstd, &two, SIZE).unwrap()[..], whole[..]);
        frame.truncate(frame.len() - 2);
        assert!(unpack(Compression::Zstd, &frame, SIZE).is_err());
    }
}
