//! The examples do what they say, each on an image of its own.

use crate::scratch::Scratch;

#[path = "../../examples/blocking.rs"]
#[expect(dead_code, reason = "an example has a main of its own")]
mod blocking;
#[path = "../../examples/eventfd.rs"]
#[expect(dead_code, reason = "an example has a main of its own")]
mod eventfd;
#[path = "../../examples/futures.rs"]
#[expect(dead_code, reason = "an example has a main of its own")]
mod futures;
#[path = "../../examples/rates.rs"]
#[expect(dead_code, reason = "an example has a main of its own")]
mod rates;

#[test]
fn the_example_that_measures_runs() {
    rates::run(&Scratch::new().path(), 100).unwrap();
}

#[test]
fn the_blocking_example_runs() {
    blocking::run(&Scratch::new().file("new.qcow2")).unwrap();
}

#[test]
fn the_example_with_futures_runs() {
    futures::run(&Scratch::new().file("new.qcow2")).unwrap();
}

#[test]
fn the_example_with_an_eventfd_runs() {
    eventfd::run(&Scratch::new().file("new.qcow2")).unwrap();
}
