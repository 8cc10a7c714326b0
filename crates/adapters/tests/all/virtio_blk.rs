//! Requests of a guest, as its driver puts them into a ring of virtio-queue's.

use std::sync::Arc;

use cowhand::{Disk, Request};
use cowhand_adapters::virtio_blk::{BlockRequest, ChainError, Status, Work};
use virtio_queue::desc::{RawDescriptor, split::Descriptor};
use virtio_queue::mock::MockSplitQueue;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

/// A descriptor that the device writes.
const WRITE: u16 = 2;
/// Where the tests have their headers, segments, data and status bytes.
const HEADER: u64 = 0x8000;
const DATA: u64 = 0x10000;
const STATUS: u64 = 0x9000;

fn memory() -> Arc<GuestMemoryMmap> {
    Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x40000)]).unwrap())
}

fn header(memory: &GuestMemoryMmap, kind: u32, sector: u64) {
    memory.write_obj(kind, GuestAddress(HEADER)).unwrap();
    memory.write_obj(0u32, GuestAddress(HEADER + 4)).unwrap();
    memory.write_obj(sector, GuestAddress(HEADER + 8)).unwrap();
}

/// The request of these descriptors: address, length, flags.
fn parsed(memory: &Arc<GuestMemoryMmap>, list: &[(u64, u32, u16)]) -> Result<BlockRequest, ChainError> {
    let queue = MockSplitQueue::new(&**memory, 64);
    let descriptors: Vec<_> = list
        .iter()
        .map(|&(address, len, flags)| RawDescriptor::from(Descriptor::new(address, len, flags, 0)))
        .collect();
    let chain = queue.build_desc_chain(&descriptors).unwrap();
    BlockRequest::parse(memory.clone(), chain)
}

/// Carries out a request through a queue, as a device does; gives the status byte and the length for the used ring.
fn carried_out(disk: &Disk, memory: &GuestMemoryMmap, request: &BlockRequest) -> (u8, u32) {
    let status = match request.request() {
        Some(work) => {
            let mut queue = disk.queue(1).unwrap();
            queue.submit(work, 7).unwrap();
            let mut done = Vec::new();
            queue.completions(&mut done, 1, None).unwrap();
            if done[0].result.is_ok() { Status::Ok } else { Status::IoError }
        }
        None if matches!(request.work, Work::Name(_)) => {
            request.answer_name("a disk with a long name of its own");
            Status::Ok
        }
        None => Status::Unsupported,
    };
    let len = request.complete(status).unwrap();
    (memory.read_obj(GuestAddress(STATUS)).unwrap(), len)
}

#[test]
fn a_guest_writes_reads_flushes_zeroes_and_discards() {
    let scratch = Scratch::new();
    let (disk, memory) = (scratch.open(), memory());
    memory.write_slice(&[7; 8192], GuestAddress(DATA)).unwrap();
    let run = |list: &[(u64, u32, u16)]| carried_out(&disk, &memory, &parsed(&memory, list).unwrap());

    header(&memory, 1, 8);
    // The header in two descriptors, the data in two.
    let write =
        [(HEADER, 10, 0), (HEADER + 10, 6, 0), (DATA, 1000, 0), (DATA + 1000, 3096, 0), (STATUS, 1, WRITE)];
    assert_eq!(run(&write), (0, 1));
    assert_eq!(bytes_at(&disk, 4096, 4096), [7; 4096]);

    header(&memory, 0, 8);
    // The status in the last byte of the data's descriptor, behind an empty one.
    let status_behind = [(HEADER, 16, 0), (STATUS - 512, 513, WRITE), (DATA, 0, WRITE)];
    assert_eq!(run(&status_behind), (0, 513));
    let mut read = [0; 512];
    memory.read_slice(&mut read, GuestAddress(STATUS - 512)).unwrap();
    assert_eq!(read, [7; 512]);

    header(&memory, 4, 0);
    assert_eq!(run(&[(HEADER, 16, 0), (STATUS, 1, WRITE)]), (0, 1));

    for (kind, flags, status) in [(13u32, 1u32, 0), (13, 0, 0), (11, 0, 0), (11, 1, 2), (13, 2, 2)] {
        header(&memory, kind, 0);
        memory.write_obj(8u64, GuestAddress(DATA)).unwrap();
        memory.write_obj(8u32, GuestAddress(DATA + 8)).unwrap();
        memory.write_obj(flags, GuestAddress(DATA + 12)).unwrap();
        let found = run(&[(HEADER, 16, 0), (DATA, 16, 0), (STATUS, 1, WRITE)]);
        assert_eq!(found, (status, 1), "kind {kind}, flags {flags}");
        assert_eq!(run(&[(HEADER, 16, 0), (DATA, 32, 0), (STATUS, 1, WRITE)]).0, 2, "two segments");
    }
    assert_eq!(bytes_at(&disk, 4096, 4096), [0; 4096]);

    header(&memory, 8, 0);
    assert_eq!(run(&[(HEADER, 16, 0), (DATA, 20, WRITE), (STATUS, 1, WRITE)]), (0, 21));
    let mut name = [0; 20];
    memory.read_slice(&mut name, GuestAddress(DATA)).unwrap();
    assert_eq!(&name, b"a disk with a long n");

    header(&memory, 99, 0);
    assert_eq!(run(&[(HEADER, 16, 0), (STATUS, 1, WRITE)]), (2, 1));
    header(&memory, 0, SIZE_BYTES / 512);
    assert_eq!(run(&[(HEADER, 16, 0), (DATA, 512, WRITE), (STATUS, 1, WRITE)]), (1, 513));
    disk.close().wait().unwrap();
}

