//! Every tool over the export of an NBD server: qemu-nbd's, nbdkit's, and cowhand's own.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::peer::Bench;

/// A server that is killed when its test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Starts `program`, which makes the socket `NAME.sock`.
    fn start(bench: &Bench, program: &str, words: &[&str], name: &str) -> Self {
        let mut command = Command::new(program);
        command
            .args(words)
            .current_dir(bench.path(""))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {program} (needed to test with): {error}"));
        let (socket, until) = (bench.path(&format!("{name}.sock")), Instant::now() + Duration::from_secs(30));
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until, "{program} {words:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self(child)
    }

    /// Serves the bytes of `image` as the export `disk`, by each program in its words.
    fn of_bytes(bench: &Bench, program: &str, image: &str) -> Self {
        let socket = bench.path(&format!("{image}.sock")).display().to_string();
        let words: &[&str] = match program {
            "qemu-nbd" => &["-t", "-e", "8", "-f", "raw", "-x", "disk", "-k", &socket, image],
            "nbdkit" => &["-f", "-U", &socket, "-e", "disk", "file", image],
            _ => &["serve", "-f", "raw", "-x", "disk", "--socket", &socket, image],
        };
        Self::start(bench, program, words, image)
    }
}

const COWHAND: &str = env!("CARGO_BIN_EXE_cowhand");
const SERVERS: [&str; 3] = ["qemu-nbd", "nbdkit", COWHAND];

fn uri(bench: &Bench, image: &str) -> String {
    format!("nbd+unix:///disk?socket={}", bench.path(&format!("{image}.sock")).display())
}

