//! Commands that a seed makes up, from two clients at once: each is answered, and what they leave behind can be taken away again.
//!
//! COWHAND_QMP_LIVES servers, the first with seed COWHAND_QMP_SEED, each get 2 x 120 commands.

use std::time::{Duration, Instant};

use black_box::peer::{assert_leaks_at_most, qemu_img};
use black_box::qmp::Qmp;
use black_box::random::{Random, number};
use black_box::{Client, Scratch};
use serde_json::{Value, json};

use super::begin_with_nothing;

/// Servers in every run of the tests.
const LIVES: u64 = 2;
/// Commands of each client.
const COMMANDS: usize = 120;
/// So many of them make nodes, for the others to have something to do.
const FIRST_NODES: usize = 6;
/// Names that nodes get, so few that commands meet.
const NODES: [&str; 6] = ["n0", "n1", "n2", "n3", "n4", "x"];
/// Names of jobs and exports.
const IDS: [&str; 5] = ["e0", "e1", "e2", "j0", "j1"];
/// So many looks at its descriptors find the same when a server has begun, a millisecond apart at least.
const SAME_LOOKS: u32 = 200;
/// Largest disk.
const SIZE: u64 = 2 << 20;

/// Files to make nodes of: path and format.
type Images = Vec<(String, &'static str)>;

/// Makes up commands.
struct Inventor<'a> {
    random: Random,
    images: &'a Images,
    scratch: &'a Scratch,
    names: u32,
}

