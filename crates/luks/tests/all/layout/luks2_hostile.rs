//! LUKS2 headers that are wrong: every field is refused by its name, before it costs anything.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use luks::layout::luks2::{ARGON2_MEMORY_KIB_MAX, BINARY_BYTES, BinaryHeader, Copy, Header, Place};
use luks::layout::{LuksError, Secret};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::layout::luks2_sample::{AREA_BYTES, COPY_BYTES, DATA_START, PASSWORD, Sample, checksum, copy};

/// The first copy in `bytes`, if it is intact.
fn first(bytes: &[u8]) -> Result<Copy, LuksError> {
    BinaryHeader::decode(bytes, Place::First)?.check(bytes)
}

fn decoded(bytes: &[u8]) -> Result<Header, LuksError> {
    Header::decode(&first(bytes)?, DATA_START as u64)
}

fn opened(header: &Header, bytes: &[u8], password: &[u8]) -> Option<Vec<u8>> {
    let slot = &header.slots[0];
    let material = bytes[slot.offset as usize..][..slot.material_bytes()].to_vec();
    let key = header.open_slot(slot, &Secret::new(password.to_vec()), Secret::new(material)).unwrap();
    key.map(|key| key.bytes().to_vec())
}

#[test]
fn a_header_is_read_and_its_password_gives_the_key() {
    let sample = Sample::new();
    let bytes = sample.bytes();
    let header = decoded(&bytes).unwrap();
    assert_eq!(
        (header.sequence, header.segment.start, header.end),
        (3, DATA_START as u64, DATA_START as u64)
    );
    assert_eq!((header.segment.sector.bytes(), header.segment.len), (4096, None));
    assert_eq!(opened(&header, &bytes, PASSWORD), Some(sample.key.bytes().to_vec()));
    assert_eq!(opened(&header, &bytes, b"abc124"), None);
}

#[test]
fn each_field_of_the_binary_header_is_refused_by_name() {
    let table: [(usize, &[u8], &str); 7] = [
        (0, b"X", "there is no LUKS header: the first six bytes are not LUKS\\xba\\xbe"),
        (6, &[0, 3], "the LUKS header has version 3; versions 1 and 2 are supported"),
        (
            8,
            &(0x5000_u64).to_be_bytes(),
            "the size of a copy of the LUKS header is 20480; allowed: 16384, 32768,",
        ),
        (
            8,
            &u64::MAX.to_be_bytes(),
            "the size of a copy of the LUKS header is 18446744073709551615; allowed: 16384",
        ),
        (72, b"crc32\0", "the hash \"crc32\" is not supported; supported: sha1, sha256, sha512"),
        (72, &[b'x'; 32], "the checksum algorithm of the LUKS header is no text that ends within its field"),
        (256, &[1], "the place of a copy of the LUKS header is 72057594037927936; allowed: 0"),
    ];
    let bytes = Sample::new().bytes();
    for (at, field, error) in table {
        let mut bytes = bytes.clone();
        bytes[at..at + field.len()].copy_from_slice(field);
        checksum(&mut bytes[..COPY_BYTES]);
        let reported = decoded(&bytes).unwrap_err().to_string();
        assert!(reported.starts_with(error), "byte {at}: {reported}");
    }
    for len in [0, 5, 6, 511, BINARY_BYTES - 1, COPY_BYTES - 1] {
        assert!(decoded(&bytes[..len]).is_err(), "{len} bytes");
    }
}

/// No byte of a copy can change without the checksum: neither of the binary header nor of the JSON area.
#[test]
fn a_copy_that_was_damaged_anywhere_is_none() {
    let bytes = Sample::new().bytes();
    for at in
        [16, 24, 104, 168, 208, 264, 448, 479, 512, 4000, BINARY_BYTES, BINARY_BYTES + 900, COPY_BYTES - 1]
    {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert_eq!(first(&bytes).map(drop), Err(LuksError::Checksum { at: 0 }), "byte {at}");
    }
}

