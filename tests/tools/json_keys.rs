//! What `--output json` prints is in `--help`: scripts were written by trying a command and looking at its keys, and learned of those that
//! may be absent when they were.
//!
//! Each command that has `--output` runs on small images; every key that it prints must be named in its long help.

use std::collections::{BTreeMap, BTreeSet};

use black_box::peer::qemu_io_ok;
use black_box::{Moto, Run, Scratch, Server, cowhand};
use serde_json::Value;

/// What stands before the keys in a help text.
const HEADING: &str = "\nJSON (--output json)";

/// Keys that the user chooses.
const CHOSEN: &str = "labels";

/// What is there before the commands run.
const IMAGES: [&str; 9] = [
    "create -q -o extended_l2=on disk.qcow2 8M",
    "create -q -b disk.qcow2 -F qcow2 top.qcow2",
    "create -q -f raw disk.raw 8M",
    "create -q -o data_file=outside.raw outside.qcow2 8M",
    "create -q -f vmdk disk.vmdk 8M",
    "create -q --object secret,id=k,data=hush -f luks -o key-secret=k,iter-time=10 disk.luks 8M",
    "create -q --object secret,id=k,data=hush -o encrypt.format=luks,encrypt.key-secret=k,encrypt.iter-time=10 secret.qcow2 8M",
    "bitmap --add disk.qcow2 changes",
    "create -q vms/d.qcow2 8M",
];

/// Commands in their order, with what they do. Several forms of one command have other keys.
const RUNS: [(&str, &str); 48] = [
    ("info", "--backing-chain top.qcow2"),
    ("info", "--limits --medium disk.qcow2"),
    ("info", "outside.qcow2"),
    ("info", "disk.vmdk"),
    ("info", "disk.luks"),
    ("info", "secret.qcow2"),
    ("map", "top.qcow2"),
    ("check", "top.qcow2"),
    ("show", "disk.qcow2"),
    ("show", "disk.raw"),
    ("compare", "top.qcow2 disk.qcow2"),
    ("compare", "disk.qcow2 disk.raw"),
    ("measure", "-O qcow2 disk.qcow2"),
    ("snapshot", "-l disk.qcow2"),
    ("verify", "disk.qcow2 disk.raw"),
    ("verify", "--check SUMS"),
    ("bench", "-c 10 disk.qcow2"),
    ("bench", "-c 10 -f raw disk.raw"),
    ("cache advise", "--memory 1M --trace day.trace traced.qcow2"),
    ("create", "--suggest 1T --use database"),
    ("throttle explain", "iops=100,iops_max=2000,iops_max_length=60,group=g,weight=7"),
    ("throttle show", "qmp"),
    ("status", "qmp"),
    ("backup", "disk.raw -f raw points"),
    ("backup", "--list points"),
    ("backup", "--verify points"),
    ("push", "disk.qcow2 s3://images/all/disk"),
    ("pack", "day.trace s3://images/all/disk"),
    ("prune", "s3://images/all"),
    ("flatten", "top.qcow2"),
    ("compact", "--dry-run disk.qcow2"),
    ("checkpoint", "vms/d.qcow2 one"),
    ("checkpoint", "vms/d.qcow2 two"),
    ("fork", "vms/d.qcow2@one vms/f.qcow2 --count 2"),
    ("diff", "vms/d.qcow2@one disk.qcow2"),
    ("log", "vms"),
    ("publish", "vms/d.qcow2@two s3://images/vms/d"),
    ("restore", "s3://images/vms/d new.qcow2"),
    ("restore", "--full s3://images/vms/d whole.qcow2"),
    ("restore", "--server qmp --serve s3://images/vms/d restored.qcow2"),
    ("status", "qmp"),
    ("rollback", "vms/d.qcow2 @two"),
    ("checkpoint", "--delete --dry-run vms/d.qcow2@one"),
    ("gc", "--unnamed vms/d.qcow2"),
    ("forget", "--dry-run --max-depth 1 vms"),
    ("forget", "vms"),
    ("log", "vms"),
    ("show", "vms"),
];

/// Images, a store with a bucket, and a server whose control socket is `qmp`.
struct Scene {
    scratch: Scratch,
    store: Moto,
    server: Server,
}

