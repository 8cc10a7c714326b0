//! What the JSON area says (specification, 3.2), as checked values.

use serde_json::Value;

use super::binary::{BINARY_BYTES, Copy, HEADER_BYTES_MAX, Place};
use super::kdf::{ARGON2_PASSES_KIB_MAX, Kdf};
use super::key_slot::{KeySlot, OtherSlot, Priority};
use super::member::Member;
use crate::layout::key_slot::is_same;
use crate::layout::{Cipher, LuksError, PBKDF2_COST, PBKDF2_COST_MAX, SECTOR_BYTES, Secret, SectorSize};

/// Key slots at most.
pub const SLOTS_MAX: usize = 32;
/// Values of the JSON area at most: thirty times what 32 slots and tokens have. Each costs some ten bytes of memory.
const VALUES_MAX: usize = 1 << 15;
/// Bytes of key material of all slots together at most: the specification's limit of the area.
const KEY_SLOTS_BYTES_MAX: u64 = 128 << 20;

/// Which part of a file is the disk, and how it is ciphered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte of the disk's data in its file.
    pub start: u64,
    /// Bytes; `None`: all that the file has.
    pub len: Option<u64>,
    /// Number of the first sector, for the cipher (in 512 bytes).
    pub first_number: u64,
    /// How sectors are ciphered.
    pub cipher: Cipher,
    /// Their size.
    pub sector: SectorSize,
}

/// By what a key is known to be the right one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    kdf: Kdf,
    bytes: Vec<u8>,
}

impl Digest {
    pub(super) fn is_of(&self, key: &Secret) -> bool {
        let made = self.kdf.derive(key, self.bytes.len());
        made.is_ok_and(|made| is_same(made.bytes(), &self.bytes))
    }

    /// What it costs to tell a key from the right one.
    fn pbkdf2_cost(&self) -> u64 {
        self.kdf.pbkdf2_cost(self.bytes.len())
    }

    /// Iterations of PBKDF2.
    pub fn iterations(&self) -> u64 {
        self.kdf.iterations()
    }
}

/// A header of version 2. All of it keeps to the limits here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which copy it was.
    pub place: Place,
    /// Grows with every change.
    pub sequence: u64,
    /// What the user calls the volume; empty: nothing.
    pub label: String,
    /// Likewise, a second name.
    pub subsystem: String,
    /// Name of the volume.
    pub uuid: String,
    /// The disk.
    pub segment: Segment,
    /// Slots that lead to its key, by their numbers.
    pub slots: Vec<KeySlot>,
    /// Slots of kinds that are not supported.
    pub others: Vec<OtherSlot>,
    /// Knows the key.
    pub digest: Digest,
    /// Behind its key material: where the disk's data can begin in the same file.
    pub end: u64,
}

impl Header {
    /// What an intact copy says. Key material lies in a file of `length` bytes.
    ///
    /// # Errors
    /// When something of it is not as it must be, is not supported, or is beyond its limits.
    pub fn decode(copy: &Copy, length: u64) -> Result<Self, LuksError> {
        let json = parsed(&copy.json)?;
        let root = Member::root(&json);
        check_requirements(&root)?;
        let (name, segment) = only_segment(&root)?;
        let (digest, linked) = digest_of(&root, &name)?;
        let (slots, others) = slots(&root, &linked)?;
        let header = Self {
            place: copy.binary.place,
            sequence: copy.binary.sequence,
            label: copy.binary.label.clone(),
            subsystem: copy.binary.subsystem.clone(),
            uuid: copy.binary.uuid.clone(),
            segment: decode_segment(&segment, &slots)?,
            slots,
            others,
            digest,
            end: end_of(&root, copy.binary.bytes)?,
        };
        header.check_areas(2 * copy.binary.bytes, length)?;
        header.check_costs()?;
        Ok(header)
    }

    /// The slots in the order in which a password is tried: preferred ones first, and none that is to be ignored.
    pub fn tried(&self) -> impl Iterator<Item = &KeySlot> {
        let of = |priority| self.slots.iter().filter(move |slot| slot.priority == priority);
        of(Priority::Prefer).chain(of(Priority::Normal))
    }

