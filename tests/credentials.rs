//! What a name may hold of credentials, typed in every wrong way, given to every command: it is in no output and no log.

use std::path::Path;
use std::time::Duration;

use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Run, Scratch, cowhand};
use serde_json::json;

/// Whatever of it is seen is too much.
const CREDENTIALS: [&str; 2] = ["hush", "quiet"];

/// Names of disks with credentials, most of them as nothing understands them. Nothing listens at port 1.
const NAMES: [&str; 24] = [
    "http://user:hush@127.0.0.1:1/x",
    "http://hush@127.0.0.1:1/x",
    "HTTP://user:hush@127.0.0.1:1/x",
    "http:/user:hush@127.0.0.1/x",
    r"https:\\user:hush@h/x",
    "https://user:hush@127.0.0.1:1/x?X-Amz-Signature=quiet#quiet",
    "http://127.0.0.1:1/x?sig=quiet",
    "http://user:hush@",
    "http://user:hu/sh@127.0.0.1/hush@x",
    "http://[::1:hush@x]/y",
    "s3://user:hush@images/x",
    "s3://A:hush@127.0.0.1/b/k",
    "nbd://user:hush@127.0.0.1:1/x",
    "nbds://user:hush@127.0.0.1:1/x",
    "nbd+unix://user:hush@/x?socket=/none",
    "chunked:http://u:hush@127.0.0.1:1/x",
    "chunked:https://127.0.0.1:1/x?sig=quiet",
    "rbd:p/i:id=admin:key=AQBhush==:conf=/none",
    "ssh://user:hush@h/x",
    r#"json:{"driver":"raw","file":{"driver":"http","url":"http://user:hush@127.0.0.1:1/x"}}"#,
    r#"json:{"driver":"raw","file":{"driver":"http","url":"http://127.0.0.1:1/x","cookie":["c=quiet"]}}"#,
    r#"json:{"driver":"raw","file":{"driver":"rbd","pool":"p","image":"i","key":"hush"}}"#,
    r#"json:{"driver":"raw","file":"http://user:hush@127.0.0.1:1/x""#,
    "driver=raw,file.driver=http,file.url=http://127.0.0.1:1/x?sig=quiet,file.cookie=c=quiet,file.password=hush",
];

struct Scene {
    scratch: Scratch,
}

impl Scene {
    fn new() -> Self {
        let scratch = Scratch::new();
        scratch.write("disk.raw", &[7; 4096]);
        Self { scratch }
    }

    fn run(&self, words: &[&str]) -> Run {
        let run = cowhand(words).current_dir(self.scratch.path()).env("COWHAND_LOG", "trace");
        let run = run.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1").env("AWS_SESSION_TOKEN", "quiet");
        run.env("AWS_ACCESS_KEY_ID", "A").env("AWS_SECRET_ACCESS_KEY", "hush").limit(Duration::from_secs(30))
    }

    /// Runs it, whatever becomes of it.
    fn tells_nothing(&self, words: &[&str]) {
        let outcome = self.run(words).outcome();
        assert!(!outcome.timed_out, "{words:?}: {outcome}");
        assert_unreported(&format!("{}{}", outcome.stdout, outcome.stderr), &format!("{words:?}"));
        assert!(!outcome.stderr.contains("panicked"), "{outcome}");
    }
}

fn assert_unreported(text: &str, of: &str) {
    for credential in CREDENTIALS {
        assert!(!text.contains(credential), "{of} says {credential}: {text}");
    }
}

/// Names that a driver refused were repeated as they were typed, with the password.
#[test]
fn no_command_repeats_what_lets_in_of_a_name_that_it_cannot_use() {
    let scene = Scene::new();
    for name in NAMES {
        for words in [
            &["info", name][..],
            &["info", "--output", "json", "--image-opts", name],
            &["check", name],
            &["map", name],
            &["io", "-c", "read 0 512", name],
            &["resize", "-f", "raw", name, "+1M"],
            &["convert", "-O", "raw", name, "new.raw"],
            &["convert", "-f", "raw", "-O", "raw", "disk.raw", name],
            &["compare", "-f", "raw", "disk.raw", name],
            &["dd", &format!("if={name}"), "of=new.raw"],
            &["dd", "if=disk.raw", &format!("of={name}")],
            &["create", "-f", "qcow2", "-b", name, "-F", "raw", "new.qcow2", "1M"],
            &["push", "-f", "raw", "disk.raw", name],
            &["pull", name, "new.raw"],
            &["pack", "disk.raw", name],
            &["prune", name],
            &["backup", "disk.raw", name],
            &["mount", name, "disk.raw"],
            &["serve", "--socket", "s", name],
            &["serve", "--overlay", "top.qcow2", name],
            &["serve", "--allow-connect", name, "disk.raw"],
            &["measure", "--size", name],
        ] {
            scene.tells_nothing(words);
        }
    }
}