impl Scene {
    fn new() -> Self {
        let (scratch, store) = (Scratch::new(), Moto::start());
        store.put("/images", b"");
        std::fs::create_dir(scratch.file("vms")).expect("a directory");
        let run = |words: &str| drop(cowhand(words.split(' ')).current_dir(scratch.path()).ok());
        IMAGES.iter().copied().for_each(run);
        let writes = |image: &str| qemu_io_ok(&["-f", "qcow2"], &scratch.name(image), &["write -P 1 0 1M"]);
        writes("disk.qcow2");
        run("snapshot -q -c before disk.qcow2");
        // Its trace is looked at while the server has ended; the disk of the other stays open.
        run("create -q traced.qcow2 8M");
        run("create -q served.qcow2 8M");
        writes("traced.qcow2");
        let traced = Server::start(["--trace", &scratch.name("day.trace"), &scratch.name("traced.qcow2")]);
        drop(
            Run::new("qemu-io")
                .args(["-f", "raw", "-c", "read 0 64k", "-c", "read 0 64k"])
                .arg(traced.uri(""))
                .ok(),
        );
        traced.stop();
        let sums = cowhand(["verify", "disk.qcow2"]).current_dir(scratch.path()).ok();
        scratch.write("SUMS", sums.as_bytes());
        let server = serve(&scratch, &store);
        Self { scratch, store, server }
    }

    /// What a command prints, whatever its exit code says.
    fn json(&self, command: &str, words: &str) -> Value {
        let words = command.split(' ').chain(["--output", "json"]).chain(words.split(' '));
        let run = self.store.below(cowhand(words)).current_dir(self.scratch.path());
        let outcome = run.outcome();
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome}"))
    }
}

/// A server of a limited overlay, which a client has read, outside the sandbox: it makes a disk of its own later.
fn serve(scratch: &Scratch, store: &Moto) -> Server {
    let base = scratch.name("served.qcow2");
    let disk = scratch.name("limited.qcow2");
    let overlay = ["create", "-q", "-b", &base, "-F", "qcow2", &disk];
    drop(cowhand(overlay).ok());
    let limits =
        "throttling.iops-total=1000,throttling.iops-total-max=2000,throttling.iops-total-max-length=2";
    let start = black_box::server::Start::new(["--qmp", &scratch.name("qmp"), "--sandbox", "off"]);
    let start = start.env("AWS_ENDPOINT_URL", store.endpoint());
    let start = start.env("AWS_ACCESS_KEY_ID", "A").env("AWS_SECRET_ACCESS_KEY", "hush");
    let start = start.current_dir(scratch.path()).arg(format!("file={disk},{limits}"));
    let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    drop(Run::new("qemu-io").args(["-f", "raw", "-c", "read 0 64k"]).arg(server.uri("")).ok());
    server
}

/// Every key of `value`, at any depth.
fn keys(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                into.insert(name.clone());
                if name != CHOSEN {
                    keys(member, into);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, into)),
        _ => {}
    }
}

/// The keys that a help text names: a line of two spaces, names with commas between, two spaces.
fn named(help: &str) -> BTreeSet<String> {
    let (_, text) = help.split_once(HEADING).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    let names = lines.flat_map(|line| line.split("  ").next().unwrap_or_default().split(", "));
    names.flat_map(|name| expanded(name.trim_end_matches('?'))).collect()
}

/// `{rd,wr}_bytes` is two names.
fn expanded(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else { return vec![name.to_owned()] };
    let (words, after) = rest.split_once('}').expect("a brace that is closed");
    words.split(',').flat_map(|word| expanded(&format!("{before}{word}{after}"))).collect()
}

/// Commands that have the option, by the reference of all commands.
fn commands_with_output() -> BTreeSet<String> {
    let manual = cowhand(["manual", "--markdown"]).ok();
    let sections = manual.split("\n## cowhand ").skip(1);
    let with_output = sections.filter(|section| section.contains("\n| `--output "));
    with_output.map(|section| section.lines().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn every_key_of_json_output_is_named_in_the_help_of_its_command() {
    let scene = Scene::new();
    let mut printed: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (command, words) in RUNS {
        keys(&scene.json(command, words), printed.entry(command).or_default());
    }
    scene.server.stop();
    let commands: BTreeSet<String> = printed.keys().map(|command| (*command).to_owned()).collect();
    assert_eq!(commands, commands_with_output());
    let mut missing = Vec::new();
    for (command, keys) in &printed {
        assert!(!keys.is_empty(), "{command} printed no key");
        let help = cowhand(command.split(' ').chain(["--help"])).ok();
        let named = named(&help);
        missing.extend(keys.difference(&named).map(|key| format!("{command} --help: {key}")));
        let short = cowhand(command.split(' ').chain(["-h"])).ok();
        assert!(!short.contains(HEADING), "{command} -h");
    }
    assert_eq!(missing, Vec::<String>::new());
}
