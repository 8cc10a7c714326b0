//! A new LUKS file was made over an old one and the machine died: the old header led to key material of the new one, so the file was taken
//! for whole, and no password opened it. Every crash leaves the old file as it was, no LUKS file, or the new one.

use std::time::Duration;

use luks::{Area, Cipher, Hash, NewVolume, area_bytes, is_luks, unlock};
use sim::{Content, CrashOptions, CrashStates, Order, SimStorage, World};
use storage::{Capabilities, Hints, Storage};

use crate::Machine;
use crate::key_slots::secret;

const OLD_BYTES: u64 = 8 << 10;
const NEW_BYTES: u64 = 64 << 10;

async fn make(file: &SimStorage, password: &str, disk_bytes: u64) {
    let (cipher, hash) = (Cipher::DEFAULT, Hash::Sha256);
    let password = secret(password);
    let new = NewVolume { cipher, hash, iter_time: Duration::ZERO, password, is_detached: false };
    new.write_file(file, disk_bytes, None, &Machine).await.unwrap();
}

#[test]
fn a_new_file_is_there_as_a_whole_or_is_no_luks_file() {
    let world = World::new(1, Order::Immediate);
    let file = world.add_disk("disk", Capabilities::REGULAR_FILE, Content::zeroed(0));
    sim::run(&world, 1, |_| make(&file, "old", OLD_BYTES)).unwrap();
    world.start_recording();
    sim::run(&world, 1, |_| make(&file, "new", NEW_BYTES)).unwrap();
    let recording = world.recording();
    let options = CrashOptions { seed: 1, tears: 4, ..CrashOptions::default() };
    let (mut old, mut none, mut new) = (0, 0, 0);
    for state in CrashStates::new(&recording, &[], options) {
        let (world, disks) = state.boot(1);
        let file = &disks[0];
        let (start, [is_old, is_new]) = sim::run(&world, 1, |_| async {
            let (result, start) = file.read(0, storage::IoBuf::uninit(6), Hints::NONE).await;
            result.unwrap();
            let mut opened = [false; 2];
            for (password, opened) in ["old", "new"].into_iter().zip(&mut opened) {
                *opened = unlock(file, Area::whole(file), &secret(password), &Machine).await.is_ok();
            }
            (start, opened)
        })
        .unwrap();
        match (is_luks(&start), is_old, is_new) {
            (false, false, false) => none += 1,
            (true, true, false) => {
                assert_eq!(file.length(), area_bytes(Cipher::DEFAULT) + OLD_BYTES, "{state}");
                old += 1;
            }
            (true, false, true) => {
                assert_eq!(file.length(), area_bytes(Cipher::DEFAULT) + NEW_BYTES, "{state}");
                new += 1;
            }
            other => panic!("{other:?}: {state}"),
        }
    }
    assert!(old > 0 && none > 0 && new > 0, "all of them must be seen: {old} {none} {new}");
}
