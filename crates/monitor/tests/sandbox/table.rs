//! The tables of docs/internals/threat-model.md, and which calls stand for each of their lines.

use std::cell::RefCell;
use std::ffi::CString;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use io_uring::IoUring;
use libc::{EACCES, ENOSYS, EPERM};

use crate::calls::{Outcome, at, call, path, unix_address};
use crate::{rings, tries};

const DOCUMENT: &str = include_str!("../../../../docs/internals/threat-model.md");

/// What is behind the fences, and what it is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A server to which no commands come.
    Nothing,
    /// A server that opens files, and makes sockets, where they are allowed.
    Allowed,
    /// A server that takes checkpoints of disks.
    Checkpoints,
    /// A process that connects for a server.
    Connections,
    /// A process that has librbd.
    Library,
}

impl Reach {
    /// The heading of the table, and its lines.
    fn table(self) -> (&'static str, &'static [Row]) {
        match self {
            Self::Nothing | Self::Allowed | Self::Checkpoints => ("### What the sandbox denies", OF_A_SERVER),
            Self::Connections => ("### What is denied to a process that connects", OF_CONNECTIONS),
            Self::Library => ("### What is denied to a process that has librbd", OF_A_LIBRARY),
        }
    }
}

/// What the tries are made on.
pub struct World {
    victim: CString,
    pub elsewhere: PathBuf,
    disk: File,
    pub foreign: PathBuf,
    /// A connected socket that the server has.
    pub client: OwnedFd,
    pub ring: RefCell<IoUring>,
    /// A server that may be connected to, and one that may not.
    named: TcpListener,
    unnamed: TcpListener,
    _listener: std::os::unix::net::UnixListener,
}

