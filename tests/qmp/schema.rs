//! What commands take and events tell, against QEMU's own description of itself.

use std::collections::{BTreeMap, BTreeSet};

use black_box::{Run, Scratch};
use serde_json::{Value, json};

use super::begin_with_nothing;

/// Arguments of QEMU's, of any version looked at, that are refused here (docs/reference/qmp.md). Options of blockdev-reopen
/// and of files in blockdev-create are blockdev-add's.
const NOT_HERE: [&str; 43] = [
    "block-export-add(vhost-user-blk).addr(unix).abstract",
    "block-export-add(vhost-user-blk).addr(unix).tight",
    "block-export-add.allow-inactive",
    "block-export-add.iothread",
    "blockdev-add.active",
    "blockdev-add(file).aio-max-batch",
    "blockdev-add(file).aio=native",
    "blockdev-add(file).drop-cache",
    "blockdev-add(file).pr-manager",
    "blockdev-add(file).x-check-cache-dropped",
    "blockdev-add(host_device).aio-max-batch",
    "blockdev-add(host_device).aio=native",
    "blockdev-add(host_device).drop-cache",
    "blockdev-add(host_device).pr-manager",
    "blockdev-add(host_device).x-check-cache-dropped",
    "blockdev-add(http).proxy-password-secret",
    "blockdev-add(http).proxy-username",
    "blockdev-add(https).proxy-password-secret",
    "blockdev-add(https).proxy-username",
    "blockdev-add(nbd).x-dirty-bitmap",
    "blockdev-add(rbd).auth-client-required",
    "blockdev-add(rbd).auth-client-required[]=cephx",
    "blockdev-add(rbd).auth-client-required[]=none",
    "blockdev-add(rbd).encrypt",
    "blockdev-add(rbd).encrypt.format",
    "blockdev-add(rbd).encrypt.parent",
    "nbd-server-start.addr(inet).data.keep-alive",
    "nbd-server-start.addr(inet).data.mptcp",
    "nbd-server-start.addr(inet).data.to",
    "nbd-server-start.addr(unix).data.abstract",
    "nbd-server-start.addr(unix).data.tight",
    "nbd-server-start.handshake-max-seconds",
    "nbd-server-start.tls-authz",
    "object-add(secret).iv",
    "object-add(secret).keyid",
    "object-add(secret).loaded",
    "object-add(secret_keyring).iv",
    "object-add(secret_keyring).keyid",
    "object-add(secret_keyring).loaded",
    "object-add(tls-creds-x509).loaded",
    "object-add(tls-creds-x509).passwordid",
    "object-add(tls-creds-x509).priority",
    "object-add(tls-creds-x509).sanity-check",
];

/// Options of blkdebug that are refused here, with what they take.
const OF_BLKDEBUG_NOT_HERE: [&str; 8] = [
    "align",
    "max-discard",
    "max-transfer",
    "max-write-zero",
    "opt-discard",
    "opt-write-zero",
    "take-child-perms",
    "unshare-child-perms",
];

/// Events of its rules that have no place in these engines (docs/reference/compat.md).
const EVENTS_NOT_HERE: [&str; 19] = [
    "cluster_alloc_space",
    "cor_write",
    "cow_write",
    "empty_image_prepare",
    "l1_shrink_free_l2_clusters",
    "l1_shrink_write_table",
    "l2_update_compressed",
    "pwritev_rmw_after_head",
    "pwritev_rmw_after_tail",
    "pwritev_rmw_head",
    "pwritev_rmw_tail",
    "refblock_alloc",
    "refblock_alloc_write",
    "refblock_alloc_write_blocks",
    "refblock_update",
    "reftable_grow",
    "reftable_update",
    "vmstate_load",
    "vmstate_save",
];

