//! `vmdk`: VMware's images. A descriptor names the extents of the disk; each is a flat file, or a sparse one whose tables find grains.
//!
//! "Virtual Disk Format 5.0" of VMware. A sparse file may have the descriptor inside: then it is the whole disk. Names in a descriptor are
//! followed by the caller, which has the rules for that.

mod descriptor;
mod grains;
mod header;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use block::{Blame, Block, Error, SECTOR_BYTES};
use storage::Storage;

use self::descriptor::{DESCRIPTOR_BYTES_MAX, DescriptorError, Lines};
pub use self::descriptor::{Descriptor, ExtentKind, ExtentLine, NO_PARENT};
use self::grains::{PackedGrain, State, Unpacked};
use self::header::{COWD_MAGIC, SPARSE_MAGIC, Sparse};
use crate::Kind;
use crate::fields::Fields;
use crate::pages::{Numbered, Pages};
use crate::pieces::{Disk, Layout, Piece, Place};

/// An open vmdk image.
pub type Vmdk = Disk<Vmware>;

/// Images whose extents are files of their own.
const CREATE_TYPES: [&str; 8] = [
    "monolithicFlat",
    "twoGbMaxExtentSparse",
    "twoGbMaxExtentFlat",
    "vmfs",
    "vmfsSparse",
    "vmfsThin",
    "vmfsPreallocated",
    "vmfsEagerZeroedThick",
];
/// A disk is below 2^63 bytes.
const SECTORS_MAX: u64 = i64::MAX as u64 / SECTOR_BYTES;

/// Whether the first bytes of a file are those of a vmdk image.
pub fn begins(start: &[u8]) -> bool {
    start.starts_with(SPARSE_MAGIC) || start.starts_with(COWD_MAGIC) || descriptor::begins(start)
}

/// What the file of an image says, before its extents are opened.
#[derive(Clone, Debug)]
pub struct Description {
    /// What the descriptor says; its extents count only where they are files of their own.
    pub descriptor: Descriptor,
    /// The tables, where the file itself is the only extent.
    own: Option<Sparse>,
}

impl Description {
    /// The extents that are files of their own, in the order of the disk.
    pub fn extents(&self) -> &[ExtentLine] {
        if self.own.is_some() { &[] } else { &self.descriptor.extents }
    }

    /// Size of the disk in bytes, as far as it is known without the extents.
    pub fn size(&self) -> u64 {
        let own = self.own.as_ref().map(|own| own.sectors);
        own.unwrap_or_else(|| self.descriptor.extents.iter().map(|line| line.sectors).sum()) * SECTOR_BYTES
    }

    /// The only extent, where that is the file itself.
    pub fn own(&self) -> Option<ExtentInfo> {
        self.own.as_ref().map(ExtentInfo::of)
    }
}

/// What is known of a sparse extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentInfo {
    /// Bytes of the disk that it holds.
    pub bytes: u64,
    /// Bytes of a grain.
    pub grain_bytes: u64,
    /// Grains are compressed.
    pub is_packed: bool,
}

impl ExtentInfo {
    fn of(sparse: &Sparse) -> Self {
        let Sparse { sectors, grain_bytes, is_packed, .. } = *sparse;
        Self { bytes: sectors * SECTOR_BYTES, grain_bytes, is_packed }
    }
}

/// Reads header and descriptor of an image, at most 1 MiB of it.
///
/// # Errors
/// [`block::ErrorKind::Corrupt`] where they contradict themselves, and [`block::ErrorKind::Unsupported`] for a variant that is not read.
pub async fn describe(file: &dyn Storage) -> Result<Description, Error> {
    let start = Fields::read(file, 0, 4, "magic").await?;
    let is_sparse = [SPARSE_MAGIC, COWD_MAGIC].contains(&&start.array::<4>(0));
    let description = match is_sparse {
        true => sparse_file(file).await?,
        false => {
            let descriptor = read_descriptor(file, (0, u64::MAX), Lines::Read).await?;
            Description { descriptor, own: None }
        }
    };
    let blame = Blame::new(file.name());
    if description.own.is_some() {
        return Ok(description);
    }
    let create_type = description.descriptor.create_type.as_str();
    if !CREATE_TYPES.contains(&create_type) {
        return Err(blame.unsupported(format!(
            "createType is {create_type:?}; allowed: {} (vmkfstools -i, or vmware-vdiskmanager -r, makes a copy of one of these)",
            CREATE_TYPES.join(", ")
        )));
    }
    let sectors =
        description.descriptor.extents.iter().try_fold(0_u64, |sum, line| sum.checked_add(line.sectors));
    match sectors {
        Some(1..=SECTORS_MAX) => Ok(description),
        _ => Err(blame.corrupt(format!(
            "the extents of the descriptor have no sectors, or more than {SECTORS_MAX} together"
        ))),
    }
}

