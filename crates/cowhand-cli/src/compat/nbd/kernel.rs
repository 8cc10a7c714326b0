//! `qemu-nbd -c` and `-d`: the kernel is the client (`linux/nbd-netlink.h`).
//!
//! We connect, shake hands in the kernel's place, and give it the connection with what was agreed on.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tool::failure::Failure;
use wire::nbd::Dialect;
use wire::nbd::client::{ExportRequest, Handshake, Negotiated, Step};

use super::netlink::{Attributes, Netlink};

const FAMILY: &str = "nbd";
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
/// Attributes of both, and inside of the sockets.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const SOCKET: u16 = 1;
const SOCKET_FD: u16 = 1;

/// The kernel's blocks have at least a sector and at most a page.
const BLOCKS: [u32; 2] = [512, 4096];
/// How long our own server may take to answer while it is connected.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The directory of sockets without `-k`, as QEMU's.
const SOCKETS_DIRECTORY: &str = "/var/lock";

/// A device of the kernel's NBD client.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    index: u32,
    netlink: Netlink,
}

impl Device {
    /// The one at `path`, whether it is connected or not.
    ///
    /// # Errors
    /// When that is no name of one, or the kernel has no such client.
    pub fn at(path: &Path) -> Result<Self, Failure> {
        let index = index_of(path).ok_or_else(|| {
            Failure::new(format!(
                "{} is no device of the kernel's NBD client; one is /dev/nbd0",
                path.display()
            ))
        })?;
        let failed = |error| Failure::because(format!("cannot reach {}", path.display()), &error);
        let netlink = Netlink::to(FAMILY).map_err(failed)?.ok_or_else(|| {
            Failure::new(format!("cannot reach {}: this kernel has no NBD client", path.display()))
                .with_hint("modprobe nbd loads it where it is a module")
        })?;
        Ok(Self { path: path.to_owned(), index, netlink })
    }

    /// As it was named.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The socket to listen at without `-k`.
    pub fn socket(&self) -> PathBuf {
        Path::new(SOCKETS_DIRECTORY).join(format!("qemu-nbd-nbd{}", self.index))
    }

    /// Gives the kernel the export `name` of the server at the other end of `stream`, which must be served meanwhile.
    ///
    /// # Errors
    /// When the server or the kernel refuses.
    pub fn connect(&mut self, stream: UnixStream, export: &str) -> Result<(), Failure> {
        let connected = shake_hands(stream, export).and_then(|(stream, agreed)| {
            let smallest = agreed.blocks.map_or(1, |blocks| blocks.minimum);
            let block = BLOCKS.into_iter().find(|block| *block >= smallest);
            let block =
                block.ok_or_else(|| io::Error::other(format!("blocks of {smallest} bytes are too large")))?;
            let socket = Attributes::default().with(SOCKET_FD, &stream.as_raw_fd().to_ne_bytes());
            let attributes = self
                .attributes()
                .with(SIZE_BYTES, &agreed.size.to_ne_bytes())
                .with(BLOCK_SIZE_BYTES, &u64::from(block).to_ne_bytes())
                .with(SERVER_FLAGS, &u64::from(agreed.flags.to_wire()).to_ne_bytes())
                .with_nested(SOCKETS, &Attributes::default().with_nested(SOCKET, &socket));
            self.netlink.ask(CONNECT, &attributes)
        });
        let failed = |error| Failure::because(format!("cannot connect {}", self.path.display()), &error);
        connected.map(drop).map_err(failed)
    }

    /// Takes the connection away from the kernel, if it has one: what waits for it fails.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn disconnect(&mut self) -> Result<(), Failure> {
        let attributes = self.attributes();
        let failed = |error| Failure::because(format!("cannot disconnect {}", self.path.display()), &error);
        self.netlink.ask(DISCONNECT, &attributes).map(drop).map_err(failed)
    }

    fn attributes(&self) -> Attributes {
        Attributes::default().with(INDEX, &self.index.to_ne_bytes())
    }
}

/// `/dev/nbd3` has 3. What it is a link to counts; it need not be there yet.
fn index_of(path: &Path) -> Option<u32> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let digits = path.file_name()?.to_str()?.strip_prefix("nbd")?;
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let index = digits.parse::<i32>().ok().filter(|_| is_number)?;
    u32::try_from(index).ok()
}

fn shake_hands(mut stream: UnixStream, export: &str) -> io::Result<(UnixStream, Negotiated)> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    // The kernel speaks no later dialect.
    let wanted = ExportRequest {
        export: export.to_owned(),
        tls: false,
        dialect: Dialect::Simple,
        contexts: Vec::new(),
    };
    let (mut handshake, mut inbox) = (Handshake::new(wanted), Vec::new());
    loop {
        let mut answer = Vec::new();
        let (taken, step) = handshake.step(&inbox, &mut answer).map_err(io::Error::other)?;
        inbox.drain(..taken);
        stream.write_all(&answer)?;
        match step {
            Step::Again => {}
            Step::StartTls => return Err(io::Error::other("TLS was not asked for")),
            Step::Ready(agreed) => {
                stream.set_read_timeout(None)?;
                return Ok((stream, agreed));
            }
            Step::Need(bytes) => {
                // No byte more than the handshake's: the next ones are the kernel's.
                let start = inbox.len();
                inbox.resize(start + bytes, 0);
                stream.read_exact(inbox.get_mut(start..).unwrap_or_default())?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_name_has_its_number() {
        for (name, index) in [("/dev/nbd0", Some(0)), ("/dev/nbd15", Some(15)), ("nbd7", Some(7))] {
            assert_eq!(index_of(Path::new(name)), index, "{name}");
        }
        for name in [
            "/dev/nbd",
            "/dev/sda",
            "/dev/nbd0p1",
            "/dev/nbd+1",
            "/dev/nbd-1",
            "/dev/nbd99999999999",
            "/",
            "",
        ] {
            assert_eq!(index_of(Path::new(name)), None, "{name}");
        }
    }
}
