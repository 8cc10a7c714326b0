//! What an image says about itself, and what the file system says of it.

use std::io;
use std::path::{Path, PathBuf};

use qcow2_layout::{Compression, CryptMethod, Header, Incompatible, MAGIC, Version};

use crate::error::Error;
use crate::files::{FileFacts, OpenFile, Purpose, files};
use crate::layer_id::LayerId;
use crate::place::{LAYERS, Place};

/// The largest cluster, which the header is in: no more is read of an image.
const HEADER_BYTES_MAX: usize = 2 << 20;

/// What is read first.
const HEADER_BYTES_USUAL: usize = 4096;

/// What an image is backed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Nothing.
    None,
    /// A layer of the lineage.
    Layer(LayerId),
    /// Another image, by the name that the header gives it.
    Outside(String),
}

impl Backing {
    /// The layer, if it is one.
    pub fn layer(&self) -> Option<LayerId> {
        match self {
            Self::Layer(id) => Some(*id),
            Self::None | Self::Outside(_) => None,
        }
    }
}

/// What an overlay over an image has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// Of the format.
    pub version: Version,
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// Bits of a refcount.
    pub refcount_bits: u32,
    /// Subclusters.
    pub extended_l2: bool,
    /// Of compressed clusters.
    pub compression: Compression,
}

/// A qcow2 image of the lineage.
#[derive(Clone, Debug)]
pub struct ImageFacts {
    /// Its file.
    pub path: PathBuf,
    /// What it is backed by.
    pub backing: Backing,
    /// What an overlay has of it.
    pub shape: Shape,
    /// Bytes that the file takes.
    pub allocated_bytes: u64,
    header: Header,
    metadata: FileFacts,
}

impl ImageFacts {
    /// Reads the header of the image at `path`, which is in the directory of the lineage or in that of its layers, or which a link there leads to. `None` if it is
    /// no regular file, or no qcow2 image. Takes no lock: of a sealed layer nothing changes, and of a disk in use what is read here does not.
    ///
    /// # Errors
    /// When the file cannot be read, or the header is of no image that opens.
    pub fn read(place: &Place, path: &Path) -> Result<Option<Self>, Error> {
        let failed = || Error::io("cannot read", path);
        let Some(file) = open_image(path)? else { return Ok(None) };
        let metadata = file.found().map_err(failed())?;
        let Some(header) = read_header(path, &*file)? else { return Ok(None) };
        let backing = match &header.backing {
            None => Backing::None,
            Some(name) => backing(place, path, name),
        };
        let shape = Shape {
            disk_bytes: header.guest_size(),
            version: header.version,
            cluster_bytes: 1 << header.cluster_bits,
            refcount_bits: 1 << header.refcount_order,
            extended_l2: header.incompatible.contains(Incompatible::EXTENDED_L2),
            compression: header.compression,
        };
        let allocated_bytes = metadata.allocated_bytes;
        Ok(Some(Self { path: path.to_owned(), backing, shape, allocated_bytes, header, metadata }))
    }

    /// As [`ImageFacts::read`], where there must be an image.
    ///
    /// # Errors
    /// Also when it is none.
    pub fn must_read(place: &Place, path: &Path) -> Result<Self, Error> {
        let reason = "checkpoints are of qcow2 images: a raw disk becomes one by `cowhand convert -O qcow2`, or the base of one by `cowhand create -b`";
        Self::read(place, path)?
            .ok_or_else(|| Error::Unsupported { path: path.to_owned(), reason: reason.to_owned() })
    }

    /// What the file system says.
    pub fn metadata(&self) -> &FileFacts {
        &self.metadata
    }

    /// Whether the other one is the same file.
    pub fn is_same_file(&self, other: &FileFacts) -> bool {
        self.metadata.is_same_file(other)
    }

    /// It was not closed: a writer that opens it repairs it.
    pub fn is_dirty(&self) -> bool {
        self.header.incompatible.contains(Incompatible::DIRTY)
    }

