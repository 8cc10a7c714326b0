//! `qcow`: QEMU's first copy-on-write format (version 1). Tables of 8-byte entries lead to clusters, which may be compressed and lie anywhere in
//! the file. Numbers are big-endian. Encrypted ones are not read.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use block::{Blame, Block, Error, SECTOR_BYTES};
use memory::IoBuf;
use parking_lot::Mutex;
use storage::{Hints, Storage};
use zlib_rs::{Inflate, InflateFlush};

use crate::Kind;
use crate::fields::Fields;
use crate::pages::{Numbered, Pages};
use crate::pieces::{Disk, Layout, Piece, Place};

/// What files of all versions of qcow begin with; the version follows.
const MAGIC: [u8; 4] = *b"QFI\xfb";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: u64 = 8;
/// Of clusters, and of the second table in bytes: 512 bytes to 64 KiB, as in QEMU.
const BITS: std::ops::RangeInclusive<u8> = 9..=16;
const ENTRY_BITS: u8 = 3;
/// As in QEMU.
const BACKING_BYTES_MAX: u32 = 1023;
/// As in QEMU.
const L1_ENTRIES_MAX: u64 = i32::MAX as u64 / ENTRY_BYTES;
const AES: u32 = 1;
/// Streams may reach 32 KiB back.
const WINDOW_BITS_MAX: u8 = 15;
/// Of an entry of the second table: the cluster is compressed.
const COMPRESSED: u64 = 1 << 63;

/// An open qcow image.
pub type Qcow1 = Disk<Tables>;

/// Whether the first bytes of a file are those of a qcow image of version 1.
pub fn begins(start: &[u8]) -> bool {
    start.starts_with(&MAGIC) && start.get(4..8) == Some(&VERSION.to_be_bytes())
}

/// What the header says.
#[derive(Clone, Copy, Debug)]
struct Header {
    size: u64,
    cluster_bits: u8,
    l2_bits: u8,
    l1_offset: u64,
    /// Where the name of the backing file is, and its length.
    backing: Option<(u64, u32)>,
}

impl Header {
    async fn read(file: &dyn Storage) -> Result<Self, Error> {
        let header = Fields::read(file, 0, HEADER_BYTES, "header").await?;
        let blame = Blame::new(file.name());
        if !begins(header.bytes()) {
            return Err(blame.corrupt("there is no header of a qcow image of version 1"));
        }
        match header.be32(36) {
            0 => {}
            AES => {
                return Err(blame.unsupported(
                    "a qcow image of version 1 that is encrypted (AES): qemu-img convert -O qcow2 decrypts it",
                ));
            }
            other => {
                return Err(blame.unsupported(format!("encryption method {other}; only 0 (none) is read")));
            }
        }
        let [cluster_bits, l2_bits] = header.array(32);
        let l2_bytes_bits = l2_bits.saturating_add(ENTRY_BITS);
        for (what, bits) in
            [("clusters have", cluster_bits), ("tables of the second level have", l2_bytes_bits)]
        {
            if !BITS.contains(&bits) {
                return Err(blame.corrupt(format!("{what} 2^{bits} bytes; allowed: 2^9 to 2^16")));
            }
        }
        let backing = match (header.be64(8), header.be32(16)) {
            (0, _) | (_, 0) => None,
            (_, len @ BACKING_BYTES_MAX..) if len > BACKING_BYTES_MAX => {
                return Err(blame.corrupt(format!(
                    "the backing file's name has {len} bytes; at most {BACKING_BYTES_MAX} are allowed"
                )));
            }
            (at, len) => Some((at, len)),
        };
        let header =
            Self { size: header.be64(24), cluster_bits, l2_bits, l1_offset: header.be64(40), backing };
        header.check(file, &blame).map(|()| header)
    }

    fn check(&self, file: &dyn Storage, blame: &Blame) -> Result<(), Error> {
        let Self { size, l1_offset, .. } = *self;
        let entries = self.l1_entries();
        if size < 2 || entries > L1_ENTRIES_MAX || size > i64::MAX as u64 {
            return Err(blame.corrupt(format!(
                "the disk has {size} bytes; allowed: 2 and more, in at most {L1_ENTRIES_MAX} tables"
            )));
        }
        if l1_offset % ENTRY_BYTES != 0 {
            return Err(blame.corrupt(format!("the first table is at {l1_offset}; must be a multiple of 8")));
        }
        let end = l1_offset.checked_add(entries * ENTRY_BYTES);
        match end.filter(|end| *end <= file.length()) {
            Some(_) => Ok(()),
            None => Err(blame.corrupt(format!(
                "the first table ({entries} entries at {l1_offset}) is beyond the end of the file ({} bytes)",
                file.length()
            ))),
        }
    }

    fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of the disk that a table of the second level is for.
    fn reach(&self) -> u64 {
        1 << (self.cluster_bits + self.l2_bits)
    }

    fn l1_entries(&self) -> u64 {
        self.size.div_ceil(self.reach())
    }
}

/// What an image says without being opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Bytes that are allocated together.
    pub cluster_bytes: u64,
    /// The name of its backing file.
    pub backing: Option<String>,
}

/// Reads the header of an image.
///
/// # Errors
/// [`block::ErrorKind::Corrupt`] where it contradicts itself or the file's length, [`block::ErrorKind::Unsupported`] for an encrypted image.
pub async fn describe(file: &dyn Storage) -> Result<Description, Error> {
    let header = Header::read(file).await?;
    let backing = match header.backing {
        None => None,
        Some((at, len)) => {
            let name = Fields::read(file, at, len as usize, "name of the backing file").await?;
            let name = std::str::from_utf8(name.bytes());
            let no_text = |_| Blame::new(file.name()).corrupt("the name of the backing file is no UTF-8");
            Some(name.map_err(no_text)?.to_owned())
        }
    };
    Ok(Description {
        size: header.size / SECTOR_BYTES * SECTOR_BYTES,
        cluster_bytes: header.cluster_bytes(),
        backing,
    })
}

/// Opens the image in `file`, over `backing`.
///
/// # Errors
/// As [`describe`].
pub async fn open(file: Arc<dyn Storage>, backing: Option<Arc<dyn Block>>) -> Result<Qcow1, Error> {
    let header = Header::read(&*file).await?;
    let size = header.size / SECTOR_BYTES * SECTOR_BYTES;
    let (pages, unpacked) = (Pages::default(), Mutex::default());
    Ok(Disk { layout: Tables { file, header, size, pages, unpacked, backing } })
}

/// What an open image knows of its disk.
#[derive(Debug)]
pub struct Tables {
    file: Arc<dyn Storage>,
    header: Header,
    /// As in QEMU, the part of a sector at the end is left out.
    size: u64,
    pages: Pages,
    /// The cluster that was unpacked last, and where it is: small reads in sequence unpack it once.
    unpacked: Mutex<Option<(u64, Arc<[u8]>)>>,
    backing: Option<Arc<dyn Block>>,
}

/// A compressed cluster, and the part of it that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct PackedCluster {
    at: u64,
    bytes: u64,
    /// First byte that is wanted.
    inside: usize,
}

/// An entry of a table of the second level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Unallocated,
    At(u64),
    Compressed { at: u64, bytes: u64 },
}

impl Tables {
    fn entry(&self, value: u64) -> Entry {
        let Header { cluster_bits, .. } = self.header;
        let place_bits = 63 - cluster_bits;
        match value {
            0 => Entry::Unallocated,
            _ if value & COMPRESSED == 0 => Entry::At(value),
            _ => Entry::Compressed {
                at: value & ((1 << place_bits) - 1),
                bytes: value >> place_bits & (self.header.cluster_bytes() - 1),
            },
        }
    }

    fn blame(&self) -> Blame {
        Blame::new(self.file.name())
    }

    /// Entries of a table from the one at `at` on, as far as a page reaches.
    async fn entries(&self, at: u64, count: u64) -> Result<Vec<u64>, Error> {
        let from = self.pages.rest(Numbered { file: &*self.file, number: 0 }, at, ENTRY_BYTES).await?;
        let entries = from.chunks_exact(ENTRY_BYTES as usize).take(count as usize);
        Ok(entries.map(|entry| entry.first_chunk().copied().map_or(0, u64::from_be_bytes)).collect())
    }

