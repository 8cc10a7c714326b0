//! `convert` onto a block device died in its middle, and what was left began like an image: it was started, and read as zeroes where nothing had
//! been copied yet; or as the old image with holes in its tables. Every crash leaves what the device held, no image, an empty one in the moment
//! before the copy begins, or the whole one.

use std::sync::Arc;

use crate::harness;

use harness::judge;
use harness::target::Machine;
use qcow2::{CreateOptions, Files, Options, Qcow2, create};
use sim::{Content, CrashOptions, CrashStates, Order, SimStorage, World};
use storage::{Capabilities, IoBuf, IoBytes, IoVec, Storage};

const DEVICE_BYTES: u64 = 1 << 20;
const DISK_BYTES: u64 = 256 << 10;
const OLD: u8 = 0x11;
const NEW: u8 = 0x22;

const DEVICE: Capabilities = Capabilities {
    grows_zeroed: false,
    discards_to_zero: false,
    resizable: false,
    ..Capabilities::REGULAR_FILE
};

async fn open(device: SimStorage) -> Qcow2 {
    let files = Files { file: Arc::new(device), data: None, backing: None };
    // As tools open what they fill.
    let options = Options { writable: true, allocation_reserve: Some(0), ..Options::default() };
    Qcow2::open(files, options, Arc::new(Machine)).await.expect("it is an image")
}

/// The steps of a tool that fills an image on a device (`cowhand-cli/src/copying/new_device.rs`): created, hidden, filled, closed, revealed.
async fn copy_to(device: &SimStorage, again: impl Fn() -> SimStorage, options: &CreateOptions, byte: u8) {
    create(device, None, options).await.expect("there is room");
    let (read, magic) = device.read(0, IoBuf::uninit(4)).await;
    read.expect("nothing fails");
    let put = async |bytes: &[u8]| {
        device.write(0, IoBytes::copy_from(bytes).into()).await.expect("nothing fails");
        device.flush().await.expect("nothing fails");
    };
    let image = open(again()).await;
    put(&[0; 4]).await;
    for at in (0..DISK_BYTES).step_by(64 << 10) {
        let data = IoVec::from(IoBytes::copy_from(&[byte; 12 << 10]));
        image.write(at, data).await.expect("nothing fails");
    }
    image.close().await.expect("nothing fails");
    put(&magic).await;
}

/// What a device holds: the byte of the disk, or nothing.
fn held(device: &Content) -> Option<u8> {
    let mut magic = [0; 4];
    device.read(0, &mut magic);
    if magic == [0; 4] {
        return None;
    }
    judge::check(device, &[]).unwrap_or_else(|error| panic!("an image that is not sound: {error}"));
    let world = World::new(1, Order::Immediate);
    let storage = world.add_disk("device", DEVICE, device.clone());
    let bytes = sim::run(&world, 1, async |_| {
        let image = open(storage).await;
        let (read, bytes) = image.read(0, IoBuf::uninit(DISK_BYTES as usize)).await;
        read.expect("it can be read");
        image.close().await.expect("nothing fails");
        bytes.to_vec()
    });
    let bytes = bytes.expect("nobody waits for ever");
    let expected = |byte: u8| -> Vec<u8> {
        (0..DISK_BYTES).map(|at| if at % (64 << 10) < 12 << 10 { byte } else { 0 }).collect()
    };
    Some([OLD, NEW, 0].into_iter().find(|byte| bytes == expected(*byte)).expect("a disk, but half of one"))
}

#[test]
fn a_copy_onto_a_device_is_whole_or_no_image() {
    let plain = CreateOptions { size: DISK_BYTES, cluster_size: 4096, ..CreateOptions::default() };
    // Its header changes before the first write.
    let lazy = CreateOptions { lazy_refcounts: true, ..plain.clone() };
    for options in [plain, lazy] {
        let world = World::new(1, Order::Immediate);
        let mut garbage = Content::zeroed(DEVICE_BYTES);
        garbage.fill(0, DEVICE_BYTES, 0xee);
        let device = world.add_disk("device", DEVICE, garbage);
        let fill = |byte| {
            sim::run(&world, 1, |_| copy_to(&device, || world.open(0), &options, byte))
                .expect("nobody waits for ever");
        };
        fill(OLD);
        world.start_recording();
        fill(NEW);
        let recording = world.recording();
        let crashes = CrashOptions { tears: 4, ..CrashOptions::default() };
        let mut seen = Vec::new();
        for state in CrashStates::new(&recording, &[], crashes) {
            let held = std::panic::catch_unwind(|| held(&state.disks[0]));
            seen.push(held.unwrap_or_else(|_| panic!("after a crash: {state}")));
        }
        let of = |held: Option<u8>| seen.iter().filter(|seen| **seen == held).count();
        let counts = (of(Some(OLD)), of(None), of(Some(0)), of(Some(NEW)));
        println!("old, none, empty, new: {counts:?}");
        assert!(
            counts.0 > 0 && counts.1 > 20 && counts.2 > 0 && counts.3 > 0,
            "each must be seen: {counts:?}"
        );
        // Once there is none, there is none before the whole one.
        let first = |held: Option<u8>| seen.iter().position(|seen| *seen == held);
        assert!(first(Some(OLD)) < first(None) && first(None) < first(Some(NEW)), "{counts:?}");
    }
}
