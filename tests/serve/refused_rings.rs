//! io_uring that is refused to some loops, or whose rings may be made and not entered: the server and the tools work on
//! over threads and say so once. They ended with an exit or a panic.

use black_box::server::Start;
use black_box::{Run, Scratch, Server, program};

use super::create;

/// A server under strace, which refuses as given.
fn serve_with(inject: &str, scratch: &Scratch, path: &str) -> Server {
    let log = scratch.name("strace.log");
    let arguments = ["-D", "-f", "-o", &log, "-e", "trace=io_uring_setup,io_uring_enter", "-e", inject];
    // With -D the process that was started is cowhand, and strace looks on.
    let start = Start::under("strace", arguments, ["--sandbox", "off", "--threads", "3", path]);
    start.listen().expect("a server that listens")
}

#[test]
fn a_server_that_gets_no_ring_serves() {
    assert_serves_over_threads("inject=io_uring_setup:error=EPERM");
    assert_serves_over_threads("inject=io_uring_setup:error=ENOMEM");
}

#[test]
fn a_server_that_may_not_enter_its_rings_serves() {
    assert_serves_over_threads("inject=io_uring_enter:error=EPERM");
}

#[test]
fn a_later_ring_that_fails_ends_neither_server_nor_tools() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "16M");
    // strace counts by thread: this is the second ring of each.
    let inject = "inject=io_uring_setup:error=EPERM:when=2+";
    let server = serve_with(inject, &scratch, &path);
    server.client("").write(0, &[7; 4096]).expect("write");
    server.stop();
    assert_tools_work("trace=io_uring_setup", inject, &scratch, &path);
}

fn assert_serves_over_threads(inject: &str) {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "16M");
    let mut server = serve_with(inject, &scratch, &path);
    let mut clients: Vec<_> = (0..4).map(|_| server.client("")).collect();
    for (at, client) in (0..).zip(&mut clients) {
        client.write(at * 65536, &[7; 4096]).expect("write");
        client.flush().expect("flush");
        assert_eq!(client.read(at * 65536, 4096).expect("read"), [7; 4096]);
    }
    let warnings = |server: &Server| {
        let reported = server.stderr();
        let count = reported.lines().filter(|line| line.contains("io_uring is not available")).count();
        (count > 0).then_some(count)
    };
    assert_eq!(server.wait_until(warnings), Some(1), "{inject}: {}", server.stderr());
    drop(clients);
    server.stop();
}

#[test]
fn tools_work_where_rings_may_not_be_made_or_entered() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "16M");
    for call in ["io_uring_setup", "io_uring_enter"] {
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:error=EPERM"));
        assert_tools_work(&trace, &inject, &scratch, &path);
    }
}

fn assert_tools_work(trace: &str, inject: &str, scratch: &Scratch, path: &str) {
    for tool in ["info", "check", "map"] {
        let log = scratch.name("strace.log");
        let arguments = ["-f", "-o", &log, "-e", trace, "-e", inject];
        Run::new("strace").args(arguments).arg(program::path()).args([tool, path]).ok();
    }
}
