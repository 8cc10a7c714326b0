//! The ways to learn that a request has ended, alone and all at once.

use std::sync::mpsc;
use std::time::Duration;

use cowhand::{
    Buffer, Completion, Disk, Error, ErrorKind, ForeignBytes, Kind, Loops, Queue, Request, ZeroOptions,
};
use futures_executor::block_on;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;

use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

const BLOCK: usize = 4096;

fn write(offset: u64, byte: u8) -> Request {
    Request::Write { offset, buffer: vec![byte; BLOCK].into(), fua: false }
}

fn is_readable(queue: &Queue) -> bool {
    let event = queue.completion_fd().unwrap();
    let mut fds = [PollFd::new(&event, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    retry_on_intr(|| rustix::event::poll(&mut fds, Some(&at_once))).unwrap() == 1
}

fn await_readable(queue: &Queue) {
    let event = queue.completion_fd().unwrap();
    let mut fds = [PollFd::new(&event, PollFlags::IN)];
    assert_eq!(retry_on_intr(|| rustix::event::poll(&mut fds, None)).unwrap(), 1);
}

#[test]
fn every_way_to_learn_of_the_end_tells_the_same() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let waited = disk.write(0, vec![1; BLOCK]).wait().unwrap();
    let awaited = block_on(disk.write(4096, vec![2; BLOCK])).unwrap();
    let (sender, receiver) = mpsc::channel();
    disk.write(8192, vec![3; BLOCK]).on_completion(move |result| sender.send(result).unwrap());
    let called = receiver.recv().unwrap().unwrap();
    let mut queue = disk.queue(1).unwrap();
    queue.submit(write(12288, 4), 77).unwrap();
    let mut done = Vec::new();
    assert_eq!(queue.completions(&mut done, 1, None).unwrap(), 1);
    let Completion { user_data, result, buffer: queued } = done.pop().unwrap();
    assert_eq!((user_data, result.is_ok()), (77, true));
    disk.write_at(16384, &[5; BLOCK]).unwrap();
    for (number, buffer) in (1..).zip([waited, awaited, called, queued]) {
        assert_eq!(buffer.into_vec(), vec![number; BLOCK], "the bytes come back");
    }
    for number in 1..=5u8 {
        let offset = u64::from(number - 1) * 4096;
        assert_eq!(bytes_at(&disk, offset, BLOCK), vec![number; BLOCK]);
        let mut bytes = [0; BLOCK];
        disk.read_at(offset, &mut bytes).unwrap();
        assert_eq!(bytes, [number; BLOCK]);
    }
    drop(queue);
    disk.close().wait().unwrap();
}

#[test]
fn aligned_bytes_come_back_as_the_same_memory_and_can_be_used_again() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let mut buffer = Buffer::new(BLOCK);
    let start = buffer.as_ptr();
    for number in 0..4u8 {
        buffer.fill(number);
        buffer = disk.write(0, buffer).wait().unwrap();
        buffer.fill(0xff);
        buffer = disk.read(0, buffer).wait().unwrap();
        assert_eq!(&buffer[..], [number; BLOCK]);
        assert_eq!(buffer.as_ptr(), start);
    }
    disk.close().wait().unwrap();
}

#[test]
fn a_failure_tells_the_place_the_number_and_gives_the_bytes_back() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let error = disk.read(SIZE_BYTES, vec![9; 512]).wait().unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::PastEnd, rustix::io::Errno::INVAL.raw_os_error()));
    let place = error.place().unwrap();
    assert_eq!((place.operation, place.offset, place.len), ("read", SIZE_BYTES, 512));
    let text = format!(
        "{}: 512 bytes at offset {SIZE_BYTES} reach past the end of the disk ({SIZE_BYTES} bytes)",
        scratch.path().display()
    );
    assert_eq!(error.to_string(), text);
    assert_eq!(error.into_buffer().unwrap().len(), 512);

    let mut queue = disk.queue(4).unwrap();
    queue.submit(write(SIZE_BYTES - 1, 7), 1).unwrap();
    let mut done = Vec::new();
    queue.completions(&mut done, 1, None).unwrap();
    assert_eq!(done[0].result.as_ref().unwrap_err().kind(), ErrorKind::PastEnd);
    assert_eq!(&done[0].buffer[..], [7; BLOCK]);
    let short = disk.read_at(SIZE_BYTES - 1, &mut [0; 2]).unwrap_err();
    assert_eq!(std::io::Error::from(short).kind(), std::io::ErrorKind::InvalidInput);
    drop(queue);
    disk.close().wait().unwrap();
}

