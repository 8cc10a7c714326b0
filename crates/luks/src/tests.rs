//! Ciphered storage against plain bytes, and key slots over storage in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use block::{Blame, ErrorKind};
use futures_executor::block_on;
use proptest::prelude::*;
use storage::{Allocation, Hints, IoBuf, IoBytes, MemoryStorage, Storage, Zeroing};

use crate::{
    Area, Around, Calculation, Cipher, CipherStorage, Hash, NewVolume, Part, Removal, Secret, SectorCipher,
    SectorSize, Work, add_key, area_bytes, remove_key, replace_key, unlock,
};

/// A program without threads: what is spawned runs at once.
#[derive(Debug)]
struct Alone;

impl Around for Alone {
    fn spawn(&self, mut work: Work) {
        let ended = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(ended.is_ready(), "storage in memory never waits, and nobody else has a lock");
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(async move { calculation() })
    }
}

fn keyed() -> Arc<SectorCipher> {
    keyed_of(512)
}

/// For sectors of so many bytes.
fn keyed_of(sector: u64) -> Arc<SectorCipher> {
    let sector = SectorSize::new(sector, Cipher::DEFAULT.mode).unwrap();
    Arc::new(SectorCipher::of_sectors(Cipher::DEFAULT, sector, &Secret::new((0..64).collect())).unwrap())
}

fn over(below: &Arc<MemoryStorage>, start: u64) -> CipherStorage {
    CipherStorage::new(
        Arc::clone(below) as Arc<dyn Storage>,
        Part { start, ..Part::default() },
        keyed(),
        Arc::new(Alone),
    )
}

