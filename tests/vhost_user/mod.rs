//! Disks over vhost-user-blk: a machine of our own (`black_box::vhost_user`) against the daemon.

#![forbid(unsafe_code)]

pub(crate) mod crashes;
mod greedy;
mod hostile;
mod libblkio;
mod packed;
mod steering;
mod talk;

use std::path::PathBuf;

use black_box::peer::qemu_img;
use black_box::server::Start;
use black_box::{Scratch, Server};

/// A disk, and a socket for a machine.
struct Place {
    scratch: Scratch,
    disk: String,
    socket: PathBuf,
}

impl Place {
    /// A new disk of 64 MiB.
    fn new() -> Self {
        let scratch = Scratch::new();
        let (disk, socket) = (scratch.name("disk.qcow2"), scratch.file("v.sock"));
        qemu_img(["create", "-q", "-f", "qcow2", &disk, "64M"]).ok();
        Self { scratch, disk, socket }
    }

    /// Serves it, with these options of the drive and arguments.
    fn serve(&self, options: &str, more: &[&str]) -> Server {
        let drive = format!("file={}{options}", self.disk);
        let start = Start::new(["--vhost-user-blk"]).arg(&self.socket).args(more).arg(drive);
        let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        // The socket of a server that was killed may be answered by the kernel until the next one has taken the name.
        let open = |server: &Server| server.stdout().contains("for a virtual machine").then_some(());
        server.wait_until(open).expect("it opens its socket");
        server
    }
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = black_box::Random::new(seed);
    (0..len / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}