#[test]
fn every_kind_of_request_does_its_work() {
    let scratch = Scratch::new();
    let disk = scratch.options().discard(true).open().wait().unwrap();
    let unmap = ZeroOptions { unmap: true, fast_only: false };
    disk.submit(Request::Write { offset: 0, buffer: vec![1; 1 << 20].into(), fua: true }).wait().unwrap();
    disk.write_zeroes(0, 65536, ZeroOptions::default()).wait().unwrap();
    disk.submit(Request::WriteZeroes { offset: 65536, len: 65536, options: unmap, fua: true })
        .wait()
        .unwrap();
    disk.discard(131_072, 65536).wait().unwrap();
    disk.flush().wait().unwrap();
    assert_eq!(bytes_at(&disk, 0, 3 * 65536), vec![0; 3 * 65536]);
    assert_eq!(bytes_at(&disk, 3 * 65536, BLOCK), vec![1; BLOCK]);
    let statistics = disk.statistics().unwrap();
    let count = |kind| (statistics.of(kind).requests, statistics.of(kind).bytes);
    assert_eq!((count(Kind::Write), count(Kind::Zero)), ((1, 1 << 20), (2, 131_072)));
    assert_eq!((count(Kind::Discard), count(Kind::Flush).0), ((1, 65536), 1));
    disk.close().wait().unwrap();
}

#[test]
fn a_queue_takes_as_many_as_it_is_deep_and_gives_the_next_one_back() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    for depth in [0, 32769] {
        assert_eq!(disk.queue(depth).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let mut queue = disk.queue(2).unwrap();
    queue.submit(write(0, 1), 1).unwrap();
    queue.submit(write(4096, 2), 2).unwrap();
    let full = queue.submit(write(8192, 3), 3).unwrap_err();
    assert_eq!((full.kind(), full.errno()), (ErrorKind::Full, rustix::io::Errno::AGAIN.raw_os_error()));
    assert_eq!(full.into_buffer().unwrap().into_vec(), vec![3; BLOCK]);
    let mut done = Vec::new();
    // More than are in flight can never be there: it gives those.
    assert_eq!(queue.completions(&mut done, 100, None).unwrap(), 2);
    assert_eq!(queue.completions(&mut done, 1, None).unwrap(), 0);
    queue.submit(write(8192, 3), 3).unwrap();
    queue.completions(&mut done, 1, None).unwrap();
    let mut numbers: Vec<_> = done.iter().map(|completion| completion.user_data).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3]);
    drop(queue);
    disk.close().wait().unwrap();
}

#[test]
fn the_eventfd_is_readable_exactly_while_there_are_completions() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let mut queue = disk.queue(64).unwrap();
    let mut done = Vec::new();
    // Asked for after a completion is there, and before.
    queue.submit(write(0, 1), 0).unwrap();
    while disk.statistics().unwrap().of(Kind::Write).requests == 0 {
        std::thread::yield_now();
    }
    await_readable(&queue);
    for round in 0..50 {
        assert!(queue.completions(&mut done, 0, None).unwrap() > 0);
        while queue.in_flight() > 0 {
            await_readable(&queue);
            assert!(queue.completions(&mut done, 0, None).unwrap() > 0, "readable, and nothing there");
        }
        assert!(!is_readable(&queue));
        for number in 0..=round {
            queue.submit(write(number * 4096, 1), number).unwrap();
        }
        await_readable(&queue);
    }
    drop(queue);
    disk.close().wait().unwrap();
}

