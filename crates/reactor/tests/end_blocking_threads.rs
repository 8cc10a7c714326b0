//! Threads for blocking calls can be ended, and come back. Alone in its process: they belong to all of it.

use reactor::{Backend, Reactor, blocking, end_blocking_threads};

#[test]
fn ended_threads_are_replaced_when_there_is_work_again() {
    let reactor = Reactor::new(Backend::Threads).unwrap();
    let mut seen = vec![std::thread::current().id()];
    for _ in 0..3 {
        let on = reactor.run(blocking(|| std::thread::current().id()));
        assert!(!seen.contains(&on), "it ran on the loop, or on a thread that had ended");
        seen.push(on);
        end_blocking_threads();
    }
}
