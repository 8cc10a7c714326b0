//! A disk is handed to another process, here another graph, and back, while both have it open.

use block::ErrorKind;
use qcow2::ResizeOptions;
use serde_json::{Value, json};
use std::sync::Arc;
use storage::{Hints, IoBytes, IoVec};

use super::test_world::{SIZE, STEP, World, value_at, with_world, write};
use super::*;
use crate::{Disk, OpenRules};

fn below(mut options: Value) -> Value {
    options.as_object_mut().unwrap().remove("node-name");
    options
}

fn inactive(mut options: Value) -> Value {
    options["active"] = json!(false);
    options
}

async fn add(graph: &Graph, options: &Value) -> Arc<Disk> {
    let node = graph.add(&graph.change().await, options.as_object().unwrap()).await.unwrap();
    Arc::clone(&node.disk().unwrap().disk)
}

async fn set_active(graph: &Graph, active: bool) -> Result<(), NodeError> {
    graph.set_active(&graph.change().await, "d", active).await
}

async fn refused_write(disk: &Disk) -> ErrorKind {
    let data = IoVec::from(IoBytes::copy_from(&[1; 512]));
    disk.write(0, data, false, Hints::NONE).await.unwrap_err().kind()
}

impl World {
    /// The options of `d` over `base`, an image over raw bytes of value 3.
    async fn options_of_chain(&self) -> Value {
        let bottom = below(self.raw_file("bottom", 3));
        let base = below(self.image_file("base", bottom).await);
        self.image_file("d", base).await
    }
}

#[test]
fn a_disk_goes_to_another_process_and_back_with_all_that_was_written() {
    with_world(async |world| {
        let options = world.options_of_chain().await;
        let first = world.add(options.clone()).await;
        let other = Graph::new(OpenRules::default());
        let second = add(&other, &inactive(options)).await;
        assert!(first.is_active() && !second.is_active());
        assert_eq!(value_at(&second, 0, STEP).await, 3, "an inactive disk is read");
        let (mut from, mut to) = ((&world.graph, &first), (&other, &second));
        for value in 5..9 {
            write(from.1, 0, value).await;
            write(from.1, u64::from(value) * STEP, value).await;
            let refused = set_active(to.0, true).await.unwrap_err().to_string();
            assert_eq!(refused, "node \"d\" cannot be made active");
            assert!(!to.1.is_active() && from.1.is_active());
            set_active(from.0, false).await.unwrap();
            assert_eq!(refused_write(from.1).await, ErrorKind::Refused);
            assert_eq!(value_at(from.1, 0, STEP).await, value);
            set_active(to.0, true).await.unwrap();
            set_active(to.0, true).await.unwrap();
            assert_eq!(value_at(to.1, 0, STEP).await, value, "what the other one wrote");
            (from, to) = (to, from);
        }
        for value in 5..9 {
            assert_eq!(value_at(from.1, u64::from(value) * STEP, STEP).await, value);
        }
        assert_eq!(value_at(from.1, 10 * STEP, STEP).await, 3);
        first.close().await.unwrap();
        second.close().await.unwrap();
        let path = world.directory.path().join("d");
        let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
        let report = qcow2::check(&file, qcow2::Repair::None, &mut |_| ()).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    });
}

#[test]
fn what_another_process_did_to_the_size_is_so_when_the_disk_is_active_again() {
    with_world(async |world| {
        let options = world.options_of_chain().await;
        let first = world.add(options.clone()).await;
        set_active(&world.graph, false).await.unwrap();
        let other = Graph::new(OpenRules::default());
        let second = add(&other, &options).await;
        second.resize(2 * SIZE, ResizeOptions::default()).await.unwrap();
        write(&second, SIZE, 9).await;
        set_active(&other, false).await.unwrap();
        assert_eq!(first.size(), SIZE);
        set_active(&world.graph, true).await.unwrap();
        assert_eq!(first.size(), 2 * SIZE);
        assert_eq!(value_at(&first, SIZE, STEP).await, 9);
        first.close().await.unwrap();
        second.close().await.unwrap();
    });
}

#[test]
fn files_of_an_inactive_disk_are_free_for_others_and_those_of_an_active_one_are_not() {
    with_world(async |world| {
        let disk = world.add(world.options_of_chain().await).await;
        for name in ["d", "base", "bottom"] {
            assert!(world.is_locked(name).await, "{name}");
        }
        for round in 0..2 {
            set_active(&world.graph, false).await.unwrap();
            for name in ["d", "base", "bottom"] {
                assert!(!world.is_locked(name).await, "{name}");
            }
            set_active(&world.graph, true).await.unwrap();
            for name in ["d", "base", "bottom"] {
                assert!(world.is_locked(name).await, "{name}");
            }
            write(&disk, 0, round).await;
        }
        disk.close().await.unwrap();
    });
}

#[test]
fn reopening_a_disk_says_whether_it_is_active_and_does_not_change_it() {
    with_world(async |world| {
        let mut options = world.options_of_chain().await;
        let disk = world.add(options.clone()).await;
        for active in [true, false] {
            options["active"] = json!(active);
            let change = world.graph.change().await;
            let reopened = world.graph.reopen(&change, options.as_object().unwrap()).await;
            let refused = reopened.err().map(|error| error.to_string());
            assert_eq!(refused.is_none(), active, "{refused:?}");
            assert!(refused.is_none_or(|refused| refused.starts_with("option active of node \"d\"")));
        }
        assert!(disk.is_active());
        disk.close().await.unwrap();
    });
}
