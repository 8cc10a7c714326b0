//! Who may open a disk: keys added to its slots, and removed.
//!
//! A slot is in use when the first word of its entry says so, and that word lies in one sector: it is written last when a key is
//! added and first when one is removed, so a crash leaves the old slots or the new ones.

use std::time::Duration;

use block::{Blame, Error};
use storage::{Hints, IoBytes, Storage};

use crate::around::{Around, calculated};
use crate::header::{Area, read_header};
use crate::layout::{Header, SECTOR_BYTES, SLOTS, Secret};
use crate::new_volume::{fill_slot, random_secret};
use crate::unlock::{Unlocked, unlock};

/// Bytes of the word that says whether a slot is in use.
const STATE_BYTES: usize = 4;

/// Which keys are removed.
#[derive(Clone, Debug)]
pub enum Removal<'a> {
    /// The one in this slot.
    Slot(usize),
    /// Every one that this password opens.
    Password(&'a Secret),
}

/// Lets `new` open the disk too, which `old` opens: in slot `slot`, or in the first one that is free. Gives the slot.
///
/// # Errors
/// When `old` opens nothing, no slot is free, or `slot` is in use.
///
/// # After a crash
/// `old` opens it; `new` may.
pub async fn add_key(
    file: &dyn Storage,
    area: Area,
    old: &Secret,
    new: &Secret,
    slot: Option<usize>,
    iter_time: Duration,
    around: &dyn Around,
) -> Result<usize, Error> {
    let unlocked = unlock(file, area, old, around).await?;
    let slot = free_slot(&unlocked.header, slot, &Blame::new(file.name()))?;
    put_key(file, area, &unlocked, new, slot, iter_time, around).await?;
    Ok(slot)
}

/// As [`add_key`] in `slot`, whose key is removed if it has one.
///
/// # Errors
/// When `old` opens nothing.
///
/// # After a crash
/// `old` or `new` opens it where a slot is free, in which `new` is meanwhile. Otherwise another key may be the only one that does.
pub async fn replace_key(
    file: &dyn Storage,
    area: Area,
    old: &Secret,
    new: &Secret,
    slot: usize,
    iter_time: Duration,
    around: &dyn Around,
) -> Result<(), Error> {
    let unlocked = unlock(file, area, old, around).await?;
    if !unlocked.header.slots.get(slot).is_some_and(|entry| entry.active) {
        let slot = free_slot(&unlocked.header, Some(slot), &Blame::new(file.name()))?;
        return put_key(file, area, &unlocked, new, slot, iter_time, around).await;
    }
    let spare = unlocked.header.slots.iter().position(|entry| !entry.active);
    if let Some(spare) = spare {
        put_key(file, area, &unlocked, new, spare, iter_time, around).await?;
    }
    remove_key(file, area, Removal::Slot(slot), true, around).await?;
    put_key(file, area, &unlocked, new, slot, iter_time, around).await?;
    if let Some(spare) = spare {
        remove_key(file, area, Removal::Slot(spare), false, around).await?;
    }
    Ok(())
}

/// Puts `new` into `slot`, which has no key.
async fn put_key(
    file: &dyn Storage,
    area: Area,
    unlocked: &Unlocked,
    new: &Secret,
    slot: usize,
    iter_time: Duration,
    around: &dyn Around,
) -> Result<(), Error> {
    let blame = Blame::new(file.name());
    let (mut header, key, password) = (unlocked.header.clone(), unlocked.key.clone(), new.clone());
    let filled = move || fill_slot(&mut header, slot, &key, &password, iter_time).map(|made| (made, header));
    let filled = calculated(around, filled).await.map_err(blame.io("making a key"))?;
    let (material, header) = filled.map_err(|error| error.named(&blame))?;
    // Nothing leads there before the entry's first word does.
    write(file, material_place(area, &header, slot), material.bytes(), &blame).await?;
    let entry = header.slots[slot].encode();
    let place = area.offset + Header::slot_offset(slot) as u64;
    write(file, place + STATE_BYTES as u64, &entry[STATE_BYTES..], &blame).await?;
    file.flush().await.map_err(blame.io("flushing a key slot"))?;
    write(file, place, &entry[..STATE_BYTES], &blame).await?;
    file.flush().await.map_err(blame.io("flushing the LUKS header"))
}