impl World {
    /// Before the sandbox.
    pub fn prepare(directory: &Path) -> Self {
        let elsewhere = directory.join("elsewhere");
        let foreign = elsewhere.join("socket");
        let (client, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let [named, unnamed] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let world = Self {
            victim: path(&elsewhere.join("victim")),
            disk: File::options().read(true).write(true).open(directory.join("disk")).unwrap(),
            _listener: std::os::unix::net::UnixListener::bind(&foreign).unwrap(),
            foreign,
            client: client.into(),
            ring: RefCell::new(rings::restricted()),
            elsewhere,
            named,
            unnamed,
        };
        world.listen_without_a_file();
        world
    }

    /// Listens at [`World::abstract_address`] until the process ends.
    fn listen_without_a_file(&self) {
        let (address, len) = self.abstract_address();
        let made = call(libc::SYS_socket, [libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0, 0, 0, 0]);
        let made = usize::try_from(made.unwrap()).unwrap();
        call(libc::SYS_bind, [made, at(&address), len, 0, 0, 0]).unwrap();
        call(libc::SYS_listen, [made, 1, 0, 0, 0, 0]).unwrap();
    }

    /// An address of another process that is no name of a file.
    pub fn abstract_address(&self) -> (libc::sockaddr_un, usize) {
        unix_address(Path::new(&format!("\0cowhand-test-{}", std::process::id())))
    }

    pub fn victim(&self) -> usize {
        self.victim.as_ptr() as usize
    }

    pub fn victim_path(&self) -> &std::ffi::CStr {
        &self.victim
    }

    pub fn fd(&self) -> usize {
        self.disk.as_raw_fd() as usize
    }

    /// A socket that listens, made before the sandbox.
    pub fn listener(&self) -> usize {
        self.named.as_raw_fd() as usize
    }

    pub fn named_port(&self) -> u16 {
        self.named.local_addr().unwrap().port()
    }

    pub fn unnamed_port(&self) -> u16 {
        self.unnamed.local_addr().unwrap().port()
    }
}

/// A try and its outcome.
pub type Try = (&'static str, Outcome);

/// One line of a table.
struct Row {
    line: &'static str,
    tries: fn(&World, Reach) -> Vec<Try>,
}

const fn row(line: &'static str, tries: fn(&World, Reach) -> Vec<Try>) -> Row {
    Row { line, tries }
}

const OF_A_SERVER: &[Row] = &[
    row("opening, making, renaming, linking, cutting, removing or starting a file", tries::files),
    row("mode, owner, times and attributes of a file, by its name", tries::attributes),
    row("owner, times and attributes of a file that is open", tries::open_attributes),
    row("the mode of a file that is open, where no commands come", tries::open_mode),
    row("sockets of TCP, UDP, netlink, vsock and packets", tries::sockets),
    row("unix sockets of datagrams, and of any kind where no commands come", tries::datagrams),
    row("connections and messages to any address", tries::connections),
    row("new processes and programs", tries::processes),
    row("other processes: signals, memory, descriptors, limits, processors", tries::others),
    row("new rings of io_uring, and other operations of those that are there", tries::io_uring),
    row("mounts, namespaces and other users", tries::mounts),
    row("keys, but to read a password that a command names", tries::keys),
    row("input faked for a terminal", tries::terminal),
    row("the kernel: modules, BPF, performance events, userfaultfd, swap, quotas, restart", tries::kernel),
    row("the machine's clock and name", tries::machine),
    row("calls by the numbers of x32, and all calls that were not reviewed (ENOSYS)", tries::unknown),
];

const OF_CONNECTIONS: &[Row] = &[
    row("opening, making, renaming, linking, cutting, removing or starting a file", tries::files),
    row("mode, owner, times and attributes of a file, by its name", tries::attributes),
    row("mode, owner, times and attributes of a file that is open", tries::open_attributes_and_mode),
    row(
        "connections over TCP to other ports than those of the servers and of name servers",
        tries::other_ports,
    ),
    row("connections to abstract unix sockets", tries::abstract_sockets),
    row("listening over TCP or at a unix socket, and accepting connections", tries::listening),
    row(
        "sockets of vsock and packets, raw ones, netlink but for the machine's addresses",
        tries::odd_sockets,
    ),
    row("new processes and programs", tries::processes),
    row("other processes: signals, memory, descriptors, limits, processors", tries::others),
    row("rings of io_uring", tries::new_rings),
    row("mounts, namespaces and other users", tries::mounts),
    row("keys, but to read one by its number", tries::keys),
    row("input faked for a terminal", tries::terminal),
    row("the kernel: modules, BPF, performance events, userfaultfd, swap, quotas, restart", tries::kernel),
    row("the machine's clock and name", tries::machine),
    row("calls by the numbers of x32, and all calls that were not reviewed (ENOSYS)", tries::unknown),
];

const OF_A_LIBRARY: &[Row] = &[
    row("new processes and programs", tries::processes),
    row("other processes: signals, memory, descriptors, limits", tries::others_but_processors),
    row("devices, symbolic links, and files by other handles than names", tries::special_files),
    row("mode, owner, times and attributes of a file, by its name", tries::attributes),
    row("owner, times and attributes of a file that is open", tries::open_attributes),
    row(
        "sockets of vsock and packets, raw ones, netlink but for the machine's addresses",
        tries::odd_sockets,
    ),
    row("rings of io_uring", tries::new_rings),
    row("mounts, namespaces and other users", tries::mounts),
    row("keys, but to read one by its number", tries::keys),
    row("input faked for a terminal", tries::terminal),
    row("the kernel: modules, BPF, performance events, userfaultfd, swap, quotas, restart", tries::kernel),
    row("the machine's clock and name", tries::machine),
    row("calls by the numbers of x32, and all calls that were not reviewed (ENOSYS)", tries::unknown),
];

/// Tries every line of the table, and compares the lines with the document's.
pub fn measure(world: &World, reach: Reach) {
    let (heading, rows) = reach.table();
    let table = DOCUMENT.split_once(heading).expect("the heading").1;
    let lines =
        table.lines().skip_while(|line| !line.starts_with("| ")).take_while(|line| line.starts_with('|'));
    let reported: Vec<&str> =
        lines.skip(2).filter_map(|line| line.split('|').nth(1).map(str::trim)).collect();
    assert_eq!(
        reported,
        rows.iter().map(|row| row.line).collect::<Vec<_>>(),
        "docs/internals/threat-model.md"
    );
    let mut got_out = Vec::new();
    for row in rows {
        for (name, outcome) in (row.tries)(world, reach) {
            println!("{reach:?} | {} | {name} | {outcome:?}", row.line);
            if !matches!(outcome, Err(EPERM | EACCES | ENOSYS)) {
                got_out.push((row.line, name, outcome));
            }
        }
    }
    assert!(got_out.is_empty(), "{got_out:?}");
    assert_eq!(
        std::fs::metadata(world.elsewhere.join("victim")).unwrap().permissions().mode() & 0o7777,
        0o644
    );
}
