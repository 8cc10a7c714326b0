//! The NBD server on loops that another door uses, too: the same disk, the same end.

use std::sync::Arc;

use door_nbd::ServerOptions;
use export::{Export, Exports, Loops, Shutdown};
use wire::nbd::Dialect;

use crate::support::TestServer;
use crate::support::client::{Client, read_to_end};
use crate::support::line_door::LineDoor;
use crate::support::memory_export::{MemoryExport, PAGE};

#[test]
fn two_doors_lead_to_one_disk_and_end_in_order_together() {
    let loops = Loops::new(2, Shutdown::new());
    let mut server = TestServer::on(
        Arc::clone(&loops),
        reactor::Backend::Ring,
        MemoryExport::new(1 << 20),
        ServerOptions::default(),
    );
    let exports = Exports::new();
    let same: Arc<dyn Export> = Arc::clone(&server.disk) as _;
    exports.add("disk", "", same).expect("names are each door's own");
    let lines = LineDoor::new(&loops, exports);

    let mut nbd = Client::connect(&server.socket(), Dialect::Simple, &[]);
    nbd.send_write(1, 7, b"through one door");
    assert_eq!(nbd.reply(0).result, Ok(()));
    let mut reader = lines.connect("disk").expect("a place");
    reader.ask(7, 16);
    assert_eq!(reader.bytes(16), b"through one door");
    assert_eq!((server.server.connections(), lines.0.clients()), (1, 1));

    server.disk.hold(0);
    nbd.send_read(2, 7, 16);
    reader.ask(7, 16);
    let lines_entry = lines.0.exports().find("disk").expect("an export");
    while server.entry.counters().snapshot().in_flight + lines_entry.counters().snapshot().in_flight < 2 {
        std::thread::yield_now();
    }
    server.shutdown.trigger();
    server.disk.release();
    assert_eq!(nbd.reply(16).data, b"through one door");
    assert_eq!(reader.bytes(16), b"through one door");
    assert!(read_to_end(nbd.socket).is_empty() && reader.is_ended());
    server.ended();
    assert!(server.disk.peek(0, PAGE as usize).starts_with(b"\0\0\0\0\0\0\0through"));
}
