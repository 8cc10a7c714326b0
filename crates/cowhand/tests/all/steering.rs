//! A disk as a whole, while it is in use.

use cowhand::{ErrorKind, Kind, ResizeOptions};

use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

#[test]
fn limits_hold_until_they_are_lifted() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    assert_eq!(disk.limits().unwrap(), []);
    disk.set_limits(&[("iops-total", 1), ("bps-read", 1 << 30)]).unwrap();
    assert_eq!(disk.limits().unwrap(), [("iops-total", 1), ("bps-read", 1 << 30)]);
    // A quarter of an hour's work.
    let pending: Vec<_> = (0..1000).map(|number| disk.write(number * 512, vec![1; 512])).collect();
    let in_flight = || disk.statistics().unwrap().of(Kind::Write).in_flight;
    while in_flight() < 900 {
        std::thread::yield_now();
    }
    // A read that would be answered from memory waits in line, too.
    let read = disk.read(0, vec![0; 512]);
    assert!(disk.statistics().unwrap().of(Kind::Write).requests < 100);
    disk.set_limits(&[]).unwrap();
    pending.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
    read.wait().unwrap();
    assert_eq!(disk.limits().unwrap(), []);
    disk.close().wait().unwrap();
}

#[test]
fn a_limit_that_is_none_changes_nothing() {
    let scratch = Scratch::new();
    let disk = scratch.options().limit("bps-total", 1 << 30).open().wait().unwrap();
    for (limits, words) in [
        (vec![("iops-totl", 5)], "did you mean \"iops-total\"?"),
        (vec![("group", 5)], "there is no limit \"group\""),
        (vec![("iops-total-max", 5)], "throttling.iops-total"),
    ] {
        let error = disk.set_limits(&limits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(disk.limits().unwrap(), [("bps-total", 1 << 30)]);
    disk.close().wait().unwrap();
}

#[test]
fn a_snapshot_holds_what_was_there_and_gives_it_back() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    disk.write(0, vec![1; 65536]).wait().unwrap();
    let first = disk.create_snapshot("first").wait().unwrap();
    disk.write(0, vec![2; 65536]).wait().unwrap();
    let second = disk.create_snapshot("second").wait().unwrap();
    disk.write(0, vec![3; 65536]).wait().unwrap();
    assert_eq!(first.size_bytes, Some(SIZE_BYTES));
    assert_eq!(disk.snapshots().wait().unwrap(), [first.clone(), second.clone()]);
    disk.apply_snapshot("first").wait().unwrap();
    assert_eq!(bytes_at(&disk, 0, 65536), [1; 65536]);
    disk.apply_snapshot(second.id.as_str()).wait().unwrap();
    assert_eq!(bytes_at(&disk, 0, 65536), [2; 65536]);
    disk.delete_snapshot("first").wait().unwrap();
    let error = disk.apply_snapshot("first").wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("first"), "{error}");
    disk.close().wait().unwrap();
    let disk = scratch.open();
    assert_eq!(disk.snapshots().wait().unwrap(), [second]);
    disk.close().wait().unwrap();
}

#[test]
fn a_disk_grows_and_shrinks_while_it_is_in_use() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let pending: Vec<_> = (0..100).map(|number| disk.write(number * 65536, vec![1; 65536])).collect();
    disk.resize(SIZE_BYTES * 2, ResizeOptions::default()).wait().unwrap();
    assert_eq!(disk.size().unwrap(), SIZE_BYTES * 2);
    disk.write(SIZE_BYTES * 2 - 512, vec![9; 512]).wait().unwrap();
    let shrink = disk.resize(SIZE_BYTES, ResizeOptions::default()).wait().unwrap_err();
    assert_eq!(shrink.kind(), ErrorKind::Invalid, "{shrink}");
    let meant = ResizeOptions { shrink: true, ..ResizeOptions::default() };
    disk.resize(SIZE_BYTES, meant).wait().unwrap();
    assert_eq!(disk.size().unwrap(), SIZE_BYTES);
    pending.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
    assert_eq!(disk.read(SIZE_BYTES, vec![0; 1]).wait().unwrap_err().kind(), ErrorKind::PastEnd);
    disk.close().wait().unwrap();
}
