//! Unix sockets without a path: servers of both at them, and clients of both.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};

use black_box::{Run, Scratch};

use super::{Server, images, ours};

/// A daemon with an NBD server, a disk for a virtual machine and a monitor at abstract sockets called after `name`.
fn daemon(program: &Path, scratch: &Scratch, name: &str, options: &str) -> Server {
    let socket = |what: &str| format!("path={name}-{what},abstract=on{options}");
    let nested = |what: &str| {
        let options = options.replace(',', ",addr.");
        format!("addr.type=unix,addr.path={name}-{what},addr.abstract=on{options}")
    };
    let monitor = format!("socket,id=m,{},server=on,wait=off", socket("monitor"));
    let machine = format!("vhost-user-blk,id=v,node-name=n,{}", nested("machine"));
    let last = format!("socket,id=c,path={},server=on,wait=off", scratch.name("s"));
    let args = [
        ["--blockdev", "driver=raw,node-name=n,file.driver=file,file.filename=disk.raw,read-only=on"],
        ["--nbd-server", &nested("nbd")],
        ["--export", "nbd,id=e,node-name=n,name=r"],
        ["--export", &machine],
        ["--chardev", &monitor],
        ["--monitor", "m"],
        // Tests look for a socket that has a path.
        ["--chardev", &last],
        ["--monitor", "c"],
    ];
    Server::start(program, scratch.path(), &args.concat())
}

/// libvirt and container managers name sockets so: a client in a container with another file system reaches them. Names of 107 bytes with
/// zeroes at their end are other sockets than names without.
#[test]
fn servers_and_clients_of_both_meet_at_abstract_sockets() {
    let mut number = 0;
    let name = "qemu-storage-daemon";
    for program in [PathBuf::from(name), ours(name)] {
        for (options, tight) in [("", true), (",tight=on", true), (",tight=off", false)] {
            number += 1;
            let scratch = images();
            let name = format!("cowhand-test-{}-{number}", std::process::id());
            let _server = daemon(&program, &scratch, &name, options);
            let drive = format!(
                "driver=nbd,server.type=unix,server.path={name}-nbd,server.abstract=on{},export=r",
                options.replace(',', ",server.")
            );
            for client in [PathBuf::from("qemu-img"), ours("qemu-img")] {
                let words = ["compare", "--image-opts", &drive, "driver=raw,file.filename=disk.raw"];
                drop(Run::new(&client).args(words).current_dir(scratch.path()).ok());
            }
            for what in ["monitor", "machine"] {
                let mut bytes = format!("{name}-{what}").into_bytes();
                let plain = SocketAddr::from_abstract_name(&bytes).expect("a name");
                bytes.resize(107, 0);
                let padded = SocketAddr::from_abstract_name(&bytes).expect("a name");
                let reached = [&plain, &padded].map(|address| UnixStream::connect_addr(address).is_ok());
                assert_eq!(reached, [tight, !tight], "{program:?} {options} {what}");
            }
        }
    }
}

#[test]
fn a_name_that_is_in_use_or_too_long_is_refused() {
    let scratch = images();
    let name = format!("cowhand-test-{}-busy", std::process::id());
    let _server = daemon(&ours("qemu-storage-daemon"), &scratch, &name, "");
    let refused = |path: &str| {
        let address = format!("addr.type=unix,addr.path={path},addr.abstract=on");
        let outcome = Run::new(ours("qemu-storage-daemon")).args(["--nbd-server", &address]).outcome();
        assert!(!outcome.status.success());
        outcome.stderr
    };
    assert!(refused(&format!("{name}-nbd")).contains("Address already in use"));
    assert!(refused(&"a".repeat(108)).contains("108 bytes; allowed: 1 to 107"));
}