fn is_known_of_blkdebug(path: &str) -> bool {
    let Some(option) = path.strip_prefix("blockdev-add(blkdebug).") else { return false };
    let event = ["inject-error[].event=", "set-state[].event="];
    match event.iter().find_map(|before| option.strip_prefix(before)) {
        Some(event) => EVENTS_NOT_HERE.contains(&event),
        None => OF_BLKDEBUG_NOT_HERE.contains(&option.split("[]").next().unwrap_or(option)),
    }
}

/// Arguments of jobs that QEMU has and that are refused here, or that only we have or only newer versions of QEMU.
const OF_JOBS: [(&str, &[&str]); 6] = [
    ("block-commit", &["backing-mask-protocol"]),
    ("block-stream", &["backing-mask-protocol"]),
    ("blockdev-backup", &["discard-source", "on-cbw-error", "x-perf.min-cluster-size"]),
    ("drive-backup", &["discard-source", "on-cbw-error", "x-perf.min-cluster-size"]),
    ("blockdev-mirror", &["bitmap", "bitmap-mode", "buf-size", "target-is-zero"]),
    ("drive-mirror", &["bitmap", "bitmap-mode", "buf-size", "unmap"]),
];

fn is_known_of_jobs(path: &str) -> bool {
    let path = path.replace("transaction.actions[](blockdev-backup).data.", "blockdev-backup.");
    let path = path.replace("transaction.actions[](drive-backup).data.", "drive-backup.");
    OF_JOBS.iter().any(|(command, arguments)| {
        let argument = path.strip_prefix(command).and_then(|path| path.strip_prefix('.'));
        argument.is_some_and(|found| {
            arguments.iter().any(|known| {
                found == *known || found.strip_prefix(known).is_some_and(|rest| rest.starts_with(['.', '=']))
            })
        })
    })
}

/// What blockdev-create takes of QEMU's and is refused here: ciphers and hashes that are not made, formats of backing images that are not
/// read, and attributes of files.
fn is_known_of_create(path: &str) -> bool {
    let Some(option) = path.strip_prefix("blockdev-create.options") else { return false };
    let choices = ["backing-fmt=", "cipher-alg=", "cipher-mode=", "hash-alg=", "ivgen-hash-alg="];
    let members = ["(file).extent-size-hint", "(file).nocow", "(luks).header", "(luks).detached-header"];
    choices.iter().any(|choice| option.contains(choice)) || members.contains(&option)
}

/// Only we have these, or only newer versions of QEMU. The members of an NBD disk's `server` are described without the variants
/// that its `type` decides.
const OURS: [&str; 51] = [
    "BLOCK_IO_ERROR.qom-path",
    "block-commit.x-converge-after",
    "block-export-add(ublk)",
    "block-export-add(ublk).number",
    "block-export-add(vhost-user-blk).request-merging",
    "block-export-add(vhost-user-blk).serial",
    "block_resize.x-shrink",
    "block_set_io_throttle.weight",
    "blockdev-add(copy-before-write).min-cluster-size",
    "blockdev-add(http).cache-file",
    "blockdev-add(http).cache-size",
    "blockdev-add(http).on-remote-error",
    "blockdev-add(http).on-remote-error=report",
    "blockdev-add(http).on-remote-error=wait",
    "blockdev-add(http).prefetch-trace",
    "blockdev-add(http).remote-timeout",
    "blockdev-add(https).cache-file",
    "blockdev-add(https).cache-size",
    "blockdev-add(https).on-remote-error",
    "blockdev-add(https).on-remote-error=report",
    "blockdev-add(https).on-remote-error=wait",
    "blockdev-add(https).prefetch-trace",
    "blockdev-add(https).remote-timeout",
    "blockdev-add(https).tls-certificates",
    "blockdev-add(https).tls-creds",
    "blockdev-add(luks).header",
    "blockdev-add(nbd).on-remote-error",
    "blockdev-add(nbd).on-remote-error=report",
    "blockdev-add(nbd).on-remote-error=wait",
    "blockdev-add(nbd).remote-timeout",
    "blockdev-add(nbd).server.host",
    "blockdev-add(nbd).server.ipv4",
    "blockdev-add(nbd).server.ipv6",
    "blockdev-add(nbd).server.path",
    "blockdev-add(nbd).server.port",
    "blockdev-add(nbd).server.type=inet",
    "blockdev-add(nbd).server.type=unix",
    "blockdev-add(nbd).tls-certificates",
    "blockdev-add(qcow2).allocation-reserve",
    "blockdev-add(qcow2).discard-no-unref",
    "blockdev-add(qcow2).prefetch",
    "blockdev-add(qcow2).prefetch=all",
    "blockdev-add(qcow2).prefetch=off",
    "blockdev-add(qcow2).prefetch=table",
    "blockdev-add(rbd).on-remote-error",
    "blockdev-add(rbd).on-remote-error=report",
    "blockdev-add(rbd).on-remote-error=wait",
    "blockdev-add(rbd).remote-timeout",
    "blockdev-add.bitmaps",
    "blockdev-mirror.x-converge-after",
    "drive-mirror.x-converge-after",
];