fn read(storage: &dyn Storage, offset: u64, len: usize) -> Vec<u8> {
    let (result, buf) = block_on(storage.read(offset, IoBuf::uninit(len), Hints::NONE));
    result.unwrap();
    buf.to_vec()
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    Zero(u64, u64),
    Allocate(u64, u64, bool),
    Grow(u64),
    Shorten(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let offset = 0_u64..6000;
    let len = prop_oneof![1_usize..3000, Just(200_000), Just(512)];
    prop_oneof![
        4 => (offset.clone(), len, 1_u8..).prop_map(|(offset, len, byte)| Step::Write(offset, len, byte)),
        1 => (0_u64..8, 1_usize..8).prop_map(|(sector, count)| Step::Write(sector * 512, count * 512, 7)),
        1 => (offset.clone(), 0_u64..3000).prop_map(|(offset, len)| Step::Zero(offset, len)),
        1 => (offset.clone(), 1_u64..3000, any::<bool>()).prop_map(|(offset, len, write)| Step::Allocate(offset, len, write)),
        1 => (0_u64..20).prop_map(Step::Grow),
        1 => (0_u64..20).prop_map(Step::Shorten),
    ]
}

/// Plain bytes, whose length is whole sectors.
fn model(bytes: &mut Vec<u8>, step: &Step, sector: u64) {
    let whole = |end: u64| end.next_multiple_of(sector) as usize;
    let mut put = |offset: u64, len: usize, byte: Option<u8>| {
        let end = offset + len as u64;
        if len > 0 && bytes.len() < end as usize {
            bytes.resize(whole(end), 0);
        }
        if let Some(byte) = byte {
            bytes[offset as usize..end as usize].fill(byte);
        }
    };
    match *step {
        Step::Write(offset, len, byte) => put(offset, len, Some(byte)),
        Step::Zero(offset, len) if len > 0 => put(offset, len as usize, Some(0)),
        Step::Zero(..) => {}
        Step::Allocate(offset, len, write) => put(offset, len as usize, write.then_some(0)),
        Step::Grow(sectors) => bytes.resize(bytes.len().max((sectors * sector) as usize), 0),
        Step::Shorten(sectors) => bytes.truncate((sectors * sector) as usize),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the alignment, what is read is what was written; below, nothing is.
    #[test]
    fn the_plain_text_is_what_was_written(
        steps in prop::collection::vec(step(), 1..12), sector in prop::sample::select(vec![512_u64, 1024, 4096]), first_number: u64,
    ) {
        let below = Arc::new(MemoryStorage::new(1024));
        let part = Part { start: 1024, len: None, first_number };
        let storage = CipherStorage::new(Arc::clone(&below) as Arc<dyn Storage>, part, keyed_of(sector), Arc::new(Alone));
        let mut expected = Vec::new();
        for step in &steps {
            model(&mut expected, step, sector);
            block_on(async {
                // What lies between the end and a write behind it has no content.
                if let Step::Write(offset, ..) | Step::Zero(offset, 1..) | Step::Allocate(offset, ..) = *step {
                    storage.grow_to(offset).await?;
                }
                match *step {
                    Step::Write(offset, len, byte) => storage.write(offset, IoBytes::copy_from(&vec![byte; len]).into(), Hints::NONE).await,
                    Step::Zero(offset, len) => storage.zero(offset, len, Zeroing::Keep).await,
                    Step::Allocate(offset, len, true) => storage.allocate(offset, len, Allocation::Write).await,
                    Step::Allocate(offset, len, false) => storage.allocate(offset, len, Allocation::Reserve).await,
                    Step::Grow(sectors) => storage.grow_to(sectors * sector).await,
                    Step::Shorten(sectors) => storage.shorten_to(sectors * sector).await,
                }
            }).unwrap();
            prop_assert_eq!(storage.length(), expected.len() as u64);
        }
        prop_assert!(read(&storage, 0, expected.len()) == expected);
        // Behind the end there are zeroes.
        expected.resize(expected.len() + 700, 0);
        for (offset, len) in [(0, 700), (1, 511), (513, 20), (expected.len() - 700, 700)] {
            let len = len.min(expected.len() - offset);
            prop_assert!(read(&storage, offset as u64, len) == expected[offset..offset + len]);
        }
        let mut text = below.to_bytes().split_off(1024);
        keyed_of(sector).decipher(first_number, &mut text);
        prop_assert!(text == expected[..expected.len() - 700]);
    }
}

/// Counts the calculations that go to other threads.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl Around for Counting {
    fn spawn(&self, work: Work) {
        Alone.spawn(work);
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        self.0.fetch_add(1, Ordering::Relaxed);
        Alone.calculate(calculation)
    }
}

/// 64 KiB took a third longer alone when another thread ciphered them, and at depth 16 a quarter longer when this one did.
#[test]
fn a_request_of_middle_length_is_ciphered_elsewhere_if_others_wait_and_here_if_it_is_alone() {
    const KIB: usize = 1 << 10;
    let around = Arc::new(Counting::default());
    let below = Arc::new(MemoryStorage::new(0));
    let counting = Arc::clone(&around) as Arc<dyn Around>;
    let storage = CipherStorage::new(below, Part::default(), keyed(), counting);
    let elsewhere = || around.0.swap(0, Ordering::Relaxed);
    block_on(async {
        for (len, hints, threads) in [
            (16 * KIB, Hints::NONE, 0),
            (16 * KIB, Hints::MORE_WAITING, 0),
            (32 * KIB, Hints::NONE, 0),
            (32 * KIB, Hints::MORE_WAITING, 1),
            (64 * KIB, Hints::NONE, 0),
            (64 * KIB, Hints::MORE_WAITING, 1),
            (128 * KIB, Hints::NONE, 2),
            (1024 * KIB, Hints::MORE_WAITING, 4),
        ] {
            storage.write(0, IoBytes::copy_from(&vec![5; len]).into(), hints).await.unwrap();
            assert_eq!(elsewhere(), threads, "a write of {len} bytes, {hints:?}");
            let (result, bytes) = storage.read(0, IoBuf::uninit(len), hints).await;
            result.unwrap();
            assert!(bytes.iter().all(|byte| *byte == 5));
            assert_eq!(elsewhere(), threads, "a read of {len} bytes, {hints:?}");
            let mut bytes = vec![0; len];
            assert_eq!(
                storage.try_read(0, &mut bytes, hints),
                threads == 0,
                "{len} bytes at once, {hints:?}"
            );
            assert!(threads > 0 || bytes.iter().all(|byte| *byte == 5));
        }
    });
}

#[test]
fn a_try_gives_whole_sectors_and_nothing_else() {
    let storage = over(&Arc::new(MemoryStorage::new(0)), 0);
    block_on(storage.write(0, IoBytes::copy_from(&[5; 4096]).into(), Hints::NONE)).unwrap();
    let mut buf = [0; 1024];
    assert!(storage.try_read(512, &mut buf, Hints::NONE));
    assert_eq!(buf, [5; 1024]);
    assert!(!storage.try_read(1, &mut buf[..512], Hints::NONE));
    assert!(!storage.try_read(0, &mut buf[..100], Hints::NONE));
    assert!(
        !storage.try_read(3584, &mut buf, Hints::NONE),
        "beyond the end are zeroes, not their plain text"
    );
}

/// A volume whose header gives it a size of its own is no longer, whatever lies behind.
#[test]
fn a_part_of_fixed_length_ends_where_it_ends() {
    let below = Arc::new(MemoryStorage::new(512 * 40));
    let part = Part { start: 512, len: Some(8192), first_number: 0 };
    let storage =
        CipherStorage::new(Arc::clone(&below) as Arc<dyn Storage>, part, keyed_of(4096), Arc::new(Alone));
    assert_eq!((storage.length(), storage.capabilities().resizable), (8192, false));
    block_on(storage.write(8000, IoBytes::copy_from(&[5; 192]).into(), Hints::NONE)).unwrap();
    assert_eq!(read(&storage, 8000, 192), [5; 192]);
    let before = below.to_bytes();
    assert!(block_on(storage.write(8000, IoBytes::copy_from(&[5; 193]).into(), Hints::NONE)).is_err());
    assert!(block_on(storage.grow_to(8193)).is_err());
    assert!(block_on(storage.zero(4096, 8192, Zeroing::Keep)).is_err());
    assert!(below.to_bytes() == before && before[512 + 8192..] == [0; 512 * 39 - 8192]);
}

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

/// A file with one key, `first`.
fn volume() -> (MemoryStorage, Area) {
    let new = NewVolume {
        cipher: Cipher::DEFAULT,
        hash: Hash::Sha256,
        iter_time: Duration::from_millis(1),
        password: secret("first"),
        is_detached: false,
    };
    let file = MemoryStorage::new(4096 + area_bytes(new.cipher));
    block_on(new.write(&file, 4096, &Alone)).unwrap();
    (file, Area { offset: 4096, len: area_bytes(new.cipher) })
}

fn opens(file: &MemoryStorage, area: Area, password: &str) -> Option<usize> {
    match block_on(unlock(file, area, &secret(password), &Alone)) {
        Ok(unlocked) => {
            unlocked.cipher(&Blame::new("file")).unwrap();
            Some(unlocked.slot)
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Refused);
            None
        }
    }
}

