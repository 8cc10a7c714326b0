//! `priority`, `passwordid` and `sanity-check` of `tls-creds-x509`, of servers and of clients.

use std::path::{Path, PathBuf};

use black_box::{Run, Scratch};

use super::authz::certificates;
use super::{Server, images, ours};

/// Encrypts the key of a server or a client, as administrators do.
fn encrypt_key(scratch: &Scratch, who: &str) {
    let (key, plain) = (scratch.name(&format!("{who}-key.pem")), scratch.name(&format!("{who}-plain.pem")));
    std::fs::rename(&key, &plain).expect("a key");
    let words =
        ["pkcs8", "-topk8", "-v2", "aes-256-cbc", "-passout", "pass:hush", "-in", &plain, "-out", &key];
    drop(Run::new("openssl").args(words).ok());
}

/// What a client says of the disk that a server serves; each with its options beside `dir`.
fn outcome(programs: [&Path; 2], scratch: &Scratch, [server, client]: [&str; 2]) -> Result<(), String> {
    let directory = scratch.path().display();
    std::fs::write(scratch.file("password"), "hush").expect("a file");
    // That of a server before, which was killed.
    let _ = std::fs::remove_file(scratch.file("s"));
    let secret = format!("secret,id=p,file={}", scratch.name("password"));
    let credentials = |endpoint: &str, options: &str| {
        format!("tls-creds-x509,id=t,endpoint={endpoint},dir={directory}{options}")
    };
    let address = format!("addr.type=unix,addr.path={},tls-creds=t", scratch.name("s"));
    let own = credentials("server", server);
    let args = [
        ["--object", &secret],
        ["--object", &own],
        ["--blockdev", "driver=raw,node-name=n,file.driver=file,file.filename=disk.raw"],
        ["--nbd-server", &address],
        ["--export", "nbd,id=e,node-name=n,name=r"],
    ];
    let server = Server::start(programs[0], scratch.path(), &args.concat());
    let drive = format!(
        "driver=nbd,server.type=unix,server.path={},export=r,tls-creds=t,tls-hostname=localhost",
        server.socket.display()
    );
    let own = credentials("client", client);
    let info = ["info", "--object", &secret, "--object", &own, "--image-opts", &drive];
    let outcome = Run::new(programs[1]).args(info).outcome();
    if outcome.status.success() { Ok(()) } else { Err(outcome.stderr) }
}

fn scene() -> Scratch {
    let scratch = images();
    certificates(scratch.path());
    scratch
}

#[test]
fn a_key_with_a_password_and_a_choice_of_versions_are_taken_as_by_qemus() {
    let (server, client) = (ours("qemu-storage-daemon"), ours("qemu-img"));
    let (theirs, their_client) = (PathBuf::from("qemu-storage-daemon"), PathBuf::from("qemu-img"));
    for programs in [[&*server, &*client], [&*server, &*their_client], [&*theirs, &*client]] {
        let scratch = scene();
        encrypt_key(&scratch, "server");
        encrypt_key(&scratch, "client");
        let both = ",passwordid=p,sanity-check=on";
        assert_eq!(outcome(programs, &scratch, [both, both]), Ok(()), "{programs:?}");
        let scratch = scene();
        for (options, meets) in [
            ([",priority=NORMAL:-VERS-ALL:+VERS-TLS1.3", ",priority=NORMAL"], true),
            ([",priority=SECURE128", ",priority=NORMAL:-VERS-TLS1.3"], true),
            ([",priority=NORMAL:-VERS-ALL:+VERS-TLS1.3", ",priority=NORMAL:-VERS-TLS1.3"], false),
            ([",priority=NORMAL:-VERS-TLS1.3", ",priority=NORMAL:-VERS-ALL:+VERS-TLS1.3"], false),
        ] {
            assert_eq!(outcome(programs, &scratch, options).is_ok(), meets, "{programs:?} {options:?}");
        }
    }
}

#[test]
fn what_cannot_be_used_is_refused_before_a_client_comes() {
    let client = ours("qemu-img");
    let refused = |scratch: &Scratch, options: &str| {
        let secret = format!("secret,id=p,file={}", scratch.name("secret"));
        let own = format!("tls-creds-x509,id=t,endpoint=client,dir={}{options}", scratch.path().display());
        let info = ["info", "--object", &secret, "--object", &own, "disk.raw"];
        let outcome = Run::new(&client).args(info).current_dir(scratch.path()).outcome();
        assert!(!outcome.status.success(), "{options}: {outcome}");
        outcome.stderr
    };
    let scratch = scene();
    std::fs::write(scratch.file("secret"), "other").expect("a file");
    assert!(refused(&scratch, ",priority=NORMAL:+ANON-DH").contains("+ANON-DH"));
    assert!(refused(&scratch, ",passwordid=none").contains("none"));
    encrypt_key(&scratch, "client");
    assert!(refused(&scratch, ",passwordid=p").contains("the password is another one"));
    // An authority that did not sign the certificate: without the check only the server would say so.
    let (scratch, other) = (scene(), scene());
    std::fs::copy(other.file("ca-cert.pem"), scratch.file("ca-cert.pem")).expect("a file");
    std::fs::write(scratch.file("secret"), "other").expect("a file");
    assert!(refused(&scratch, ",sanity-check=on").contains("certificate"));
}