    /// Refuses an image that a lineage cannot have as a layer.
    ///
    /// # Errors
    /// Names what stands against it, and what to do.
    pub fn check_sealable(&self) -> Result<(), Error> {
        let header = &self.header;
        let reason = if header.incompatible.contains(Incompatible::CORRUPT) {
            "its metadata is damaged: `cowhand check -r all` repairs it".to_owned()
        } else if header.crypt != CryptMethod::None {
            "it is encrypted, and the overlay of a checkpoint would not be: checkpoints of encrypted disks are not supported".to_owned()
        } else if header.incompatible.contains(Incompatible::EXTERNAL_DATA) {
            "its data is in another file, which a checkpoint would not seal: `cowhand convert -O qcow2` puts both into one".to_owned()
        } else if header.snapshots > 0 {
            format!(
                "it has {} internal snapshots, which the disk would not have any more: `cowhand snapshot -d` deletes them",
                header.snapshots
            )
        } else if header.extensions.bitmaps.is_some() {
            "it has persistent bitmaps, which would not see what is written after the checkpoint: `cowhand bitmap --remove` removes them".to_owned()
        } else {
            return self.check_backing_name();
        };
        Err(Error::Unsupported { path: self.path.clone(), reason })
    }

    /// The name of the backing file must mean the same from the directory of the layers: that of a layer is changed there, an absolute one does, and a file
    /// beside the disk is linked.
    fn check_backing_name(&self) -> Result<(), Error> {
        let Some(name) = &self.header.backing else { return Ok(()) };
        let means_the_same = match &self.backing {
            Backing::Layer(id) => name.strip_prefix("./").unwrap_or(name) == Place::name_in_images(*id),
            Backing::None | Backing::Outside(_) => bare(name).is_some(),
        };
        match means_the_same || name.starts_with('/') || has_protocol(name) {
            true => Ok(()),
            false => {
                let needed = match &self.backing {
                    Backing::Layer(id) => Place::name_in_images(*id),
                    Backing::None | Backing::Outside(_) => "/PATH".to_owned(),
                };
                Err(Error::Unsupported {
                    path: self.path.clone(),
                    reason: format!(
                        "its backing file is named {name:?}, which leads elsewhere from the directory of the layers: `cowhand rebase -u -b {needed} -F FORMAT` \
                         gives it a name that does not"
                    ),
                })
            }
        }
    }

    /// Refuses a file that has another name: what is written by that would be in the sealed layer.
    pub(crate) fn check_one_name(&self) -> Result<(), Error> {
        match self.metadata.links {
            0 | 1 => Ok(()),
            names => Err(Error::Unsupported {
                path: self.path.clone(),
                reason: format!(
                    "its file has {names} names (hard links), and what is written by another one would be in the sealed layer: `cp` makes a file of its own"
                ),
            }),
        }
    }

    /// Names of the files beside the disk that are below its lowest layer: the base, its data file, and what the base is backed by in turn. From the directory of the
    /// layers each is to be found, too.
    ///
    /// # Errors
    /// When one of them names files in a way that does not mean the same from there.
    pub(crate) fn names_beside(&self, place: &Place) -> Result<Vec<String>, Error> {
        let mut names: Vec<String> = Vec::new();
        let mut next = self.bare_backing().map(str::to_owned);
        while let Some(name) = next.take().filter(|name| !names.contains(name)) {
            let path = place.directory().join(&name);
            let named = names_in_base(&path)?;
            names.push(name);
            let Some(Named { backing, data_file }) = named else { break };
            for name in [backing.as_ref(), data_file.as_ref()].into_iter().flatten() {
                let is_layer = name.starts_with(&format!("{LAYERS}/"));
                if !(bare(name).is_some() || name.starts_with('/') || has_protocol(name) || is_layer) {
                    return Err(leads_elsewhere(&path));
                }
            }
            let beside = |name: &Option<String>| bare(name.as_ref()?).map(str::to_owned);
            names.extend(beside(&data_file));
            next = beside(&backing);
        }
        match names.iter().find(|name| Place::is_own(name)) {
            Some(name) => Err(Error::Unsupported {
                path: self.path.clone(),
                reason: format!(
                    "its base {name:?} is called as a file of the lineage: rename the base, and name it in the disk by `cowhand rebase -u`"
                ),
            }),
            None => Ok(names),
        }
    }