#[test]
fn each_member_is_refused_by_name() {
    let slot = Sample::new().json["keyslots"]["0"].clone();
    let many: Value = (0..33)
        .map(|number: u32| (number.to_string(), slot.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let end = DATA_START.to_string();
    let far = u64::MAX.to_string();
    let table: Vec<(&str, Option<Value>, &str)> = vec![
        ("/keyslots", None, "keyslots of the LUKS2 header is missing; allowed: an object"),
        ("/keyslots", Some(many), "keyslots of the LUKS2 header is an object; allowed: at most 32 key slots"),
        ("/keyslots/0/type", Some(json!(7)), "keyslots.0.type of the LUKS2 header is 7; allowed: a text"),
        (
            "/keyslots/0/priority",
            Some(json!(3)),
            "keyslots.0.priority of the LUKS2 header is 3; allowed: 0 to 2",
        ),
        (
            "/keyslots/0/key_size",
            Some(json!(1_u64 << 40)),
            "keyslots.0.key_size of the LUKS2 header is 1099511627776; allowed: 16 to 64",
        ),
        (
            "/keyslots/0/key_size",
            Some(json!(17)),
            "the key length of the LUKS header is 17; allowed: 32, 48 or 64 bytes",
        ),
        (
            "/keyslots/0/af",
            Some(json!([])),
            "keyslots.0.af.type of the LUKS2 header is missing; allowed: a text",
        ),
        (
            "/keyslots/0/af/stripes",
            Some(json!(4_294_967_296_u64)),
            "keyslots.0.af.stripes of the LUKS2 header is 4294967296; allowed: 1 to 4000",
        ),
        (
            "/keyslots/0/area/key_size",
            Some(json!(65)),
            "keyslots.0.area.key_size of the LUKS2 header is 65; allowed: 16 to 64",
        ),
        (
            "/keyslots/0/area/offset",
            Some(json!("16384")),
            "keyslots.0.area of the LUKS2 header is bytes 16384 to 274432; allowed: 32768 to 548864",
        ),
        (
            "/keyslots/0/area/offset",
            Some(json!(end)),
            "keyslots.0.area of the LUKS2 header is bytes 548864 to 806912; allowed: 32768 to 548864",
        ),
        (
            "/keyslots/0/area/offset",
            Some(json!(far)),
            "keyslots.0.area of the LUKS2 header is bytes 18446744073709551615 to 18446744073709551615",
        ),
        (
            "/keyslots/0/area/offset",
            Some(json!("-1")),
            "keyslots.0.area.offset of the LUKS2 header is \"-1\"; allowed: a number of 64 bits in a text",
        ),
        (
            "/keyslots/0/area/size",
            Some(json!("4096")),
            "keyslots.0.area.size of the LUKS2 header is \"4096\"; allowed: at least 256000 for 4000 stripes",
        ),
        (
            "/keyslots/0/kdf/iterations",
            Some(json!(0)),
            "keyslots.0.kdf.iterations of the LUKS2 header is 0; allowed: 1 to 4294967295",
        ),
        (
            "/keyslots/0/kdf/iterations",
            Some(json!(1_u64 << 32)),
            "keyslots.0.kdf.iterations of the LUKS2 header is 4294967296; allowed",
        ),
        (
            "/keyslots/0/kdf/iterations",
            Some(json!(u32::MAX)),
            "the sum of all iterations (times the digests of each) of the LUKS header is 8589935590; allowed: at most 134217728",
        ),
        (
            "/keyslots/0/kdf/salt",
            Some(json!("AAAA")),
            "keyslots.0.kdf.salt of the LUKS2 header is \"AAAA\"; allowed: 8 to 64 bytes in base64",
        ),
        (
            "/segments",
            Some(json!({})),
            "segments of the LUKS2 header is an object; allowed: an object with one segment",
        ),
        (
            "/segments/0/offset",
            Some(json!("513")),
            "segments.0.offset of the LUKS2 header is \"513\"; allowed: a multiple of 512 below 2^63",
        ),
        (
            "/segments/0/offset",
            Some(json!("18446744073709551104")),
            "segments.0.offset of the LUKS2 header is \"18446744073709551104\"; allowed",
        ),
        (
            "/segments/0/size",
            Some(json!("512")),
            "segments.0.size of the LUKS2 header is \"512\"; allowed: \"dynamic\", or a number of whole sectors",
        ),
        (
            "/segments/0/iv_tweak",
            Some(json!(0)),
            "segments.0.iv_tweak of the LUKS2 header is 0; allowed: a text",
        ),
        (
            "/segments/0/sector_size",
            Some(json!(8192)),
            "segments.0.sector_size of the LUKS2 header is 8192; allowed: 512 to 4096",
        ),
        (
            "/digests/0/segments",
            Some(json!(["1"])),
            "digests of the LUKS2 header is an object; allowed: an object with a digest of the segment",
        ),
        (
            "/digests/0/keyslots",
            Some(json!([0])),
            "digests.0.keyslots of the LUKS2 header is a list; allowed: a list of texts",
        ),
        (
            "/digests/0/digest",
            Some(json!("AAAA")),
            "digests.0.digest of the LUKS2 header is \"AAAA\"; allowed: 16 to 64 bytes in base64",
        ),
        (
            "/digests/0/iterations",
            Some(json!(u32::MAX)),
            "the sum of all iterations (times the digests of each) of the LUKS header is 4294969295; allowed",
        ),
        (
            "/config/json_size",
            Some(json!("12287")),
            "config.json_size of the LUKS2 header is \"12287\"; allowed: 12288",
        ),
        (
            "/config/keyslots_size",
            Some(json!(far)),
            "config.keyslots_size of the LUKS2 header is \"18446744073709551615\"; allowed: at most",
        ),
    ];
    for (pointer, value, error) in table {
        let refused = decoded(&Sample::new().with(pointer, value.clone()).bytes()).expect_err(pointer);
        let reported = refused.to_string();
        assert!(reported.starts_with(error) && !refused.is_unsupported(), "{pointer} {value:?}: {reported}");
    }
}

/// What cryptsetup can make, or has made, and is not supported: it is refused by name, as that and not as damage.
#[test]
fn what_is_not_supported_is_reported_by_name() {
    let two = json!({"0": Sample::new().json["segments"]["0"], "1": {"type": "linear"}});
    let table = [
        (
            "/config/requirements",
            json!({"mandatory": ["online-reencrypt-v2"]}),
            "cryptsetup reencrypt --resume-only",
        ),
        (
            "/config/requirements",
            json!({"mandatory": ["opal"]}),
            "config.requirements.mandatory of the LUKS2 header is \"opal\", which is not supported",
        ),
        (
            "/segments",
            two,
            "segments of the LUKS2 header is an object, which is not supported; one segment is",
        ),
        (
            "/segments/0/type",
            json!("linear"),
            "segments.0.type of the LUKS2 header is \"linear\", which is not supported",
        ),
        (
            "/segments/0/integrity",
            json!({"type": "hmac(sha256)"}),
            "segments.0.integrity of the LUKS2 header is an object, which is not supported",
        ),
        (
            "/segments/0/flags",
            json!(["in-reencryption"]),
            "segments.0.flags of the LUKS2 header is a list, which is not supported",
        ),
        (
            "/segments/0/encryption",
            json!("serpent-xts-plain64"),
            "the cipher \"serpent\" is not supported; supported: aes",
        ),
        (
            "/segments/0/encryption",
            json!("aes-ctr-plain64"),
            "the cipher mode \"ctr-plain64\" is not supported",
        ),
        (
            "/segments/0/sector_size",
            json!(1536),
            "the sector size \"1536\" is not supported; supported: 512, 1024, 2048, 4096",
        ),
        (
            "/digests/0/type",
            json!("argon2"),
            "digests.0.type of the LUKS2 header is \"argon2\", which is not supported",
        ),
    ];
    for (pointer, value, error) in table {
        let refused = decoded(&Sample::new().with(pointer, Some(value.clone())).bytes()).expect_err(pointer);
        let reported = refused.to_string();
        assert!(reported.contains(error) && refused.is_unsupported(), "{pointer} {value}: {reported}");
    }
    // Larger sectors of CBC could lose what was acknowledged.
    let cbc = Sample::new()
        .with("/segments/0/encryption", Some(json!("aes-cbc-essiv:sha256")))
        .with("/keyslots/0/key_size", Some(json!(32)));
    let reported = decoded(&cbc.bytes()).unwrap_err().to_string();
    assert_eq!(reported, "the sector size \"4096\" is not supported; supported: 512 in CBC mode");
}

/// A slot that cannot be tried does not keep others from being tried, and its reason is kept.
#[test]
fn a_slot_of_another_kind_is_passed_over_by_name() {
    let argon2 = |memory: u64, time: u64| json!({"type": "argon2id", "time": time, "memory": memory, "cpus": 4, "salt": "c29tZXNhbHQ="});
    let slot = Sample::new().json["keyslots"]["0"].clone();
    let table = [
        (
            "/kdf",
            argon2(u64::from(u32::MAX), 1),
            "at most 1048576 KiB of memory are: cryptsetup luksConvertKey",
        ),
        (
            "/kdf/type",
            json!("scrypt"),
            "keyslots.1.kdf.type of the LUKS2 header is \"scrypt\", which is not supported",
        ),
        ("/kdf/hash", json!("whirlpool"), "the hash \"whirlpool\" is not supported"),
        (
            "/type",
            json!("reencrypt"),
            "keyslots.1.type of the LUKS2 header is \"reencrypt\", which is not supported",
        ),
        ("/area/encryption", json!("cipher_null-ecb"), "the cipher \"cipher_null\" is not supported"),
        (
            "/area/type",
            json!("journal"),
            "keyslots.1.area.type of the LUKS2 header is \"journal\", which is not supported",
        ),
        ("/af/hash", json!("md5"), "the hash \"md5\" is not supported"),
    ];
    for (pointer, value, error) in table {
        let other = Sample::new()
            .with("/keyslots/1", Some(slot.clone()))
            .with(&format!("/keyslots/1{pointer}"), Some(value))
            .with("/digests/0/keyslots", Some(json!(["0", "1"])));
        let header = decoded(&other.bytes()).unwrap();
        assert_eq!(header.slots.len(), 1, "{pointer}");
        let reported = header.others[0].reason.to_string();
        assert!(header.others[0].number == 1 && reported.contains(error), "{pointer}: {reported}");
    }
    // A slot of another key (unbound) does not matter.
    let unbound = Sample::new().with("/keyslots/7", Some(json!("nonsense")));
    assert_eq!(decoded(&unbound.bytes()).unwrap().others, []);
    // All of Argon2 together costs no more than is allowed, and 2^32 passes are far beyond.
    for (memory, time, allowed) in [
        (u64::from(ARGON2_MEMORY_KIB_MAX), 128, true),
        (u64::from(ARGON2_MEMORY_KIB_MAX), 129, false),
        (32, u64::from(u32::MAX), false),
    ] {
        let costly = Sample::new().with("/keyslots/0/kdf", Some(argon2(memory, time)));
        assert_eq!(decoded(&costly.bytes()).is_ok(), allowed, "{memory} KiB, {time} times");
    }
    let refused =
        decoded(&Sample::new().with("/keyslots/0/kdf", Some(argon2(32, 1 << 32))).bytes()).unwrap_err();
    assert!(
        refused.to_string().starts_with("keyslots.0.kdf.time of the LUKS2 header is 4294967296"),
        "{refused}"
    );
}

#[test]
fn slots_share_no_bytes_and_are_tried_by_their_priority() {
    let slot = Sample::new().json["keyslots"]["0"].clone();
    let several = |second: usize| {
        Sample::new()
            .with("/keyslots/5", Some(slot.clone()))
            .with("/keyslots/5/area/offset", Some(json!(second.to_string())))
            .with("/digests/0/keyslots", Some(json!(["0", "5"])))
    };
    let behind = 2 * COPY_BYTES + AREA_BYTES;
    let order = |sample: Sample| {
        let header = decoded(&sample.bytes()).unwrap();
        header.tried().map(|slot| slot.number).collect::<Vec<_>>()
    };
    assert_eq!(order(several(behind)), [0, 5]);
    assert_eq!(order(several(behind).with("/keyslots/5/priority", Some(json!(2)))), [5, 0]);
    assert_eq!(order(several(behind).with("/keyslots/0/priority", Some(json!(0)))), [5]);
    let reported = decoded(&several(behind - 512).bytes()).unwrap_err().to_string();
    assert_eq!(
        reported,
        "keyslots.5.area of the LUKS2 header (bytes 290304 to 548352) overlaps that of key slot 0"
    );
    // "00" is slot 0 too.
    let twice = Sample::new()
        .with("/keyslots/00", Some(slot.clone()))
        .with("/digests/0/keyslots", Some(json!(["0", "00"])));
    assert!(decoded(&twice.bytes()).is_err());
}

/// JSON that would cost stack, memory or time is refused at once.
#[test]
fn hostile_json_costs_nothing() {
    let mib = |text: &str| text.repeat((1 << 20) / text.len());
    let texts = [
        mib("["),
        mib("{\"a\":"),
        format!("[{}0]", mib("0,")),
        format!("{{{}\"x\":0}}", mib("\"a\":[],")),
        format!("\"{}\"", mib("x")),
        mib(" "),
        "{\"keyslots\":".to_owned(),
        String::new(),
        "nul".to_owned(),
    ];
    for text in texts {
        let mut copy = vec![0; 0x20_0000];
        copy[..COPY_BYTES].copy_from_slice(&copy_of(&text.as_bytes()[..text.len().min(1000)]));
        copy[8..16].copy_from_slice(&0x20_0000_u64.to_be_bytes());
        copy[BINARY_BYTES..][..text.len()].copy_from_slice(text.as_bytes());
        checksum(&mut copy);
        let start = Instant::now();
        let error = Header::decode(&first(&copy).unwrap(), 1 << 30).unwrap_err().to_string();
        // What grows with the square of a MiB takes hours.
        assert!(start.elapsed() < Duration::from_secs(60) && error.len() < 300, "{error}");
    }
    // No zero byte ends it.
    let mut copy = copy_of(b"{}");
    copy[BINARY_BYTES..].fill(b' ');
    checksum(&mut copy);
    let reported = Header::decode(&first(&copy).unwrap(), 1 << 30).unwrap_err().to_string();
    assert_eq!(reported, "the metadata of the LUKS2 header cannot be read: it does not end within its area");
}

fn copy_of(json: &[u8]) -> Vec<u8> {
    copy(json, 0, 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any change of the metadata leaves a header whose parts lie apart and inside, or an error.
    #[test]
    fn any_metadata_is_a_header_within_its_limits_or_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5), length in 0_u64..1_000_000,
    ) {
        static JSON: LazyLock<String> = LazyLock::new(|| Sample::new().json.to_string());
        let mut json = JSON.clone().into_bytes();
        for (at, byte) in changes {
            let at = at.index(json.len());
            json[at] = byte;
        }
        if let Ok(header) = Header::decode(&first(&copy_of(&json)).unwrap(), length) {
            for slot in &header.slots {
                prop_assert!(slot.offset >= 2 * COPY_BYTES as u64);
                prop_assert!(slot.offset + slot.material_bytes() as u64 <= length.min(header.end));
            }
        }
    }
}
