//! LUKS2 volumes in memory: which copy of the header is read, where the data may be, what a password opens.

use std::sync::Arc;

use futures_executor::block_on;
use luks::layout::SectorCipher;
use luks::{DataPlace, Secret, SectorSize, VolumeHeader, luks2, open_volume, read_volume};
use serde_json::json;
use storage::{Hints, IoBuf, IoBytes, MemoryStorage, Storage};

use crate::Machine;
use crate::layout::luks2_sample::{COPY_BYTES, DATA_START, PASSWORD, Sample, copy};

fn file(bytes: &[u8], data_len: usize) -> MemoryStorage {
    MemoryStorage::from_bytes(&[bytes, &vec![0; data_len]].concat())
}

fn read(file: &MemoryStorage) -> Result<luks2::Header, String> {
    match block_on(read_volume(file)) {
        Ok(VolumeHeader::Luks2(header)) => Ok(*header),
        Ok(VolumeHeader::Luks1(_)) => panic!("it has version 2"),
        Err(error) => Err(error.to_string()),
    }
}

fn secret(bytes: &[u8]) -> Secret {
    Secret::new(bytes.to_vec())
}

/// A first copy that was overwritten (a partition table, a boot sector) or half written costs nothing while the second one is there.
#[test]
fn a_damaged_first_copy_leaves_the_second_one() {
    let good = Sample::new().bytes();
    let whole = read(&file(&good, 4096)).unwrap();
    assert_eq!(whole.place, luks2::Place::First);
    for (at, len) in [(0, 1), (7, 1), (8, 8), (0, 512), (300, 100), (4096, 1), (0, COPY_BYTES)] {
        let mut bytes = good.clone();
        bytes[at..at + len].iter_mut().for_each(|byte| *byte ^= 0x5a);
        let damaged = file(&bytes, 4096);
        let header = read(&damaged).unwrap();
        assert_eq!(
            header,
            luks2::Header { place: luks2::Place::Second(COPY_BYTES as u64), ..whole.clone() },
            "byte {at}"
        );
        let volume = VolumeHeader::Luks2(Box::new(header));
        assert!(volume.damaged_copy().unwrap().contains("cryptsetup repair"));
        block_on(open_volume(&damaged, volume, &secret(PASSWORD), &Machine)).unwrap();
        assert!(damaged.to_bytes()[..DATA_START] == bytes, "nothing of a header is written");
        // Both: what is wrong with the first is reported.
        bytes[COPY_BYTES + 5000] ^= 1;
        assert!(read(&file(&bytes, 4096)).is_err(), "byte {at}");
    }
    let mut bytes = good;
    bytes[100] ^= 1;
    bytes[COPY_BYTES] ^= 1;
    assert_eq!(read(&file(&bytes, 0)).unwrap_err(), "memory: the checksum of the LUKS2 header at 0 is wrong");
}

/// The copies were written one after the other when the machine stopped: the later one counts, even if it says that no task may open it now.
#[test]
fn the_newer_copy_counts_whatever_it_says() {
    let sample = Sample::new();
    let json = sample.json.to_string();
    let busy = sample.clone().with("/config/requirements", Some(json!({"mandatory": ["online-reencrypt"]})));
    let busy = busy.json.to_string();
    for (first, second, error) in [
        ((&json, 3), (&json, 4), None),
        ((&json, 4), (&json, 3), None),
        ((&busy, 4), (&json, 3), Some("cryptsetup reencrypt --resume-only")),
        ((&json, 3), (&busy, 4), Some("cryptsetup reencrypt --resume-only")),
        ((&busy, 3), (&json, 4), None),
    ] {
        let mut bytes = sample.bytes();
        bytes[..COPY_BYTES].copy_from_slice(&copy(first.0.as_bytes(), 0, first.1));
        bytes[COPY_BYTES..2 * COPY_BYTES].copy_from_slice(&copy(
            second.0.as_bytes(),
            COPY_BYTES as u64,
            second.1,
        ));
        match (read(&file(&bytes, 0)), error) {
            (Ok(header), None) => assert_eq!(header.sequence, first.1.max(second.1)),
            (Err(reported), Some(error)) => assert!(reported.contains(error), "{reported}"),
            (found, _) => panic!("{found:?}"),
        }
    }
}

