//! Every printed line works as it is, in every mode. QEMU's line once missed `read-only=on` for a read-only disk and `discard=unmap` for one
//! that gives space back, and over TLS no line led anywhere: the certificate was not for 127.0.0.1, and no client knew its authority.

use std::path::Path;
use std::time::Duration;

use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::server::Start;
use black_box::{Run, Scratch, Server, program};

use super::printed::{line, lines};
use super::tls::certificates;

/// A virtual machine without a guest, steered over its monitor.
const MACHINE: &str = "qemu-system-x86_64 -accel tcg -display none -nodefaults -S -monitor stdio";

/// Starts a server with a control socket, whose line is the last that is printed.
fn start(scratch: &Scratch, args: &[&str]) -> Server {
    let start = Start::new(["--qmp", "control socket"]).args(args).listening_on(scratch.file("none"));
    let mut server = start.current_dir(scratch.path()).env("XDG_RUNTIME_DIR", scratch.path()).spawn();
    let printed = server.wait_until(|server| server.stdout().contains("control: ").then_some(()));
    assert!(printed.is_some(), "{}{}", server.stdout(), server.stderr());
    server
}

/// Runs a line in a shell, from another directory than the server's.
fn shell(line: &str) -> Run {
    let elsewhere = std::env::temp_dir();
    Run::new("sh").args(["-c", line]).current_dir(elsewhere).limit(Duration::from_secs(120))
}

/// Runs every line that was printed; `tools` is which there are.
fn run_all(server: &Server, scratch: &Scratch, tools: &[&str]) {
    let printed: Vec<&str> = ["URI", "QEMU", "qemu-img", "nbdcopy", "fio"]
        .into_iter()
        .filter(|tool| !lines(server, tool).is_empty())
        .collect();
    assert_eq!(printed, tools, "{}", server.stdout());
    for uri in lines(server, "URI") {
        Run::new("nbdinfo").arg(uri).ok();
    }
    for line in lines(server, "qemu-img") {
        assert!(shell(&line).ok().contains("8 MiB"));
    }
    for line in lines(server, "nbdcopy") {
        let run = Run::new("sh").args(["-c", &line]).current_dir(scratch.path());
        run.ok();
        let copy = scratch.file(line.rsplit(' ').next().expect("a file"));
        assert_eq!(std::fs::metadata(&copy).expect("a copy").len(), 8 << 20, "{line}");
        std::fs::remove_file(copy).expect("each has its own");
    }
    for line in lines(server, "fio") {
        shell(&line.replace("--runtime=10", "--runtime=1")).ok();
    }
    // All disks together, as they would be pasted.
    let said = machine(server, "info block\nquit\n");
    assert!(said.contains("nbd"), "{said}");
    let control = server
        .stdout()
        .lines()
        .find_map(|line| line.strip_prefix("control: cowhand"))
        .expect("a line")
        .to_owned();
    let status = shell(&format!("{}{control}", program::path().display())).ok();
    assert!(status.contains("8 MiB"), "{status}");
}

fn machine(server: &Server, commands: &str) -> String {
    shell(&format!("{MACHINE} {}", lines(server, "QEMU").join(" "))).input(commands).ok()
}

const ALL: [&str; 5] = ["URI", "QEMU", "qemu-img", "nbdcopy", "fio"];
const OVER_TLS: [&str; 4] = ["URI", "QEMU", "qemu-img", "nbdcopy"];

fn image(scratch: &Scratch, name: &str) {
    qemu_img(["create", "-q", "-f", "qcow2", &scratch.name(name), "8M"]).ok();
}

#[test]
fn lines_of_read_only_disks_run() {
    let scratch = Scratch::new();
    image(&scratch, "a.qcow2");
    for args in
        [vec!["-r", "a.qcow2"], vec!["-r", "file=a.qcow2,discard=unmap"], vec!["file=a.qcow2,read-only=on"]]
    {
        let server = start(&scratch, &args);
        run_all(&server, &scratch, &ALL);
        server.stop();
    }
}

#[test]
fn lines_of_several_disks_and_odd_names_run() {
    let scratch = Scratch::new();
    let odd = "it's \"a\" $HOME; ü & b,c=d";
    for directory in ["aa", odd] {
        std::fs::create_dir(scratch.file(directory)).expect("a directory");
        image(&scratch, &format!("{directory}/my disk%41.qcow2"));
    }
    let server = start(&scratch, &["aa/my disk%41.qcow2", &format!("{odd}/my disk%41.qcow2")]);
    run_all(&server, &scratch, &ALL);
    server.stop();
    let server = start(&scratch, &["--socket", &format!("{odd}/s"), &format!("{odd}/my disk%41.qcow2")]);
    run_all(&server, &scratch, &ALL);
    server.stop();
}

