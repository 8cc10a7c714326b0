//! `cowhand serve --create 20G disk.qcow2`, and what it prints.

use std::path::Path;
use std::time::Duration;

use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::server::Start;
use black_box::{Run, Scratch, Server, cowhand};

use super::create;
use super::printed::line;

/// Starts it as in the README: in a directory, without a socket; the default one is private.
fn start(scratch: &Scratch, args: &[&str]) -> Server {
    let unused = scratch.file("no-socket-of-ours");
    let start = Start::new(args).listening_on(unused).current_dir(scratch.path());
    let mut server = start.env("XDG_RUNTIME_DIR", scratch.path()).spawn();
    let printed = server.wait_until(|server| server.stdout().contains("fio").then_some(()));
    assert!(printed.is_some(), "{}{}", server.stdout(), server.stderr());
    server
}

fn shell(scratch: &Scratch, line: &str) -> Run {
    Run::new("sh").args(["-c", line]).current_dir(scratch.path()).limit(Duration::from_secs(60))
}

#[test]
fn one_command_creates_a_disk_serves_it_and_prints_lines_that_run() {
    let scratch = Scratch::new();
    let server = start(&scratch, &["--create", "20G", "disk.qcow2"]);
    let info = qemu_img(["info", "-U", "--output=json", &scratch.name("disk.qcow2")]).json();
    assert_eq!(info["virtual-size"], 20_u64 << 30);

    let uri = line(&server, "URI");
    let reported = Run::new("nbdinfo").args(["--json", &uri]).json();
    assert_eq!(reported["exports"][0]["export-size"], 20_u64 << 30);
    qemu_io_ok(&["-f", "raw"], &uri, &["write -P 7 1G 1M", "read -P 7 1G 1M"]);

    assert!(shell(&scratch, &line(&server, "qemu-img")).ok().contains("20 GiB"));
    shell(&scratch, &line(&server, "nbdcopy")).ok();
    qemu_io_ok(&["-f", "raw"], &scratch.name("copy.raw"), &["read -P 7 1G 1M", "read -P 0 19G 1M"]);
    let fio = line(&server, "fio").replace("--runtime=10", "--runtime=1");
    shell(&scratch, &fio).ok();
    // A virtual machine that opens the disk and is quit from its monitor.
    let machine = "qemu-system-x86_64 -accel tcg -display none -nodefaults -S -monitor stdio";
    let quit = shell(&scratch, &format!("{machine} {}", line(&server, "QEMU"))).input("info block\nquit\n");
    assert!(quit.ok().contains("nbd"));

    server.stop();
    assert_clean(&scratch.file("disk.qcow2"));
    qemu_io_ok(&["-f", "qcow2"], &scratch.name("disk.qcow2"), &["read -P 7 1G 1M"]);
}

#[test]
fn the_default_socket_is_in_a_directory_that_only_the_user_can_enter_and_is_gone_afterwards() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let server = start(&scratch, &["--create", "1M", "disk.qcow2"]);
    let uri = line(&server, "URI");
    let socket = uri.split_once("socket=").map(|(_, socket)| socket.to_owned()).expect("a socket in the URI");
    let directory = Path::new(&socket).parent().expect("a directory");
    let mode = std::fs::metadata(directory).expect("a directory").permissions().mode();
    assert_eq!(mode & 0o077, 0, "{}", directory.display());
    server.stop();
    assert!(!Path::new(&socket).exists(), "{socket} is left behind");
}

#[test]
fn create_never_touches_what_exists() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "8M");
    qemu_io_ok(&["-f", "qcow2"], &path, &["write -P 5 1M 1M"]);
    let before = std::fs::read(&path).expect("an image");
    let server = Server::start(["--create", "1G", "-o", "cluster_size=4k", &path]);
    assert_eq!(server.client("").size(), 8 << 20);
    server.stop();
    assert!(std::fs::read(&path).expect("an image") == before, "it is changed");

    for content in [&b""[..], b"some text that is no image"] {
        let other = scratch.write("other", content);
        Server::refuses(["--create", "1G", other.to_str().expect("text")]);
        assert_eq!(std::fs::read(&other).expect("a file"), content, "it is changed");
    }
}

#[test]
fn create_takes_creation_options() {
    let scratch = Scratch::new();
    let path = scratch.name("disk.qcow2");
    let options = "cluster_size=128k,extended_l2=on,refcount_bits=8";
    let server = Server::start(["--create", "3G", "-o", options, &path]);
    server.client("").write(2 << 30, &[1; 5000]).expect("write");
    server.stop();
    let info = qemu_img(["info", "--output=json", &path]).json();
    assert_eq!(info["cluster-size"], 128 << 10);
    assert_eq!(info["format-specific"]["data"]["extended-l2"], true);
    assert_eq!(info["format-specific"]["data"]["refcount-bits"], 8);
    assert_clean(Path::new(&path));
}

#[test]
fn help_teaches_and_shells_complete() {
    for command in ["serve", "create", "info", "check", "map"] {
        let help = cowhand([command, "--help"]).ok();
        assert!(help.contains("Usage:") && help.lines().count() > 12, "{command}: {help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = cowhand(["completion", shell]).ok();
        assert!(script.contains("serve") && script.contains("map"), "{shell}");
    }
    let bare = cowhand::<&str>([]).fails();
    assert!(bare.contains("serve --create"), "{bare}");
}

#[test]
fn nothing_but_the_lines_is_said_on_a_pipe() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let server = Server::start([&path]);
    server.client("").write(0, &[1; 512]).expect("write");
    assert_eq!(server.stderr(), "", "a status line is for terminals");
    assert!(!server.stop().contains('\r'));
}
