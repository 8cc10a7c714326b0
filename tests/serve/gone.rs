//! Clients that went away, or that read nothing: what they cost the others, reported by the server's own figures.
//!
//! Sixteen connections asked for 16 times 32 MiB each and closed; the server read 8 GiB for nothing, for 16 seconds, while a
//! client of another disk got 6 answers a second instead of 390. Where they stayed and read nothing, they held 528 MiB.

use black_box::client::Request;
use black_box::metrics::{self, figure};
use black_box::server::Start;
use black_box::{Client, Scratch, Server};

const MIB: u64 = 1 << 20;
const LARGE: u32 = 32 << 20;
const CONNECTIONS: usize = 16;
const REQUESTS: usize = 16;

/// What clients may hold in all, and a first small request of each of them.
const HELD_BYTES_MAX: f64 = (256 * MIB + CONNECTIONS as u64 * (68 << 10)) as f64;

/// Two disks of 64 MiB with data; figures are served.
fn start(scratch: &Scratch) -> (Server, String) {
    let disks: Vec<String> = ["a", "b"]
        .map(|name| {
            let path = scratch.write(&format!("{name}.raw"), &vec![0x42; 64 << 20]);
            format!("file={},format=raw,id={name}", path.display())
        })
        .into();
    // One loop for all: there is nowhere to hide.
    let args = ["--threads", "1", "--metrics", "127.0.0.1:0", &disks[0], &disks[1]];
    let mut server = Start::new(args).spawn();
    let address = metrics::address(&mut server);
    (server, address)
}

fn greedy(server: &Server) -> Vec<Client> {
    let ask = |_| {
        let mut client = server.client("a");
        (0..REQUESTS).for_each(|_| _ = client.send(&Request::read(0, LARGE)).expect("requests are small"));
        client
    };
    (0..CONNECTIONS).map(ask).collect()
}

#[test]
fn what_clients_asked_for_that_are_gone_is_not_read() {
    let scratch = Scratch::new();
    let (mut server, figures) = start(&scratch);
    drop(greedy(&server));
    let mut other = server.client("b");
    other.read(0, 4096).expect("another disk is served meanwhile");
    let ended = server
        .wait_until(|_| (figure(&figures, "cowhand_export_connections{export=\"a\"") == 0.0).then_some(()));
    ended.expect("it serves on");
    let read = figure(&figures, "cowhand_disk_transferred_bytes_total{disk=\"a\",kind=\"read\"}");
    let asked = (CONNECTIONS * REQUESTS) as f64 * f64::from(LARGE);
    // Memory for five of them is there at once; all may have begun before they went.
    assert!(read <= 8.0 * f64::from(LARGE), "{read} of {asked} bytes were read for nobody");
    let dropped = figure(&figures, "cowhand_export_dropped_requests_total{export=\"a\"");
    assert!(dropped >= (CONNECTIONS * REQUESTS - 8) as f64, "{dropped} requests were dropped");
    assert_eq!(figure(&figures, "cowhand_client_memory_bytes"), 0.0);
    other.read(0, 4096).expect("it serves on");
    server.stop();
}

#[test]
fn clients_that_read_nothing_hold_bounded_memory_and_keep_nobody_out() {
    let scratch = Scratch::new();
    let (server, figures) = start(&scratch);
    let silent = greedy(&server);
    let mut other = server.client("b");
    for page in 0..500 {
        other.read(page * 4096, 4096).expect("another disk is served meanwhile");
    }
    let (now, most) =
        (figure(&figures, "cowhand_client_memory_bytes"), figure(&figures, "cowhand_client_memory_peak"));
    assert!(now >= f64::from(LARGE), "they were served: {now}");
    assert!(most <= HELD_BYTES_MAX, "{most} bytes");
    assert!(server.peak_rss_bytes() < 384 * MIB, "{} bytes", server.peak_rss_bytes());
    drop(silent);
    server.stop();
}
