//! A guest wrote 512 bytes of a sector of 4096, and the machine died while the sector was written: a program that ciphers larger sectors so that one
//! changed byte changes what stands beside it loses bytes that were flushed long ago.

use std::sync::Arc;

use luks::{Cipher, CipherStorage, Part, Secret, SectorCipher, SectorSize};
use sim::{Content, CrashOptions, CrashStates, Order, World};
use storage::{Capabilities, Hints, IoBuf, IoBytes, Storage};

use crate::Machine;

const SECTOR: u64 = 4096;
const LEN: u64 = 4 * SECTOR;

fn over(file: Arc<dyn Storage>) -> CipherStorage {
    let sector = SectorSize::new(SECTOR, Cipher::DEFAULT.mode).unwrap();
    let cipher = SectorCipher::of_sectors(Cipher::DEFAULT, sector, &Secret::new((0..64).collect())).unwrap();
    CipherStorage::new(file, Part::default(), Arc::new(cipher), Arc::new(Machine))
}

/// What was written and flushed first.
fn old() -> Vec<u8> {
    (0..LEN).map(|at| (at / 512 + 1) as u8).collect()
}

#[test]
fn a_part_of_a_sector_that_is_torn_loses_nothing_beside_it() {
    let world = World::new(1, Order::Immediate);
    let file = Arc::new(world.add_disk("disk", Capabilities::REGULAR_FILE, Content::zeroed(LEN)));
    sim::run(&world, 1, |_| async {
        let plain = over(Arc::clone(&file) as Arc<dyn Storage>);
        plain.write(0, IoBytes::copy_from(&old()).into(), Hints::NONE).await.unwrap();
        plain.flush().await.unwrap();
    })
    .unwrap();
    // In one sector; at its end; over the border of two.
    let writes = [(1024_u64, 512_usize), (SECTOR + 3584, 512), (2 * SECTOR + 3900, 700)];
    world.start_recording();
    let file = Arc::new(world.open(0));
    sim::run(&world, 1, |_| async {
        let plain = over(Arc::clone(&file) as Arc<dyn Storage>);
        for (at, len) in writes {
            plain.write(at, IoBytes::copy_from(&vec![0xff; len]).into(), Hints::NONE).await.unwrap();
        }
        plain.flush().await.unwrap();
    })
    .unwrap();
    let (old, mut torn, mut states) = (old(), 0, 0);
    let is_written =
        |at: usize| writes.iter().any(|(start, len)| (*start as usize..*start as usize + len).contains(&at));
    let recording = world.recording();
    for state in
        CrashStates::new(&recording, &[], CrashOptions { seed: 1, tears: 4, ..CrashOptions::default() })
    {
        let (world, disks) = state.boot(1);
        let disk = Arc::new(disks.into_iter().next().unwrap());
        let found = sim::run(&world, 1, |_| async {
            let plain = over(Arc::clone(&disk) as Arc<dyn Storage>);
            let (result, found) = plain.read(0, IoBuf::uninit(LEN as usize), Hints::NONE).await;
            result.unwrap();
            found.to_vec()
        })
        .unwrap();
        let blocks = |new: bool| {
            let is = |at: &usize| is_written(*at) && (found[*at] == 0xff) == new;
            (0..found.len()).filter(is).count()
        };
        torn += usize::from(blocks(true) > 0 && blocks(false) > 0);
        states += 1;
        for (at, byte) in found.iter().enumerate() {
            assert!(*byte == old[at] || is_written(at) && *byte == 0xff, "byte {at} is {byte}: {state}");
        }
    }
    assert!(states >= 10 && torn > 3, "{states} states, {torn} of them with a part of what was written");
}

/// Two writes of neighbouring parts of one sector at a time: none puts back what the other has changed.
#[test]
fn neighbours_in_one_sector_are_written_one_after_the_other() {
    for seed in 0..20 {
        let world = World::new(seed, Order::Shuffled);
        let file = Arc::new(world.add_disk("disk", Capabilities::REGULAR_FILE, Content::zeroed(LEN)));
        let found = sim::run(&world, seed, |_| async {
            let plain = over(Arc::clone(&file) as Arc<dyn Storage>);
            plain.write(0, IoBytes::copy_from(&old()).into(), Hints::NONE).await.unwrap();
            let parts = (0..LEN / 512).map(|part| {
                plain.write(part * 512, IoBytes::copy_from(&[0x80 + part as u8; 512]).into(), Hints::NONE)
            });
            futures_util::future::join_all(parts).await.into_iter().for_each(|written| written.unwrap());
            let (result, found) = plain.read(0, IoBuf::uninit(LEN as usize), Hints::NONE).await;
            result.unwrap();
            found.to_vec()
        })
        .unwrap();
        let expected: Vec<u8> = (0..LEN).map(|at| 0x80 + (at / 512) as u8).collect();
        assert!(found == expected, "seed {seed}");
    }
}
