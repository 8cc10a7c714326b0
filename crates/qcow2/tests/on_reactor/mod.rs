//! Images that live on a reactor of the test's own.

#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part of this")]

use qcow2::{Host, Work};
use reactor::Reactor;

pub fn reactor_run<T>(future: impl Future<Output = T>) -> T {
    Reactor::new(reactor::available()).unwrap().run(future)
}

#[derive(Debug)]
pub struct Loop;

impl Host for Loop {
    fn spawn(&self, work: Work) {
        reactor::spawn(work).detach();
    }
}