#[test]
fn completions_that_were_left_keep_the_eventfd_readable_and_come_in_order() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let mut queue = disk.queue(8).unwrap();
    let mut done = Vec::new();
    end_in_order(&disk, &mut queue, 5);
    for left in [3, 1, 0] {
        let count = queue.completions_at_most(&mut done, 2, 2, None).unwrap();
        assert_eq!((count, queue.in_flight()), (if left == 0 { 1 } else { 2 }, left));
        assert_eq!(is_readable(&queue), left > 0, "{left} are left");
    }
    let numbers: Vec<_> = done.iter().map(|completion| completion.user_data).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    drop(queue);
    disk.close().wait().unwrap();
}

/// Submits `count` writes, each after the end of the one before it, and returns when the completions of all are there.
fn end_in_order(disk: &Disk, queue: &mut Queue, count: u64) {
    for number in 0..count {
        queue.submit(write(number * 4096, 1), number).unwrap();
        while disk.statistics().unwrap().of(Kind::Write).requests <= number {
            std::thread::yield_now();
        }
    }
    // The loop carries it out after it has added the last completion.
    disk.flush().wait().unwrap();
    assert!(is_readable(queue));
}

#[test]
fn waiting_for_completions_ends_with_the_time_that_was_given() {
    let scratch = Scratch::new();
    let disk = scratch.options().limit("iops-total", 1).open().wait().unwrap();
    let mut queue = disk.queue(64).unwrap();
    (0..64).for_each(|number| queue.submit(write(number * 4096, 1), number).unwrap());
    let mut done = Vec::new();
    queue.completions(&mut done, 64, Some(Duration::from_millis(1))).unwrap();
    assert!(done.len() < 64, "a minute's work");
    disk.set_limits(&[]).unwrap();
    while queue.in_flight() > 0 {
        queue.completions(&mut done, 64, None).unwrap();
    }
    assert_eq!(done.len(), 64);
    drop(queue);
    disk.close().wait().unwrap();
}

/// Each thread has a part of the disk, and another way to learn of the end.
#[test]
fn eight_threads_at_once_on_one_loop_and_on_several() {
    for loops in [None, Some(Loops::new(3).unwrap())] {
        let scratch = Scratch::new();
        let options = loops.iter().fold(scratch.options(), |options, loops| options.loops(loops));
        let disk = options.open().wait().unwrap();
        std::thread::scope(|scope| {
            for number in 0..8u8 {
                let disk = disk.clone();
                scope.spawn(move || hammer(&disk, number));
            }
        });
        let statistics = disk.statistics().unwrap();
        assert_eq!((statistics.of(Kind::Write).requests, statistics.of(Kind::Write).failed), (8 * ROUNDS, 0));
        disk.close().wait().unwrap();
        let disk = scratch.open();
        for number in 0..8u8 {
            let part = bytes_at(&disk, u64::from(number) * PART, PART as usize);
            assert!(part.iter().all(|byte| *byte == number + 1), "part {number}");
        }
        disk.close().wait().unwrap();
    }
}

const PART: u64 = 1 << 20;
const ROUNDS: u64 = PART / BLOCK as u64;

