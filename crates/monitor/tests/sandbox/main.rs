//! The sandbox measured from inside, call by call: what docs/internals/threat-model.md says is denied is denied.
//!
//! Earlier tests asked whether the sandbox was on. It was, and `fchmodat2`, `setxattrat` and io_uring changed attributes of any file, UDP left through
//! io_uring, and every unix socket could be connected to: calls that were newer than the list of denied ones, or that seccomp does not see.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod calls;
mod rings;
mod table;
mod tries;

use std::path::Path;
use std::process::Command;

use monitor::sandbox::{Allowed, enter};

/// Set in the process that enters the sandbox: what is given up does not come back.
const CHILD: &str = "COWHAND_TEST_SANDBOX";

/// Runs `test` once more in a process of its own, with a directory. Whether this is that process.
fn is_inside(test: &str) -> Option<std::path::PathBuf> {
    if let Some(directory) = std::env::var_os(CHILD) {
        return Some(directory.into());
    }
    let scratch = tempfile::tempdir().unwrap();
    prepare(scratch.path());
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, scratch.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
    None
}

/// Files that the sandboxed process must not touch, and files that it may use.
fn prepare(directory: &Path) {
    for name in ["own", "elsewhere", "allowed"] {
        std::fs::create_dir(directory.join(name)).unwrap();
    }
    for name in ["disk", "elsewhere/victim", "allowed/image"] {
        std::fs::write(directory.join(name), "content").unwrap();
    }
}

#[test]
fn every_line_of_the_threat_model_is_denied_to_a_server_without_commands() {
    let Some(directory) = is_inside("every_line_of_the_threat_model_is_denied_to_a_server_without_commands")
    else {
        return;
    };
    let world = table::World::prepare(&directory);
    enter(Allowed { names: &[&directory.join("own").join("socket")], ..Allowed::default() });
    table::measure(&world, table::Reach::Nothing);
}

#[test]
fn every_line_of_the_threat_model_is_denied_to_a_server_with_commands() {
    let Some(directory) = is_inside("every_line_of_the_threat_model_is_denied_to_a_server_with_commands")
    else {
        return;
    };
    let world = table::World::prepare(&directory);
    let allowed = directory.join("allowed");
    let names: &[&Path] = &[&directory.join("own").join("socket")];
    enter(Allowed { names, reach: &[allowed], ..Allowed::default() });
    table::measure(&world, table::Reach::Allowed);
}

#[test]
fn every_line_of_the_threat_model_is_denied_to_a_server_that_takes_checkpoints() {
    let Some(directory) =
        is_inside("every_line_of_the_threat_model_is_denied_to_a_server_that_takes_checkpoints")
    else {
        return;
    };
    let world = table::World::prepare(&directory);
    let lineage = directory.join("allowed");
    let names: &[&Path] = &[&directory.join("own").join("socket")];
    enter(Allowed { names, lineages: std::slice::from_ref(&lineage), ..Allowed::default() });
    table::measure(&world, table::Reach::Checkpoints);
    // Layers are linked and sealed in the lineage's directory, and nowhere else.
    std::fs::write(lineage.join("overlay"), "x").unwrap();
    std::fs::hard_link(lineage.join("image"), lineage.join("layer")).unwrap();
    std::fs::rename(lineage.join("overlay"), lineage.join("image")).unwrap();
    assert!(std::fs::rename(lineage.join("layer"), directory.join("own").join("layer")).is_err());
    assert!(std::fs::write(directory.join("elsewhere").join("overlay"), "x").is_err());
}

/// The processes that a server starts before it enters the sandbox have one of their own.
#[test]
fn every_line_of_the_threat_model_is_denied_to_a_process_that_connects() {
    let Some(directory) = is_inside("every_line_of_the_threat_model_is_denied_to_a_process_that_connects")
    else {
        return;
    };
    let world = table::World::prepare(&directory);
    monitor::sandbox::enter_as_broker(&[world.named_port()], false);
    table::measure(&world, table::Reach::Connections);
}

#[test]
fn every_line_of_the_threat_model_is_denied_to_a_process_that_has_librbd() {
    let Some(directory) = is_inside("every_line_of_the_threat_model_is_denied_to_a_process_that_has_librbd")
    else {
        return;
    };
    let world = table::World::prepare(&directory);
    monitor::sandbox::enter_as_rbd_worker();
    table::measure(&world, table::Reach::Library);
    // What it is there for: files of its cluster's configuration are read, and servers connected to.
    assert!(std::fs::read("/etc/passwd").is_ok());
    std::net::TcpStream::connect(("127.0.0.1", world.unnamed_port())).unwrap();
}

/// What a running server does still works: files, threads, sockets that are open, rings that were made
/// before.
#[test]
fn what_serving_needs_works_in_the_sandbox() {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    let Some(directory) = is_inside("what_serving_needs_works_in_the_sandbox") else { return };
    let mut disk = std::fs::File::options().read(true).write(true).open(directory.join("disk")).unwrap();
    let listener = UnixListener::bind(directory.join("own").join("socket")).unwrap();
    let mut client = UnixStream::connect(directory.join("own").join("socket")).unwrap();
    let allowed = directory.join("allowed");
    reactor::prepare_rings(2);
    let own = directory.join("own").join("socket");
    enter(Allowed { names: &[&own], reach: std::slice::from_ref(&allowed), ..Allowed::default() });
    let (mut accepted, _) = listener.accept().unwrap();
    client.write_all(b"hi").unwrap();
    let mut said = [0; 2];
    accepted.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"hi");
    disk.write_all(b"written").unwrap();
    disk.sync_all().unwrap();
    disk.set_len(1 << 20).unwrap();
    let ran = std::thread::spawn(|| reactor::Reactor::new(reactor::Backend::Ring).unwrap().backend());
    assert_eq!(ran.join().unwrap(), reactor::Backend::Ring, "a loop that begins in the sandbox has a ring");
    assert_eq!(std::fs::read(allowed.join("image")).unwrap(), b"content");
    let _new = UnixListener::bind(allowed.join("new")).unwrap();
    std::fs::write(allowed.join("made"), "x").unwrap();
    std::fs::rename(allowed.join("made"), allowed.join("renamed")).unwrap();
    std::fs::remove_file(own).unwrap();
    assert!(Command::new("/bin/true").status().is_err());
}
