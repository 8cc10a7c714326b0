//! Serves disks in memory over NBD, until it is killed.
//!
//! ```text
//! cargo run --release -p cowhand-door-nbd --example serve_memory -- /tmp/nbd.sock 1G [LOOPS]
//! nbdinfo 'nbd+unix:///?socket=/tmp/nbd.sock'
//! ```
//!
//! `LOOPS` event loops (default: one a core). With `FILE=path` in the environment the bytes of that file are
//! served instead, read inline from the page cache: what a raw image in the page cache costs at least.

mod file_export;
#[path = "../../../export/tests/all/support/memory_export.rs"]
mod memory_export;

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use door_nbd::{Server, ServerOptions};
use export::{Export, Exports, Loops, Shutdown};
use reactor::net::Listener;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(size)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: serve_memory SOCKET SIZE [LOOPS]"));
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let loops = arguments.next().and_then(|loops| loops.parse().ok()).unwrap_or(cores);

    let disk: Arc<dyn Export> = match std::env::var_os("FILE") {
        Some(path) => Arc::new(file_export::FileExport::open(path.as_ref())?),
        None => Arc::new(memory_export::MemoryExport::new(parse_size(&size)?)),
    };
    let exports = Exports::new();
    exports.add("disk", "", disk).map_err(io::Error::other)?;
    let listener = Listener::from_unix(UnixListener::bind(&socket)?)?;
    let loops = Loops::new(loops, Shutdown::new());
    Server::new(exports, ServerOptions::default(), &loops).listen(&listener);
    println!("nbd+unix:///disk?socket={socket}");
    loops.run(reactor::Backend::Ring)
}

fn parse_size(text: &str) -> io::Result<u64> {
    let (digits, shift) = match text.strip_suffix(['M', 'G']) {
        Some(digits) => (digits, if text.ends_with('M') { 20 } else { 30 }),
        None => (text, 0),
    };
    digits.parse::<u64>().map(|count| count << shift).map_err(io::Error::other)
}
