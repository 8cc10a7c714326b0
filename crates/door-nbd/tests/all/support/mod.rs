//! A server over a disk in memory, on a unix socket, for one test.

pub mod client;
#[path = "../../../../export/tests/all/support/line_door.rs"]
pub mod line_door;
#[path = "../../../../export/tests/all/support/memory_export.rs"]
pub mod memory_export;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread::JoinHandle;

use door_nbd::{Server, ServerOptions};
use export::{Export, ExportEntry, Exports, Loops, Shutdown};
use memory_export::MemoryExport;
use reactor::net::Listener;

pub struct TestServer {
    pub disk: Arc<MemoryExport>,
    pub entry: Arc<ExportEntry>,
    pub server: Arc<Server>,
    pub shutdown: Shutdown,
    directory: tempfile::TempDir,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl TestServer {
    pub fn start(size: u64) -> Self {
        Self::with(MemoryExport::new(size), ServerOptions::default())
    }

    /// Serves `disk` as "disk", and an empty disk as "other".
    pub fn with(disk: MemoryExport, options: ServerOptions) -> Self {
        Self::on(Loops::new(2, Shutdown::new()), reactor::Backend::Ring, disk, options)
    }

    /// `backend` is asked on a thread of the server: a ring that goes interrupts the system calls of the
    /// thread that made it.
    pub fn on(
        loops: Arc<Loops>,
        backend: reactor::Backend,
        disk: MemoryExport,
        options: ServerOptions,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let disk = Arc::new(disk);
        let exports = Exports::new();
        let served = Arc::clone(&disk) as Arc<dyn Export>;
        let entry = exports.add("disk", "a disk in memory", served).expect("the first export");
        exports.add("other", "", Arc::new(MemoryExport::new(512))).expect("another name");
        let listener = UnixListener::bind(directory.path().join("socket")).expect("a socket");
        let listener = Listener::from_unix(listener).expect("a listener");
        let server = Server::new(exports, options, &loops);
        server.listen(&listener);
        let shutdown = loops.shutdown().clone();
        let thread = std::thread::spawn(move || loops.run(backend));
        Self { disk, entry, server, shutdown, directory, thread: Some(thread) }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Waits until the server has ended.
    pub fn ended(&mut self) {
        let thread = self.thread.take().expect("a server that runs");
        thread.join().expect("no panic").expect("event loops");
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.disk.release();
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("no panic").expect("event loops");
            }
        }
    }
}

/// Runs a peer; a missing one is a failure, never a skip.
pub fn peer(program: &str, arguments: &[&str]) -> Output {
    let run = Command::new(program).args(arguments).output();
    run.unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"))
}

/// As [`peer`], and its success is part of the test.
pub fn peer_succeeds(program: &str, arguments: &[&str]) -> String {
    let output = peer(program, arguments);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}
