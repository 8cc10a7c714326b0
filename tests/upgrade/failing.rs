//! A new process that fails in every way: the old one goes on serving, and its clients see nothing but a pause.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use black_box::at_end::SetAtEnd;
use black_box::vhost_user::{FrontEnd, Ways};
use black_box::{Client, Random};
use serde_json::json;

use super::Daemon;
use super::successor::Successor;
use super::writer::{Written, write_until};
use crate::vhost_user::crashes::Guest;

/// How long clients may wait for a process that hangs: what the daemon waits for it, and to have its disks again.
const HANGING_MAX: Duration = Duration::from_secs(12);

/// A client works while `fail` happens; then an upgrade goes well.
fn under_load(fail: impl FnOnce(&mut Daemon)) -> Written {
    let mut daemon = Daemon::start(|_| Vec::new());
    let stop = AtomicBool::new(false);
    // It is there before anybody takes over.
    let client = Client::connect(&daemon.socket, "disk").expect("a connection");
    let written = std::thread::scope(|scope| {
        let end = SetAtEnd(&stop);
        let writer = scope.spawn(|| write_until(client, &stop));
        std::thread::sleep(Duration::from_millis(50));
        fail(&mut daemon);
        daemon.assert_goes_on();
        std::thread::sleep(Duration::from_millis(50));
        daemon.upgrade();
        std::thread::sleep(Duration::from_millis(50));
        drop(end);
        writer.join().expect("the client's thread")
    });
    daemon.stop();
    written
}

#[test]
fn a_new_process_that_cannot_serve_what_the_old_one_does_leaves_it_serving() {
    under_load(|daemon| {
        let missing = daemon.scratch.name("missing.qcow2");
        // Before anything is given away: an option, a file; and afterwards: the client's export has another name.
        for (disk, more, said) in [
            (daemon.disk.clone(), &["--no-such-option"][..], "unexpected argument"),
            (daemon.disk.clone(), &["--tls-cert", "nowhere"], "--tls-key"),
            (missing, &[], "cannot take over: cannot serve"),
            (daemon.disk.clone(), &["--export", "another"], "no export"),
        ] {
            let mut successor = daemon.successor(&disk, more);
            let outcome = successor.outcome();
            assert!(!outcome.status.success() && outcome.stderr.contains(said), "{outcome}");
            daemon.assert_goes_on();
        }
        assert!(daemon.server.stderr().contains("this process keeps serving"), "{}", daemon.server.stderr());
    });
}

#[test]
fn a_new_process_that_hangs_up_at_any_point_leaves_the_old_one_serving() {
    under_load(|daemon| {
        drop(Successor::connect(&daemon.next));
        drop(Successor::ask(&daemon.next));
        let offered = || {
            let mut successor = Successor::ask(&daemon.next);
            assert!(successor.read_to_end() >= 3, "who it is, and two sockets");
            successor
        };
        drop(offered());
        offered().say(&json!({ "failed": { "why": "I do not want to" } }));
        offered().bytes(b"no JSON");
        offered().say(&json!({ "something-else": {} }));
        offered().say(&json!({ "ready": {} }));
        let taken = || {
            let mut successor = offered();
            successor.say(&json!({ "ready": {} }));
            assert!(successor.read_to_end() >= 2, "a socket and a client");
            successor
        };
        drop(taken());
        taken().say(&json!({ "failed": { "why": "something is missing" } }));
        taken().bytes(b"no JSON");
        let said = daemon.server.wait_until(|server| {
            let said = server.stderr();
            (said.contains("I do not want to") && said.contains("something is missing")).then_some(())
        });
        assert!(said.is_some());
    });
}

/// It has everything, and says nothing more.
#[test]
fn a_new_process_that_hangs_is_given_up_after_a_bounded_time() {
    let written = under_load(|daemon| {
        let mut successor = Successor::ask(&daemon.next);
        successor.read_to_end();
        successor.say(&json!({ "ready": {} }));
        successor.read_to_end();
        let began = Instant::now();
        assert!(successor.next().expect("the daemon's last word").get("taken-back").is_some());
        assert!(began.elapsed() < HANGING_MAX, "{:?}", began.elapsed());
    });
    println!("the longest wait {:?}", written.longest);
    assert!(written.longest < HANGING_MAX, "{written:?}");
}

#[test]
fn a_new_process_that_is_killed_at_any_moment_leaves_one_of_both_serving() {
    under_load(|daemon| {
        let mut random = Random::new(3);
        for _ in 0..12 {
            let mut successor = daemon.successor(&daemon.disk.clone(), &[]);
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
            successor.signal(rustix::process::Signal::STOP);
            // Stopped it does nothing more: it is known whether it serves.
            std::thread::sleep(Duration::from_millis(5));
            let before = daemon.server.stderr();
            if before.contains("another process serves now") {
                successor.signal(rustix::process::Signal::CONT);
                assert!(daemon.server.outcome().status.success());
                daemon.server = successor;
            } else {
                successor.signal(rustix::process::Signal::KILL);
                let _ = successor.wait_until(|_| None::<()>);
            }
        }
    });
}

#[test]
fn a_guest_goes_on_when_a_new_process_fails() {
    let mut guest = Guest::new(Ways { queues: 2, ..Ways::default() }, 9);
    let mut daemon = Daemon::start(|scratch| vec!["--vhost-user-blk".to_owned(), scratch.name("v.sock")]);
    let front = FrontEnd::start(&daemon.scratch.file("v.sock"), &mut guest.machine);
    guest.work(200);
    for _ in 0..3 {
        let mut successor = Successor::ask(&daemon.next);
        successor.read_to_end();
        successor.say(&json!({ "ready": {} }));
        successor.read_to_end();
        drop(successor);
        guest.work(guest.acknowledged + 200);
        daemon.assert_goes_on();
    }
    daemon.upgrade();
    guest.work(guest.acknowledged + 200);
    guest.finish();
    drop(front);
    daemon.stop();
}

#[test]
fn a_process_of_another_version_is_refused_by_name() {
    let daemon = Daemon::start(|_| Vec::new());
    let mut successor = Successor::connect(&daemon.next);
    successor.say(&json!({ "take-over": { "versions": [77] } }));
    let refused = successor.next().expect("an answer");
    let why = refused["refused"]["why"].as_str().expect("a reason");
    assert!(why.contains("[77]") && why.contains("speaks 1"), "{why}");
    daemon.stop();
}
