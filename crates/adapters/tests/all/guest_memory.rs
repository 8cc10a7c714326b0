//! Memory of a guest, in place.

use std::sync::Arc;

use cowhand_adapters::guest_memory::GuestRanges;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::scratch::{Scratch, bytes_at};

/// Two regions that follow each other, and a hole behind them.
fn memory() -> Arc<GuestMemoryMmap> {
    let regions = [(GuestAddress(0x1000), 0x1000), (GuestAddress(0x2000), 0x1000)];
    Arc::new(GuestMemoryMmap::from_ranges(&regions).unwrap())
}

#[test]
fn a_request_fills_and_reads_ranges_in_several_regions() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let memory = memory();
    memory.write_slice(&[7; 0x800], GuestAddress(0x1c00)).unwrap();
    // The first range lies in both regions.
    let ranges = [(GuestAddress(0x1c00), 0x800), (GuestAddress(0x1000), 0x200)];
    let written = GuestRanges::new(memory.clone(), ranges).unwrap();
    assert_eq!((written.len(), written.bytes().parts().len()), (0xa00, 3));
    disk.write_from(512, written.bytes()).wait().unwrap();
    let mut expected = vec![7; 0x800];
    expected.resize(0xa00, 0);
    assert_eq!(bytes_at(&disk, 512, 0xa00), expected);

    disk.write_at(0, &[9; 0x400]).unwrap();
    let read = GuestRanges::new(memory.clone(), [(GuestAddress(0x2c00), 0x400)]).unwrap();
    disk.read_into(0, read.bytes()).wait().unwrap();
    read.mark_dirty().unwrap();
    let mut bytes = [0; 0x400];
    memory.read_slice(&mut bytes, GuestAddress(0x2c00)).unwrap();
    assert_eq!(bytes, [9; 0x400]);
    disk.close().wait().unwrap();
}

#[test]
fn ranges_beyond_the_guests_memory_are_refused() {
    for range in [(0x2fff, 2), (0x3000, 1), (0, 1), (u64::MAX, 2)] {
        GuestRanges::new(memory(), [(GuestAddress(range.0), range.1)]).unwrap_err();
    }
    assert!(GuestRanges::new(memory(), []).unwrap().is_empty());
}

/// The guest's memory is unmapped when the last request that uses it has ended, and not before.
#[test]
fn a_request_in_flight_keeps_the_memory_mapped() {
    let scratch = Scratch::new();
    let disk = scratch.options().limit("iops-total", 1).open().wait().unwrap();
    let memory = memory();
    let watched = Arc::downgrade(&memory);
    let write = |number: u64| {
        let ranges = GuestRanges::new(memory.clone(), [(GuestAddress(0x1000), 512)]).unwrap();
        disk.write_from(number * 512, ranges.bytes())
    };
    let pending: Vec<_> = (0..8).map(write).collect();
    drop(memory);
    assert!(watched.upgrade().is_some(), "requests are in flight");
    disk.set_limits(&[]).unwrap();
    pending.into_iter().for_each(|pending| pending.wait().unwrap());
    disk.close().wait().unwrap();
    assert!(watched.upgrade().is_none());
}
