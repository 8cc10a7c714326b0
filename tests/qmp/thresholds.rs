//! A manager of logical volumes hears in time that one is nearly full.

use black_box::Client;
use serde_json::json;

use super::{Steered, create};

#[test]
fn a_write_beyond_a_threshold_is_reported_once_and_the_highest_write_is_known() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let path = create(&steered.scratch, "thin.qcow2", "64M");
    let file = json!({ "driver": "file", "node-name": "f", "filename": path });
    qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "d", "file": file }));
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "e", "node-name": "d", "writable": true }));
    let set = |bytes: u64| json!({ "node-name": "f", "write-threshold": bytes });
    qmp.ok("block-set-write-threshold", set(1 << 30));
    qmp.ok("block-set-write-threshold", set(4 << 20));
    let threshold = |qmp: &mut _| super::node(qmp, "f").expect("it is there")["write_threshold"].clone();
    assert_eq!(threshold(&mut qmp), json!(4 << 20));
    let mut client = Client::connect(steered.server.socket(), "d").expect("it serves");
    client.write(0, &vec![1; 2 << 20]).expect("a write");
    for place in 1..6_u64 {
        client.write(place << 21, &vec![1; 1 << 20]).expect("a write");
    }
    let reported = qmp.event("BLOCK_WRITE_THRESHOLD")["data"].clone();
    assert_eq!((&reported["node-name"], &reported["write-threshold"]), (&json!("f"), &json!(4 << 20)));
    assert!(reported["amount-exceeded"].as_u64().expect("a number") <= 2 << 20, "{reported}");
    assert_eq!(threshold(&mut qmp), json!(0));
    let stats = qmp.ok("query-blockstats", json!({ "query-nodes": true }));
    let of_node = |name: &str| {
        let found = stats.as_array().expect("a list").iter().find(|node| node["node-name"] == name);
        found.expect("it is there")
    };
    assert_eq!(of_node("d")["stats"]["wr_highest_offset"], 11 << 20);
    let highest = of_node("d")["parent"]["stats"]["wr_highest_offset"].as_u64();
    // libvirt looks there.
    assert_eq!(of_node("f")["stats"]["wr_highest_offset"].as_u64(), highest);
    let length = std::fs::metadata(&path).expect("it is there").len();
    assert!(highest.is_some_and(|highest| highest > 7 << 20 && highest <= length), "{highest:?} of {length}");
    assert!(
        qmp.refused("block-set-write-threshold", json!({ "node-name": "d", "write-threshold": 1 }))
            .contains("\"d\"")
    );
    assert!(
        qmp.refused("block-set-write-threshold", json!({ "node-name": "x", "write-threshold": 1 }))
            .contains("\"x\"")
    );
    steered.server.stop();
}