/// QEMU's schema lets this out, and QEMU then misses it.
const NEEDED: [&str; 1] = ["object-add(tls-creds-x509).dir"];

/// Everything that is described, by name.
struct Schema(BTreeMap<String, Value>);

impl Schema {
    fn new(entries: &Value) -> Self {
        let entries = entries.as_array().expect("a list").iter();
        Self(
            entries
                .map(|entry| (entry["name"].as_str().expect("a name").to_owned(), entry.clone()))
                .collect(),
        )
    }

    fn of_qemu() -> Self {
        let talk = r#"{"execute":"qmp_capabilities"}{"execute":"query-qmp-schema"}{"execute":"quit"}"#;
        let qemu = Run::new("qemu-system-x86_64").args(["-M", "none", "-display", "none", "-nodefaults"]);
        let said = qemu.args(["-qmp", "stdio"]).input(talk).ok();
        let mut answers = serde_json::Deserializer::from_str(&said).into_iter::<Value>();
        let schema = answers.find_map(|answer| {
            let answer = answer.expect("JSON");
            answer["return"].is_array().then(|| answer["return"].clone())
        });
        Self::new(&schema.expect("a schema"))
    }

    fn names(&self, kind: &str) -> BTreeSet<&str> {
        self.0.iter().filter(|(_, entry)| entry["meta-type"] == kind).map(|(name, _)| name.as_str()).collect()
    }

    /// Everything that can be said to a command or by an event: paths of members and the values of choices, and whether
    /// it must be there. Of a union only the variants in `known`, if there are any.
    fn sayings(&self, name: &str, known: Option<&BTreeMap<String, bool>>) -> BTreeMap<String, bool> {
        let mut found = BTreeMap::new();
        let kind = self.0[name]["arg-type"].as_str().expect("a type");
        self.follow(kind, name, known, &mut Vec::new(), &mut found);
        found
    }

    fn follow<'a>(
        &'a self,
        name: &'a str,
        path: &str,
        known: Option<&BTreeMap<String, bool>>,
        above: &mut Vec<&'a str>,
        found: &mut BTreeMap<String, bool>,
    ) {
        // A node's children are nodes.
        if above.contains(&name) {
            return;
        }
        above.push(name);
        let entry = &self.0[name];
        let text = |value: &'a Value| value.as_str().expect("a text");
        let list = |what: &str| entry[what].as_array().map(Vec::as_slice).unwrap_or_default();
        match text(&entry["meta-type"]) {
            "array" => self.follow(text(&entry["element-type"]), &format!("{path}[]"), known, above, found),
            "alternate" => {
                list("members")
                    .iter()
                    .for_each(|one| self.follow(text(&one["type"]), path, known, above, found));
            }
            "enum" => {
                for value in list("values") {
                    found.insert(format!("{path}={}", text(value)), false);
                }
            }
            "object" => {
                let tag = entry["tag"].as_str();
                for member in list("members") {
                    let path = format!("{path}.{}", text(&member["name"]));
                    found.insert(path.clone(), member.get("default").is_none());
                    if Some(text(&member["name"])) != tag {
                        self.follow(text(&member["type"]), &path, known, above, found);
                    }
                }
                for variant in list("variants") {
                    let path = format!("{path}({})", text(&variant["case"]));
                    if known.is_none_or(|known| known.contains_key(&path)) {
                        found.insert(path.clone(), false);
                        self.follow(text(&variant["type"]), &path, known, above, found);
                    }
                }
            }
            _ => {}
        }
        above.pop();
    }
}