#[test]
fn the_data_lies_behind_the_header_or_in_another_file() {
    let check = |offset: usize, place| {
        let sample = Sample::new().with("/segments/0/offset", Some(json!(offset.to_string())));
        let volume = block_on(read_volume(&file(&sample.bytes(), 8192))).unwrap();
        volume.check_place(place).map_err(|error| error.to_string())
    };
    assert_eq!(check(DATA_START, DataPlace::BehindHeader), Ok(()));
    let behind = format!(
        "the first byte of the disk of the LUKS header is 4096; allowed: {DATA_START} or more, behind the key slots"
    );
    assert_eq!(check(4096, DataPlace::BehindHeader), Err(behind));
    let detached = "the LUKS header has its disk in another file; give driver=luks,file=DATA,header=HEADER";
    assert_eq!(check(0, DataPlace::BehindHeader), Err(detached.into()));
    assert_eq!((check(0, DataPlace::OtherFile), check(4096, DataPlace::OtherFile)), (Ok(()), Ok(())));
}

#[test]
fn a_volume_reads_as_its_key_tweak_and_size_say() {
    let data: Vec<u8> = (0..40_960).map(|at| (at / 9) as u8).collect();
    for (sector, tweak, size) in [
        (512_u64, 0_u64, None),
        (4096, 0, None),
        (4096, u64::MAX - 3, Some(16_384)),
        (2048, 1 << 40, Some(4096)),
    ] {
        let sample = Sample::new()
            .with("/segments/0/sector_size", Some(json!(sector)))
            .with("/segments/0/iv_tweak", Some(json!(tweak.to_string())))
            .with(
                "/segments/0/size",
                Some(json!(size.map_or("dynamic".to_owned(), |size: u64| size.to_string()))),
            );
        let mode = luks::layout::Mode::Xts;
        let cipher = SectorCipher::of_sectors(
            luks::Cipher::DEFAULT,
            SectorSize::new(sector, mode).unwrap(),
            &sample.key,
        );
        let mut ciphered = data.clone();
        cipher.unwrap().encipher(tweak, &mut ciphered);
        // A short sector of 512 bytes at the end of the file is one of the disk, a part of a larger one is not.
        let file = Arc::new(MemoryStorage::from_bytes(&[sample.bytes(), ciphered, vec![1; 100]].concat()));
        let header = block_on(read_volume(&*file)).unwrap();
        let volume = block_on(open_volume(&*file, header, &secret(PASSWORD), &Machine)).unwrap();
        let plain = volume.plain(Arc::clone(&file) as Arc<dyn Storage>, Arc::new(Machine)).unwrap();
        let whole = if sector == 512 { 41_472 } else { 40_960 };
        assert_eq!(plain.length(), size.unwrap_or(whole));
        let len = size.unwrap_or(40_960) as usize;
        let (result, found) = block_on(plain.read(0, IoBuf::uninit(len), Hints::NONE));
        result.unwrap();
        assert!(found[..] == data[..len], "{sector} {tweak} {size:?}");
        // A write and its way back, in whole sectors: the rest needs tasks.
        block_on(plain.write(0, IoBytes::copy_from(&vec![7; sector as usize]).into(), Hints::NONE)).unwrap();
        assert_eq!(block_on(plain.read(0, IoBuf::uninit(10), Hints::NONE)).1[..], [7; 10]);
    }
    let long = Sample::new().with("/segments/0/size", Some(json!("8192")));
    let file = Arc::new(file(&long.bytes(), 4096));
    let header = block_on(read_volume(&*file)).unwrap();
    let volume = block_on(open_volume(&*file, header, &secret(PASSWORD), &Machine)).unwrap();
    let reported = volume.plain(file, Arc::new(Machine)).unwrap_err().to_string();
    assert_eq!(
        reported,
        "memory: the size of the disk of the LUKS header is 8192; allowed: at most 4096, which the file has"
    );
}

/// Which slots were not tried is said where no other is opened.
#[test]
fn a_wrong_password_is_reported_with_the_slots_that_were_passed_over() {
    let slot = Sample::new().json["keyslots"]["0"].clone();
    let sample = Sample::new()
        .with("/keyslots/0/priority", Some(json!(0)))
        .with("/keyslots/2", Some(slot))
        .with("/keyslots/2/kdf/type", Some(json!("scrypt")))
        .with("/digests/0/keyslots", Some(json!(["0", "2"])));
    let file = file(&sample.bytes(), 0);
    let header = block_on(read_volume(&file)).unwrap();
    let reported = block_on(open_volume(&file, header, &secret(PASSWORD), &Machine)).unwrap_err().to_string();
    let parts = [
        "opens no key slot",
        "key slot 0 was not tried: its priority is ignore",
        "key slot 2 was not tried: keyslots.2.kdf.type",
    ];
    parts.iter().for_each(|part| assert!(reported.contains(part), "{reported}"));
}
