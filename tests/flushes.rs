//! Flushes of several clients of one raw disk: the kernel reports an error of writeback to one of them only.
//!
//! Two clients flushed at once. Each had its own `fdatasync`; one was notified of the error, the other succeeded, was
//! answered first, and what its client had written was gone. What happens through io_uring no tracer can see or
//! change: there the simulation answers for it (`sim_raw.rs` of the engine), with the same code above the call.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use black_box::{Scratch, Server};

/// Clients that flush at the same time.
const CLIENTS: u8 = 4;

/// strace on a running server, which it releases when it is ended. What it says goes on being taken.
struct Tracer {
    child: Child,
    _said: BufReader<ChildStderr>,
}

impl Tracer {
    fn attach(server: &Server, log: &Path, inject: &str) -> Self {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-e", "trace=fdatasync", "-e", &format!("inject=fdatasync:{inject}"), "-o"]);
        strace.arg(log).args(["-p", &server.pid().to_string()]).stderr(Stdio::piped());
        let mut child = strace.spawn().expect("strace is needed");
        let mut said = BufReader::new(child.stderr.take().expect("its standard error"));
        let attached = said.by_ref().lines().map_while(Result::ok).any(|line| line.contains("attached"));
        assert!(attached, "strace cannot attach to the server");
        Self { child, _said: said }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.child.wait();
    }
}

fn raw_server(scratch: &Scratch) -> Server {
    let path = scratch.file("disk.raw");
    std::fs::write(&path, vec![0; 1 << 20]).expect("space");
    Server::start([format!("file={},format=raw,file.aio=threads", path.display())])
}

/// Each client writes and flushes; whether its flush was acknowledged.
fn all_flush(server: &Server) -> Vec<bool> {
    std::thread::scope(|scope| {
        let one = |number: u8| {
            let mut client = server.client("");
            move || {
                client.write(u64::from(number) << 16, &[number + 1; 4096]).expect("a write");
                client.flush().is_ok()
            }
        };
        let running: Vec<_> = (0..CLIENTS).map(one).map(|client| scope.spawn(client)).collect();
        running.into_iter().map(|client| client.join().expect("a client")).collect()
    })
}

#[test]
fn no_two_flushes_of_one_file_run_at_the_same_time() {
    let scratch = Scratch::new();
    let server = raw_server(&scratch);
    let log = scratch.file("strace");
    let tracer = Tracer::attach(&server, &log, "delay_enter=20000");
    assert_eq!(all_flush(&server), [true; CLIENTS as usize]);
    drop(tracer);
    server.stop();
    let log = std::fs::read_to_string(&log).expect("what strace wrote");
    let (mut running, mut syncs) = (0, 0);
    for line in log.lines().filter(|line| line.contains("fdatasync")) {
        if line.contains("<unfinished") {
            running += 1;
        }
        assert!(running <= 1, "two at once:\n{log}");
        if !line.contains("<unfinished") {
            running = 0;
            syncs += 1;
        }
    }
    assert!((1..=u32::from(CLIENTS)).contains(&syncs), "{syncs} syncs:\n{log}");
}

#[test]
fn after_a_failed_flush_no_client_gets_success() {
    let scratch = Scratch::new();
    let mut server = raw_server(&scratch);
    let log = scratch.file("strace");
    let tracer = Tracer::attach(&server, &log, "error=EIO:delay_enter=20000:when=1");
    assert_eq!(all_flush(&server), [false; CLIENTS as usize]);
    drop(tracer);
    // The kernel would say that all is well now.
    assert_eq!(all_flush(&server), [false; CLIENTS as usize]);
    server.signal(rustix::process::Signal::TERM);
    let outcome = server.outcome();
    assert!(outcome.stderr.contains("flush"), "{outcome}");
}
