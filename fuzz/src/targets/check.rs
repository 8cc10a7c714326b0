//! Check: an error or a report, the same one twice, and nothing written.

use crate::executor::block_on;
use crate::input::Input;
use crate::mutate;

pub(super) fn run(data: &[u8]) {
    let mutated = mutate::image(&mut Input::new(data));
    block_on(async {
        let report = super::disk::check(&mutated.medium).await;
        if mutated.edits == 0 {
            assert!(report.is_some_and(|report| report.is_clean()), "a valid image is not clean");
        }
    });
}
