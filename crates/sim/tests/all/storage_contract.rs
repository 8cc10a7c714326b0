//! The simulated disk keeps the storage contract, and breaks it exactly where it is asked to.

use futures_util::FutureExt;
use sim::{Content, Fault, FaultKind, IoKind, Order, Persistence, Request, SimStorage, World, run};
use storage::{Capabilities, ExtentKind, Hints, IoBuf, IoBytes, Storage, Zeroing};

fn disk(order: Order) -> (World, SimStorage) {
    let world = World::new(1, order);
    let disk = world.add_disk("disk", Capabilities::REGULAR_FILE, Content::zeroed(8192));
    (world, disk)
}

fn write_now(disk: &SimStorage, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    disk.write(offset, IoBytes::copy_from(bytes).into(), Hints::NONE).now_or_never().expect("it ends at once")
}

fn read_now(disk: &SimStorage, offset: u64, len: usize) -> Vec<u8> {
    let (result, buf) =
        disk.read(offset, IoBuf::zeroed(len), Hints::NONE).now_or_never().expect("it ends at once");
    result.expect("nothing fails");
    buf.to_vec()
}

#[test]
fn bytes_written_are_read_and_what_lies_beyond_the_end_is_zero() {
    let (_, disk) = disk(Order::Immediate);
    write_now(&disk, 8190, b"abcd").unwrap();
    assert_eq!(disk.length(), 8194);
    assert_eq!(read_now(&disk, 8189, 8), b"\0abcd\0\0\0");
}

#[test]
fn holes_appear_where_nothing_was_written_and_where_it_was_discarded() {
    let (_, disk) = disk(Order::Immediate);
    write_now(&disk, 0, &[1; 8192]).unwrap();
    disk.discard(4096, 4096).now_or_never().unwrap().unwrap();
    let extent = |at| disk.extent(at, 8192).now_or_never().unwrap().unwrap();
    assert_eq!((extent(0).kind, extent(0).len), (ExtentKind::Data, 4096));
    assert_eq!((extent(4096).kind, extent(4096).len), (ExtentKind::Hole, 4096));
    disk.zero(0, 100, Zeroing::Unmap).now_or_never().unwrap().unwrap();
    assert_eq!(read_now(&disk, 99, 2), [0, 1]);
}

#[test]
fn only_what_completed_before_a_flush_was_issued_is_durable() {
    let (world, disk) = disk(Order::Immediate);
    write_now(&disk, 0, b"early").unwrap();
    world.hold(|_, request| matches!(request, Request::Write { .. } | Request::Flush));
    let late = disk.write(512, IoBytes::copy_from(b"late").into(), Hints::NONE);
    let flush = disk.flush();
    assert_eq!(world.held(), 2);
    world.release();
    late.now_or_never().unwrap().unwrap();
    flush.now_or_never().unwrap().unwrap();
    let mut bytes = [0; 517];
    world.durable(0).read(0, &mut bytes);
    assert_eq!((&bytes[..5], &bytes[512..516]), (&b"early"[..], &[0; 4][..]));
    world.current(0).read(0, &mut bytes);
    assert_eq!(&bytes[512..516], b"late");
}

#[test]
fn the_nth_request_fails_once_or_from_then_on() {
    for (persistence, failed) in
        [(Persistence::Once, 1), (Persistence::Times(2), 2), (Persistence::FromThenOn, 3)]
    {
        let (world, disk) = disk(Order::Immediate);
        world.set_faults(vec![Fault { persistence, ..Fault::nth(3, FaultKind::Io) }]);
        let results = (0..5).filter(|_| write_now(&disk, 0, b"x").is_err()).count();
        assert_eq!(results, failed);
        assert_eq!(world.counts().faults[&IoKind::Write], failed as u64);
    }
}

#[test]
fn a_short_write_is_an_error_that_leaves_a_prefix() {
    let (world, disk) = disk(Order::Immediate);
    world.set_faults(vec![Fault::nth(1, FaultKind::Short)]);
    let error = write_now(&disk, 0, &[7; 2048]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WriteZero);
    let bytes = read_now(&disk, 0, 2048);
    let kept = bytes.iter().take_while(|&&byte| byte == 7).count();
    assert!(kept % 512 == 0 && kept < 2048 && bytes[kept..].iter().all(|&byte| byte == 0));
}

#[test]
fn after_a_failed_flush_every_flush_fails_until_the_disk_is_opened_again() {
    let (world, disk) = disk(Order::Immediate);
    world.set_faults(vec![Fault { kind: Some(IoKind::Flush), ..Fault::nth(1, FaultKind::Io) }]);
    assert!(disk.flush().now_or_never().unwrap().is_err());
    assert!(disk.flush().now_or_never().unwrap().is_err());
    assert!(world.open(0).flush().now_or_never().unwrap().is_ok());
}

#[test]
fn a_full_disk_says_so_and_changes_nothing() {
    let (world, disk) = disk(Order::Immediate);
    world.set_capacity(0, Some(8192));
    assert_eq!(write_now(&disk, 8000, &[1; 500]).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!((disk.length(), read_now(&disk, 8000, 192)), (8192, vec![0; 192]));
}

#[test]
fn a_write_to_a_read_only_disk_fails_and_is_remembered() {
    let world = World::new(1, Order::Immediate);
    let disk = world.add_disk(
        "base",
        Capabilities { read_only: true, ..Capabilities::REGULAR_FILE },
        Content::zeroed(512),
    );
    assert!(write_now(&disk, 0, b"x").is_err());
    assert_eq!(world.violations().len(), 1);
}

#[test]
fn what_nobody_promises_after_a_discard_differs_between_seeds() {
    let capabilities = Capabilities { discards_to_zero: false, ..Capabilities::REGULAR_FILE };
    let left: std::collections::BTreeSet<u8> = (0..30)
        .map(|seed| {
            let world = World::new(seed, Order::Immediate);
            let disk = world.add_disk("device", capabilities, Content::of(&[5; 512]));
            disk.discard(0, 512).now_or_never().unwrap().unwrap();
            read_now(&disk, 0, 1)[0]
        })
        .collect();
    assert_eq!(left, [0, 5, 0xdb].into());
}

#[test]
fn requests_end_in_many_orders_and_a_dropped_one_may_still_land() {
    let outcomes: std::collections::BTreeSet<u8> = (0..60)
        .map(|seed| {
            let world = World::new(seed, Order::Shuffled);
            let disk = world.add_disk("disk", Capabilities::REGULAR_FILE, Content::zeroed(512));
            run(&world, seed, |_| async {
                drop(disk.write(0, IoBytes::copy_from(b"\x01").into(), Hints::NONE));
                disk.write(0, IoBytes::copy_from(b"\x02").into(), Hints::NONE).await.unwrap();
            })
            .unwrap();
            world.drain();
            world.set_order(Order::Immediate);
            read_now(&disk, 0, 1)[0]
        })
        .collect();
    assert_eq!(outcomes, [1, 2].into());
}