/// A disk with data, zeroes and holes, as qcow2 in a file with room behind it and as raw.
fn images(bench: &Bench) {
    let bytes: Vec<u8> =
        (0..3 << 20).map(|at: u32| if at % 700_000 < 90_000 { 0 } else { (at / 513) as u8 }).collect();
    fs::write(bench.path("a.raw"), &bytes).unwrap();
    bench.qemu("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "a.raw", "a.qcow2"]);
    fs::File::options().write(true).open(bench.path("a.qcow2")).unwrap().set_len(16 << 20).unwrap();
    fs::copy(bench.path("a.raw"), bench.path("plain")).unwrap();
    fs::copy(bench.path("a.qcow2"), bench.path("image")).unwrap();
}

#[test]
fn tools_read_an_export_as_they_read_its_file() {
    for program in SERVERS {
        let bench = Bench::new();
        images(&bench);
        let _servers = ["plain", "image"].map(|image| Server::of_bytes(&bench, program, image));
        let (plain, image) = (uri(&bench, "plain"), uri(&bench, "image"));
        for (words, code) in [
            (&["compare", "-F", "qcow2", &plain, &image][..], 0),
            (&["compare", "-f", "raw", &plain, "a.qcow2"], 0),
            (&["check", &image], 0),
            (&["convert", "-O", "qcow2", &image, "c.qcow2"], 0),
            (&["compare", "c.qcow2", "a.raw"], 0),
            (&["convert", "--verify", &plain, "c.raw"], 0),
            (&["dd", &format!("if={image}"), "of=d.raw", "bs=64k"], 0),
            (&["compare", "-f", "raw", "-F", "raw", "d.raw", "c.raw"], 0),
            (&["bench", "-c", "100", "-d", "8", &image], 0),
            (&["info", "nbd:unix:nowhere"], 1),
        ] {
            let ran = bench.cowhand(words);
            assert_eq!(ran.code, code, "{program} {words:?}: {}{}", ran.out, ran.err);
        }
        assert_eq!(fs::read(bench.path("c.raw")).unwrap(), fs::read(bench.path("a.raw")).unwrap());
        let map = |image: &str| bench.cowhand(&["map", "--output", "json", image]).json();
        assert_eq!(map(&image), map("a.qcow2"), "{program}");
        let measured =
            |image: &str| bench.cowhand(&["measure", "-O", "qcow2", "--output", "json", image]).json();
        assert_eq!(measured(&image), measured("a.qcow2"), "{program}");
        let info = bench.cowhand(&["info", "--output", "json", &image]).json();
        assert_eq!(
            (&info["format"], &info["virtual-size"]),
            (&"qcow2".into(), &(3 << 20).into()),
            "{program}"
        );
    }
}

#[test]
fn tools_write_an_export_that_is_there() {
    for program in SERVERS {
        let bench = Bench::new();
        images(&bench);
        for (image, format) in [("plain", "raw"), ("image", "qcow2")] {
            let changed: Vec<u8> =
                fs::read(bench.path("a.raw")).unwrap().iter().map(|byte| byte ^ 0x55).collect();
            fs::write(bench.path("b.raw"), changed).unwrap();
            let server = Server::of_bytes(&bench, program, image);
            let target = uri(&bench, image);
            for words in [
                &["convert", "-n", "--verify", "-f", "raw", "-O", format, "b.raw", &target][..],
                &["compare", "-f", "raw", "-F", format, "b.raw", &target],
            ] {
                let ran = bench.cowhand(words);
                assert_eq!(ran.code, 0, "{program} {words:?}: {}{}", ran.out, ran.err);
            }
            if format == "qcow2" {
                for words in
                    [&["snapshot", "-c", "s", &target][..], &["resize", &target, "4M"], &["check", &target]]
                {
                    let ran = bench.cowhand(words);
                    assert_eq!(ran.code, 0, "{program} {words:?}: {}{}", ran.out, ran.err);
                }
                bench.cowhand(&["resize", "--shrink", &target, "3M"]);
            }
            drop(server);
            bench.qemu("qemu-img", &["compare", "-f", "raw", "-F", format, "b.raw", image]);
        }
        bench.qemu("qemu-img", &["check", "image"]);
    }
}

#[test]
fn what_is_behind_a_driver_is_not_created() {
    let bench = Bench::new();
    images(&bench);
    let _server = Server::of_bytes(&bench, "qemu-nbd", "plain");
    let before = fs::read(bench.path("plain")).unwrap();
    let target = uri(&bench, "plain");
    let of = format!("of={target}");
    for words in [
        &["create", &target, "1M"][..],
        &["convert", "-O", "qcow2", "a.raw", &target],
        &["dd", "if=a.raw", &of],
        &["create", "nbd://localhost", "1M"],
    ] {
        let ran = bench.cowhand(words);
        assert_eq!(ran.code, 1, "{words:?}");
        assert!(
            ran.err.contains("driver nbd creates nothing") && ran.err.contains("convert -n"),
            "{}",
            ran.err
        );
    }
    assert_eq!(fs::read(bench.path("plain")).unwrap(), before);
}

/// oVirt has qemu-img write a compressed image into an export that is a part of an OVA: under QEMU's name ours said that nothing is created there.
#[test]
fn under_qemus_name_an_image_is_written_over_an_export() {
    let bench = Bench::new();
    images(&bench);
    fs::create_dir(bench.path("bin")).unwrap();
    assert_eq!(bench.cowhand(&["compat", "install", "bin"]).code, 0);
    let ours = bench.path("bin").join("qemu-img");
    for program in SERVERS {
        // The image must show no old bytes of the export.
        fs::write(bench.path("room"), vec![0x5a; 8 << 20]).unwrap();
        let server = Server::of_bytes(&bench, program, "room");
        let target = uri(&bench, "room");
        for words in [
            &["convert", "-f", "raw", "-O", "qcow2", "-c", "a.raw", &target][..],
            &["convert", "-f", "raw", "-O", "qcow2", "a.raw", &target],
            &["check", "-f", "qcow2", &target],
            &["compare", "-f", "raw", "-F", "qcow2", "a.raw", &target],
        ] {
            let ran = bench.run(&ours, words);
            assert_eq!(ran.code, 0, "{program} {words:?}: {}{}", ran.out, ran.err);
        }
        let refused = bench.run(&ours, &["create", "-f", "raw", &target, "9M"]);
        assert!(refused.code == 1 && refused.err.contains("the export has 8388608 bytes"), "{}", refused.err);
        drop(server);
        bench.qemu("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", "a.raw", "room"]);
        bench.qemu("qemu-img", &["check", "room"]);
        fs::remove_file(bench.path("room.sock")).ok();
    }
}