impl Inventor<'_> {
    fn node(&mut self) -> &'static str {
        self.random.pick::<&str>(&NODES)
    }

    fn id(&mut self) -> &'static str {
        self.random.pick::<&str>(&IDS)
    }

    /// A name that nothing has.
    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("new-{}-{}", self.random.below(1 << 40), self.names)
    }

    /// The arguments of drive-backup and drive-mirror.
    fn copy_to_new_file(&mut self, id: &str, node: &str) -> Value {
        let file = self.scratch.name(&self.new_name());
        let sync = *self.random.pick(&["full", "top", "none"]);
        json!({ "job-id": id, "device": node, "target": file, "sync": sync, "format": "qcow2" })
    }

    /// Actions of one moment, with names of their own. The last one may fail, after jobs were made.
    fn transaction(&mut self) -> Value {
        let mut actions = Vec::new();
        for _ in 0..=self.random.below(3) {
            let (node, other, new) = (self.node(), self.node(), self.new_name());
            let (kind, data) = match self.random.below(3) {
                0 => ("block-dirty-bitmap-add", json!({ "node": node, "name": new })),
                1 => ("drive-backup", self.copy_to_new_file(&new, node)),
                _ => {
                    let backup = json!({ "job-id": new, "device": node, "target": other, "sync": "full" });
                    ("blockdev-backup", backup)
                }
            };
            actions.push(json!({ "type": kind, "data": data }));
        }
        if self.random.one_in(2) {
            actions.push(json!({ "type": "abort", "data": {} }));
        }
        let mode = *self.random.pick(&["individual", "grouped"]);
        json!({ "actions": actions, "properties": { "completion-mode": mode } })
    }

    /// Options of a node: an image, or something over other nodes.
    fn options(&mut self) -> Value {
        let (path, format) = self.random.pick(self.images).clone();
        let mut options = match self.random.below(25) {
            0..10 => json!({ "driver": format, "file": { "driver": "file", "filename": path } }),
            10..12 => json!({ "driver": self.random.pick(&["qcow2", "raw"]), "file": self.node() }),
            12 => json!({ "driver": "file", "filename": path }),
            13 => json!({ "driver": "throttle", "throttle-group": "tg", "file": self.node() }),
            14 => json!({ "driver": "copy-on-read", "file": self.node() }),
            15 => json!({ "driver": "compress", "file": self.node() }),
            16..18 => {
                json!({ "driver": "copy-before-write", "file": self.node(), "target": self.node() })
            }
            18 => json!({ "driver": "snapshot-access", "file": self.node() }),
            19 => json!({ "driver": "quorum", "vote-threshold": 1, "children": [self.node(), self.node()] }),
            20 => json!({ "driver": "blkverify", "test": self.node(), "raw": self.node() }),
            21 => json!({ "driver": "null-co", "size": SIZE }),
            22 => json!({ "driver": "blkdebug", "image": self.node() }),
            _ => json!({ "driver": "preallocate", "file": self.node() }),
        };
        if self.random.one_in(4) {
            options["read-only"] = json!(self.random.one_in(2));
        }
        if self.random.one_in(5) {
            options["discard"] = json!("unmap");
        }
        if self.random.one_in(8) {
            options["cache"] = json!({ "direct": self.random.one_in(2), "no-flush": self.random.one_in(3) });
        }
        match self.random.below(20) {
            0 => options["backing"] = Value::Null,
            1..3 => options["backing"] = json!(self.node()),
            _ => {}
        }
        options["node-name"] = json!(self.node());
        options
    }

    /// A command, and its arguments.
    fn command(&mut self) -> (String, Value) {
        let (node, other, id) = (self.node(), self.node(), self.id());
        let (name, mut arguments) = match self.random.below(63) {
            0..8 | 48..60 => ("blockdev-add", self.options()),
            8..12 => ("blockdev-del", json!({ "node-name": node })),
            12..16 => ("blockdev-reopen", json!({ "options": [self.options()] })),
            16..20 => {
                let writable = self.random.one_in(2);
                let export = json!({ "type": "nbd", "id": id, "node-name": node, "writable": writable });
                ("block-export-add", export)
            }
            20..23 => ("block-export-del", json!({ "id": id, "mode": self.random.pick(&["safe", "hard"]) })),
            23 => {
                let file = self.scratch.name(&self.new_name());
                let named = json!({ "node-name": node, "snapshot-file": file, "snapshot-node-name": other });
                ("blockdev-snapshot-sync", named)
            }
            24 => ("blockdev-snapshot", json!({ "node": node, "overlay": other })),
            25..27 => ("block-commit", json!({ "job-id": id, "device": node })),
            27 => ("block-commit", json!({ "job-id": id, "device": node, "top-node": other })),
            28..30 => ("block-stream", json!({ "job-id": id, "device": node })),
            30..32 => {
                let sync = *self.random.pick(&["full", "top", "none"]);
                ("blockdev-mirror", json!({ "job-id": id, "device": node, "target": other, "sync": sync }))
            }
            32..34 => {
                let sync = *self.random.pick(&["full", "top", "none"]);
                ("blockdev-backup", json!({ "job-id": id, "device": node, "target": other, "sync": sync }))
            }
            34..38 => {
                let verbs = ["cancel", "complete", "pause", "resume", "dismiss", "finalize"];
                return (format!("job-{}", self.random.pick(&verbs)), json!({ "id": id }));
            }
            38 => {
                let size = *self.random.pick(&[SIZE / 2, SIZE, SIZE / 4, 512 * 2049]);
                ("block_resize", json!({ "node-name": node, "size": size, "x-shrink": true }))
            }
            39..41 => {
                let verb = self.random.pick(&["add", "remove", "clear", "enable", "disable"]);
                return (format!("block-dirty-bitmap-{verb}"), json!({ "node": node, "name": "b" }));
            }
            41 | 60 => ("transaction", self.transaction()),
            61 => ("drive-backup", self.copy_to_new_file(id, node)),
            62 => ("drive-mirror", self.copy_to_new_file(id, node)),
            42 => {
                let queries = [
                    "query-block",
                    "query-named-block-nodes",
                    "query-blockstats",
                    "query-jobs",
                    "query-block-jobs",
                    "query-block-exports",
                    "x-debug-query-block-graph",
                ];
                return ((*self.random.pick(&queries)).to_owned(), json!({}));
            }
            43 => match self.random.one_in(2) {
                true => ("object-add", json!({ "qom-type": "throttle-group", "id": "tg" })),
                false => ("object-del", json!({ "id": "tg" })),
            },
            44 => ("blockdev-snapshot-internal-sync", json!({ "device": node, "name": "s" })),
            45 => ("blockdev-snapshot-delete-internal-sync", json!({ "device": node, "name": "s" })),
            46 => {
                let below = &self.images[0].0;
                let named = json!({ "device": node, "image-node-name": other, "backing-file": below });
                ("change-backing-file", named)
            }
            _ => ("x-blockdev-set", json!({ "node-name": node, "options": "discard=unmap" })),
        };
        if ["blockdev-mirror", "blockdev-backup"].contains(&name) {
            if self.random.one_in(4) {
                arguments["speed"] = json!(*self.random.pick(&[1, 100_000]));
            }
            if self.random.one_in(5) {
                arguments["filter-node-name"] = json!(self.node());
            }
        }
        (name.to_owned(), arguments)
    }
}

/// One client's commands. That each is answered is what the client insists on.
fn client(mut qmp: Qmp, mut inventor: Inventor<'_>) -> usize {
    let mut done = 0;
    for turn in 0..COMMANDS {
        if inventor.random.one_in(16) {
            let id = inventor.id();
            read_and_write(inventor.scratch, id, &mut inventor.random);
            continue;
        }
        let (name, arguments) = match turn < FIRST_NODES {
            true => ("blockdev-add".to_owned(), inventor.options()),
            false => inventor.command(),
        };
        println!("{name} {arguments}");
        let answer = qmp.ask(&name, arguments.clone());
        done += usize::from(answer.is_ok());
        println!("  {answer:?}");
        if name == "transaction" && answer.is_err() {
            nothing_is_left_of(&mut qmp, &arguments);
        }
    }
    done
}

/// Of a transaction that was refused there is no job, no file and no bitmap: not at work, not ended.
fn nothing_is_left_of(qmp: &mut Qmp, transaction: &Value) {
    let (jobs, nodes) =
        (qmp.ok("query-jobs", json!({})), qmp.ok("query-named-block-nodes", json!({})).to_string());
    for action in transaction["actions"].as_array().expect("a list") {
        let data = &action["data"];
        if let Some(job) = data["job-id"].as_str() {
            assert!(!jobs.to_string().contains(job), "{job} of {transaction} is among {jobs}");
        }
        if let Some(bitmap) = data["name"].as_str() {
            assert!(!nodes.contains(bitmap), "{bitmap} of {transaction} is in {nodes}");
        }
        if action["type"] == "drive-backup" {
            let file = data["target"].as_str().expect("a path");
            assert!(!std::path::Path::new(file).exists(), "{file} of {transaction} is there");
        }
    }
}