/// Removes keys and overwrites their material. Gives the slots. A slot without a key is no error if the removal is `forced`: it is as it is to be.
///
/// # Errors
/// When there is no such key, or no other would be left and it is not `forced`: without a key the disk can never be read again.
///
/// # After a crash
/// Some of them may still open the disk.
pub async fn remove_key(
    file: &dyn Storage,
    area: Area,
    removal: Removal<'_>,
    forced: bool,
    around: &dyn Around,
) -> Result<Vec<usize>, Error> {
    let blame = Blame::new(file.name());
    let header = read_header(file, area).await?;
    let slots = chosen(file, area, &header, removal, forced, around).await?;
    let left = header.slots.iter().enumerate().filter(|(slot, entry)| entry.active && !slots.contains(slot));
    if left.count() == 0 && !forced {
        return Err(blame.refused("no key would be left: without one the image cannot be read again"));
    }
    for &slot in &slots {
        let mut entry = header.slots[slot];
        entry.active = false;
        let place = area.offset + Header::slot_offset(slot) as u64;
        write(file, place, &entry.encode()[..STATE_BYTES], &blame).await?;
        file.flush().await.map_err(blame.io("flushing the LUKS header"))?;
        (entry.iterations, entry.salt) = (0, [0; _]);
        write(file, place + STATE_BYTES as u64, &entry.encode()[STATE_BYTES..], &blame).await?;
        let random = random_secret(header.material_bytes(&entry));
        let random = random.map_err(blame.io("overwriting a key slot"))?;
        write(file, material_place(area, &header, slot), random.bytes(), &blame).await?;
        file.flush().await.map_err(blame.io("flushing a key slot"))?;
    }
    Ok(slots)
}

/// The slots of keys that are to be removed, all in use.
async fn chosen(
    file: &dyn Storage,
    area: Area,
    header: &Header,
    removal: Removal<'_>,
    forced: bool,
    around: &dyn Around,
) -> Result<Vec<usize>, Error> {
    let blame = Blame::new(file.name());
    match removal {
        Removal::Slot(slot) => match header.slots.get(slot) {
            Some(entry) if entry.active => Ok(vec![slot]),
            Some(_) if forced => Ok(Vec::new()),
            Some(_) => Err(blame.invalid(format!("key slot {slot} has no key"))),
            None => Err(no_such_slot(&blame, slot)),
        },
        Removal::Password(password) => {
            let mut slots = Vec::new();
            for slot in (0..SLOTS).filter(|&slot| header.slots[slot].active) {
                if crate::unlock::open_slot(file, area, header, slot, password, around).await?.is_some() {
                    slots.push(slot);
                }
            }
            match slots.is_empty() {
                true => Err(blame.refused("the password of the key to be removed opens no key slot")),
                false => Ok(slots),
            }
        }
    }
}

fn free_slot(header: &Header, asked: Option<usize>, blame: &Blame) -> Result<usize, Error> {
    match asked {
        Some(slot) => {
            match header.slots.get(slot) {
                Some(entry) if !entry.active => Ok(slot),
                Some(_) => Err(blame
                    .invalid(format!("key slot {slot} has a key; remove it first, or replace it (--force)"))),
                None => Err(no_such_slot(blame, slot)),
            }
        }
        None => {
            let free = header.slots.iter().position(|entry| !entry.active);
            free.ok_or_else(|| blame.refused("all 8 key slots have a key; remove one first"))
        }
    }
}

fn no_such_slot(blame: &Blame, slot: usize) -> Error {
    blame.invalid(format!("there is no key slot {slot}; allowed: 0 to {}", SLOTS - 1))
}

fn material_place(area: Area, header: &Header, slot: usize) -> u64 {
    area.offset + u64::from(header.slots[slot].material_sector) * SECTOR_BYTES
}

async fn write(file: &dyn Storage, offset: u64, bytes: &[u8], blame: &Blame) -> Result<(), Error> {
    file.write(offset, IoBytes::copy_from(bytes).into(), Hints::NONE)
        .await
        .map_err(blame.io("writing a key slot"))
}
