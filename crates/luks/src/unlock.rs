//! From a password to the key of a disk.

use std::sync::Arc;

use block::{Blame, Error};
use storage::{Hints, IoBuf, Storage};

use crate::around::{Around, calculated};
use crate::header::{Area, read_header, refused};
use crate::layout::{Header, SECTOR_BYTES, Secret, SectorCipher};

/// A header whose key was found.
#[derive(Debug)]
pub struct Unlocked {
    /// The header.
    pub header: Header,
    /// The slot that the password opened.
    pub slot: usize,
    /// The disk's key.
    pub(crate) key: Secret,
}

impl Unlocked {
    /// The cipher of the disk's sectors, with its key.
    ///
    /// # Errors
    /// Never: the key has been used.
    pub fn cipher(&self, blame: &Blame) -> Result<Arc<SectorCipher>, Error> {
        let cipher = SectorCipher::new(self.header.cipher, &self.key);
        cipher.map(Arc::new).map_err(|error| refused(blame, &error))
    }
}

/// Reads the header in `area` of `file` and tries `password` on every active slot. Costs the iterations of the slots up to the one that it
/// opens: most often a second or two, with a wrong password as much for each slot; they are calculated where `around` does it.
///
/// # Errors
/// When the header cannot be used, or no slot is opened.
pub async fn unlock(
    file: &dyn Storage,
    area: Area,
    password: &Secret,
    around: &dyn Around,
) -> Result<Unlocked, Error> {
    let header = read_header(file, area).await?;
    let (slot, key) = find_key(file, area, &header, password, around).await?;
    Ok(Unlocked { header, slot, key })
}

/// The first slot that `password` opens, and the disk's key.
pub(crate) async fn find_key(
    file: &dyn Storage,
    area: Area,
    header: &Header,
    password: &Secret,
    around: &dyn Around,
) -> Result<(usize, Secret), Error> {
    for slot in 0..header.slots.len() {
        if header.slots[slot].active
            && let Some(key) = open_slot(file, area, header, slot, password, around).await?
        {
            return Ok((slot, key));
        }
    }
    Err(no_slot(&Blame::new(file.name()), ""))
}

/// No key slot is opened; `more` continues the sentence.
pub(crate) fn no_slot(blame: &Blame, more: &str) -> Error {
    let what = "the password opens no key slot of the encrypted image: it is wrong, or for another image";
    blame.refused(format!("{what}{more}"))
}

pub(crate) async fn open_slot(
    file: &dyn Storage,
    area: Area,
    header: &Header,
    slot: usize,
    password: &Secret,
    around: &dyn Around,
) -> Result<Option<Secret>, Error> {
    let blame = Blame::new(file.name());
    let entry = header.slots[slot];
    let place = area.offset + u64::from(entry.material_sector) * SECTOR_BYTES;
    let (result, bytes) = file.read(place, IoBuf::uninit(header.material_bytes(&entry)), Hints::NONE).await;
    result.map_err(blame.io("reading a key slot"))?;
    let (header, password, material) = (header.clone(), password.clone(), Secret::copy_of(&bytes));
    let opened = move || header.open_slot(&entry, &password, material);
    let opened = calculated(around, opened).await.map_err(blame.io("deriving a key"))?;
    opened.map_err(|error| refused(&blame, &error))
}
