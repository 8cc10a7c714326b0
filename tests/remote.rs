//! Disks on servers that are far away: every tool reads them, guests do, and nothing says credentials.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use black_box::metrics;
use black_box::qmp::Qmp;
use black_box::server::{Server, Start};
use black_box::{Moto, Nginx, Run, Scratch, cowhand};

/// Certificates for `localhost`, and the authority behind them.
pub fn certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/door-nbd/tests/all/tls")
}

/// A disk with data and zeroes, as raw and as qcow2, behind nginx.
pub struct Scene {
    pub scratch: Scratch,
    pub nginx: Nginx,
}

impl Scene {
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let byte = |at: u32| if at % 700_000 < 90_000 { 0 } else { (at / 513) as u8 };
        scratch.write("disk.raw", &(0..6 << 20).map(byte).collect::<Vec<u8>>());
        let raw = ["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"];
        Run::new("qemu-img").args(raw).current_dir(scratch.path()).ok();
        let nginx = Nginx::start(scratch.path(), &certificates());
        Self { scratch, nginx }
    }

    fn run(&self, words: &[&str]) -> Run {
        cowhand(words).current_dir(self.scratch.path())
    }
}

#[test]
fn tools_read_a_disk_over_http_and_https_as_they_read_its_file() {
    let scene = Scene::new();
    let (plain, image) = (scene.nginx.url("/disk.raw"), scene.nginx.url("/disk.qcow2"));
    let encrypted = scene.nginx.tls_url("/disk.qcow2");
    let trusting = "SSL_CERT_FILE";
    let run = |words: &[&str]| scene.run(words).env(trusting, certificates().join("ca.pem"));
    run(&["compare", "-f", "raw", "-F", "qcow2", &plain, &image]).ok();
    run(&["compare", "-F", "qcow2", "disk.qcow2", &encrypted]).ok();
    run(&["convert", "-O", "raw", &encrypted, "copy.raw"]).ok();
    assert!(
        std::fs::read(scene.scratch.file("copy.raw")).unwrap()
            == std::fs::read(scene.scratch.file("disk.raw")).unwrap()
    );
    let info = run(&["info", "--output", "json", &image]).json();
    assert_eq!((&info["format"], &info["virtual-size"]), (&"qcow2".into(), &(6 << 20).into()));
    run(&["check", &image]).ok();
    let written = run(&["amend", "-o", "lazy_refcounts=on", &image]).fails();
    assert!(written.contains("is only read"), "{written}");
    let unbelieved =
        scene.run(&["info", &encrypted]).env(trusting, certificates().join("stranger.pem")).fails();
    assert!(unbelieved.contains("TLS: "), "{unbelieved}");
    let json =
        format!(r#"json:{{"driver":"qcow2","file":{{"driver":"http","url":"{image}","readahead":65536}}}}"#);
    run(&["compare", "-F", "qcow2", "disk.qcow2", &json]).ok();
}

/// An overlay from elsewhere had the server open any URL of its author's.
#[test]
fn an_overlay_lies_over_http_only_where_the_user_allows_it() {
    let scene = Scene::new();
    let image = scene.nginx.url("/disk.qcow2");
    let create = ["create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", &image, "top.qcow2", "6M"];
    Run::new("qemu-img").args(create).current_dir(scene.scratch.path()).ok();
    let refused = scene.run(&["compare", "disk.qcow2", "top.qcow2"]).fails();
    assert!(refused.contains("--allow-name http://127.0.0.1"), "{refused}");
    let server = scene.nginx.url("");
    scene.run(&["compare", "--allow-name", &server, "disk.qcow2", "top.qcow2"]).ok();
}

#[test]
fn a_guest_reads_through_kills_of_the_server_and_no_byte_is_wrong() {
    let mut scene = Scene::new();
    let image = scene.nginx.url("/disk.qcow2");
    let start = Start::new(["-f", "qcow2"]);
    let server = start
        .arg(format!("id=disk,read-only=on,file={image}"))
        .listen()
        .unwrap_or_else(|error| panic!("{}", error.0));
    let (uri, back) = (server.uri("disk"), scene.scratch.file("back"));
    for _ in 0..3 {
        let reader = std::thread::spawn({
            let (uri, back) = (uri.clone(), back.clone());
            move || Run::new("nbdcopy").arg(uri).arg(back).limit(Duration::from_secs(60)).ok()
        });
        scene.nginx.kill();
        std::thread::sleep(Duration::from_millis(500));
        scene.nginx.restart();
        reader.join().unwrap();
        assert!(std::fs::read(&back).unwrap() == std::fs::read(scene.scratch.file("disk.raw")).unwrap());
    }
    server.stop();
}

/// A password on the command line of QEMU is in every list of processes; in a log it stays for years.
#[test]
fn what_lets_in_is_in_no_output_of_anything() {
    let scene = Scene::new();
    scene.scratch.write("password", b"hush");
    let password = format!("secret,id=p,file={}", scene.scratch.name("password"));
    let locked = scene.nginx.url("/locked/disk.qcow2?sig=quiet");
    let drive = format!(
        "id=disk,driver=qcow2,read-only=on,file.driver=http,file.url={locked},file.username=user,file.password-secret=p,file.cookie=c=quiet"
    );
    let mut outputs = Vec::new();
    let tool = drive.replace("id=disk,", "");
    for words in [
        &["info", "--object", &password, "--image-opts", &tool][..],
        &["info", "--object", &password, "--output", "json", "--image-opts", &tool],
        &["check", "--object", &password, "--image-opts", &tool],
        &["info", &locked],
        &["info", "http://user:hush@127.0.0.1/x"],
    ] {
        let outcome = scene.run(words).env("COWHAND_LOG", "trace").outcome();
        outputs.push(format!("{}{}", outcome.stdout, outcome.stderr));
    }
    assert!(outputs[0].contains("virtual size: 6 MiB"), "{}", outputs[0]);
    assert!(outputs[3].contains("answers 401"), "{}", outputs[3]);
    let qmp = scene.scratch.file("qmp");
    let words = ["--log", "trace", "--object", &password, "--qmp"];
    let server = Start::new(words).arg(&qmp).arg("-f").arg("qcow2").arg(&drive);
    let server = server.listen().unwrap_or_else(|error| panic!("{}", error.0));
    let mut client = Qmp::connect(&qmp);
    for command in ["query-block", "query-named-block-nodes", "query-block-exports", "query-blockstats"] {
        outputs.push(client.ok(command, serde_json::json!({})).to_string());
    }
    server.client("disk").read(0, 4096).unwrap();
    outputs.push(server.stdout());
    outputs.push(server.stop());
    for output in outputs {
        for credential in ["hush", "quiet", "dXNlcjpodXNo"] {
            assert!(!output.contains(credential), "{output}");
        }
    }
}

#[test]
fn an_object_of_a_store_reads_as_its_file_with_credentials_from_where_aws_has_them() {
    let (scene, store) = (Scene::new(), Moto::start());
    let image = std::fs::read(scene.scratch.file("disk.qcow2")).unwrap();
    store.put("/images", b"");
    store.put("/images/debian/12%20%28new%29.qcow2", &image);
    let name = "s3://images/debian/12 (new).qcow2";
    scene.scratch.write("credentials", b"[other]\naws_access_key_id = A\naws_secret_access_key = hush\n");
    scene.scratch.write("secret", b"A:hush:quiet");
    let run = |words: &[&str]| scene.run(words).env("AWS_ENDPOINT_URL", store.endpoint());
    let with_keys = |words: &[&str]| {
        run(words)
            .env("AWS_ACCESS_KEY_ID", "A")
            .env("AWS_SECRET_ACCESS_KEY", "hush")
            .env("AWS_SESSION_TOKEN", "quiet")
    };
    with_keys(&["compare", "disk.qcow2", name]).ok();
    let of_profile = run(&["compare", "disk.qcow2", name]).env("AWS_PROFILE", "other");
    of_profile.env("AWS_SHARED_CREDENTIALS_FILE", scene.scratch.file("credentials")).ok();
    let unknown = run(&["info", name]).env("AWS_PROFILE", "nobody").fails();
    assert!(unknown.contains("there is no profile \"nobody\""), "{unknown}");
    let (object, drive) = (
        format!("secret,id=s,file={}", scene.scratch.name("secret")),
        format!("file={name},file.key-secret=s,file.endpoint={}", store.endpoint()),
    );
    scene.run(&["info", "--object", &object, "--image-opts", &drive]).ok();
    let missing = with_keys(&["info", "s3://images/none"]).fails();
    assert!(missing.contains("answers 404 (NoSuchKey)"), "{missing}");
    let written = with_keys(&["convert", "-n", "-O", "raw", "disk.qcow2", name]).fails();
    assert!(written.contains("is only read"), "{written}");
    for output in [unknown, missing, written] {
        assert!(!output.contains("hush") && !output.contains("quiet"), "{output}");
    }
}

#[test]
fn a_disk_on_a_server_is_started_from_and_what_clients_write_stays_here() {
    let scene = Scene::new();
    let (image, top) = (scene.nginx.url("/disk.qcow2"), scene.scratch.file("top.qcow2"));
    let serve = || Start::new(["--overlay"]).arg(&top).arg(&image);
    for (start, written) in [[7; 4096], [8; 4096]].iter().enumerate() {
        let server = serve().listen().unwrap_or_else(|error| panic!("{}", error.0));
        let mut client = server.client("top");
        let before = if start == 0 { vec![0; 4096] } else { vec![7; 4096] };
        assert_eq!(client.read(1 << 12, 4096).unwrap(), before, "start {start}");
        client.write(1 << 12, written).unwrap();
        drop(client);
        assert_eq!(server.stdout().contains("created"), start == 0, "{}", server.stdout());
        server.stop();
    }
    let mut expected = std::fs::read(scene.scratch.file("disk.raw")).unwrap();
    expected[1 << 12..2 << 12].fill(8);
    scene.scratch.write("expected.raw", &expected);
    let server = scene.nginx.url("");
    scene
        .run(&["compare", "--allow-name", &server, "-f", "raw", "-F", "qcow2", "expected.raw", "top.qcow2"])
        .ok();
    let info = Run::new("qemu-img").args(["info", "--output", "json"]).arg(&top).json();
    assert_eq!(
        (&info["backing-filename"], &info["backing-filename-format"]),
        (&image.into(), &"qcow2".into())
    );
    let other = Server::refuses([Path::new("--overlay"), &top, Path::new("disk.qcow2")]);
    assert!(other.contains("lies over http://") && other.contains("not over /"), "{other}");
}

/// What would be written into an image for everybody to read, or mean something else, is refused before anything is made.
#[test]
fn an_overlay_is_put_over_one_disk_that_has_a_name() {
    let scratch = Scratch::new();
    for (base, reason) in [
        (&["http://localhost/x?sig=hush"][..], "without user, password and query"),
        (&["a.qcow2", "b.qcow2"], "over one DRIVE, and 2 are given"),
        (&["missing.qcow2"], "missing.qcow2"),
        (&["id=x,file=a.qcow2"], "backing.id"),
    ] {
        let words = [Path::new("--overlay").into(), scratch.file("top.qcow2")];
        let refused =
            Server::refuses(words.iter().map(|word| word.as_os_str()).chain(base.iter().map(OsStr::new)));
        assert!(refused.contains(reason) && !refused.contains("hush"), "{refused}");
        assert!(!scratch.file("top.qcow2").exists());
    }
}

/// A server of a disk is lost and comes back: events, the query, `status` and the metrics say so, each by the name that messages have.
#[test]
fn a_server_that_is_lost_and_comes_back_is_reported_of_everywhere() {
    let mut scene = Scene::new();
    let (image, socket) = (scene.nginx.url("/disk.qcow2"), scene.scratch.name("far"));
    let far_image = scene.scratch.name("far.qcow2");
    std::fs::copy(scene.scratch.file("disk.qcow2"), &far_image).unwrap();
    let far = || {
        let start = Start::new(["--socket", &socket, &far_image]).listening_on(&socket).listen();
        start.unwrap_or_else(|error| panic!("{}", error.0))
    };
    let (mut other, qmp) = (Some(far()), scene.scratch.file("qmp"));
    let web = format!("id=disk,driver=qcow2,read-only=on,file.driver=http,file.url={image}");
    let nbd = format!(
        "id=far,driver=raw,file.driver=nbd,file.export=far,file.reconnect-delay=60,file.server.type=unix,file.server.path={socket}"
    );
    let server = Start::new(["--metrics", "127.0.0.1:0", "--qmp"]).arg(&qmp).args([&web, &nbd]);
    let mut server = server.listen().unwrap_or_else(|error| panic!("{}", error.0));
    let (figures, mut client) = (metrics::address(&mut server), Qmp::connect(&qmp));
    let servers = |client: &mut Qmp| {
        let mut remotes = client.ok("x-query-remotes", serde_json::json!({}));
        serde_json::from_value::<Vec<serde_json::Value>>(remotes["servers"].take()).unwrap()
    };
    let before = servers(&mut client);
    assert!(before.len() == 2 && before.iter().all(|server| server["reachable"] == true), "{before:?}");
    for export in ["disk", "far"] {
        let is_it = |server: &serde_json::Value| (server["name"] == image.as_str()) == (export == "disk");
        let name = before.iter().find(|server| is_it(server)).unwrap()["name"].as_str().unwrap();
        match other.take() {
            Some(far) if export == "far" => far.kill(),
            far => {
                other = far;
                scene.nginx.kill();
            }
        }
        let mut reader = server.client(export);
        let reader = std::thread::spawn(move || reader.read(1 << 20, 4096).map(drop));
        let lost = client.event("X_REMOTE_LOST")["data"].take();
        assert!(
            lost["name"] == name && lost["error"].as_str().is_some_and(|error| !error.is_empty()),
            "{lost}"
        );
        let now = servers(&mut client).into_iter().find(|server| is_it(server)).unwrap();
        assert!(now["reachable"] == false && now["losses"] == 1, "{now}");
        let status = || cowhand(["status"]).arg(&qmp).ok();
        assert!(status().contains(&format!("server {name}: lost for ")), "{}", status());
        let figure = format!("cowhand_remote_reachable{{server=\"{name}\"}}");
        assert!(metrics::figure(&figures, &figure) < 0.5);
        match export {
            "far" => other = Some(far()),
            _ => scene.nginx.restart(),
        }
        assert_eq!(client.event("X_REMOTE_BACK")["data"]["name"], name);
        reader.join().unwrap().unwrap();
        assert!(status().contains(&format!("server {name}: reachable, was lost once")), "{}", status());
    }
    server.stop();
}
