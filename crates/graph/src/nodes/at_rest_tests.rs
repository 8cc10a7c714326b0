//! Disks that send requests to each other come to rest together.

use serde_json::json;
use std::sync::Arc;
use storage::{Hints, IoBuf};

use super::test_world::{Load, STEP, World, a_while, polled, value_at, with_world, write};
use super::*;

/// `g` over `f` over `a`, and `b` by itself.
async fn tower(world: &World) {
    world.add(world.raw_file("a", 1)).await;
    world.add(world.raw_file("b", 2)).await;
    for (name, below) in [("f", "a"), ("g", "f")] {
        world.add(json!({ "driver": "copy-on-read", "node-name": name, "file": below })).await;
    }
}

fn disks(world: &World, names: &[&str]) -> Vec<Arc<DiskNode>> {
    names.iter().map(|name| world.graph.disk(name).unwrap()).collect()
}

async fn order(world: &World, named: &[&str]) -> Vec<String> {
    let change = world.graph.change().await;
    let order = world.graph.in_order_of_rest(&change, &disks(world, named));
    order.iter().map(|disk| disk.name()).collect()
}

#[test]
fn those_that_send_come_before_those_they_send_to() {
    with_world(async |world| {
        tower(world).await;
        assert_eq!(order(world, &["a", "b"]).await, ["a", "b"]);
        assert_eq!(order(world, &["a", "g", "a"]).await, ["g", "f", "a"], "with the one between");
        assert_eq!(order(world, &["a", "f"]).await, ["f", "a"]);
        let job = User { kind: "job", name: "j".into() };
        let source = world.graph.hold("f", job.clone()).unwrap();
        let target = world.graph.hold("b", job).unwrap();
        assert_eq!(order(world, &["a", "b", "f"]).await, ["b", "f", "a"], "a job that copies nothing");
        source.copies_to(&target);
        assert_eq!(order(world, &["a", "b", "f"]).await, ["f", "a", "b"]);
        assert!(world.graph.sends_to("g", "b") && !world.graph.sends_to("a", "b"));
        drop(source);
        assert!(!world.graph.sends_to("g", "b"));
    });
}

/// In whatever order a command names them: a filter, the source of a copy, its target, and what that is copied to.
#[test]
fn each_order_of_names_is_one_order_of_rest() {
    with_world(async |world| {
        tower(world).await;
        world.add(world.raw_file("c", 3)).await;
        let hold =
            |name: &str, job: &str| world.graph.hold(name, User { kind: "job", name: job.into() }).unwrap();
        let (first, second) = ((hold("a", "j"), hold("b", "j")), (hold("b", "k"), hold("c", "k")));
        first.0.copies_to(&first.1);
        second.0.copies_to(&second.1);
        let names = ["g", "f", "a", "b", "c"];
        let mut seen = 0;
        // Each order is a number: where the first one goes, where among the rest the second one goes, and so on.
        for number in 0..120 {
            let (mut left, mut number, mut named) = (names.to_vec(), number, Vec::new());
            while !left.is_empty() {
                named.push(left.remove(number % left.len()));
                number /= left.len() + 1;
            }
            assert_eq!(order(world, &named).await, names, "named as {named:?}");
            seen += 1;
        }
        assert_eq!(seen, 120);
        assert_eq!(
            order(world, &["c", "g"]).await,
            ["g", "c"],
            "those between answer until the first one is at rest"
        );
        drop((first, second));
    });
}

#[test]
fn a_disk_that_many_ways_lead_to_comes_to_rest_once_and_last() {
    with_world(async |world| {
        world.add(world.raw_file("s0", 1)).await;
        for storey in 0..5 {
            let below = format!("s{storey}");
            for side in ["l", "r"] {
                let name = format!("{side}{storey}");
                world.add(json!({ "driver": "copy-on-read", "node-name": name, "file": below })).await;
            }
            let children = [format!("l{storey}"), format!("r{storey}")];
            let name = format!("s{}", storey + 1);
            world.add(json!({ "driver": "quorum", "node-name": name, "vote-threshold": 1, "children": children })).await;
        }
        let order = order(world, &["s0", "s5"]).await;
        assert_eq!((order.len(), &*order[0], &*order[15]), (3 * 5 + 1, "s5", "s0"));
        assert!(world.graph.sends_to("s5", "s0") && !world.graph.sends_to("s0", "s5"));
    });
}

#[test]
fn at_rest_only_who_keeps_them_there_is_answered() {
    with_world(async |world| {
        tower(world).await;
        let load = Load::on(&world.graph.disk("g").unwrap().disk);
        // Requests of others to the lower one, too.
        let below = Arc::clone(&world.graph.disk("a").unwrap().disk);
        let more = reactor::spawn(async move {
            for value in 10..60 {
                write(&below, 8 * STEP, value).await;
                assert_eq!(value_at(&below, 8 * STEP, STEP).await, value);
            }
        });
        for _ in 0..5 {
            a_while().await;
            let change = world.graph.change().await;
            let disks = world.graph.in_order_of_rest(&change, &disks(world, &["a", "g"]));
            let at_rest = world.graph.keep_at_rest(&change, &disks).await;
            let root = disks[0].disk.root();
            let look = async || {
                let (result, buf) = root.read(0, IoBuf::uninit(9 * STEP as usize), Hints::NONE).await;
                result.unwrap();
                buf.to_vec()
            };
            let before = look().await;
            a_while().await;
            assert!(before == look().await, "something was written");
            root.flush().await.unwrap();
            root.block_status(0, STEP).await.unwrap();
            for disk in &disks {
                assert!(polled(value_at(&disk.disk, 0, STEP), 0).await.is_none(), "{} answers", disk.name());
            }
            drop(at_rest);
            assert_eq!(value_at(&disks[0].disk, 10 * STEP, STEP).await, 1);
        }
        more.await;
        load.end().await;
    });
}