#[test]
fn a_name_in_an_image_leads_to_no_server_unless_it_is_allowed_and_an_option_does() {
    let bench = Bench::new();
    images(&bench);
    let _server = Server::of_bytes(&bench, "nbdkit", "plain");
    let base = uri(&bench, "plain");
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "-F", "raw", "-b", &base, "o.qcow2"]);
    let refused = bench.cowhand(&["compare", "o.qcow2", "a.raw"]);
    let advice = format!(
        "inside an image is not followed unless it is allowed; if it is right, give --allow-name {base}"
    );
    assert!(refused.err.contains(&advice), "{}", refused.err);
    let ran = bench.cowhand(&["compare", "--allow-name", &base, "o.qcow2", "a.raw"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let other = base.replace("plain.sock", "other.sock");
    let ran = bench.cowhand(&["compare", "--allow-name", &other, "o.qcow2", "a.raw"]);
    assert!(ran.err.contains(&advice), "{}", ran.err);
    let ran = bench.cowhand(&["compare", "--allow-name", "/images", "o.qcow2", "a.raw"]);
    let refused = "it means no storage elsewhere (nbd://HOST does)";
    assert!(ran.err.contains("cannot allow a name") && ran.err.contains(refused), "{}", ran.err);
    let ran = bench.cowhand(&["compare", &format!("file=o.qcow2,backing.file={base}"), "a.raw"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let node = format!(
        r#"json:{{"driver":"raw","file":{{"driver":"nbd","export":"disk","server":{{"type":"unix","path":"{}"}},"reconnect-delay":9}}}}"#,
        bench.path("plain.sock").display()
    );
    let ran = bench.cowhand(&["compare", "-F", "raw", &node, "a.raw"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// A disk over NBD is served again, and read by QEMU: what one server says of holes and data passes through the other.
#[test]
fn a_served_disk_over_an_export_is_the_same_disk() {
    let bench = Bench::new();
    images(&bench);
    let _below = Server::of_bytes(&bench, "qemu-nbd", "image");
    let below = uri(&bench, "image");
    let socket = bench.path("served.sock").display().to_string();
    let words = ["serve", "-x", "disk", "--socket", &socket, &below];
    let _served = Server::start(&bench, COWHAND, &words, "served");
    let served = uri(&bench, "served");
    bench.qemu("qemu-img", &["compare", "-f", "raw", "-F", "raw", &served, "a.raw"]);
    bench.qemu(
        "qemu-io",
        &["-f", "raw", "-c", "write -P 77 1M 64k", "-c", "flush", "-c", "read -P 77 1M 64k", &served],
    );
    let ran = bench.run(Path::new(COWHAND), &["compare", "-f", "raw", &served, "a.raw"]);
    assert_eq!((ran.code, ran.out.trim()), (1, "Content mismatch at offset 1048576!"));
}

/// The base's path is no file here: it was opened by that, without the rest of its options, and the commit was refused.
#[test]
fn an_overlay_is_committed_to_a_base_on_a_server() {
    for program in ["qemu-nbd", COWHAND] {
        let bench = Bench::new();
        images(&bench);
        let server = Server::of_bytes(&bench, program, "image");
        let base = uri(&bench, "image");
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &base, "top.qcow2"]);
        bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -q -P 7 1M 64k", "top.qcow2"]);
        let ran = bench.cowhand(&["commit", "--allow-name", &base, "top.qcow2"]);
        assert_eq!(ran.code, 0, "{program}: {}", ran.err);
        bench.qemu("qemu-img", &["compare", "-q", "-f", "qcow2", "-F", "qcow2", "top.qcow2", &base]);
        drop(server);
        bench.wait_for_lock("image");
        let read = bench.qemu("qemu-io", &["-f", "qcow2", "-c", "read -P 7 1M 64k", "image"]);
        assert!(!read.out.contains("failed"), "{program}: {}", read.out);
    }
}