fn add(file: &MemoryStorage, area: Area, new: &str, slot: Option<usize>) -> Result<usize, String> {
    let time = Duration::from_millis(1);
    let (first, new) = (secret("first"), secret(new));
    let added = add_key(file, area, &first, &new, slot, time, &Alone);
    block_on(added).map_err(|error| error.to_string())
}

fn remove(
    file: &MemoryStorage,
    area: Area,
    removal: Removal<'_>,
    forced: bool,
) -> Result<Vec<usize>, String> {
    block_on(remove_key(file, area, removal, forced, &Alone)).map_err(|error| error.to_string())
}

#[test]
fn keys_are_added_and_removed_and_the_last_one_stays() {
    let (file, area) = volume();
    assert_eq!((opens(&file, area, "first"), opens(&file, area, "wrong")), (Some(0), None));
    assert_eq!(add(&file, area, "second", None), Ok(1));
    assert_eq!(add(&file, area, "third", Some(6)), Ok(6));
    assert_eq!(
        add(&file, area, "x", Some(6)),
        Err("memory: key slot 6 has a key; remove it first, or replace it (--force)".into())
    );
    assert_eq!(add(&file, area, "x", Some(8)), Err("memory: there is no key slot 8; allowed: 0 to 7".into()));
    assert_eq!((opens(&file, area, "second"), opens(&file, area, "third")), (Some(1), Some(6)));
    assert_eq!(remove(&file, area, Removal::Slot(1), false), Ok(vec![1]));
    assert_eq!(opens(&file, area, "second"), None);
    assert_eq!(remove(&file, area, Removal::Slot(1), false), Err("memory: key slot 1 has no key".into()));
    assert_eq!(remove(&file, area, Removal::Password(&secret("first")), false), Ok(vec![0]));
    assert_eq!((opens(&file, area, "first"), opens(&file, area, "third")), (None, Some(6)));
    let last = "memory: no key would be left: without one the image cannot be read again";
    assert_eq!(remove(&file, area, Removal::Slot(6), false), Err(last.into()));
    assert_eq!(opens(&file, area, "third"), Some(6));
    assert_eq!(remove(&file, area, Removal::Slot(6), true), Ok(vec![6]));
    assert_eq!(opens(&file, area, "third"), None);
}

#[test]
fn the_key_of_a_slot_is_replaced_also_the_only_one_and_in_a_full_header() {
    let time = Duration::from_millis(1);
    let replace = |file: &MemoryStorage, area, old: &str, new: &str, slot| {
        block_on(replace_key(file, area, &secret(old), &secret(new), slot, time, &Alone)).unwrap();
    };
    let (file, area) = volume();
    replace(&file, area, "first", "second", 0);
    assert_eq!((opens(&file, area, "first"), opens(&file, area, "second")), (None, Some(0)));
    assert_eq!(
        remove(&file, area, Removal::Slot(1), true),
        Ok(vec![]),
        "the key that was there meanwhile is gone"
    );
    let (file, area) = volume();
    for slot in 1..8 {
        assert_eq!(add(&file, area, &format!("key {slot}"), None), Ok(slot));
    }
    replace(&file, area, "first", "second", 0);
    let opened = ["first", "second", "key 1", "key 7"].map(|password| opens(&file, area, password));
    assert_eq!(opened, [None, Some(0), Some(1), Some(7)]);
}

#[test]
fn eight_keys_are_the_most() {
    let (file, area) = volume();
    for slot in 1..8 {
        assert_eq!(add(&file, area, &format!("key {slot}"), None), Ok(slot));
    }
    assert_eq!(
        add(&file, area, "x", None),
        Err("memory: all 8 key slots have a key; remove one first".into())
    );
    assert_eq!(opens(&file, area, "key 7"), Some(7));
}

#[test]
fn no_message_shows_a_key_or_a_password() {
    let (file, area) = volume();
    let unlocked = block_on(unlock(&file, area, &secret("first"), &Alone)).unwrap();
    assert!(!format!("{unlocked:?}").contains(&format!("{:?}", &unlocked.key.bytes()[..4])));
    assert!(format!("{unlocked:?}").contains("key: Secret(..)"));
    let error = block_on(unlock(&file, area, &secret("swordfish"), &Alone)).unwrap_err();
    assert!(!format!("{error:?} {error}").contains("swordfish"));
}
