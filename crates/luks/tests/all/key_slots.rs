//! A password was to be changed, the machine died, and neither the old one nor the new one opened the disk: the program wrote the slot's
//! entry as one, across two sectors, or before its key material, lost everything. Every crash leaves the old slots or the new ones.

use std::time::Duration;

use luks::{
    Area, Cipher, Hash, NewVolume, Removal, Secret, add_key, area_bytes, read_header, remove_key, unlock,
};
use sim::{Content, CrashOptions, CrashStates, Order, SimStorage, World};
use storage::{Capabilities, Hints, IoBuf, Storage};

use crate::Machine;

const PLACE: u64 = 1 << 16;

/// Where the header is: inside an image, or at the start of a file of its own, whose disk begins behind it.
fn area() -> Area {
    Area { offset: PLACE, len: area_bytes(Cipher::DEFAULT) }
}

const DISK_BYTES: u64 = 4096;

fn own_file() -> Area {
    Area { offset: 0, len: area_bytes(Cipher::DEFAULT) + DISK_BYTES }
}

pub fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

/// An image with one key, `old`.
fn world() -> World {
    let world = World::new(1, Order::Immediate);
    let content = Content::zeroed(PLACE + area_bytes(Cipher::DEFAULT));
    let file = world.add_disk("disk", Capabilities::REGULAR_FILE, content);
    let (cipher, hash) = (Cipher::DEFAULT, Hash::Sha256);
    let password = secret("old");
    let new = NewVolume { cipher, hash, iter_time: Duration::ZERO, password, is_detached: false };
    sim::run(&world, 1, |_| async { new.write(&file, PLACE, &Machine).await.map(drop) }).unwrap().unwrap();
    world
}

/// A LUKS file with one key, `old`.
fn world_of_file() -> World {
    let world = World::new(1, Order::Immediate);
    let file = world.add_disk("disk", Capabilities::REGULAR_FILE, Content::zeroed(0));
    let (cipher, hash) = (Cipher::DEFAULT, Hash::Sha256);
    let password = secret("old");
    let new = NewVolume { cipher, hash, iter_time: Duration::ZERO, password, is_detached: false };
    let made = sim::run(&world, 1, |_| async {
        new.write_file(&file, DISK_BYTES, None, &Machine).await?;
        let data = storage::IoBytes::copy_from(&[DATA; DISK_BYTES as usize]);
        file.write(area_bytes(Cipher::DEFAULT), data.into(), Hints::NONE).await.unwrap();
        file.flush().await.unwrap();
        Ok::<(), block::Error>(())
    });
    made.unwrap().unwrap();
    world
}

/// What the disk of the file has, ciphered.
const DATA: u8 = 0x5a;

async fn opens(file: &SimStorage, area: Area, password: &str) -> bool {
    unlock(file, area, &secret(password), &Machine).await.is_ok()
}

async fn add(file: &SimStorage, area: Area, slot: usize) {
    let (old, new) = (secret("old"), secret("new"));
    let added = add_key(file, area, &old, &new, Some(slot), Duration::ZERO, &Machine).await;
    assert_eq!(added.unwrap(), slot);
}

async fn remove(file: &SimStorage, area: Area) {
    let removed = remove_key(file, area, Removal::Password(&secret("old")), false, &Machine).await;
    assert_eq!(removed.unwrap(), [0]);
}

/// What every crash of `work` leaves opens with these passwords: `(old, new)`. Gives which of them were seen.
fn crashed(world: &World, area: Area, work: impl AsyncFn(&SimStorage)) -> Vec<(bool, bool)> {
    world.start_recording();
    let file = world.open(0);
    sim::run(world, 1, |_| work(&file)).unwrap();
    let recording = world.recording();
    let options = CrashOptions { seed: 1, tears: 4, ..CrashOptions::default() };
    let mut seen = Vec::new();
    for state in CrashStates::new(&recording, &[], options) {
        let (world, disks) = state.boot(1);
        let opened = sim::run(&world, 1, |_| async {
            read_header(&disks[0], area).await.unwrap_or_else(|error| panic!("{error}: {state}"));
            if area.offset == 0 {
                let (result, data) = disks[0]
                    .read(area.len - DISK_BYTES, IoBuf::uninit(DISK_BYTES as usize), Hints::NONE)
                    .await;
                assert!(result.is_ok() && data.iter().all(|&byte| byte == DATA), "the disk changed: {state}");
            }
            (opens(&disks[0], area, "old").await, opens(&disks[0], area, "new").await)
        });
        let opened = opened.unwrap();
        assert!(opened.0 || opened.1, "nobody can open it: {state}");
        seen.push(opened);
    }
    seen.sort_unstable();
    seen.dedup();
    seen
}

/// An image, and a LUKS file: the place of the header.
fn worlds() -> [(World, Area); 2] {
    [(world(), area()), (world_of_file(), own_file())]
}

#[test]
fn a_key_that_is_added_is_there_or_not_and_the_old_one_stays() {
    // The entry of slot 6 lies in two sectors.
    for slot in [1, 6, 7] {
        for (world, area) in worlds() {
            let seen = crashed(&world, area, async |file| add(file, area, slot).await);
            assert_eq!(seen, [(true, false), (true, true)], "slot {slot}");
        }
    }
}

#[test]
fn a_key_that_is_removed_is_gone_or_not_and_the_other_one_stays() {
    for (world, area) in worlds() {
        let file = world.open(0);
        sim::run(&world, 1, |_| add(&file, area, 6)).unwrap();
        let seen = crashed(&world, area, async |file| remove(file, area).await);
        assert_eq!(seen, [(false, true), (true, true)]);
    }
}

#[test]
fn a_password_that_is_changed_is_never_lost() {
    for (world, area) in worlds() {
        let change = async |file: &SimStorage| {
            add(file, area, 1).await;
            remove(file, area).await;
        };
        assert_eq!(crashed(&world, area, change), [(false, true), (true, false), (true, true)]);
    }
}
