//! A copy that could not do all it should says so.

use futures_executor::block_on;
use job::{Content, Copy, CopyOptions, Counters, Error, Order, Scope, Zeroes};

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
