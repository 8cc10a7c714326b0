//! A password was to be changed, the machine died, and neither the old one nor the new one opened the disk: the program wrote the slot's
//! entry as one, across two sectors, or before its key material, lost everything. Every crash leaves the old slots or the new ones.

use std::time::Duration;

use sim::{Content, CrashOptions, CrashStates, Order, SimStorage, World};
use storage::Capabilities;
use storage_luks::{
    Area, Cipher, Hash, NewVolume, Removal, Secret, add_key, area_bytes, read_header, remove_key, unlock,
};

use crate::Machine;

const PLACE: u64 = 1 << 16;

fn area() -> Area {
    Area { offset: PLACE, len: area_bytes(Cipher::DEFAULT) }
}

pub fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

/// A disk with one key, `old`.
fn world() -> World {
    let world = World::new(1, Order::Immediate);
    let content = Content::zeroed(PLACE + area_bytes(Cipher::DEFAULT));
    let file = world.add_disk("disk", Capabilities::REGULAR_FILE, content);
    let (cipher, hash) = (Cipher::DEFAULT, Hash::Sha256);
    let new = NewVolume { cipher, hash, iter_time: Duration::ZERO, password: secret("old") };
    sim::run(&world, 1, |_| async { new.write(&file, PLACE, &Machine).await.map(drop) }).unwrap().unwrap();
    world
}

async fn opens(file: &SimStorage, password: &str) -> bool {
    unlock(file, area(), &secret(password), &Machine).await.is_ok()
}

async fn add(file: &SimStorage, slot: usize) {
    let added =
        add_key(file, area(), &secret("old"), &secret("new"), Some(slot), Duration::ZERO, &Machine).await;
    assert_eq!(added.unwrap(), slot);
}

async fn remove(file: &SimStorage) {
    let removed = remove_key(file, area(), Removal::Password(&secret("old")), false, &Machine).await;
    assert_eq!(removed.unwrap(), [0]);
}

/// What every crash of `work` leaves opens with these passwords: `(old, new)`. Gives which of them were seen.
fn crashed(world: &World, work: impl AsyncFn(&SimStorage)) -> Vec<(bool, bool)> {
    world.start_recording();
    let file = world.open(0);
    sim::run(world, 1, |_| work(&file)).unwrap();
    let recording = world.recording();
    let options = CrashOptions { seed: 1, tears: 4, ..CrashOptions::default() };
    let mut seen = Vec::new();
    for state in CrashStates::new(&recording, &[], options) {
        let (world, disks) = state.boot(1);
        let opened = sim::run(&world, 1, |_| async {
            read_header(&disks[0], area()).await.unwrap_or_else(|error| panic!("{error}: {state}"));
            (opens(&disks[0], "old").await, opens(&disks[0], "new").await)
        });
        let opened = opened.unwrap();
        assert!(opened.0 || opened.1, "nobody can open it: {state}");
        seen.push(opened);
    }
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn a_key_that_is_added_is_there_or_not_and_the_old_one_stays() {
    // The entry of slot 6 lies in two sectors.
    for slot in [1, 6, 7] {
        let seen = crashed(&world(), async |file| add(file, slot).await);
        assert_eq!(seen, [(true, false), (true, true)], "slot {slot}");
    }
}

#[test]
fn a_key_that_is_removed_is_gone_or_not_and_the_other_one_stays() {
    let world = world();
    let file = world.open(0);
    sim::run(&world, 1, |_| add(&file, 6)).unwrap();
    assert_eq!(crashed(&world, async |file| remove(file).await), [(false, true), (true, true)]);
}

#[test]
fn a_password_that_is_changed_is_never_lost() {
    let change = async |file: &SimStorage| {
        add(file, 1).await;
        remove(file).await;
    };
    assert_eq!(crashed(&world(), change), [(false, true), (true, false), (true, true)]);
}