#[test]
fn arguments_and_events_are_those_of_qemu_but_for_what_the_documentation_says() {
    let scratch = Scratch::new();
    let (_server, mut client) = begin_with_nothing(&scratch);
    let (ours, qemu) = (Schema::new(&client.ok("query-qmp-schema", json!({}))), Schema::of_qemu());
    let (mut missing, mut additional, mut needed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let of_nodes = [
        "blockdev-reopen.options[]",
        "blockdev-create.options(qcow2).file",
        "blockdev-create.options(qcow2).data-file",
        "blockdev-create.options(luks).file",
    ];
    let as_in_add = |path: &String| match of_nodes.iter().find_map(|before| path.strip_prefix(before)) {
        Some(option) => format!("blockdev-add{option}"),
        None => path.clone(),
    };
    let commands = ours.names("command");
    for name in commands.intersection(&qemu.names("command")) {
        let here = ours.sayings(name, None);
        let there = qemu.sayings(name, Some(&here));
        missing.extend(there.keys().filter(|path| !here.contains_key(*path)).map(as_in_add));
        additional.extend(here.keys().filter(|path| !there.contains_key(*path)).map(as_in_add));
        let is_needed = |(path, required): &(&String, &bool)| **required && there.get(*path) == Some(&false);
        needed.extend(here.iter().filter(is_needed).map(|(path, _)| as_in_add(path)));
    }
    let events = ours.names("event");
    for name in events.intersection(&qemu.names("event")) {
        let (here, there) = (ours.sayings(name, None), qemu.sayings(name, None));
        missing.extend(
            there
                .iter()
                .filter(|(path, always)| **always && here.get(*path) != Some(&true))
                .map(|(path, _)| path.clone()),
        );
        additional.extend(here.keys().filter(|path| !there.contains_key(*path)).cloned());
    }
    let unknown = |found: BTreeSet<String>, known: &[&str]| -> Vec<String> {
        // QEMU has no drivers of these names.
        let is_of_stores =
            |path: &str| path.starts_with("blockdev-add(s3)") || path.starts_with("blockdev-add(chunked)");
        let is_known = |path: &str| {
            known.contains(&path)
                || is_known_of_blkdebug(path)
                || is_known_of_jobs(path)
                || is_known_of_create(path)
                || is_of_stores(path)
        };
        found.into_iter().filter(|path| !is_known(path)).collect()
    };
    let differences = [
        ("not here", unknown(missing, &NOT_HERE)),
        ("only here", unknown(additional, &OURS)),
        ("must be given here", unknown(needed, &NEEDED)),
    ];
    assert!(differences.iter().all(|(_, paths)| paths.is_empty()), "{differences:#?}");
}

#[test]
fn the_schema_names_every_command() {
    let scratch = Scratch::new();
    let (_server, mut client) = begin_with_nothing(&scratch);
    let schema = Schema::new(&client.ok("query-qmp-schema", json!({})));
    let commands = client.ok("query-commands", json!({}));
    let commands = commands.as_array().expect("a list").iter().map(|command| &command["name"]);
    let commands: BTreeSet<&str> = commands.map(|name| name.as_str().expect("a name")).collect();
    assert_eq!(schema.names("command"), commands);
}