/// A sparse file: the whole disk, or the descriptor of one.
async fn sparse_file(file: &dyn Storage) -> Result<Description, Error> {
    let found = header::read(file).await?;
    let Some(place) = found.descriptor else {
        let detail = "a sparse extent without a descriptor: a part of a disk, whose descriptor is in another file; open that";
        return Err(Blame::new(file.name()).corrupt(detail));
    };
    let Some(own) = found.sparse else {
        return Ok(Description { descriptor: read_descriptor(file, place, Lines::Read).await?, own: None });
    };
    let mut descriptor = read_descriptor(file, place, Lines::Skip).await?;
    check_size(file, &own)?;
    // As in QEMU: what the header says counts.
    let create_type = if own.is_packed { "streamOptimized" } else { "monolithicSparse" };
    create_type.clone_into(&mut descriptor.create_type);
    Ok(Description { descriptor, own: Some(own) })
}

fn check_size(file: &dyn Storage, sparse: &Sparse) -> Result<(), Error> {
    match sparse.sectors <= SECTORS_MAX {
        true => Ok(()),
        false => {
            let detail = format!("an extent has {} sectors; allowed: 1 to {SECTORS_MAX}", sparse.sectors);
            Err(Blame::new(file.name()).corrupt(detail))
        }
    }
}

async fn read_descriptor(
    file: &dyn Storage,
    (at, len): (u64, u64),
    lines: Lines,
) -> Result<Descriptor, Error> {
    let there = file.length().saturating_sub(at);
    let len = len.min(there).min(DESCRIPTOR_BYTES_MAX);
    let text = Fields::read(file, at, len as usize, "descriptor").await?;
    let blame = Blame::new(file.name());
    Descriptor::parse(text.bytes(), lines).map_err(|error| match error {
        DescriptorError::Corrupt(detail) => blame.corrupt(detail),
        DescriptorError::Unsupported(detail) => blame.unsupported(detail),
    })
}

/// Reads the header of an extent that a descriptor names as sparse.
///
/// # Errors
/// As [`describe`].
pub async fn describe_extent(file: &dyn Storage) -> Result<ExtentInfo, Error> {
    Ok(ExtentInfo::of(&read_extent(file).await?))
}

async fn read_extent(file: &dyn Storage) -> Result<Sparse, Error> {
    let sparse = header::read(file).await?.sparse.ok_or_else(|| {
        Blame::new(file.name())
            .corrupt("a descriptor in place of a sparse extent: an image of images is not read")
    })?;
    check_size(file, &sparse)?;
    Ok(sparse)
}

/// What an open image knows of its disk.
#[derive(Debug)]
pub struct Vmware {
    /// The file that was opened as the image.
    file: Arc<dyn Storage>,
    size: u64,
    extents: Vec<Extent>,
    pages: Pages,
    unpacked: Unpacked,
    cid: u32,
    backing: Option<Arc<dyn Block>>,
}

/// A part of the disk.
#[derive(Debug)]
struct Extent {
    /// Where it begins on the disk.
    start: u64,
    bytes: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Zeroes,
    Flat { file: Arc<dyn Storage>, at: u64 },
    Sparse { file: Arc<dyn Storage>, sparse: Sparse },
}

/// Opens the image that `file` describes as `description`, over `backing`. `files` are those of its extents that have one, in their order.
///
/// # Errors
/// As [`describe`].
pub async fn open(
    file: Arc<dyn Storage>,
    description: &Description,
    files: Vec<Arc<dyn Storage>>,
    backing: Option<Arc<dyn Block>>,
) -> Result<Vmdk, Error> {
    let mut contents = Vec::new();
    if let Some(sparse) = description.own {
        contents.push((sparse.sectors, Content::Sparse { file: Arc::clone(&file), sparse }));
    }
    let mut files = files.into_iter();
    for line in description.extents() {
        contents.push(match line.kind {
            ExtentKind::Zero => (line.sectors, Content::Zeroes),
            ExtentKind::Flat | ExtentKind::Vmfs => {
                let file = files.next().ok_or_else(|| missing(&*file))?;
                (line.sectors, Content::Flat { file, at: line.first_sector * SECTOR_BYTES })
            }
            ExtentKind::Sparse | ExtentKind::VmfsSparse => {
                let file = files.next().ok_or_else(|| missing(&*file))?;
                let sparse = read_extent(&*file).await?;
                (sparse.sectors, Content::Sparse { file, sparse })
            }
        });
    }
    let (mut extents, mut size) = (Vec::with_capacity(contents.len()), 0_u64);
    for (sectors, content) in contents {
        let bytes = sectors * SECTOR_BYTES;
        extents.push(Extent { start: size, bytes, content });
        size =
            size.checked_add(bytes).filter(|size| *size <= SECTORS_MAX * SECTOR_BYTES).ok_or_else(|| {
                Blame::new(file.name())
                    .corrupt(format!("the extents have more than {SECTORS_MAX} sectors together"))
            })?;
    }
    let descriptor = &description.descriptor;
    if let Some(parent) = backing.as_ref().and_then(|backing| backing.downcast_ref::<Vmdk>())
        && parent.layout.cid != descriptor.parent_cid
    {
        return Err(Blame::new(file.name()).corrupt(format!(
            "its backing file has CID {:08x}, and had {:08x} when the image was made over it: it was changed since",
            parent.layout.cid, descriptor.parent_cid
        )));
    }
    let (pages, unpacked, cid) = (Pages::default(), Unpacked::default(), descriptor.cid);
    Ok(Disk { layout: Vmware { file, size, extents, pages, unpacked, cid, backing } })
}

