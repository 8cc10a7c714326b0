//! Images that live on a reactor of the test's own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use qcow2::{Host, Work};
use reactor::Reactor;

pub fn reactor_run<T>(future: impl Future<Output = T>) -> T {
    Reactor::new(reactor::Backend::Ring).unwrap().run(future)
}

#[derive(Debug)]
pub struct Loop;

impl Host for Loop {
    fn spawn(&self, work: Work) {
        reactor::spawn(work).detach();
    }
}
