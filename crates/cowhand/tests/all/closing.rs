//! The end of a disk.

use cowhand::{Disk, Error, ErrorKind, Request, ResizeOptions, ZeroOptions};

use crate::scratch::{Scratch, bytes_at};

#[test]
fn close_waits_for_the_requests_in_flight_and_gives_the_lock_back() {
    let scratch = Scratch::new();
    for round in 1..=10u8 {
        let disk = scratch.open();
        let pending: Vec<_> = (0..100).map(|number| disk.write(number * 65536, vec![round; 65536])).collect();
        disk.close().wait().unwrap();
        // All of them, and none was refused: they came before.
        for pending in pending {
            pending.wait().unwrap();
        }
        let disk = scratch.open();
        assert_eq!(bytes_at(&disk, 99 * 65536, 65536), vec![round; 65536]);
        disk.close().wait().unwrap();
    }
}

#[test]
fn close_does_not_wait_for_limits() {
    let scratch = Scratch::new();
    let disk = scratch.options().limit("iops-total", 1).open().wait().unwrap();
    // An hour's work.
    let pending: Vec<_> = (0..3600).map(|number| disk.write(number * 512, vec![1; 512])).collect();
    disk.close().wait().unwrap();
    pending.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
}

type Question = fn(&Disk) -> Result<(), Error>;

#[test]
fn everything_asked_of_a_closed_disk_is_an_error() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let other = disk.clone();
    let mut queue = disk.queue(4).unwrap();
    disk.close().wait().unwrap();
    let closed = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert!(error.to_string().starts_with(&format!("{}: the disk is closed", scratch.path().display())));
    };
    let questions: [Question; 15] = [
        |disk| disk.read(0, vec![0; 512]).wait().map(drop),
        |disk| disk.write(0, vec![0; 512]).wait().map(drop),
        |disk| disk.write_zeroes(0, 512, ZeroOptions::default()).wait(),
        |disk| disk.discard(0, 512).wait(),
        |disk| disk.flush().wait(),
        |disk| disk.read_at(0, &mut [0]),
        |disk| disk.write_at(0, &[0]),
        |disk| disk.size().map(drop),
        |disk| disk.info().map(drop),
        |disk| disk.extents(0, 512).wait().map(drop),
        |disk| disk.set_limits(&[]),
        |disk| disk.snapshots().wait().map(drop),
        |disk| disk.resize(1 << 30, ResizeOptions::default()).wait(),
        |disk| disk.statistics().map(drop),
        |disk| disk.close().wait(),
    ];
    for handle in [&disk, &other] {
        questions.iter().for_each(|ask| closed(ask(handle)));
    }
    let refused = queue.submit(Request::Read { offset: 0, buffer: vec![1; 512].into() }, 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    assert_eq!(refused.into_buffer().unwrap().into_vec(), [1; 512]);
    assert_eq!(queue.completions(&mut Vec::new(), 1, None).unwrap(), 0);
}

#[test]
fn of_two_that_close_at_once_one_learns_that_it_is_closed() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    disk.write(0, vec![1; 512]).wait().unwrap();
    let results = [disk.close(), disk.close()].map(cowhand::Pending::wait);
    assert!(results[0].is_ok());
    assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Closed);
}

/// Metadata that contradicts itself stops the disk; close must say so, and still release the file.
#[test]
fn a_close_that_fails_says_why_and_gives_the_lock_back() {
    let scratch = Scratch::new();
    // The refcount table, in the second cluster of a new image, leads beyond the end of the file.
    let file = std::fs::File::options().write(true).open(scratch.path()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &(1u64 << 50).to_be_bytes(), 65536).unwrap();
    drop(file);
    let disk = scratch.open();
    assert_eq!(disk.write(0, vec![1; 512]).wait().unwrap_err().kind(), ErrorKind::Corrupt);
    let error = disk.close().wait().unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Corrupt, rustix::io::Errno::IO.raw_os_error()),
        "{error}"
    );
    let disk = scratch.options().read_only(true).open().wait().unwrap();
    assert_eq!(bytes_at(&disk, 0, 512), [0; 512]);
    disk.close().wait().unwrap();
}
