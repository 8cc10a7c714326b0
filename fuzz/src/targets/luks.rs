//! LUKS headers of both versions: read, and a password tried where that is cheap. Checksums are made right behind the edits, or nothing
//! would get past them.

use std::sync::{Arc, LazyLock};

use luks::layout::{Cipher, Hash, Header, NewHeader, NewSlot, Secret, luks2};
use luks::{Around, Calculation, DataPlace, VolumeHeader, Work, open_volume, read_volume};
use serde_json::json;
use storage::{Hints, IoBuf, MemoryStorage, Storage};

use crate::executor::block_on;
use crate::input::Input;

#[path = "../../../crates/luks/tests/all/layout/luks2_sample.rs"]
mod sample;

use sample::{COPY_BYTES, PASSWORD, Sample};

/// Passwords are tried where all slots together cost no more: some milliseconds.
const COST_MAX: u64 = 20_000;
/// Bytes behind a header that are its disk.
const DISK_BYTES: usize = 8192;

/// What works on keys runs at once, in this case.
#[derive(Debug)]
struct Here;

impl Around for Here {
    fn spawn(&self, work: Work) {
        block_on(work);
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(async move { calculation() })
    }
}

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let bytes = match input.byte() % 5 {
        0 => luks1(&mut input),
        1 => luks2_fields(&mut input),
        2 => luks2_json(&mut input),
        4 => luks2_members(&mut input),
        // Anything at all.
        _ => input.rest().to_vec(),
    };
    block_on(look_at(&bytes));
}

/// A header of version 1 with edits of its 592 bytes.
fn luks1(input: &mut Input<'_>) -> Vec<u8> {
    static BASE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let key = Sample::new().key;
        let (cipher, hash, digest_salt) = (Cipher::DEFAULT, Hash::Sha256, [1; 32]);
        let new = NewHeader { cipher, hash, key: &key, digest_salt, digest_iterations: 1, uuid: [2; 16] };
        let mut header = Header::new(&new).expect("the key has the cipher's length");
        let material = Secret::zeroed(header.material_bytes(&header.slots[0]));
        let password = Secret::new(PASSWORD.to_vec());
        let slot = NewSlot { password: &password, iterations: 1, salt: [3; 32] };
        let material = header.fill_slot(0, &key, &slot, material).expect("the key has the cipher's length");
        let mut bytes = header.encode().to_vec();
        bytes.resize(4096, 0);
        bytes.extend(material.bytes());
        bytes.resize(header.payload_sector as usize * 512 + DISK_BYTES, 0);
        bytes
    });
    let mut bytes = BASE.clone();
    edit(input, &mut bytes[..592]);
    bytes
}

/// A header of version 2 whose copies have edits of their binary headers.
fn luks2_fields(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = base().to_vec();
    let right = input.flag();
    let (first, second) = bytes.split_at_mut(COPY_BYTES);
    for copy in [first, &mut second[..COPY_BYTES]] {
        edit(input, &mut copy[..512]);
        if right {
            sample::checksum(copy);
        }
    }
    bytes
}

/// A header of version 2 whose metadata has edits, or is the input.
fn luks2_json(input: &mut Input<'_>) -> Vec<u8> {
    static JSON: LazyLock<String> = LazyLock::new(|| Sample::new().json.to_string());
    let mut bytes = base().to_vec();
    let json = match input.flag() {
        true => {
            let mut json = JSON.clone().into_bytes();
            edit(input, &mut json);
            json
        }
        false => input.bytes(usize::MAX).to_vec(),
    };
    bytes[..COPY_BYTES].copy_from_slice(&sample::copy(&json, 0, 9));
    bytes
}

/// A header of version 2 with other values of its members, or without them.
fn luks2_members(input: &mut Input<'_>) -> Vec<u8> {
    static BASE: LazyLock<Sample> = LazyLock::new(Sample::new);
    let mut sample = BASE.clone();
    for _ in 0..=input.byte() % 4 {
        let value = match input.byte() % 7 {
            0 => None,
            1 => Some(json!(input.number(8))),
            2 => Some(json!(input.number(8).to_string())),
            3 => Some(json!((512 * input.number(2)).to_string())),
            4 => Some(json!(*input.pick(WORDS))),
            5 => Some(json!([])),
            _ => Some(json!({"0": {}})),
        };
        let member: &&str = input.pick(MEMBERS);
        sample = sample.with(member, value);
    }
    let mut bytes = sample.bytes();
    bytes.resize(bytes.len() + DISK_BYTES, 0);
    bytes
}