/// A client of an export, if there is one called so. What it asks for may fail.
fn read_and_write(scratch: &Scratch, export: &str, random: &mut Random) {
    let Ok(mut client) = Client::connect(&scratch.file("nbd"), export) else { return };
    for _ in 0..4 {
        let at = random.below((client.size() / 4096).max(1)) * 4096;
        if client.write(at, &[1; 4096]).and_then(|()| client.read(at, 4096).map(drop)).is_err() {
            return;
        }
    }
}

/// Ends all jobs, exports and nodes, as a client does that knows what there is.
fn take_all_away(qmp: &mut Qmp) {
    let (start, list) = (Instant::now(), |answer: Value| answer.as_array().cloned().expect("a list"));
    let mut refusals = Vec::new();
    loop {
        let jobs = list(qmp.ok("query-jobs", json!({})));
        let exports = list(qmp.ok("query-block-exports", json!({})));
        let nodes = list(qmp.ok("query-named-block-nodes", json!({})));
        let whole = nodes.iter().filter(|node| node.get("part-of").is_none()).count();
        if jobs.is_empty() && exports.is_empty() && whole == 0 {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "{jobs:?} {exports:?} {nodes:?} stay: {refusals:?}"
        );
        refusals.clear();
        let mut ask = |command: &str, arguments: Value| refusals.extend(qmp.ask(command, arguments).err());
        for job in &jobs {
            for verb in ["job-resume", "job-cancel", "job-dismiss"] {
                ask(verb, json!({ "id": job["id"] }));
            }
        }
        for export in &exports {
            ask("block-export-del", json!({ "id": export["id"], "mode": "hard" }));
        }
        for node in &nodes {
            ask("blockdev-del", json!({ "node-name": node["node-name"] }));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn life(seed: u64) {
    let scratch = Scratch::new();
    let mut random = Random::new(seed);
    let mut images = Images::new();
    for number in 0..8 {
        let (path, size) = (scratch.name(&format!("i{number}")), *random.pick(&["1M", "2M"]));
        let format = *random.pick(&["qcow2", "qcow2", "raw"]);
        let below = images.last().filter(|_| format == "qcow2" && random.one_in(2)).cloned();
        let backing = below.iter().flat_map(|(path, format)| ["-b", path, "-F", format]);
        qemu_img(["create", "-q", "-f", format].into_iter().chain(backing).chain([&*path, size])).ok();
        images.push((path, format));
    }
    let (mut server, mut qmp) = begin_with_nothing(&scratch);
    let nbd = json!({ "addr": { "type": "unix", "data": { "path": scratch.name("nbd") } } });
    qmp.ok("nbd-server-start", nbd);
    // Its loops begin to listen one after the other: some time after the last of them nothing changes any more.
    let (mut before, mut same) = (0, 0);
    server.wait_until(|server| {
        let last = std::mem::replace(&mut before, server.descriptors());
        same = if last == before { same + 1 } else { 0 };
        (same == SAME_LOOKS).then_some(())
    });
    println!("seed {seed}");
    let done: usize = std::thread::scope(|scope| {
        let clients = [1, 2].map(|number| {
            let random = Random::new(seed << 8 | number);
            let inventor = Inventor { random, images: &images, scratch: &scratch, names: 0 };
            let qmp = Qmp::connect(&scratch.file("qmp"));
            scope.spawn(move || client(qmp, inventor))
        });
        clients.map(|client| client.join().expect("each command is answered")).iter().sum()
    });
    assert!(done > COMMANDS / 5, "{done} commands were done: this shows nothing");
    take_all_away(&mut qmp);
    let _ = qmp.ask("object-del", json!({ "id": "tg" }));
    let mut looks = 0;
    let left = server.wait_until(|server| {
        let open = server.open_files();
        looks += 1;
        if looks == 1000 {
            println!("still open, {before} at the start: {open:?}");
        }
        (open.len() <= before).then_some(())
    });
    assert!(left.is_some(), "the server ended: {}", server.stderr());
    server.stop();
    for (path, _) in images.iter().filter(|(_, format)| *format == "qcow2") {
        // Without the backing image: change-backing-file has the header name any file, of any format.
        let file = json!({ "driver": "file", "filename": path });
        let alone = json!({ "driver": "qcow2", "backing": null, "file": file });
        assert_leaks_at_most(format!("json:{alone}").as_ref());
    }
}

/// Found so: a node that was its own file ended the server, a job to a filter over its source hung it.
#[test]
fn commands_that_a_seed_makes_up_are_answered_and_leave_nothing_behind() {
    let first = number("COWHAND_QMP_SEED").unwrap_or(1);
    let lives = number("COWHAND_QMP_LIVES").unwrap_or(LIVES);
    (first..first + lives).for_each(life);
}