    /// Key material lies behind both copies of the header, which end at `start`, in its place, inside the file, and no two slots share bytes.
    fn check_areas(&self, start: u64, length: u64) -> Result<(), LuksError> {
        let area = |slot: &KeySlot| (slot.offset, slot.offset.saturating_add(slot.area_bytes));
        for (index, slot) in self.slots.iter().enumerate() {
            let (first, behind) = area(slot);
            // The rest of an area may be missing where a header's file ends behind its last key.
            let needed = slot.offset.saturating_add(slot.material_bytes() as u64);
            if first < start || behind > self.end || needed > length {
                return Err(LuksError::Member {
                    member: format!("keyslots.{}.area", slot.number),
                    found: format!("bytes {first} to {behind}"),
                    allowed: format!("{start} to {}, in a file of {length} bytes", self.end),
                });
            }
            for other in &self.slots[..index] {
                let (other_first, other_behind) = area(other);
                if first < other_behind && other_first < behind {
                    return Err(LuksError::AreaOverlap {
                        part: format!("keyslots.{}.area", slot.number),
                        start: first,
                        end: behind,
                        other: format!("that of key slot {}", other.number),
                    });
                }
            }
        }
        Ok(())
    }

    /// What trying a wrong password costs.
    fn check_costs(&self) -> Result<(), LuksError> {
        let slots = self.slots.len() as u64;
        let sum = |of: fn(&KeySlot) -> u64| self.slots.iter().map(of).fold(0_u64, u64::saturating_add);
        let digests = slots.saturating_mul(self.digest.pbkdf2_cost());
        let cost = sum(KeySlot::pbkdf2_cost).saturating_add(digests);
        let passes = sum(|slot| slot.kdf.passes_kib());
        let too_much = |field: &str, found, max| LuksError::OutOfRange {
            field: field.into(),
            found,
            allowed: format!("at most {max}"),
        };
        if cost > PBKDF2_COST_MAX {
            return Err(too_much(PBKDF2_COST, cost, PBKDF2_COST_MAX));
        }
        match passes > ARGON2_PASSES_KIB_MAX {
            true => Err(too_much("the sum of time * memory of all key slots", passes, ARGON2_PASSES_KIB_MAX)),
            false => Ok(()),
        }
    }
}

/// The JSON in front of the first zero byte. It is bounded before it is parsed: its bytes by the copy's size, its values, its depth by the parser.
fn parsed(area: &[u8]) -> Result<Value, LuksError> {
    debug_assert!((area.len() + BINARY_BYTES) as u64 <= HEADER_BYTES_MAX, "the size of a copy was checked");
    let wrong = |reason: String| LuksError::NotJson { reason };
    let end = area.iter().position(|&byte| byte == 0);
    let text = &area[..end.ok_or_else(|| wrong("it does not end within its area".into()))?];
    let values = text.iter().filter(|byte| b"[{,:".contains(byte)).count();
    if values > VALUES_MAX {
        return Err(wrong(format!("it has {values} values; allowed: at most {VALUES_MAX}")));
    }
    serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))
}

/// Features without which the volume must not be touched.
fn check_requirements(root: &Member<'_>) -> Result<(), LuksError> {
    let requirements = root.get("config").get("requirements");
    let Some(name) = requirements.get("mandatory").texts()?.first().copied() else { return Ok(()) };
    let instead = match name.contains("reencrypt") {
        true => "it is being encrypted anew: cryptsetup reencrypt --resume-only ends that",
        false => "no feature that must be known is",
    };
    Err(LuksError::NotSupported {
        member: requirements.get("mandatory").path().to_owned(),
        found: format!("{:?}", crate::layout::error::shortened(name)),
        instead: instead.into(),
    })
}

/// The disk, which is one segment, and its name.
fn only_segment<'a>(root: &Member<'a>) -> Result<(String, Member<'a>), LuksError> {
    let segments = root.get("segments");
    let object = segments.object()?;
    match object.keys().next() {
        Some(name) if object.len() == 1 => Ok((name.clone(), segments.get(name))),
        Some(_) => Err(segments.not_supported("one segment is")),
        None => Err(segments.refused("an object with one segment")),
    }
}