    /// What the header says of the backing file: its name and its format.
    pub(crate) fn backing_in_header(&self) -> Option<(String, Option<String>)> {
        let name = self.header.backing.clone()?;
        Some((name, self.header.extensions.backing_format.clone()))
    }

    /// The name of the file beside the disk that it is backed by, if that is one.
    pub fn bare_backing(&self) -> Option<&str> {
        match &self.backing {
            Backing::Outside(name) => bare(name),
            _ => None,
        }
    }
}

/// The file at `path`, links followed, if it is a regular one. A FIFO does not make the command wait, and a device is not woken.
fn open_image(path: &Path) -> Result<Option<Box<dyn OpenFile>>, Error> {
    let failed = || Error::io("cannot read", path);
    if files().look_at_name(path).map_err(failed())?.is_file {
        return files().open(path, Purpose::Read).map(Some).map_err(failed());
    }
    let real = files().resolve(path).map_err(|source| match source.kind() {
        // No file that has gone: what it leads to may be there tomorrow.
        io::ErrorKind::NotFound => {
            Error::Corrupt { path: path.to_owned(), reason: "it is a link that leads to no file".to_owned() }
        }
        _ => failed()(source),
    })?;
    match files().look(&real).map_err(failed())?.is_file {
        true => files().open(&real, Purpose::Read).map(Some).map_err(failed()),
        false => Ok(None),
    }
}

/// The header of a qcow2 image; `None` of other files.
fn read_header(path: &Path, file: &dyn OpenFile) -> Result<Option<Header>, Error> {
    let failed = || Error::io("cannot read", path);
    let start = read_start(file, 24).map_err(failed())?;
    if !start.starts_with(&MAGIC.to_be_bytes()) {
        return Ok(None);
    }
    let corrupt =
        |error: &dyn std::error::Error| Error::Corrupt { path: path.to_owned(), reason: error.to_string() };
    let bits = Header::cluster_bits_of(&start).map_err(|error| corrupt(&error))?;
    let cluster_bytes = HEADER_BYTES_MAX.min(1 << bits);
    // A header with its extensions and its name is rarely longer; a survey reads thousands.
    let start = read_start(file, HEADER_BYTES_USUAL.min(cluster_bytes)).map_err(failed())?;
    let header = match Header::decode(&start) {
        Err(_) if start.len() < cluster_bytes => {
            Header::decode(&read_start(file, cluster_bytes).map_err(failed())?)
        }
        decoded => decoded,
    };
    header.map(Some).map_err(|error| corrupt(&error))
}

/// Names in the header of a base.
struct Named {
    backing: Option<String>,
    data_file: Option<String>,
}

/// What the base at `path` names; `None` where nothing is named, or nothing is there that can be read.
///
/// # Errors
/// When it is damaged, or of a format that names files in its own way, and does.
fn names_in_base(path: &Path) -> Result<Option<Named>, Error> {
    /// Where a VMDK has its descriptor, and a qcow of version 1 the name of its backing file.
    const TEXT_BYTES: usize = 64 << 10;
    let file = match open_image(path) {
        // The disk does not open without it, as before.
        Err(_) | Ok(None) => return Ok(None),
        Ok(Some(file)) => file,
    };
    let start = read_start(&*file, TEXT_BYTES).map_err(Error::io("cannot read", path))?;
    let has = |text: &[u8]| start.windows(text.len()).any(|found| found == text);
    let is_vmdk = start.starts_with(b"KDMV") || start.starts_with(b"# Disk Descriptor");
    let is_old_qcow = start.starts_with(&[b'Q', b'F', b'I', 0xfb, 0, 0, 0, 1]);
    let names_others = is_vmdk && (!start.starts_with(b"KDMV") || has(b"parentFileNameHint"))
        || is_old_qcow && start.get(8..16) != Some(&[0; 8]);
    if names_others {
        return Err(leads_elsewhere(path));
    }
    if is_old_qcow {
        return Ok(None);
    }
    let header = read_header(path, &*file)?;
    Ok(header.map(|header| Named { backing: header.backing, data_file: header.extensions.data_file }))
}

