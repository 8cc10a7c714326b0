//! Repair: what it says is left is what a check then finds, and a second repair has nothing to do that the
//! first one could have done.

use std::sync::Arc;

use qcow2::{Options, Repair};

use super::disk;
use crate::executor::block_on;
use crate::input::Input;
use crate::mutate;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = if input.flag() { Repair::Leaks } else { Repair::All };
    let medium = Arc::new(mutate::image(&mut input).medium);
    block_on(async {
        let Ok(repaired) = qcow2::check(&*medium, how, &mut |_| {}).await else { return };
        let after = disk::check(&medium).await.expect("a repaired image can be checked");
        let left = |report: &qcow2::CheckReport| (report.corruptions, report.leaks, report.check_errors);
        assert_eq!(left(&repaired), left(&after), "the repair reports something other than what is left");
        let again = qcow2::check(&*medium, how, &mut |_| {}).await.expect("it was checked before");
        assert!(
            again.corruptions <= after.corruptions && again.check_errors <= after.check_errors,
            "a second repair made it worse: {after:?}, then {again:?}"
        );
        if how == Repair::All && after.is_clean() {
            // What is clean must be usable, or refused by name.
            let options = Options { writable: true, discard: true, ..Options::default() };
            let Ok(image) = disk::open(&medium, options).await else { return };
            disk::look_at(&image, &medium).await;
            let _ = image.close().await;
        }
    });
}