    /// Neighbouring clusters from `cluster` on, at most `count` (one or more), that are read at once: how many, and the first one's entry.
    async fn run(&self, cluster: u64, count: u64) -> Result<(u64, Entry), Error> {
        let header = &self.header;
        let table_entries = 1 << header.l2_bits;
        let (table, index) = (cluster / table_entries, cluster % table_entries);
        let l1 = self.entries(header.l1_offset + table * ENTRY_BYTES, 1).await?;
        let left = (table_entries - index).min(count);
        let l2_offset = l1.first().copied().unwrap_or(0);
        if l2_offset == 0 {
            return Ok((left, Entry::Unallocated));
        }
        let at = l2_offset.checked_add(index * ENTRY_BYTES).filter(|at| at % ENTRY_BYTES == 0);
        let at = at.ok_or_else(|| {
            self.blame()
                .corrupt(format!("a table of the second level is at {l2_offset}; must be a multiple of 8"))
        })?;
        let entries = self.entries(at, left).await?;
        let mut entries = entries.into_iter().map(|value| self.entry(value));
        let first = entries.next().unwrap_or(Entry::Unallocated);
        let continues = |(number, next): &(u64, Entry)| match (first, *next) {
            (Entry::Unallocated, Entry::Unallocated) => true,
            (Entry::At(first), Entry::At(next)) => {
                first.checked_add(number * header.cluster_bytes()) == Some(next)
            }
            _ => false,
        };
        Ok((1 + (1..).zip(entries).take_while(continues).count() as u64, first))
    }

    fn corrupt_cluster(&self, at: u64, what: &dyn std::fmt::Display) -> Error {
        self.blame().corrupt(format!("the compressed cluster at {at} is damaged: {what}"))
    }

    async fn unpacked(&self, packed: PackedCluster) -> Result<Arc<[u8]>, Error> {
        let cached = self
            .unpacked
            .lock()
            .as_ref()
            .filter(|(at, _)| *at == packed.at)
            .map(|(_, bytes)| Arc::clone(bytes));
        if let Some(bytes) = cached {
            return Ok(bytes);
        }
        let buf = IoBuf::uninit(packed.bytes as usize);
        let (result, buf) = self.file.read(packed.at, buf, Hints::NONE).await;
        result.map_err(self.blame().io("reading a compressed cluster"))?;
        let bytes = inflate(&buf, self.header.cluster_bytes() as usize);
        let bytes: Arc<[u8]> = bytes.map_err(|error| self.corrupt_cluster(packed.at, &error))?.into();
        *self.unpacked.lock() = Some((packed.at, Arc::clone(&bytes)));
        Ok(bytes)
    }
}

/// The bytes that a raw deflate stream stands for, of which there must be `len`.
fn inflate(packed: &[u8], len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut stream = Inflate::new(false, WINDOW_BITS_MAX);
    let status = stream.decompress(packed, &mut bytes, InflateFlush::Finish);
    status.map_err(|error| io::Error::new(ErrorKind::InvalidData, error.as_str()))?;
    match stream.total_out() == len as u64 {
        true => Ok(bytes),
        false => {
            let what = format!("it unpacks to {} bytes; must be {len}", stream.total_out());
            Err(io::Error::new(ErrorKind::InvalidData, what))
        }
    }
}

impl Layout for Tables {
    type Packed = PackedCluster;

    fn kind(&self) -> Kind {
        Kind::Qcow
    }

    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn cluster_bytes(&self) -> Option<u64> {
        Some(self.header.cluster_bytes())
    }

    fn alignment(&self) -> u32 {
        self.file.capabilities().alignment
    }

    fn backing(&self) -> Option<&Arc<dyn Block>> {
        self.backing.as_ref()
    }

    async fn locate(&self, offset: u64, len: u64) -> Result<Piece<PackedCluster>, Error> {
        let cluster_bytes = self.header.cluster_bytes();
        let (cluster, inside) = (offset / cluster_bytes, offset % cluster_bytes);
        let (count, entry) = self.run(cluster, (inside + len).div_ceil(cluster_bytes)).await?;
        let len = (count * cluster_bytes - inside).min(len);
        let beyond = |at: u64| {
            self.blame().corrupt(format!(
                "cluster {cluster} is at {at}, beyond the end of the file ({} bytes)",
                self.file.length()
            ))
        };
        let place = match entry {
            Entry::Unallocated => Place::Unallocated,
            Entry::At(at) | Entry::Compressed { at, .. } if at >= self.file.length() => {
                return Err(beyond(at));
            }
            Entry::At(at) => Place::File { file: Arc::clone(&self.file), at: at + inside, reserved: false },
            Entry::Compressed { at, bytes } => {
                Place::Packed(PackedCluster { at, bytes, inside: inside as usize })
            }
        };
        Ok(Piece { len, place })
    }

    async fn unpack(&self, packed: PackedCluster, buf: &mut [u8]) -> Result<(), Error> {
        let bytes = self.unpacked(packed).await?;
        match bytes.get(packed.inside..packed.inside + buf.len()) {
            Some(part) => {
                buf.copy_from_slice(part);
                Ok(())
            }
            None => Err(self.corrupt_cluster(packed.at, &"it ends early")),
        }
    }
}

#[cfg(test)]
mod tests;
