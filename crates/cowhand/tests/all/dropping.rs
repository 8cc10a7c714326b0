//! What is dropped: futures in flight, queues, disks; and what callbacks may do.

use std::sync::mpsc;

use cowhand::{Disk, ErrorKind, Kind, Loops, OpenOptions, Request};

use crate::scratch::{Scratch, bytes_at, on_loop};

/// A future that was dropped must neither lose its write half-way nor keep the disk from closing.
#[test]
fn requests_whose_futures_were_dropped_still_happen_and_hold_nothing_up() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    for number in 0..256 {
        drop(disk.write(number * 4096, vec![3; 4096]));
        drop(disk.read(number * 4096, vec![0; 4096]));
    }
    disk.close().wait().unwrap();
    let disk = scratch.open();
    assert_eq!(bytes_at(&disk, 0, 1 << 20), vec![3; 1 << 20]);
    assert_eq!(disk.statistics().unwrap().of(Kind::Read).in_flight, 0);
    disk.close().wait().unwrap();
}

#[test]
fn futures_dropped_between_two_polls_change_nothing_for_the_others() {
    let scratch = Scratch::new();
    let disk = scratch.options().limit("iops-total", 1).open().wait().unwrap();
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for number in 0..64 {
        let pending = disk.write(number * 4096, vec![number as u8; 4096]);
        if number % 2 == 0 { kept.push(pending) } else { dropped.push(pending) }
    }
    futures_executor::block_on(async {
        for pending in &mut dropped {
            let _ = futures_util::poll!(pending);
        }
    });
    drop(dropped);
    disk.set_limits(&[]).unwrap();
    for (pending, number) in kept.into_iter().zip((0..64).step_by(2)) {
        assert_eq!(pending.wait().unwrap().into_vec(), vec![number; 4096]);
    }
    disk.close().wait().unwrap();
    let disk = scratch.open();
    for number in 0..64 {
        assert_eq!(bytes_at(&disk, number * 4096, 4096), vec![number as u8; 4096]);
    }
    disk.close().wait().unwrap();
}

/// The lock is given back in the background: until then a second opener is refused.
fn open_when_it_is_free(options: impl Fn() -> OpenOptions) -> Disk {
    loop {
        match options().open().wait() {
            Ok(disk) => return disk,
            Err(error) => assert_eq!(error.kind(), ErrorKind::InUse, "{error}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_disk_that_is_dropped_is_closed_in_the_background_and_nothing_is_lost() {
    let scratch = Scratch::new();
    for round in 1..=8u8 {
        let disk = open_when_it_is_free(|| scratch.options());
        // No caller flushes; metadata is in memory only.
        drop(disk.write(u64::from(round) << 20, vec![round; 65536]));
        let mut queue = disk.queue(4).unwrap();
        queue.submit(Request::Write { offset: 0, buffer: vec![round; 512].into(), fua: false }, 0).unwrap();
        drop(disk);
        // The queue keeps it open.
        let mut done = Vec::new();
        queue.completions(&mut done, 1, None).unwrap();
        assert!(done[0].result.is_ok());
    }
    let disk = open_when_it_is_free(|| scratch.options());
    for round in 1..=8u8 {
        assert_eq!(bytes_at(&disk, u64::from(round) << 20, 65536), vec![round; 65536]);
    }
    disk.close().wait().unwrap();
}

#[test]
fn a_disk_may_be_dropped_or_closed_where_its_own_loop_runs() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let (sender, receiver) = mpsc::channel();
    let last = disk.clone();
    on_loop(&disk, move || {
        last.close().on_completion(move |closed| sender.send(closed).unwrap());
        drop(last);
    });
    drop(disk);
    receiver.recv().unwrap().unwrap();
    let disk = scratch.open();
    let last = disk.clone();
    on_loop(&disk, move || drop(last));
    drop(disk);
    open_when_it_is_free(|| scratch.options()).close().wait().unwrap();
}

#[test]
fn an_open_disk_that_nobody_waits_for_goes_again() {
    let scratch = Scratch::new();
    let loops = Loops::new(1).unwrap();
    drop(scratch.options().open());
    drop(open_when_it_is_free(|| scratch.options().loops(&loops)));
    open_when_it_is_free(|| scratch.options().loops(&loops)).close().wait().unwrap();
}

#[test]
fn waiting_in_a_callback_is_an_error_and_not_for_ever() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let (sender, receiver) = mpsc::channel();
    let inner = disk.clone();
    on_loop(&disk, move || {
        let waited = inner.write(0, vec![1; 512]).wait().map(drop);
        let at = inner.write_at(512, &[1; 512]);
        let mut queue = inner.queue(1).unwrap();
        queue.submit(Request::Flush, 0).unwrap();
        let queued = queue.completions(&mut Vec::new(), 1, None).map(drop);
        sender.send([waited, at, queued]).unwrap();
    });
    for result in receiver.recv().unwrap() {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    }
    disk.close().wait().unwrap();
    // The writes happened.
    let disk = scratch.open();
    assert_eq!(bytes_at(&disk, 0, 1024), [1; 1024]);
    disk.close().wait().unwrap();
}

#[test]
fn a_callback_that_panics_ends_nothing_but_itself() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    on_loop(&disk, || panic!("the caller's mistake"));
    disk.flush().wait().unwrap();
    disk.write(0, vec![1; 512]).wait().unwrap();
    disk.close().wait().unwrap();
}
