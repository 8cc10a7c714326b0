//! LUKS headers in files of their own, of either version: read, and opened with a password.
//!
//! Nothing of a header is written here. A copy of a LUKS2 header that is damaged stays as it is: `cryptsetup repair` mends it.

use std::io;
use std::sync::Arc;

use block::{Blame, Error};
use storage::{Hints, IoBuf, Storage};

use crate::around::{Around, calculated};
use crate::ciphered::{CipherStorage, Part};
use crate::header::{Area, read_header, refused};
use crate::layout::luks2::{self, BINARY_BYTES, BinaryHeader, Copy, Place, SECOND_PLACES};
use crate::layout::{Header, LuksError, SECTOR_BYTES, Secret, SectorCipher, SectorSize};
use crate::unlock::{find_key, no_slot};

/// A LUKS header in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeHeader {
    /// Version 1.
    Luks1(Box<Header>),
    /// Version 2.
    Luks2(Box<luks2::Header>),
}

/// Where the data of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// Behind the header, in the same file.
    BehindHeader,
    /// In another file: the header is detached.
    OtherFile,
}

/// A volume whose key was found.
#[derive(Debug)]
pub struct OpenedVolume {
    header: VolumeHeader,
    key: Secret,
}

impl VolumeHeader {
    /// First byte of the disk's data in its file.
    pub fn data_start(&self) -> u64 {
        match self {
            Self::Luks1(header) => u64::from(header.payload_sector) * SECTOR_BYTES,
            Self::Luks2(header) => header.segment.start,
        }
    }

    /// Bytes of the disk in a file of `file_len` bytes: whole sectors.
    ///
    /// # Errors
    /// When the header names more bytes than there are.
    pub fn data_len(&self, file_len: u64) -> Result<u64, LuksError> {
        let there = file_len.saturating_sub(self.data_start());
        match self {
            Self::Luks1(_) => Ok(there - there % SECTOR_BYTES),
            Self::Luks2(header) => match header.segment.len {
                None => Ok(there - there % header.segment.sector.bytes()),
                Some(len) if len <= there => Ok(len),
                Some(len) => Err(LuksError::OutOfRange {
                    field: "the size of the disk".into(),
                    found: len,
                    allowed: format!("at most {there}, which the file has"),
                }),
            },
        }
    }

    /// The disk is no longer than its header says, however its file grows.
    pub fn is_fixed(&self) -> bool {
        matches!(self, Self::Luks2(header) if header.segment.len.is_some())
    }

    /// A word of advice, if the header's first copy is damaged and the second one was read.
    pub fn damaged_copy(&self) -> Option<&'static str> {
        match self {
            Self::Luks2(header) if header.place != Place::First => Some(
                "the first copy of its LUKS2 header is damaged or older, and the second one was read; `cryptsetup repair` mends it",
            ),
            _ => None,
        }
    }

    /// Whether the data can be there.
    ///
    /// # Errors
    /// When it would lie in the header.
    pub fn check_place(&self, place: DataPlace) -> Result<(), LuksError> {
        let start = self.data_start();
        match (place, self) {
            (DataPlace::OtherFile, _) => Ok(()),
            (DataPlace::BehindHeader, _) if start == 0 => Err(LuksError::Detached),
            (DataPlace::BehindHeader, Self::Luks2(header)) if start < header.end => {
                Err(LuksError::OutOfRange {
                    field: "the first byte of the disk".into(),
                    found: start,
                    allowed: format!("{} or more, behind the key slots", header.end),
                })
            }
            (DataPlace::BehindHeader, Self::Luks1(_) | Self::Luks2(_)) => Ok(()),
        }
    }
}

/// Reads the header at the start of `file`; of LUKS2, the newer of its two copies that are intact.
///
/// # Errors
/// When there is none, or it is damaged or not supported.
pub async fn read_volume(file: &dyn Storage) -> Result<VolumeHeader, Error> {
    let blame = Blame::new(file.name());
    let start = read_up_to(file, 0, BINARY_BYTES as u64, &blame).await?;
    if start.get(6..8) == Some(&[0, 1]) && start.starts_with(&crate::layout::MAGIC) {
        return read_header(file, Area::whole(file))
            .await
            .map(|header| VolumeHeader::Luks1(Box::new(header)));
    }
    let copy = match (first_copy(file, &start, &blame).await?, second_copy(file, &blame).await?) {
        (Ok(first), Some(second)) => Copy::newer(first, second),
        (Ok(copy), None) | (Err(_), Some(copy)) => copy,
        (Err(error), None) => return Err(refused(&blame, &error)),
    };
    let header = luks2::Header::decode(&copy, file.length());
    header.map(|header| VolumeHeader::Luks2(Box::new(header))).map_err(|error| refused(&blame, &error))
}

/// The first copy, or why it cannot be used. `Err`: the device failed.
async fn first_copy(
    file: &dyn Storage,
    start: &[u8],
    blame: &Blame,
) -> Result<Result<Copy, LuksError>, Error> {
    match BinaryHeader::decode(start, Place::First) {
        Ok(binary) => whole_copy(file, binary, blame).await,
        Err(error) => Ok(Err(error)),
    }
}

