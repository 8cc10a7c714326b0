//! A header is bytes that anybody may have written: each is a value that can be used, or an error, at once.

use luks::layout::{
    Cipher, HEADER_BYTES, Hash, Header, KeySlot, LuksError, NewHeader, NewSlot, PBKDF2_COST_MAX, SLOTS,
    Secret,
};
use proptest::prelude::*;

/// A header with a key in slot 0, and its key.
fn header() -> (Header, Secret) {
    let key = Secret::new((0..64).collect());
    let new = NewHeader {
        cipher: Cipher::DEFAULT,
        hash: Hash::Sha256,
        key: &key,
        digest_salt: [1; 32],
        digest_iterations: 1000,
        uuid: [2; 16],
    };
    let mut header = Header::new(&new).unwrap();
    let material = Secret::zeroed(header.material_bytes(&header.slots[0]));
    let password = Secret::new(b"abc123".to_vec());
    let new = NewSlot { password: &password, iterations: 1000, salt: [3; 32] };
    header.fill_slot(0, &key, &new, material).unwrap();
    (header, key)
}

/// Bytes of a header with all its key material.
fn area(header: &Header) -> u64 {
    u64::from(header.payload_sector) * 512
}

fn with(at: usize, bytes: &[u8]) -> Result<Header, LuksError> {
    let mut encoded = header().0.encode();
    encoded[at..at + bytes.len()].copy_from_slice(bytes);
    Header::decode(&encoded, area(&header().0))
}

#[test]
fn a_header_comes_back_as_it_was() {
    let header = header().0;
    assert_eq!(Header::decode(&header.encode(), area(&header)), Ok(header.clone()));
    assert_eq!(header.payload_sector, 4040);
    assert_eq!(header.uuid, "02020202-0202-4202-8202-020202020202");
}

#[test]
fn each_field_is_refused_by_name() {
    let be = |word: u32| word.to_be_bytes();
    let table: [(usize, &[u8], &str); 21] = [
        (0, b"X", "there is no LUKS header: the first six bytes are not LUKS\\xba\\xbe"),
        (6, &[0, 2], "the LUKS header has version 2; version 1 is supported"),
        (8, b"serpent\0", "the cipher \"serpent\" is not supported; supported: aes"),
        (8, &[b'a'; 32], "the cipher name of the LUKS header is no text that ends within its field"),
        (
            40,
            b"ecb\0",
            "the cipher mode \"ecb\" is not supported; supported: xts-plain64, xts-plain, cbc-plain64, cbc-plain, cbc-essiv:sha256, xts-essiv:sha256",
        ),
        (40, b"\x1b[2J\0", "the cipher mode of the LUKS header is no text that ends within its field"),
        (72, b"ripemd160\0", "the hash \"ripemd160\" is not supported; supported: sha1, sha256, sha512"),
        (104, &be(1000), "the key material of slot 1 (sectors 512 to 1012) overlaps the disk's data"),
        (
            104,
            &be(1),
            "the place of the key material of slot 0 (its last sector) of the LUKS header is 507; allowed: below sector 1, where the disk's data begins",
        ),
        (108, &be(17), "the key length of the LUKS header is 17; allowed: 32, 48 or 64 bytes"),
        (108, &be(u32::MAX), "the key length of the LUKS header is 4294967295; allowed: 32, 48 or 64 bytes"),
        (
            164,
            &be(0),
            "the number of iterations of the key's digest of the LUKS header is 0; allowed: 1 or more",
        ),
        (
            164,
            &be(u32::MAX),
            "the sum of all iterations (times the digests of each) of the LUKS header is 4294969295; allowed: at most 134217728",
        ),
        (168, &[0xff], "the uuid of the LUKS header is no text that ends within its field"),
        (
            208,
            &be(7),
            "the state of slot 0 of the LUKS header is 7; allowed: 11301363 (active), 57005 (not active)",
        ),
        (212, &be(0), "the number of iterations of slot 0 of the LUKS header is 0; allowed: 1 or more"),
        (
            212,
            &be(u32::MAX),
            "the sum of all iterations (times the digests of each) of the LUKS header is 8589935590; allowed: at most 134217728",
        ),
        (
            248,
            &be(u32::MAX),
            "the place of the key material of slot 0 (its last sector) of the LUKS header is 4294967794; allowed: below sector 4040, where the header's area ends",
        ),
        (248, &be(1), "the key material of slot 0 (sectors 1 to 501) overlaps the header"),
        (248, &be(600), "the key material of slot 1 (sectors 512 to 1012) overlaps that of slot 0"),
        (
            252,
            &be(u32::MAX),
            "the number of stripes of slot 0 of the LUKS header is 4294967295; allowed: 1 to 4000",
        ),
    ];
    for (at, bytes, error) in table {
        assert_eq!(with(at, bytes).map_err(|error| error.to_string()), Err(error.to_owned()), "byte {at}");
    }
    let encoded = header().0.encode();
    for len in 0..HEADER_BYTES {
        assert!(Header::decode(&encoded[..len], u64::MAX).is_err());
    }
}

/// The bound counted iterations alone: with SHA-1 and a key of 64 bytes each takes four digests, with SHA-512 one that takes twice as long, and a wrong
/// password cost four minutes.
#[test]
fn slots_together_cost_no_more_than_is_allowed_whatever_the_hash() {
    for (hash, digests) in [(Hash::Sha1, 4), (Hash::Sha256, 2), (Hash::Sha512, 2)] {
        let mut header = Header { hash, ..header().0 };
        for slot in &mut header.slots {
            (slot.active, slot.iterations) = (true, (PBKDF2_COST_MAX / digests / SLOTS as u64) as u32);
        }
        let decode = |header: &Header| Header::decode(&header.encode(), area(header));
        assert!(matches!(decode(&header), Err(LuksError::OutOfRange { .. })), "{hash:?}");
        header.slots[7].active = false;
        assert_eq!(decode(&header), Ok(header));
    }
}

#[test]
fn a_wrong_password_gives_no_key_and_neither_does_damaged_material() {
    let (mut header, key) = header();
    let password = Secret::new(b"abc123".to_vec());
    let new = NewSlot { password: &password, iterations: 1000, salt: [3; 32] };
    let random = Secret::zeroed(header.material_bytes(&header.slots[3]));
    let material = header.fill_slot(3, &key, &new, random).unwrap();
    let slot = header.slots[3];
    let opened = header.open_slot(&slot, &password, material.clone()).unwrap().unwrap();
    assert_eq!(opened.bytes(), key.bytes());
    let wrong = Secret::new(b"abc124".to_vec());
    assert!(header.open_slot(&slot, &wrong, material.clone()).unwrap().is_none());
    let mut damaged = material;
    damaged.bytes_mut()[100_000] ^= 1;
    assert!(header.open_slot(&slot, &password, damaged).unwrap().is_none());
}

proptest! {
    /// What was decoded is what is encoded, and nothing of it lies outside.
    #[test]
    fn any_bytes_are_a_header_within_its_limits_or_an_error(
        changes in prop::collection::vec((0..HEADER_BYTES, any::<u8>()), 0..4), length in 0_u64..4_000_000,
    ) {
        let mut bytes = header().0.encode();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(header) = Header::decode(&bytes, length) {
            let end = |slot: &KeySlot| u64::from(slot.material_sector) * 512 + header.material_bytes(slot) as u64;
            prop_assert!(header.slots.iter().all(|slot| end(slot) <= length));
            prop_assert_eq!(Header::decode(&header.encode(), length), Ok(header));
        }
    }
}
