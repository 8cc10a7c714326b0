use crate::open_rules::OpenRules;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;

/// Runs `test` on a loop, over a graph and a raw image of 1 MiB.
fn with_graph(test: impl AsyncFnOnce(&Graph, &str)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.raw");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
    let graph = Graph::new(OpenRules::default());
    reactor.run(test(&graph, path.to_str().unwrap()));
}

fn raw(name: &str, path: &str) -> Value {
    json!({ "driver": "raw", "node-name": name, "file": { "driver": "file", "filename": path } })
}

async fn add(graph: &Graph, options: Value) -> Result<Arc<Node>, NodeError> {
    graph.add(&graph.change().await, options.as_object().unwrap()).await
}

async fn remove(graph: &Graph, name: &str) -> Result<(), NodeError> {
    graph.remove(&graph.change().await, name).await.map(drop)
}

async fn reopen(graph: &Graph, options: Value) -> Result<(), NodeError> {
    graph.reopen(&graph.change().await, options.as_object().unwrap()).await
}

fn names(graph: &Graph) -> Vec<String> {
    graph.nodes().iter().map(|node| node.name()).collect()
}

fn refused<T>(outcome: Result<T, NodeError>) -> String {
    outcome.err().expect("it is refused").to_string()
}

fn export(name: &str) -> User {
    User { kind: "export", name: name.to_owned() }
}

#[test]
fn every_thread_may_ask_the_graph() {
    fn shared<T: Send + Sync>() {}
    shared::<Graph>();
    shared::<Hold>();
    shared::<NodeError>();
}

/// A disk under an export went away with its file lock; the next writer of the file and the clients of the export met.
#[test]
fn a_node_stays_until_its_last_user_has_gone() {
    with_graph(async |graph, path| {
        add(graph, raw("d", path)).await.unwrap();
        let holds = ["a", "b"].map(|name| graph.hold("d", export(name)).unwrap());
        let [first, second] = holds;
        assert_eq!(refused(remove(graph, "d").await), "node \"d\" is in use by export \"a\"");
        drop(first);
        assert_eq!(refused(remove(graph, "d").await), "node \"d\" is in use by export \"b\"");
        assert_eq!(names(graph), ["d"]);
        drop(second);
        remove(graph, "d").await.unwrap();
        assert!(names(graph).is_empty());
        assert!(matches!(graph.hold("d", export("a")), Err(NodeError::Unknown { name }) if name == "d"));
        // Its lock is gone with it.
        add(graph, raw("d", path)).await.unwrap();
    });
}

/// A client that had left still had a reference to the disk for a moment, and the next process that opened
/// the file found it locked.
#[test]
fn a_node_is_gone_with_its_lock_also_if_somebody_lets_go_of_it_late() {
    with_graph(async |graph, path| {
        let node = add(graph, raw("d", path)).await.unwrap();
        let late = reactor::spawn(async move {
            reactor::sleep(Duration::from_millis(50)).await;
            drop(node);
        });
        remove(graph, "d").await.unwrap();
        add(graph, raw("d", path)).await.unwrap();
        late.await;
    });
}

#[test]
fn no_two_nodes_or_parts_have_one_name() {
    with_graph(async |graph, path| {
        let mut with_part = raw("d", path);
        with_part["file"]["node-name"] = json!("d");
        assert_eq!(refused(add(graph, with_part.clone()).await), "there is a node named \"d\" already");
        assert!(names(graph).is_empty());
        with_part["file"]["node-name"] = json!("f");
        add(graph, with_part).await.unwrap();
        for name in ["d", "f"] {
            assert!(
                matches!(add(graph, raw(name, path)).await, Err(NodeError::NameTaken { name: taken }) if taken == name)
            );
        }
        // A part is found in its node only.
        assert!(matches!(graph.node("f"), Err(NodeError::Unknown { .. })));
        assert!(matches!(add(graph, raw("0", path)).await, Err(NodeError::BadName { .. })));
    });
}