/// What the image at `path`, which is outside the lineage, calls its backing file; `None` where there is none, or where that is not known.
pub(crate) fn backing_in_base(path: &Path) -> Option<String> {
    names_in_base(path).ok()??.backing
}

/// Why the disk over the base at `path` cannot be sealed.
fn leads_elsewhere(path: &Path) -> Error {
    let reason = "it names other files, which are not found from the directory of the layers: `cowhand rebase -u -b /PATH -F FORMAT` gives it an absolute name in the disk";
    Error::Unsupported { path: path.to_owned(), reason: reason.to_owned() }
}

/// The name of a file beside the image that names it so, if that is one: `./` before it leads to the same from anywhere.
fn bare(name: &str) -> Option<&str> {
    let name = name.trim_start_matches("./");
    (!name.contains('/') && !has_protocol(name)).then_some(name)
}

/// A colon before the first slash makes a protocol of what stands before it, as in QEMU.
fn has_protocol(name: &str) -> bool {
    name.find([':', '/']).is_some_and(|at| name.as_bytes().get(at) == Some(&b':'))
}

/// What the image at `path` means by `name`. A layer that is missing is known by its name.
fn backing(place: &Place, path: &Path, name: &str) -> Backing {
    let joined = path.parent().unwrap_or(Path::new("")).join(name);
    let resolved = files().resolve(&joined);
    let id = |path: &Path| LayerId::of_file_name(path.file_name()?.to_str()?);
    let found = match &resolved {
        Ok(real) if real.parent() == Some(&place.layers()) => id(real),
        Ok(_) => None,
        Err(_) => {
            let from_disk = name.strip_prefix(LAYERS).and_then(|rest| rest.strip_prefix('/'));
            let is_layer = path.parent() == Some(&place.layers());
            from_disk.or(is_layer.then_some(name)).and_then(LayerId::of_file_name)
        }
    };
    found.map_or_else(|| Backing::Outside(name.to_owned()), Backing::Layer)
}

/// Has the header of a layer name its parent from the directory of the layers: `layers/ID.qcow2` becomes `ID.qcow2`. That is the end of the same bytes, so the
/// field of the name's offset and that of its length change, in one sector. Nothing happens if the name is another one.
pub(crate) fn name_parent_from_layers(path: &Path) -> io::Result<()> {
    /// Of the two fields.
    const FIELDS_OFFSET: usize = 8;
    // A layer that is sealed cannot be written by its owner, and has been named already.
    let start = read_start(&*files().open(path, Purpose::Read)?, HEADER_BYTES_MAX)?;
    let field = |at: usize, len: usize| {
        start
            .get(at..at + len)
            .map(|bytes| bytes.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let (Some(offset), Some(len)) = (field(FIELDS_OFFSET, 8), field(FIELDS_OFFSET + 8, 4)) else {
        return Ok(());
    };
    let name = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
    let name = name.and_then(|(offset, len)| start.get(offset..offset.checked_add(len)?));
    let prefix = format!("{LAYERS}/");
    let Some(rest) = name.and_then(|name| name.strip_prefix(prefix.as_bytes())) else { return Ok(()) };
    if std::str::from_utf8(rest).ok().and_then(LayerId::of_file_name).is_none() {
        return Ok(());
    }
    let mut fields = (offset + prefix.len() as u64).to_be_bytes().to_vec();
    fields.extend_from_slice(&u32::try_from(rest.len()).map_err(io::Error::other)?.to_be_bytes());
    files().open(path, Purpose::Write)?.write_at(&fields, FIELDS_OFFSET as u64)
}

fn read_start(file: &dyn OpenFile, len: usize) -> io::Result<Vec<u8>> {
    let there = usize::try_from(file.found()?.bytes).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len.min(there)];
    let filled = file.read_at(&mut bytes, 0)?;
    bytes.truncate(filled);
    Ok(bytes)
}