fn decode_segment(segment: &Member<'_>, slots: &[KeySlot]) -> Result<Segment, LuksError> {
    let kind = segment.get("type");
    if kind.text()? != "crypt" {
        return Err(kind.not_supported("supported: crypt"));
    }
    let (integrity, flags) = (segment.get("integrity"), segment.get("flags"));
    if integrity.is_there() {
        return Err(integrity.not_supported("sectors without integrity tags are"));
    }
    if !flags.texts()?.is_empty() {
        return Err(flags.not_supported("segments without flags are"));
    }
    let encryption = segment.get("encryption");
    // Without a slot the length of the key is unknown and not needed: 32 bytes are a length of every mode.
    let key_bytes = slots.first().map_or(32, |slot| slot.key_bytes);
    let cipher = Cipher::of_text(encryption.text()?, key_bytes as u32)?;
    let sector = segment.get("sector_size").number(SECTOR_BYTES, 4096)?;
    let sector = SectorSize::new(sector, cipher.mode)?;
    let whole = |member: &Member<'_>| match member.number_as_text()? {
        number if number.is_multiple_of(SECTOR_BYTES) && i64::try_from(number).is_ok() => Ok(number),
        _ => Err(member.refused("a multiple of 512 below 2^63")),
    };
    let size = segment.get("size");
    let len = match size.text()? {
        "dynamic" => None,
        _ => Some(whole(&size)?),
    };
    if len.is_some_and(|len| len == 0 || !len.is_multiple_of(sector.bytes())) {
        return Err(size.refused("\"dynamic\", or a number of whole sectors"));
    }
    let first_number = segment.get("iv_tweak").number_as_text()?;
    Ok(Segment { start: whole(&segment.get("offset"))?, len, first_number, cipher, sector })
}

/// The digest of segment `name`, and the numbers of the slots that have its key.
fn digest_of<'a>(root: &Member<'a>, name: &str) -> Result<(Digest, Vec<&'a str>), LuksError> {
    let digests = root.get("digests");
    let mut found = None;
    for number in digests.object()?.keys() {
        let digest = digests.get(number);
        if !digest.get("segments").texts()?.contains(&name) {
            continue;
        }
        if found.replace(digest).is_some() {
            return Err(digests.not_supported("one digest of the segment is"));
        }
    }
    let digest = found.ok_or_else(|| digests.refused("an object with a digest of the segment"))?;
    let kind = digest.get("type");
    if kind.text()? != "pbkdf2" {
        return Err(kind.not_supported("supported: pbkdf2"));
    }
    let (kdf, bytes) = (Kdf::decode(&digest)?, digest.get("digest").bytes(16, 64)?);
    Ok((Digest { kdf, bytes }, digest.get("keyslots").texts()?))
}

/// The slots that have the disk's key: those that can be tried, and others.
fn slots(root: &Member<'_>, linked: &[&str]) -> Result<(Vec<KeySlot>, Vec<OtherSlot>), LuksError> {
    let key_slots = root.get("keyslots");
    let object = key_slots.object()?;
    if object.len() > SLOTS_MAX {
        return Err(key_slots.refused(&format!("at most {SLOTS_MAX} key slots")));
    }
    let (mut slots, mut others) = (Vec::<KeySlot>::new(), Vec::new());
    for name in object.keys().filter(|name| linked.contains(&name.as_str())) {
        let member = key_slots.get(name);
        let number = name.parse().ok().filter(|&number: &u32| (number as usize) < SLOTS_MAX);
        let number = number.ok_or_else(|| member.refused("a key slot with a number below 32"))?;
        match KeySlot::decode(number, &member) {
            Ok(slot) => slots.push(slot),
            Err(reason) if reason.is_unsupported() => others.push(OtherSlot { number, reason }),
            Err(error) => return Err(error),
        }
    }
    slots.sort_by_key(|slot| slot.number);
    others.sort_by_key(|slot| slot.number);
    // Two names may mean one number ("1", "01").
    let twice = slots.windows(2).find(|pair| pair[0].number == pair[1].number);
    let other_key = slots.iter().find(|slot| slot.key_bytes != slots[0].key_bytes);
    match twice.map(|pair| &pair[0]).or(other_key) {
        None => Ok((slots, others)),
        Some(slot) => {
            let slot = key_slots.get(&slot.number.to_string());
            Err(slot.get("key_size").refused("one key slot of each number, all with keys of one length"))
        }
    }
}

/// Behind the place of all key material.
fn end_of(root: &Member<'_>, copy_bytes: u64) -> Result<u64, LuksError> {
    let config = root.get("config");
    let (json, slots) = (config.get("json_size"), config.get("keyslots_size"));
    let json_bytes = copy_bytes - BINARY_BYTES as u64;
    if json.number_as_text()? != json_bytes {
        return Err(json.refused(&json_bytes.to_string()));
    }
    match slots.number_as_text()? {
        bytes if bytes <= KEY_SLOTS_BYTES_MAX => Ok(2 * copy_bytes + bytes),
        _ => Err(slots.refused(&format!("at most {KEY_SLOTS_BYTES_MAX}"))),
    }
}
