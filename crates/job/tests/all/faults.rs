//! A copy that could not do all it should says so.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use futures_executor::block_on;
use job::{
    Content, Copy, CopyOptions, Counters, Error, Guarded, Life, Notice, OnError, Order, Report, Scope, Side,
    Stream, Terms, Verdict, Zeroes,
};

use crate::made_up::{MadeUp, SECTOR, Sector};

fn map() -> Vec<Sector> {
    [[Sector::Data; 300], [Sector::Zero; 300], [Sector::Below; 300], [Sector::Absent; 300]].concat()
}

fn copy<'a>(source: &'a MadeUp, target: &'a MadeUp, order: Order) -> Copy<'a> {
    Copy {
        source,
        from: 0..(map().len() * SECTOR) as u64,
        target,
        to: 0,
        scope: Scope::Everything,
        content: Content::Unknown,
        options: CopyOptions {
            order,
            memory_bytes: 1 << 17,
            zeroes: Zeroes::Detect(4096),
            ..CopyOptions::default()
        },
    }
}

/// Each request of either side fails once: never is the copy called a success.
#[test]
fn any_request_that_fails_fails_the_copy() {
    for order in [Order::Free, Order::InOrder] {
        for side in 0..2 {
            let mut failed = 0;
            for at in 0.. {
                let fails = |this| if side == this { at } else { u64::MAX };
                let source = MadeUp::new("source", &map(), 0).failing(fails(0));
                let target = MadeUp::used("target", map().len()).failing(fails(1));
                match block_on(copy(&source, &target, order).run(&Counters::default())) {
                    Ok(()) => {
                        assert_eq!(target.bytes(), source.bytes());
                        break;
                    }
                    Err(Error::Request { .. }) => failed += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(failed > 8, "side {side}: only {failed} requests");
        }
    }
}

#[test]
fn an_error_says_which_side_failed_where_and_at_what() {
    let source = MadeUp::new("source", &map(), 0).unreadable(&[200]);
    let target = MadeUp::used("target", map().len());
    let error = block_on(copy(&source, &target, Order::InOrder).run(&Counters::default())).unwrap_err();
    assert_eq!(error.to_string(), "reading source source failed at offset 65536");
}

#[test]
fn salvage_loses_the_sectors_that_cannot_be_read_and_no_others() {
    let lost = [0, 7, 8, 200, 299, 700];
    let source = MadeUp::new("source", &map(), 9).unreadable(&lost);
    let target = MadeUp::used("target", map().len());
    let mut copy = copy(&source, &target, Order::Free);
    copy.options.salvage = true;
    let counters = Counters::default();
    block_on(copy.run(&counters)).unwrap();
    let mut expected = source.bytes();
    lost.iter().for_each(|sector| expected[sector * SECTOR..(sector + 1) * SECTOR].fill(0));
    assert_eq!(target.bytes(), expected);
    assert_eq!(counters.progress().unreadable, (lost.len() * SECTOR) as u64);
}

/// A sum of lost bytes does not say which file of the guest is damaged.
#[test]
fn salvage_reports_each_sector_that_cannot_be_read_and_each_without_a_map() {
    let source = MadeUp::new("source", &map(), 9).unreadable(&[7, 8, 700]).unmapped(&[8, 450]);
    let target = MadeUp::used("target", map().len());
    let mut copy = copy(&source, &target, Order::Free);
    copy.options.salvage = true;
    let counters = Counters::default();
    let reported: Arc<Mutex<Vec<_>>> = Arc::default();
    let reports = Arc::clone(&reported);
    counters.report_to(move |report| match report {
        Report::NoStatus(at, _) => reports.lock().unwrap().push(("map", at / SECTOR as u64)),
        Report::Unreadable(at, _) => reports.lock().unwrap().push(("read", at / SECTOR as u64)),
        Report::Data(_) => {}
    });
    let data = block_on(copy.data_bytes(&counters)).unwrap();
    assert_eq!(std::mem::take(&mut *reported.lock().unwrap()), [("map", 8), ("map", 450)]);
    block_on(copy.run(&counters)).unwrap();
    let mut reported = std::mem::take(&mut *reported.lock().unwrap());
    reported.sort_unstable();
    assert_eq!(reported, [("map", 8), ("map", 450), ("read", 7), ("read", 8), ("read", 700)]);
    // What has no map counts as data.
    assert_eq!((data, counters.progress().data), (601 * SECTOR as u64, data));
    assert_eq!(counters.progress().done, (map().len() * SECTOR) as u64);
}

/// A piece is settled only when it is in the target: no report before that, and none is left out.
#[test]
fn each_piece_of_data_is_reported_when_it_is_settled() {
    let source = MadeUp::new("source", &map(), 0);
    let target = MadeUp::used("target", map().len());
    let counters = Counters::default();
    let reported: Arc<Mutex<Vec<_>>> = Arc::default();
    let reports = Arc::clone(&reported);
    counters.report_to(move |report| {
        if let Report::Data(bytes) = report {
            reports.lock().unwrap().push(bytes);
        }
    });
    let copy = copy(&source, &target, Order::InOrder);
    block_on(copy.run(&counters)).unwrap();
    let reported = reported.lock().unwrap();
    assert!(reported.is_sorted_by(|a, b| a < b) && reported.len() > 2, "{reported:?}");
    assert_eq!(reported.last().copied(), Some(600 * SECTOR as u64));
    assert_eq!(block_on(copy.data_bytes(&Counters::default())).unwrap(), 600 * SECTOR as u64);
}

#[test]
fn a_cancelled_copy_is_no_success() {
    let source = MadeUp::new("source", &map(), 0);
    let target = MadeUp::used("target", map().len());
    let counters = Counters::default();
    counters.cancel();
    let result = block_on(copy(&source, &target, Order::Free).run(&counters));
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(target.flushes(), 0);
}

/// A stream tried what it was to ignore for ever, or ended well where something was missing: QEMU's copies all else, and fails.
#[test]
fn a_stream_that_ignores_failures_copies_all_else_and_then_fails_of_the_first() {
    let map = [vec![Sector::Data; 100], vec![Sector::Below; 3000]].concat();
    let image = Arc::new(MadeUp::new("image", &map, 3).unreadable(&[150, 1500]));
    let failures = Rc::new(Cell::new(0));
    let counted = Rc::clone(&failures);
    let terms = Terms { on_source_error: OnError::Ignore, ..Terms::default() };
    let life = Life::new(terms, 0, move |notice| {
        if let Notice::Failed(side, verdict) = notice {
            assert_eq!((side, verdict), (Side::Source, Verdict::Ignore));
            counted.set(counted.get() + 1);
        }
    });
    life.begin();
    let stream = Stream::of_everything(Guarded::new(image));
    let error = block_on(stream.run(&life)).unwrap_err();
    assert_eq!(error.to_string(), format!("reading source image failed at offset {}", 100 * SECTOR));
    assert_eq!(failures.get(), 2);
    let size = (map.len() * SECTOR) as u64;
    assert_eq!(life.progress(), (size, size));
}