/// A driver without VIRTIO_BLK_F_FLUSH never flushes: what it wrote was lost with the machine.
#[test]
fn a_durable_request_is_the_same_and_durable_when_it_completes() {
    let memory = memory();
    header(&memory, 1, 8);
    let write = parsed(&memory, &[(HEADER, 16, 0), (DATA, 512, 0), (STATUS, 1, WRITE)]).unwrap();
    let fua = |request: Option<Request>| match request.unwrap() {
        Request::WriteFrom { offset: 4096, fua, .. } | Request::WriteZeroes { offset: 4096, fua, .. } => fua,
        other => panic!("{other:?}"),
    };
    assert_eq!((fua(write.request()), fua(write.durable_request())), (false, true));
    header(&memory, 13, 0);
    memory.write_obj(8u64, GuestAddress(DATA)).unwrap();
    memory.write_obj(8u32, GuestAddress(DATA + 8)).unwrap();
    memory.write_obj(0u32, GuestAddress(DATA + 12)).unwrap();
    let zero = parsed(&memory, &[(HEADER, 16, 0), (DATA, 16, 0), (STATUS, 1, WRITE)]).unwrap();
    assert_eq!((fua(zero.request()), fua(zero.durable_request())), (false, true));
}

/// A guest may write anything into its ring. What is no request is an error, and reaches no memory but the guest's.
#[test]
fn chains_that_are_no_requests_are_refused() {
    let memory = memory();
    header(&memory, 0, 0);
    for (list, words) in [
        (&[(HEADER, 15, 0), (STATUS, 1, WRITE)][..], "1 bytes too few"),
        (&[(HEADER, 16, 0)], "no byte for the status"),
        (&[(HEADER, 16, 0), (STATUS, 0, WRITE)], "no byte for the status"),
        (&[(HEADER, 16, WRITE), (STATUS, 1, WRITE)], "16 bytes too few"),
        (&[(HEADER, 16, 0), (STATUS, 1, WRITE), (DATA, 512, 0)], "follows one for writing"),
        (&[(0x40000, 16, 0), (STATUS, 1, WRITE)], "a descriptor"),
        (&[(u64::MAX - 3, 16, 0), (STATUS, 1, WRITE)], "wraps"),
        (&[(HEADER, 16, 0), (0x3ff00, 512, WRITE), (STATUS, 1, WRITE)], "a descriptor"),
        (&[(HEADER, 16, 0), (u64::MAX - 3, 16, WRITE)], "wraps"),
    ] {
        let error = parsed(&memory, list).unwrap_err();
        assert!(error.to_string().contains(words), "{list:?}: {error}");
    }
    header(&memory, 0, u64::MAX / 512 + 1);
    let error = parsed(&memory, &[(HEADER, 16, 0), (DATA, 512, WRITE), (STATUS, 1, WRITE)]).unwrap_err();
    assert!(error.to_string().contains("beyond any disk"), "{error}");
    header(&memory, 11, 0);
    let error = parsed(&memory, &[(HEADER, 16, 0), (DATA, 8, 0), (STATUS, 1, WRITE)]).unwrap_err();
    assert!(error.to_string().contains("8 bytes are there, of 16"), "{error}");
}

/// A status outside of the guest's memory is found when it is written.
#[test]
fn a_status_beyond_the_memory_is_an_error() {
    let memory = memory();
    header(&memory, 4, 0);
    let request = parsed(&memory, &[(HEADER, 16, 0), (0x40000, 1, WRITE)]).unwrap();
    assert!(matches!(request.request(), Some(Request::Flush)));
    request.complete(Status::Ok).unwrap_err();
}
