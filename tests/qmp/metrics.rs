//! Figures for Prometheus, as its own parser reads them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use black_box::{Run, Scratch, Server};

use super::{Steered, create};

fn get(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Reads the figures strictly, and insists on the conventions: a unit at the end of the name, seconds and bytes.
const SCRIPT: &str = r#"
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = list(text_string_to_metric_families(sys.stdin.read()))
names = {family.name: family for family in families}
for family in families:
    assert family.name.startswith("cowhand_"), family.name
    assert family.documentation, family.name
    assert family.type in ("counter", "gauge", "histogram"), family
    assert not family.unit or family.name.endswith("_" + family.unit), family
    assert family.samples, family.name
writes = {sample.labels["kind"]: sample.value for sample in names["cowhand_disk_requests"].samples}
assert writes["write"] == 3, writes
limits = names["cowhand_throttle_limit_per_second"].samples
assert [(s.labels["disk"], s.labels["limit"], s.value) for s in limits] == [("a", "iops-total", 10000)], limits
taken = names["cowhand_disk_request_time_seconds"].samples
assert [s.value for s in taken if s.name.endswith("_count") and s.labels["kind"] == "write"] == [3], taken
forms = {s.labels["form"] for s in names["cowhand_map_cache_form_bytes"].samples}
assert forms == {"run", "runs", "frame", "explicit", "plain"}, forms
for name in ("cowhand_throttle_delay_seconds", "cowhand_throttle_bucket_level", "cowhand_map_cache_loaded_bytes"):
    assert name in names, sorted(names)
for name in ("cowhand_disk_transferred_bytes", "cowhand_throttle_at_limit_seconds", "cowhand_map_cache_hits"):
    assert name in names, sorted(names)
print(len(families))
"#;

#[test]
fn a_strict_parser_reads_the_figures() {
    let steered = Steered::with(&["--metrics", "0"]);
    let stdout = steered.server.stdout();
    let url = stdout.lines().find_map(|line| line.strip_prefix("metrics: http://")).expect("its address");
    let address = url.strip_suffix("/metrics").expect("its path");
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let mut client = steered.server.client("a");
    (0..3).for_each(|at| client.write(at * 4096, &[1; 4096]).expect("a write"));
    steered.talk().ok(
        "block_set_io_throttle",
        serde_json::json!({ "id": "a", "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 10000, "iops_rd": 0, "iops_wr": 0 }),
    );
    let answer = get(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("application/openmetrics-text"), "{head}");
    let script = steered.scratch.write("parse.py", SCRIPT.as_bytes());
    let said = Run::new("/usr/bin/python3").arg(script).input(body).ok();
    assert!(said.trim().parse::<u32>().expect("a number") > 15, "{said}");
    for (request, expected) in [
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405"),
        ("hello\r\n\r\n", "HTTP/1.1 400"),
        (&"x".repeat(20_000), "HTTP/1.1 431"),
    ] {
        let answer = get(address, request);
        // What was not read when it hung up may take the answer with it.
        assert!(answer.starts_with(expected) || (request.len() > 8192 && answer.is_empty()), "{answer}");
    }
    steered.server.stop();
}

#[test]
fn an_idle_disk_costs_a_scrape_little() {
    // Empty histograms made 25 KB of each idle disk: 4.9 MB for 200 of them, every 15 seconds.
    const DISKS: usize = 12;
    let scratch = Scratch::new();
    let paths: Vec<String> =
        (0..DISKS).map(|index| create(&scratch, &format!("d{index}.qcow2"), "1M")).collect();
    let mut server = Server::start([&["--metrics".to_owned(), "0".to_owned()][..], &paths].concat());
    server.wait_until(|server| server.stdout().contains("/metrics\n").then_some(())).expect("its address");
    let stdout = server.stdout();
    let address =
        stdout.lines().find_map(|line| line.strip_prefix("metrics: http://")?.strip_suffix("/metrics"));
    let scrape = |query: &str| {
        get(address.expect("its address"), &format!("GET /metrics{query} HTTP/1.1\r\nHost: x\r\n\r\n"))
    };
    let idle = scrape("");
    assert!(idle.len() / DISKS < 5000, "{} bytes a disk", idle.len() / DISKS);
    assert!(
        !idle.contains("_bucket{")
            && idle.contains("cowhand_disk_requests_total{disk=\"d3\",kind=\"read\"} 0")
    );
    // A name may come in escapes, as Prometheus sends them; one that there is not has no figures.
    let two = scrape("?disk=d3&disk=%64%31%30&disk=gone");
    let disks: BTreeSet<_> = two.split("disk=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(disks.into_iter().eq(["d10", "d3"]) && two.contains("cowhand_connections "), "{two}");
    server.client("d3").write(0, &[1; 4096]).expect("a write");
    let busy = scrape("");
    let bins: Vec<&str> = busy.lines().filter(|line| line.contains("_bucket{")).collect();
    assert!(
        !bins.is_empty() && bins.iter().all(|line| line.contains("disk=\"d3\",kind=\"write\"")),
        "{bins:?}"
    );
    assert!(!scrape("?histograms=none").contains("_bucket{"));
    server.stop();
}