fn hammer(disk: &Disk, number: u8) {
    let offset = |round: u64| u64::from(number) * PART + round * BLOCK as u64;
    let bytes = || vec![number + 1; BLOCK];
    match number % 4 {
        0 => (0..ROUNDS).for_each(|round| disk.write_at(offset(round), &bytes()).unwrap()),
        1 => block_on(async {
            let written = (0..ROUNDS).map(|round| disk.write(offset(round), bytes()));
            futures_util::future::try_join_all(written).await.unwrap();
        }),
        2 => {
            let (sender, receiver) = mpsc::channel::<Result<Buffer, Error>>();
            for round in 0..ROUNDS {
                let sender = sender.clone();
                disk.write(offset(round), bytes()).on_completion(move |result| sender.send(result).unwrap());
            }
            drop(sender);
            assert_eq!(receiver.iter().filter(Result::is_ok).count() as u64, ROUNDS);
        }
        _ => {
            let mut queue = disk.queue(16).unwrap();
            let (mut done, mut next) = (Vec::new(), 0);
            while next < ROUNDS || queue.in_flight() > 0 {
                while next < ROUNDS && queue.in_flight() < 16 {
                    queue.submit(write(offset(next), number + 1), next).unwrap();
                    next += 1;
                }
                queue.completions(&mut done, 1, None).unwrap();
            }
            assert!(done.iter().all(|completion| completion.result.is_ok()));
        }
    }
    for round in 0..ROUNDS {
        let mut read = [0; BLOCK];
        disk.read_at(offset(round), &mut read).unwrap();
        assert_eq!(read, [number + 1; BLOCK]);
    }
}

#[test]
fn a_result_that_was_taken_is_not_given_twice_and_nothing_panics() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let mut read = disk.read(0, vec![0; 512]);
    block_on(&mut read).unwrap();
    assert_eq!(block_on(&mut read).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(read.wait().unwrap_err().kind(), ErrorKind::Invalid);
    disk.close().wait().unwrap();
}

/// A caller that never looks at completions could pile up requests without end.
#[test]
fn requests_in_flight_have_a_bound_and_the_rest_comes_back() {
    const IN_FLIGHT_MAX: usize = 65536;
    let scratch = Scratch::new();
    let disk = scratch.options().limit("iops-total", 1).open().wait().unwrap();
    let pending: Vec<_> = (0..IN_FLIGHT_MAX + 64).map(|_| disk.read(0, vec![7; 16])).collect();
    // A call that steers is admitted all the same.
    disk.set_limits(&[]).unwrap();
    disk.close().wait().unwrap();
    let refused: Vec<_> = pending.into_iter().filter_map(|pending| pending.wait().err()).collect();
    // Some had ended before the last came.
    assert!((1..=64).contains(&refused.len()), "{}", refused.len());
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(error.into_buffer().unwrap().into_vec(), [7; 16]);
    }
}

#[test]
fn handles_go_from_thread_to_thread() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<(Disk, Queue, Loops, Error, cowhand::Pending<Buffer>)>();
    is_sync::<(Disk, Queue, Loops, Error, cowhand::Pending<Buffer>)>();
}

#[test]
fn memory_of_a_guest_passes_the_front_as_other_bytes_do() {
    let scratch = Scratch::new();
    let disk = scratch.options().set("detect-zeroes", "unmap").discard(true).open().wait().unwrap();
    let memory = ForeignBytes::zeroed(2 * BLOCK);
    memory.copy_from(0, &[7; BLOCK]);
    disk.write_from(0, memory.slice(0, BLOCK)).wait().unwrap();
    disk.write_from(65536, memory.slice(BLOCK, 2 * BLOCK)).wait().unwrap();
    let zero = |offset| disk.extents(offset, 512).wait().unwrap()[0].zero;
    assert_eq!((zero(0), zero(65536)), (false, true), "zeroes are detected");
    disk.read_into(0, memory.slice(BLOCK, 2 * BLOCK)).wait().unwrap();
    assert_eq!(memory.to_bytes().unwrap()[..], [7; 2 * BLOCK]);
    let past_end = disk.read_into(SIZE_BYTES, memory).wait().unwrap_err();
    assert_eq!(past_end.kind(), ErrorKind::PastEnd, "{past_end}");
    let statistics = disk.statistics().unwrap();
    let (reads, writes) = (statistics.of(Kind::Read), statistics.of(Kind::Write));
    assert_eq!((reads.requests, reads.failed, writes.requests), (1, 1, 2));
}
