//! Several loops on several threads over one group: every request ends. The test passes by ending.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use block::pace::Unpaced;
use reactor::Reactor;
use throttle::{Direction, Limits, Request, Weight};

use super::world::{limits, options};
use crate::front::{Charge, Front, Groups, Kind, Monotonic};

const LOOPS: u64 = 3;
const CLIENTS: u64 = 8;
const REQUESTS: u64 = 250;

fn client(front: &Arc<Front>, number: u64) -> impl Future<Output = ()> + 'static {
    let front = Arc::clone(front);
    async move {
        for round in 0..REQUESTS {
            let kind = if (number + round).is_multiple_of(3) { Kind::Write } else { Kind::Read };
            let request = match kind {
                Kind::Write => Request::write(4096),
                _ => Request::read(4096),
            };
            let begin = front.begin(kind, Charge::Whole(request), &Unpaced);
            if round % 16 == 5 {
                // A client that is gone after one look.
                let mut begin = Box::pin(begin);
                let _ = futures_util::poll!(begin.as_mut());
                continue;
            }
            let _: Result<(), ()> = begin.await.end(Ok(()), 4096);
            reactor::yield_now().await;
        }
    }
}

fn run_loop(fronts: &[Arc<Front>]) {
    let reactor = Reactor::new(reactor::Backend::Ring).expect("a loop");
    reactor.run(async {
        let clients = (0..CLIENTS).map(|number| client(&fronts[number as usize % fronts.len()], number));
        let tasks: Vec<_> = clients.map(reactor::spawn).collect();
        for task in tasks {
            task.await;
        }
    });
}

#[test]
fn loops_that_share_a_group_under_a_thousand_changes_forget_nobody() {
    let groups = Groups::new(Arc::new(Monotonic::new()));
    let front = |given: &str| Arc::new(Front::new(groups.clone(), &options(given)));
    let fronts = [front("iops=20000,group=g"), front("group=g,weight=300"), front("group=g")];
    let settings = [limits("iops=10"), limits("iops_rd=2000,bps_wr=50000"), limits("bps=90000,iops_wr=9000")];
    let group = groups.find("g").expect("its members hold it");
    let (changes, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut change = 0;
            while !ended.load(SeqCst) || change < 1000 {
                let front = &fronts[change % fronts.len()];
                front.group().set_limits(settings[change % settings.len()]);
                front.set_weight(Weight::new(change as u64 % 500 + 1).expect("a weight"));
                match change % 100 {
                    10 => front.group().set_limits(Limits::default()),
                    30 => front.set_group(None),
                    60 => front.set_group(Some("g")),
                    70 => front.suspend_limits(),
                    71 => fronts[(change - 1) % fronts.len()].restore_limits(),
                    _ => {}
                }
                change += 1;
                changes.store(change as u64, SeqCst);
                std::thread::yield_now();
            }
        });
        let loops: Vec<_> = (0..LOOPS).map(|_| scope.spawn(|| run_loop(&fronts))).collect();
        loops.into_iter().for_each(|thread| thread.join().expect("a loop that ends in order"));
        ended.store(true, SeqCst);
    });
    assert!(changes.load(SeqCst) >= 1000);
    let counters = group.report().counters;
    let waited = Direction::BOTH.map(|direction| counters.of(direction).delayed.requests);
    assert!(waited.iter().all(|&waited| waited > 10), "requests waited: {waited:?}");
    let done: u64 = fronts
        .iter()
        .map(|front| front.statistics().of(Kind::Read).requests + front.statistics().of(Kind::Write).requests)
        .sum();
    let given_up = (0..REQUESTS).filter(|round| round % 16 == 5).count() as u64;
    assert_eq!(done, LOOPS * CLIENTS * (REQUESTS - given_up));
    for front in &fronts {
        assert_eq!(front.report().1.counters.queued_requests(), 0);
    }
}