#[test]
fn a_filter_keeps_its_disk_and_its_group_and_takes_the_disk_that_was_made_for_it_along() {
    with_graph(async |graph, path| {
        let _group = graph.rules().groups.find_or_create("of-this-test");
        let mut nested = raw("", path);
        nested.as_object_mut().unwrap().remove("node-name");
        let filter = json!({ "driver": "throttle", "node-name": "t", "throttle-group": "of-this-test", "file": nested });
        add(graph, filter).await.unwrap();
        assert_eq!(names(graph), ["#block000", "t"]);
        let disk = graph.disk("t").unwrap();
        assert_eq!(
            (disk.name(), disk.disk.throttle_group().name()),
            ("#block000".to_owned(), Some("of-this-test"))
        );
        assert_eq!(refused(remove(graph, "#block000").await), "node \"#block000\" is in use by node \"t\"");
        assert_eq!(
            refused(graph.check_group_unused("of-this-test")),
            "object \"of-this-test\" is in use by node \"t\""
        );
        remove(graph, "t").await.unwrap();
        assert!(names(graph).is_empty());
        graph.check_group_unused("of-this-test").unwrap();
    });
}

/// A filter over a disk that was made for another filter was refused, and the disk closed while others used it: its lock was
/// given back, and clients of its export went on writing.
#[test]
fn a_filter_that_is_refused_closes_no_disk_of_another_filter() {
    with_graph(async |graph, path| {
        let _group = graph.rules().groups.find_or_create("of-two-filters");
        let first = json!({ "driver": "throttle", "node-name": "t", "throttle-group": "of-two-filters", "file": raw("d", path) });
        add(graph, first).await.unwrap();
        let _hold = graph.hold("d", export("e")).unwrap();
        let second = json!({ "driver": "throttle", "node-name": "u", "throttle-group": "of-two-filters", "file": "d", "size": 1 });
        assert!(add(graph, second).await.is_err());
        assert_eq!(names(graph), ["d", "t"]);
    });
}

#[test]
fn a_filter_that_is_refused_leaves_no_disk_behind() {
    with_graph(async |graph, path| {
        let _group = graph.rules().groups.find_or_create("of-that-test");
        let mut nested = raw("d", path);
        // The name is free until the part has it.
        nested["file"]["node-name"] = json!("t");
        let filter = json!({ "driver": "throttle", "node-name": "t", "throttle-group": "of-that-test", "file": nested });
        assert!(matches!(add(graph, filter).await, Err(NodeError::NameTaken { name }) if name == "t"));
        assert!(names(graph).is_empty());
        add(graph, raw("d", path)).await.unwrap();
    });
}

#[test]
fn an_option_takes_effect_or_is_refused_by_its_name_and_the_next_change_is_compared_with_what_is_in_force() {
    with_graph(async |graph, path| {
        add(graph, raw("d", path)).await.unwrap();
        let disk = graph.disk("d").unwrap();
        let before = disk.disk.runtime_options();
        let mut moved = raw("d", path);
        (moved["cache"], moved["read-only"]) = (json!({ "direct": true }), json!(true));
        assert!(
            matches!(reopen(graph, moved).await, Err(NodeError::Fixed { name, option }) if (&*name, &*option) == ("d", "cache.direct"))
        );
        assert_eq!(disk.disk.runtime_options(), before);
        disk.change_options(&graph.change().await, "read-only=on").await.unwrap();
        assert!(disk.disk.read_only());
        disk.change_options(&graph.change().await, "discard=unmap").await.unwrap();
        assert!(disk.disk.read_only() && disk.options().unwrap().layer.read_only);
        // All options: what is not given has its default.
        reopen(graph, raw("d", path)).await.unwrap();
        assert_eq!(disk.disk.runtime_options(), before);
        assert!(
            matches!(reopen(graph, raw("e", path)).await, Err(NodeError::Unknown { name }) if name == "e")
        );
    });
}

#[test]
fn a_bare_file_is_no_disk_and_stays_while_a_disk_is_over_it() {
    with_graph(async |graph, path| {
        let file = json!({ "driver": "file", "node-name": "f", "filename": path });
        add(graph, file.clone()).await.unwrap();
        assert!(matches!(graph.disk("f"), Err(NodeError::BareFile { name }) if name == "f"));
        reopen(graph, file.clone()).await.unwrap();
        let unlocked = json!({ "driver": "file", "node-name": "f", "filename": path, "locking": "off" });
        assert!(
            matches!(reopen(graph, unlocked).await, Err(NodeError::Fixed { option, .. }) if option == "file.locking")
        );
        add(graph, json!({ "driver": "raw", "node-name": "d", "file": "f" })).await.unwrap();
        assert_eq!(refused(remove(graph, "f").await), "node \"f\" is in use by node \"d\"");
        assert!(graph.close_all(&graph.change().await).await.is_empty());
        assert_eq!(names(graph), ["f"]);
        remove(graph, "f").await.unwrap();
    });
}