#[test]
fn lines_over_tcp_run() {
    let scratch = Scratch::new();
    image(&scratch, "a.qcow2");
    for args in [
        &["--listen", "0", "a.qcow2"][..],
        &["--listen", "[::1]:0", "-r", "a.qcow2"],
        &["--listen", "0.0.0.0:0", "--allow-plain-tcp", "a.qcow2"],
    ] {
        let server = start(&scratch, args);
        run_all(&server, &scratch, &ALL);
        server.stop();
    }
}

#[test]
fn lines_over_tls_run() {
    let scratch = Scratch::new();
    let pki = scratch.name("p k,i");
    std::fs::create_dir(&pki).expect("a directory");
    certificates(Path::new(&pki));
    for name in ["a.qcow2", "b,c.qcow2"] {
        image(&scratch, name);
    }
    let server_files = ["--tls-cert", "p k,i/server-cert.pem", "--tls-key", "p k,i/server-key.pem"];
    let modes: [&[&str]; 5] = [
        &["--listen", "0", "a.qcow2"],
        &["--listen", "0.0.0.0:0", "-r", "a.qcow2", "b,c.qcow2"],
        &["--listen", "0", "--tls-client-ca", "p k,i/ca-cert.pem", "file=a.qcow2,discard=unmap"],
        &["a.qcow2", "b,c.qcow2"],
        &["-r", "--tls-client-ca", "p k,i/ca-cert.pem", "a.qcow2"],
    ];
    for mode in modes {
        let server = start(&scratch, &[&server_files[..], mode].concat());
        run_all(&server, &scratch, &OVER_TLS);
        assert!(!server.stdout().contains("TLS: "), "nothing is left to fill in: {}", server.stdout());
        server.stop();
    }
}

#[test]
fn what_the_lines_cannot_know_is_left_to_be_filled_in() {
    let scratch = Scratch::new();
    let (server_side, client_side) = (Scratch::new(), scratch.name("client"));
    certificates(server_side.path());
    std::fs::create_dir(&client_side).expect("a directory");
    std::fs::rename(server_side.file("ca-cert.pem"), scratch.file("client/ca-cert.pem")).expect("a move");
    image(&scratch, "a.qcow2");
    let (cert, key) = (server_side.name("server-cert.pem"), server_side.name("server-key.pem"));
    let server = start(&scratch, &["--listen", "0", "--tls-cert", &cert, "--tls-key", &key, "a.qcow2"]);
    let reported = "TLS: for DIR put a directory with the client's ca-cert.pem\n";
    assert!(server.stdout().contains(reported), "{}", server.stdout());
    let line = line(&server, "qemu-img").replace("DIR", &client_side);
    assert!(shell(&line).ok().contains("8 MiB"));
    server.stop();
}

#[test]
fn what_a_guest_trims_reaches_the_image_if_the_disk_gives_space_back() {
    let scratch = Scratch::new();
    for (drive, data) in [("file=a.qcow2,discard=unmap", false), ("a.qcow2", true)] {
        image(&scratch, "a.qcow2");
        qemu_io_ok(&["-f", "qcow2"], &scratch.name("a.qcow2"), &["write -P 7 0 8M"]);
        let server = start(&scratch, &[drive]);
        machine(&server, "qemu-io virtio0 \"discard 0 4M\"\nquit\n");
        server.stop();
        let map = qemu_img(["map", "--output=json", &scratch.name("a.qcow2")]).json();
        assert_eq!(map[0]["data"], data, "{drive}: {map}");
        assert_clean(&scratch.file("a.qcow2"));
    }
}

#[test]
fn quiet_prints_nothing_and_still_tells_errors() {
    let scratch = Scratch::new();
    image(&scratch, "a.qcow2");
    let server = Server::start(["--quiet", &scratch.name("a.qcow2")]);
    server.client("").write(0, &[1; 512]).expect("write");
    assert_eq!((server.stderr(), server.stop()), (String::new(), String::new()));
    assert!(Server::refuses(["-q", "missing.qcow2"]).contains("missing.qcow2"));
}
