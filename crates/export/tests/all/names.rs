//! Disks come and go under names, while clients use them.

use std::sync::Arc;

use export::{ExportEntry, Exports, NoPlace, NotRemoved, Place, Removal};
use futures_util::FutureExt;

use super::support::memory_export::MemoryExport;

fn exports() -> (Exports, Arc<ExportEntry>) {
    let exports = Exports::new();
    let entry = exports.add("a", "", Arc::new(MemoryExport::new(1 << 20))).expect("the first");
    (exports, entry)
}

#[test]
fn the_empty_name_means_an_export_only_where_there_is_one_or_one_was_said() {
    let (exports, a) = exports();
    assert_eq!(exports.find("").expect("the only one").name(), "a");
    exports.add("b", "", Arc::clone(a.disk())).expect("another");
    let nobodys_choice = exports.find("").expect_err("the first of several is nobody's choice");
    let text = nobodys_choice.to_string();
    assert!(text.ends_with("name one of \"a\" and \"b\""), "{text}");
    exports.set_default("b");
    assert_eq!(exports.find("").expect("it was said").name(), "b");
    exports.remove("b", Removal::Safe).expect("nobody is there");
    assert!(exports.find("").is_err(), "another disk is not what was said");
    exports.add("", "", Arc::clone(a.disk())).expect("the empty name itself");
    assert_eq!(exports.find("").expect("its own name").name(), "");
}

#[test]
fn an_export_in_use_is_removed_only_by_force_and_takes_no_new_clients() {
    let (exports, entry) = exports();
    let place = Place::take(Arc::clone(&entry), 1).expect("a place");
    assert!(Place::take(Arc::clone(&entry), 1).is_err(), "one connection is allowed");
    let in_use = NotRemoved::InUse { name: "a".to_owned(), connections: 1 };
    assert_eq!(exports.remove("a", Removal::Safe).err(), Some(in_use));
    assert!(exports.find("a").is_ok() && exports.find("").is_ok());
    let removed = exports.remove("a", Removal::Hard).expect("by force");
    assert!(removed.leaving().is_triggered() && exports.find("a").is_err());
    drop(place);
    assert!(matches!(Place::take(removed, 9), Err(NoPlace::TakenAway(_))));
    assert_eq!(exports.remove("a", Removal::Safe).err(), Some(NotRemoved::Unknown("a".to_owned())));
}

/// A server that ends with its last client ended before its first one.
#[test]
fn an_export_is_abandoned_when_somebody_has_come_and_everybody_has_left() {
    let (_exports, entry) = exports();
    let reactor = reactor::Reactor::new(reactor::Backend::Ring).expect("a loop");
    let is_abandoned = || reactor.run(async { entry.abandoned().now_or_never().is_some() });
    assert!(!is_abandoned(), "nobody was there yet");
    let places = [(), ()].map(|()| Place::take(Arc::clone(&entry), 2).expect("a place"));
    for place in places {
        assert!(!is_abandoned());
        drop(place);
    }
    assert!(is_abandoned());
}

#[test]
fn an_idle_export_is_removed_at_once_and_its_name_is_free_again() {
    let (exports, entry) = exports();
    drop(exports.remove("a", Removal::Safe).expect("nobody is there"));
    assert_eq!(entry.connections(), 0);
    assert!(matches!(Place::take(Arc::clone(&entry), 9), Err(NoPlace::TakenAway(_))));
    exports.add("a", "", Arc::clone(entry.disk())).expect("the name is free");
}