/// No one of them stands in another, so that each is there when it is changed.
const MEMBERS: &[&str] = &[
    "/keyslots/0/priority",
    "/keyslots/0/key_size",
    "/keyslots/0/af/stripes",
    "/keyslots/0/af/hash",
    "/keyslots/0/area/offset",
    "/keyslots/0/area/size",
    "/keyslots/0/area/encryption",
    "/keyslots/0/kdf/type",
    "/keyslots/0/kdf/iterations",
    "/keyslots/0/kdf/memory",
    "/keyslots/0/kdf/time",
    "/keyslots/0/kdf/cpus",
    "/segments/0/offset",
    "/segments/0/size",
    "/segments/0/iv_tweak",
    "/segments/0/sector_size",
    "/segments/0/encryption",
    "/digests/0/keyslots",
    "/digests/0/digest",
    "/config/requirements",
];

const WORDS: &[&str] = &[
    "argon2id",
    "argon2i",
    "pbkdf2",
    "dynamic",
    "aes-cbc-essiv:sha256",
    "aes-xts-plain64",
    "sha512",
    "sha1",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "",
];

fn base() -> &'static [u8] {
    static BASE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut bytes = Sample::new().bytes();
        bytes.resize(bytes.len() + DISK_BYTES, 0);
        bytes
    });
    &BASE
}

/// Up to 8 edits: a place, how many bytes, and the bytes.
fn edit(input: &mut Input<'_>, bytes: &mut [u8]) {
    for _ in 0..input.byte() % 9 {
        let at = usize::try_from(input.number(2)).unwrap_or(0) % bytes.len();
        let len = usize::from(input.byte() % 9).min(bytes.len() - at);
        bytes[at..at + len].iter_mut().for_each(|byte| *byte = input.byte());
    }
}

/// What is accepted keeps to its limits; a disk of it is read and written, and its header stays as it was.
async fn look_at(bytes: &[u8]) {
    let file = Arc::new(MemoryStorage::from_bytes(bytes));
    let Ok(header) = read_volume(&*file).await else { return };
    if header.check_place(DataPlace::BehindHeader).is_err() || !is_cheap(&header) {
        return;
    }
    let start = usize::try_from(header.data_start()).unwrap_or(usize::MAX).min(bytes.len());
    let Ok(opened) = open_volume(&*file, header, &Secret::new(PASSWORD.to_vec()), &Here).await else {
        return;
    };
    let Ok(disk) = opened.plain(Arc::clone(&file) as Arc<dyn Storage>, Arc::new(Here)) else { return };
    let len = disk.length().min(DISK_BYTES as u64);
    if len > 0 {
        let data = storage::IoBytes::copy_from(&vec![0x5a; len as usize]);
        disk.write(0, data.into(), Hints::NONE).await.expect("memory does not fail");
        let (result, found) = disk.read(0, IoBuf::uninit(len as usize), Hints::NONE).await;
        assert!(result.is_ok() && found.iter().all(|&byte| byte == 0x5a), "what was written is read");
    }
    assert!(file.to_bytes()[..start] == bytes[..start], "a header is not written");
}

fn is_cheap(header: &VolumeHeader) -> bool {
    let cost = match header {
        VolumeHeader::Luks1(header) => {
            let slots = header.slots.iter().filter(|slot| slot.active);
            let digest = u64::from(header.digest_iterations);
            slots.map(|slot| u64::from(slot.iterations) + digest).sum::<u64>()
        }
        VolumeHeader::Luks2(header) => {
            let slots = header.slots.iter();
            slots.map(|slot| cost(&slot.kdf) + header.digest.iterations()).sum()
        }
    };
    cost <= COST_MAX
}

fn cost(kdf: &luks2::Kdf) -> u64 {
    match *kdf {
        luks2::Kdf::Pbkdf2 { iterations, .. } => iterations.into(),
        luks2::Kdf::Argon2 { passes, memory_kib, .. } => u64::from(passes) * u64::from(memory_kib),
    }
}
