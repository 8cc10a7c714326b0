//! A small LUKS2 volume, made without cryptsetup: for tests here and in `fuzz`.
//!
//! A key slot of PBKDF2 has its key material as a slot of LUKS1 has it, so the writer of those makes it.

use luks::layout::luks2::BINARY_BYTES;
use luks::layout::{Cipher, Hash, Header, NewHeader, NewSlot, Secret};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Bytes of one copy of the header.
pub const COPY_BYTES: usize = 0x4000;
/// Bytes of the key material of a slot, and from one to the next.
pub const AREA_BYTES: usize = 258_048;
/// Where the disk's data begins.
pub const DATA_START: usize = 2 * COPY_BYTES + 2 * AREA_BYTES;
/// Opens the volume.
pub const PASSWORD: &[u8] = b"abc123";

/// A volume, to be changed before its bytes are made.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What the JSON area says.
    pub json: Value,
    /// Of the first copy; the second one has the same.
    pub sequence: u64,
    /// The disk's key.
    pub key: Secret,
    material: Vec<u8>,
}

impl Sample {
    /// One slot of PBKDF2 with few iterations, AES-256 in XTS mode, sectors of 4096 bytes.
    pub fn new() -> Self {
        let key = Secret::new((1..=64).collect());
        let (salt, digest_salt) = ([3; 32], [1; 32]);
        let (cipher, hash) = (Cipher::DEFAULT, Hash::Sha256);
        let new = NewHeader { cipher, hash, key: &key, digest_salt, digest_iterations: 1000, uuid: [2; 16] };
        let mut luks1 = Header::new(&new).expect("the key has the cipher's length");
        let random =
            Secret::new((0..luks1.material_bytes(&luks1.slots[0])).map(|at| (at * at / 7) as u8).collect());
        let password = Secret::new(PASSWORD.to_vec());
        let slot = NewSlot { password: &password, iterations: 1000, salt };
        let material = luks1.fill_slot(0, &key, &slot, random).expect("the key has the cipher's length");
        let json = json!({
            "keyslots": {"0": {
                "type": "luks2", "key_size": 64,
                "af": {"type": "luks1", "stripes": 4000, "hash": "sha256"},
                "area": {"type": "raw", "offset": (2 * COPY_BYTES).to_string(), "size": AREA_BYTES.to_string(),
                    "encryption": "aes-xts-plain64", "key_size": 64},
                "kdf": {"type": "pbkdf2", "hash": "sha256", "iterations": 1000, "salt": base64(&salt)},
            }},
            "tokens": {},
            "segments": {"0": {
                "type": "crypt", "offset": DATA_START.to_string(), "size": "dynamic", "iv_tweak": "0",
                "encryption": "aes-xts-plain64", "sector_size": 4096,
            }},
            "digests": {"0": {
                "type": "pbkdf2", "keyslots": ["0"], "segments": ["0"], "hash": "sha256", "iterations": 1000,
                "salt": base64(&digest_salt), "digest": base64(&luks1.digest),
            }},
            "config": {"json_size": (COPY_BYTES - BINARY_BYTES).to_string(), "keyslots_size": (2 * AREA_BYTES).to_string()},
        });
        Self { json, sequence: 3, key, material: material.bytes().to_vec() }
    }

    /// With `value` in the place of a member, by its JSON pointer; `None`: without it.
    pub fn with(mut self, pointer: &str, value: Option<Value>) -> Self {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let parent =
            self.json.pointer_mut(parent).and_then(Value::as_object_mut).expect("a member to change");
        match value {
            Some(value) => drop(parent.insert(name.to_owned(), value)),
            None => drop(parent.remove(name)),
        }
        self
    }

    /// All bytes in front of the disk's data: two copies and the key material.
    pub fn bytes(&self) -> Vec<u8> {
        let json = self.json.to_string();
        let mut bytes = copy(json.as_bytes(), 0, self.sequence);
        bytes.extend(copy(json.as_bytes(), COPY_BYTES as u64, self.sequence));
        bytes.extend(&self.material);
        bytes.resize(DATA_START, 0);
        bytes
    }
}

/// A copy of the header for this place, with a checksum that is right.
pub fn copy(json: &[u8], at: u64, sequence: u64) -> Vec<u8> {
    let mut copy = vec![0; COPY_BYTES];
    copy[..8].copy_from_slice(if at == 0 { b"LUKS\xba\xbe\0\x02" } else { b"SKUL\xba\xbe\0\x02" });
    copy[8..16].copy_from_slice(&(COPY_BYTES as u64).to_be_bytes());
    copy[16..24].copy_from_slice(&sequence.to_be_bytes());
    copy[72..78].copy_from_slice(b"sha256");
    copy[168..204].copy_from_slice(b"02020202-0202-4202-8202-020202020202");
    copy[256..264].copy_from_slice(&at.to_be_bytes());
    let room = COPY_BYTES - BINARY_BYTES;
    copy[BINARY_BYTES..][..json.len().min(room)].copy_from_slice(&json[..json.len().min(room)]);
    checksum(&mut copy);
    copy
}

/// Puts the right checksum into a copy.
pub fn checksum(copy: &mut [u8]) {
    copy[448..512].fill(0);
    let checksum = Sha256::digest(&*copy);
    copy[448..480].copy_from_slice(&checksum);
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let held =
            group.iter().fold(0_u32, |held, &byte| held << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let value = held >> (18 - 6 * digit) & 63;
            text.push(if digit > group.len() { '=' } else { char::from(DIGITS[value as usize]) });
        }
    }
    text
}