/// An image names a server as its author reached it: everybody who asked what the image is read the password.
#[test]
fn an_image_whose_backing_name_has_a_password_is_shown_without_it() {
    let scene = Scene::new();
    for name in NAMES {
        let create = ["create", "-f", "qcow2", "-u", "-b", name, "-F", "raw", "top.qcow2", "1M"];
        scene.tells_nothing(&create);
        if !scene.scratch.file("top.qcow2").exists() {
            continue;
        }
        for words in [
            &["info", "top.qcow2"][..],
            &["info", "--output", "json", "top.qcow2"],
            &["info", "--backing-chain", "top.qcow2"],
            &["show", "top.qcow2"],
            &["check", "top.qcow2"],
            &["map", "top.qcow2"],
            &["compare", "-F", "raw", "top.qcow2", "disk.raw"],
            &["serve", "--socket", "s", "top.qcow2"],
        ] {
            scene.tells_nothing(words);
        }
        std::fs::remove_file(scene.scratch.file("top.qcow2")).expect("an image");
    }
}

/// The same over QMP, whose answers and log programs keep.
#[test]
fn no_answer_and_no_event_of_qmp_has_what_lets_in() {
    let scene = Scene::new();
    let control = scene.scratch.file("qmp");
    let start = Start::new(["--log", "trace", "-f", "raw", "--allow-connect", "127.0.0.1:1", "--qmp"]);
    let mut server = start
        .arg(&control)
        .arg(scene.scratch.file("disk.raw"))
        .env("AWS_ACCESS_KEY_ID", "A")
        .env("AWS_SECRET_ACCESS_KEY", "hush")
        .listen()
        .unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    let mut qmp = Qmp::connect(&control);
    let file = |more: serde_json::Value| json!({ "driver": "raw", "read-only": true, "node-name": "n", "file": more });
    for added in [
        file(json!({ "driver": "http", "url": "http://user:hush@127.0.0.1:1/x" })),
        file(json!({ "driver": "http", "url": "http://127.0.0.1:1/x?sig=quiet", "cookie": "c=quiet" })),
        file(json!({ "driver": "http", "url": "http://127.0.0.1:1/x", "password": "hush" })),
        file(
            json!({ "driver": "s3", "bucket": "images", "key": "k", "endpoint": "http://u:hush@127.0.0.1:1" }),
        ),
        file(json!({ "driver": "rbd", "pool": "p", "image": "i", "key": "hush" })),
        file(json!({ "driver": "file", "filename": "http://user:hush@127.0.0.1:1/x" })),
        json!({ "driver": "raw", "node-name": "n", "file": "http://user:hush@127.0.0.1:1/x" }),
        json!({ "driver": "http://user:hush@h/", "node-name": "n" }),
    ] {
        let refused = qmp.refused("blockdev-add", added.clone());
        assert_unreported(&refused, &added.to_string());
    }
    for command in ["query-block", "query-named-block-nodes", "x-query-remotes"] {
        assert_unreported(&qmp.ok(command, json!({})).to_string(), command);
    }
    assert_unreported(&server.stop(), "the log");
}

/// Keys of a store are in the environment of a process, and so in its memory: a dump of it would have them.
#[test]
fn a_process_that_has_keys_of_a_store_leaves_no_core_dump() {
    let scratch = Scratch::new();
    scratch.write("disk.raw", &[7; 4096]);
    std::fs::create_dir_all(scratch.file("home/.aws")).expect("a directory");
    let limit = |set: &[(&str, &str)]| {
        let start = Start::new(["-f", "raw"]).arg(scratch.file("disk.raw")).env("HOME", "/none");
        let start = set.iter().fold(start, |start, (name, value)| start.env(name, value));
        let server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        let limits = Path::new("/proc").join(server.pid().to_string()).join("limits");
        let limits = std::fs::read_to_string(limits).expect("limits");
        let line =
            limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit").to_owned();
        server.stop();
        line.split_whitespace().nth(5).expect("its hard one").to_owned()
    };
    let home = scratch.name("home");
    let before = limit(&[("HOME", &home)]);
    assert_ne!(before, "1");
    assert_eq!(limit(&[("AWS_SECRET_ACCESS_KEY", "hush"), ("AWS_ACCESS_KEY_ID", "A")]), "1");
    assert_eq!(limit(&[("AWS_PROFILE", "other")]), "1");
    scratch.write("home/.aws/credentials", b"[default]\n");
    assert_eq!(limit(&[("HOME", &home)]), "1");
}