/// The second copy, if an intact one is at one of its places.
async fn second_copy(file: &dyn Storage, blame: &Blame) -> Result<Option<Copy>, Error> {
    for place in SECOND_PLACES {
        let start = read_up_to(file, place, BINARY_BYTES as u64, blame).await?;
        if let Ok(binary) = BinaryHeader::decode(&start, Place::Second(place))
            && let Ok(copy) = whole_copy(file, binary, blame).await?
        {
            return Ok(Some(copy));
        }
    }
    Ok(None)
}

async fn whole_copy(
    file: &dyn Storage,
    binary: BinaryHeader,
    blame: &Blame,
) -> Result<Result<Copy, LuksError>, Error> {
    let bytes = read_up_to(file, binary.place.start(), binary.bytes, blame).await?;
    Ok(binary.check(&bytes))
}

/// `len` bytes from `offset` on, or as many as there are.
async fn read_up_to(file: &dyn Storage, offset: u64, len: u64, blame: &Blame) -> Result<IoBuf, Error> {
    let len = len.min(file.length().saturating_sub(offset));
    let (result, bytes) = file.read(offset, IoBuf::uninit(len as usize), Hints::NONE).await;
    result.map_err(blame.io("reading the LUKS header"))?;
    Ok(bytes)
}

/// Tries `password` on the key slots of `header`, which `file` has, as [`crate::unlock`] does. Slots of LUKS2 may take memory for that: up to
/// [`luks2::ARGON2_MEMORY_KIB_MAX`], one at a time.
///
/// # Errors
/// When no slot is opened, or there is too little memory to try one.
pub async fn open_volume(
    file: &dyn Storage,
    header: VolumeHeader,
    password: &Secret,
    around: &dyn Around,
) -> Result<OpenedVolume, Error> {
    let key = match &header {
        VolumeHeader::Luks1(header) => find_key(file, Area::whole(file), header, password, around).await?.1,
        VolumeHeader::Luks2(header) => unlock_luks2(file, header, password, around).await?,
    };
    Ok(OpenedVolume { header, key })
}

async fn unlock_luks2(
    file: &dyn Storage,
    header: &luks2::Header,
    password: &Secret,
    around: &dyn Around,
) -> Result<Secret, Error> {
    let blame = Blame::new(file.name());
    for slot in header.tried() {
        let (result, bytes) = file.read(slot.offset, IoBuf::uninit(slot.material_bytes()), Hints::NONE).await;
        result.map_err(blame.io("reading a key slot"))?;
        let material = Secret::new(bytes.to_vec());
        let (header, slot, password) = (header.clone(), slot.clone(), password.clone());
        let opened = calculated(around, move || header.open_slot(&slot, &password, material)).await;
        let opened = opened.map_err(blame.io("deriving a key"))?;
        match opened {
            Ok(Some(key)) => return Ok(key),
            Ok(None) => {}
            Err(LuksError::NoMemory { needed_kib }) => {
                let error = LuksError::NoMemory { needed_kib };
                return Err(blame.io("deriving a key")(io::Error::new(io::ErrorKind::OutOfMemory, error)));
            }
            Err(error) => return Err(refused(&blame, &error)),
        }
    }
    Err(no_slot(&blame, &not_tried(header)))
}

/// Which slots were passed over, as the rest of a sentence.
fn not_tried(header: &luks2::Header) -> String {
    let ignored = header.slots.iter().filter(|slot| slot.priority == luks2::Priority::Ignore);
    let ignored =
        ignored.map(|slot| format!("; key slot {} was not tried: its priority is ignore", slot.number));
    let others = header.others.iter();
    let others = others.map(|slot| format!("; key slot {} was not tried: {}", slot.number, slot.reason));
    ignored.chain(others).collect()
}

impl OpenedVolume {
    /// The plain text of the volume, whose cipher text is in `data`.
    ///
    /// # Errors
    /// When the disk does not fit there.
    pub fn plain(self, data: Arc<dyn Storage>, around: Arc<dyn Around>) -> Result<CipherStorage, Error> {
        let blame = Blame::new(data.name());
        let refused = |error: LuksError| refused(&blame, &error);
        let len = self.header.data_len(data.length()).map_err(refused)?;
        let start = self.header.data_start();
        let (cipher, sector, first_number) = match &self.header {
            VolumeHeader::Luks1(header) => (header.cipher, SectorSize::SMALLEST, 0),
            VolumeHeader::Luks2(header) => {
                let segment = &header.segment;
                (segment.cipher, segment.sector, segment.first_number)
            }
        };
        let cipher = SectorCipher::of_sectors(cipher, sector, &self.key).map_err(refused)?;
        let part = Part { start, len: self.header.is_fixed().then_some(len), first_number };
        Ok(CipherStorage::new(data, part, Arc::new(cipher), around))
    }
}
