//! What `info` shows of LUKS headers. No key is looked for, so no password is needed.

use std::path::Path;

use block::SECTOR_BYTES;
use graph::FoundImage;
use graph::probe::Format;
use luks::luks2::{self, Argon2Kind, Kdf, Place};
use luks::{DataPlace, VolumeHeader, read_volume};

use super::model::{FormatSpecific, ImageInfo, Luks2Info, LuksInfo, Slot2Info, SlotInfo, TriedSlot};
use super::read::{cannot_open, child};
use crate::failure::Failure;

/// What is shown of a LUKS file, whose header may be in another one.
pub async fn file_info(image: &FoundImage, shown: &Path) -> Result<ImageInfo, Failure> {
    let file = &**image.storage();
    let (header_file, place) = match image.luks_header() {
        Some((header, _)) => (&**header, DataPlace::OtherFile),
        None => (file, DataPlace::BehindHeader),
    };
    let detached = place == DataPlace::OtherFile;
    let header = read_volume(header_file).await.map_err(|error| cannot_open(shown, &error))?;
    let size = header.check_place(place).and_then(|()| header.data_len(file.length()));
    let virtual_size = size.map_err(|error| cannot_open(shown, &error))?;
    let mut info = super::read::file_info(image, shown);
    if let Some((file, driver)) = image.luks_header() {
        let header = child("header", file, driver, Path::new(file.name()));
        // As QEMU has it, the space is that of both.
        info.actual_size = info.actual_size.zip(header.info.actual_size).map(|(data, header)| data + header);
        info.children.insert(0, header);
    }
    Ok(ImageInfo {
        format: Format::Luks.name().into(),
        virtual_size,
        encrypted: Some(true),
        format_specific: Some(match header {
            VolumeHeader::Luks1(header) => FormatSpecific::Luks(luks1(*header, detached)),
            VolumeHeader::Luks2(header) => FormatSpecific::Luks2(luks2(*header, detached)),
        }),
        ..info
    })
}

/// What is shown of a header of version 1.
pub fn luks1(header: luks::Header, detached_header: bool) -> LuksInfo {
    let slot = |slot: &luks::KeySlot| SlotInfo {
        active: slot.active,
        iters: slot.active.then_some(slot.iterations),
        key_offset: u64::from(slot.material_sector) * SECTOR_BYTES,
        stripes: slot.active.then_some(slot.stripes),
    };
    LuksInfo {
        ivgen_alg: header.cipher.iv.name(),
        detached_header,
        ivgen_hash_alg: header.cipher.iv.hash_name(),
        hash_alg: header.hash.name(),
        cipher_alg: header.cipher.algorithm.name(),
        cipher_mode: header.cipher.mode.name(),
        slots: header.slots.iter().map(slot).collect(),
        payload_offset: u64::from(header.payload_sector) * SECTOR_BYTES,
        master_key_iters: header.digest_iterations,
        uuid: header.uuid,
    }
}

fn luks2(header: luks2::Header, detached_header: bool) -> Luks2Info {
    let other = |slot: &luks2::OtherSlot| Slot2Info {
        slot: slot.number,
        unsupported: Some(slot.reason.to_string()),
        tried: None,
    };
    let tried = |slot: &luks2::KeySlot| Slot2Info {
        slot: slot.number,
        unsupported: None,
        tried: Some(tried_slot(slot)),
    };
    let mut slots: Vec<Slot2Info> =
        header.slots.iter().map(tried).chain(header.others.iter().map(other)).collect();
    slots.sort_by_key(|slot| slot.slot);
    let cipher = header.segment.cipher;
    Luks2Info {
        detached_header,
        label: header.label,
        subsystem: header.subsystem,
        uuid: header.uuid,
        sequence: header.sequence,
        second_copy: header.place != Place::First,
        cipher_alg: cipher.algorithm.name(),
        cipher_mode: cipher.mode.name(),
        ivgen_alg: cipher.iv.name(),
        ivgen_hash_alg: cipher.iv.hash_name(),
        sector_size: header.segment.sector.bytes(),
        payload_offset: header.segment.start,
        master_key_iters: header.digest.iterations(),
        slots,
    }
}

fn tried_slot(slot: &luks2::KeySlot) -> TriedSlot {
    let shown = TriedSlot {
        priority: slot.priority.name(),
        kdf: "pbkdf2",
        hash_alg: None,
        iters: None,
        passes: None,
        memory: None,
        lanes: None,
        key_offset: slot.offset,
        stripes: slot.stripes,
    };
    match slot.kdf {
        Kdf::Pbkdf2 { hash, iterations, .. } => {
            TriedSlot { hash_alg: Some(hash.name()), iters: Some(iterations), ..shown }
        }
        Kdf::Argon2 { kind, passes, memory_kib, lanes, .. } => TriedSlot {
            kdf: match kind {
                Argon2Kind::I => "argon2i",
                Argon2Kind::Id => "argon2id",
            },
            passes: Some(passes),
            memory: Some(u64::from(memory_kib) << 10),
            lanes: Some(lanes),
            ..shown
        },
    }
}
