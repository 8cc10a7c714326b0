//! What a client of the control socket sends costs bounded memory, and no other client notices.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use black_box::qmp::Qmp;
use serde_json::json;

use super::Steered;

/// Memory beyond that of an idle server: a message of the longest size, parsed, and room for the allocator.
const MORE_BYTES_MAX: u64 = 96 << 20;

/// Sends until it is done or cut off; gives what was said.
fn send(steered: &Steered, head: &[u8], piece: &[u8], times: usize) -> String {
    let mut stream = UnixStream::connect(&steered.qmp).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let _ = stream.write_all(head);
    for _ in 0..times {
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn no_message_is_too_hostile() {
    let steered = Steered::new();
    let before = steered.server.peak_rss_bytes();
    let hello = &b"{\"execute\":\"qmp_capabilities\"}\n"[..];
    // A line of one GiB, if it were let.
    send(&steered, b"{\"execute\":\"", &[b'x'; 1 << 20], 1 << 10);
    send(&steered, hello, &b"{\"execute\":{\"a\":".repeat(1 << 10), 1 << 10);
    send(&steered, hello, &b"[".repeat(1 << 16), 1 << 8);
    send(&steered, hello, &[0xff; 1 << 16], 1 << 6);
    send(&steered, hello, b"{\"execute\":\"\xff\xfe\"}\n", 1 << 10);
    send(&steered, hello, b"{\"execute\":\"quit\"", 1);
    send(&steered, b"", b"{\"execute\":\"quit\"}\n", 10);
    let half = send(
        &steered,
        hello,
        b"{\"execute\":\"query-block\",\"id\":\"half\n{\"execute\":\"query-status\"}\n",
        1,
    );
    assert!(half.contains("running"), "the next line is understood: {half}");
    // As much as a message may hold, in the form that takes most memory.
    let wide =
        [b"{\"execute\":\"x\",\"arguments\":{\"a\":[".to_vec(), b"{},".repeat(80_000), b"{}]}}\n".to_vec()];
    send(&steered, hello, &wide.concat(), 8);
    let taken = steered.server.peak_rss_bytes().saturating_sub(before);
    assert!(taken <= MORE_BYTES_MAX, "{taken} bytes");
    assert_eq!(steered.talk().ok("query-status", json!({}))["running"], true);
    steered.server.client("a").write(0, &[1; 512]).expect("disks are served");
    steered.server.stop();
}

#[test]
fn a_thousand_clients_take_a_bounded_number_of_places() {
    let mut steered = Steered::new();
    let before = steered.server.descriptors();
    let mut first = steered.talk();
    let idle: Vec<UnixStream> = (0..1000).filter_map(|_| UnixStream::connect(&steered.qmp).ok()).collect();
    assert!(idle.len() > 900, "{}", idle.len());
    // The one that came before them is served as ever.
    assert_eq!(first.ok("query-status", json!({}))["running"], true);
    let mut refused = UnixStream::connect(&steered.qmp).expect("it listens");
    refused.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let mut said = String::new();
    refused.read_to_string(&mut said).expect("it is answered and closed");
    assert!(said.contains("16 clients are connected"), "{said}");
    let most = steered.server.descriptors();
    assert!(most <= before + 40, "{most} descriptors, {before} before");
    drop(idle);
    let qmp = steered.qmp.clone();
    steered.server.wait_until(|_| {
        let stream = UnixStream::connect(&qmp).ok()?;
        let mut greeting = [0; 8];
        (&stream).read_exact(&mut greeting).ok()?;
        greeting.starts_with(b"{\"QMP\"").then_some(())
    });
    steered.server.stop();
}

#[test]
fn who_does_not_read_keeps_nobody_waiting() {
    let steered = Steered::new();
    let mut silent = Qmp::connect(&steered.qmp);
    let question = format!("{}\n", json!({ "execute": "query-blockstats" }));
    let mut lazy = UnixStream::connect(&steered.qmp).expect("it listens");
    lazy.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    lazy.write_all(b"{\"execute\":\"qmp_capabilities\"}\n").expect("it listens");
    // Until nothing more goes in: it is not read from.
    while lazy.write_all(question.as_bytes()).is_ok() {}
    for _ in 0..100 {
        silent.ok("query-block", json!({}));
    }
    steered.server.stop();
}