fn missing(file: &dyn Storage) -> Error {
    Blame::new(file.name()).unsupported("the disk is in files of its own, which were not opened")
}

impl Vmware {
    /// The number of the extent that has the byte at `offset`.
    fn number_at(&self, offset: u64) -> usize {
        self.extents.partition_point(|extent| extent.start <= offset).saturating_sub(1)
    }

    async fn in_sparse(
        &self,
        (file, sparse, number): (&Arc<dyn Storage>, &Sparse, usize),
        offset: u64,
        len: u64,
    ) -> Result<Piece<PackedGrain>, Error> {
        let (grain, inside) = (offset / sparse.grain_bytes, offset % sparse.grain_bytes);
        let run = sparse.run(Numbered { file: &**file, number }, &self.pages, grain).await?;
        let len = run.grains.saturating_mul(sparse.grain_bytes).saturating_sub(inside).min(len);
        let sector = match run.state {
            State::Unallocated => return Ok(Piece { len, place: Place::Unallocated }),
            State::Zeroes => return Ok(Piece { len, place: Place::Zeroes }),
            State::At(sector) => sector,
        };
        let at = u64::from(sector) * SECTOR_BYTES;
        if at >= file.length() {
            return Err(Blame::new(file.name()).corrupt(format!(
                "grain {grain} is at {at}, beyond the end of the file ({} bytes)",
                file.length()
            )));
        }
        let file = Arc::clone(file);
        let place = match sparse.is_packed {
            false => Place::File { file, at: at + inside, reserved: false },
            true => Place::Packed(PackedGrain {
                file,
                number,
                at,
                grain_bytes: sparse.grain_bytes,
                has_marker: sparse.has_markers,
                inside,
            }),
        };
        Ok(Piece { len, place })
    }
}

impl Vmdk {
    /// The name of the file that has what is stored for the byte at `offset`.
    pub fn file_at(&self, offset: u64) -> &str {
        let layout = &self.layout;
        match layout.extents.get(layout.number_at(offset)).map(|extent| &extent.content) {
            Some(Content::Flat { file, .. } | Content::Sparse { file, .. }) => file.name(),
            Some(Content::Zeroes) | None => layout.file.name(),
        }
    }
}

impl Layout for Vmware {
    type Packed = PackedGrain;

    fn kind(&self) -> Kind {
        Kind::Vmdk
    }

    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn cluster_bytes(&self) -> Option<u64> {
        let grain_bytes = |extent: &Extent| match &extent.content {
            Content::Sparse { sparse, .. } => Some(sparse.grain_bytes),
            Content::Flat { .. } | Content::Zeroes => None,
        };
        let first = grain_bytes(self.extents.first()?)?;
        self.extents.iter().all(|extent| grain_bytes(extent) == Some(first)).then_some(first)
    }

    fn alignment(&self) -> u32 {
        let of_file = |extent: &Extent| match &extent.content {
            Content::Flat { file, .. } | Content::Sparse { file, .. } => file.capabilities().alignment,
            Content::Zeroes => 1,
        };
        self.extents.iter().map(of_file).max().unwrap_or(1)
    }

    fn backing(&self) -> Option<&Arc<dyn Block>> {
        self.backing.as_ref()
    }

    async fn locate(&self, offset: u64, len: u64) -> Result<Piece<PackedGrain>, Error> {
        let number = self.number_at(offset);
        let Some(extent) = self.extents.get(number) else {
            return Err(Blame::new(self.name()).past_end(offset, len, self.size));
        };
        let inside = offset - extent.start;
        let len = len.min(extent.bytes - inside);
        match &extent.content {
            Content::Zeroes => Ok(Piece { len, place: Place::Zeroes }),
            Content::Flat { file, at } => Ok(Piece {
                len,
                place: Place::File { file: Arc::clone(file), at: at + inside, reserved: true },
            }),
            Content::Sparse { file, sparse } => self.in_sparse((file, sparse, number), inside, len).await,
        }
    }

    async fn unpack(&self, packed: PackedGrain, buf: &mut [u8]) -> Result<(), Error> {
        self.unpacked.fill(packed, buf).await
    }
}

/// Reads all tables of the image. Costs no reads of data.
///
/// # Errors
/// The first contradiction, as [`block::ErrorKind::Corrupt`], and what reading the tables reports.
pub async fn check(image: &Vmdk) -> Result<(), Error> {
    let layout = &image.layout;
    for extent in &layout.extents {
        let mut at = extent.start;
        let end = extent.start + extent.bytes;
        if let Content::Flat { file, at: first } = &extent.content
            && *first >= file.length()
        {
            return Err(Blame::new(file.name()).corrupt(format!(
                "a flat extent begins at {first}, beyond the end of the file ({} bytes)",
                file.length()
            )));
        }
        while at < end && !matches!(extent.content, Content::Flat { .. }) {
            at += layout.locate(at, end - at).await?.len;
        }
    }
    Ok(())
}
