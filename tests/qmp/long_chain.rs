//! Fifty overlays are made, streamed and committed under a client that writes and verifies all the time.

use black_box::peer::{assert_clean, qemu_img};
use serde_json::json;

use super::Steered;
use super::jobs::{Load, backing_of, completed, exported, holds, reported, snapshot};

const OVERLAYS: usize = 50;

/// All images of a chain that is not written are clean; the client verifies what is read through them.
fn all_clean(paths: &[String]) {
    let (_uppermost, below) = paths.split_last().expect("a chain");
    below.iter().for_each(|path| assert_clean(path.as_ref()));
}

#[test]
fn fifty_overlays_are_made_streamed_and_committed_under_a_client_that_verifies() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let load = Load::on(steered.server.socket(), "a", 2048);
    let name = |overlay: usize| if overlay == 0 { "a".to_owned() } else { format!("s{overlay}") };
    let mut paths = vec![steered.scratch.name("a.qcow2")];
    for overlay in 1..=OVERLAYS {
        paths.push(snapshot(&mut qmp, &name(overlay - 1), &steered.scratch, &name(overlay)));
        load.goes_on();
        // What was just written to is read from now on.
        assert_clean(paths[overlay - 1].as_ref());
    }
    assert_eq!(exported(&mut qmp), name(OVERLAYS));
    let depth = qemu_img(["info", "-U", "--backing-chain", "--output=json", &paths[OVERLAYS]]).json();
    assert_eq!(depth.as_array().map(Vec::len), Some(OVERLAYS + 1));
    // From the middle outwards: backing images take over or give to their base, then the uppermost.
    let mut left: Vec<usize> = (0..=OVERLAYS).collect();
    for (upper, base, is_stream) in
        [(30, 20, true), (29, 10, false), (45, 35, true), (9, 0, false), (50, 40, true), (40, 0, false)]
    {
        let upper = *left.iter().rfind(|overlay| **overlay <= upper).expect("a chain");
        let base = *left.iter().rfind(|overlay| **overlay <= base).expect("a chain");
        if is_stream {
            let stream = json!({ "job-id": "j", "device": name(upper), "base-node": name(base) });
            qmp.ok("block-stream", stream);
            left.retain(|overlay| *overlay <= base || *overlay >= upper);
        } else {
            let commit = json!({ "job-id": "j", "device": name(OVERLAYS), "top-node": name(upper),
                "base-node": name(base) });
            qmp.ok("block-commit", commit);
            left.retain(|overlay| *overlay <= base || *overlay > upper);
        }
        completed(&mut qmp, "j");
        load.goes_on();
        all_clean(&left.iter().map(|overlay| paths[*overlay].clone()).collect::<Vec<_>>());
        for pair in left.windows(2) {
            assert_eq!(backing_of(&paths[pair[1]]).as_ref(), Some(&paths[pair[0]]), "{left:?}");
        }
    }
    qmp.ok("block-commit", json!({ "job-id": "j", "device": name(OVERLAYS) }));
    reported(&mut qmp, "BLOCK_JOB_READY", "j");
    load.goes_on();
    qmp.ok("job-complete", json!({ "id": "j" }));
    completed(&mut qmp, "j");
    assert_eq!(exported(&mut qmp), "a");
    load.goes_on();
    let held = load.end();
    assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
    steered.server.stop();
    holds(&paths[0], &held, &steered.scratch);
}
