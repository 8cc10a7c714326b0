//! The table of docs/internals/threat-model.md, and how each of its lines is tried.

use std::cell::RefCell;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use io_uring::IoUring;
use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, AF_VSOCK, AT_FDCWD, EACCES, ENOSYS, EPERM, SOCK_DGRAM, SOCK_RAW,
    SOCK_STREAM, c_long,
};

use crate::calls::{Outcome, at, call, path, unix_address};
use crate::rings;

const FASTOPEN: usize = libc::MSG_FASTOPEN as usize;

const DOCUMENT: &str = include_str!("../../../../docs/internals/threat-model.md");
/// The table stands behind this heading.
const HEADING: &str = "### What the sandbox denies";

/// Whether commands come to the server, and what they may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Nothing,
    /// Files are opened, and sockets made, where they are allowed.
    Allowed,
    /// Checkpoints of disks are taken.
    Checkpoints,
}

/// What the tries are made on.
pub struct World {
    victim: CString,
    elsewhere: PathBuf,
    disk: File,
    foreign: PathBuf,
    /// A connected socket that the server has.
    client: OwnedFd,
    ring: RefCell<IoUring>,
    _listener: std::os::unix::net::UnixListener,
}

impl World {
    /// Before the sandbox.
    pub fn prepare(directory: &Path) -> Self {
        let elsewhere = directory.join("elsewhere");
        let foreign = elsewhere.join("socket");
        let (client, _) = std::os::unix::net::UnixStream::pair().unwrap();
        Self {
            victim: path(&elsewhere.join("victim")),
            disk: File::options().read(true).write(true).open(directory.join("disk")).unwrap(),
            _listener: std::os::unix::net::UnixListener::bind(&foreign).unwrap(),
            foreign,
            client: client.into(),
            ring: RefCell::new(rings::restricted()),
            elsewhere,
        }
    }

    fn victim(&self) -> usize {
        self.victim.as_ptr() as usize
    }

    fn fd(&self) -> usize {
        self.disk.as_raw_fd() as usize
    }
}

/// A try and its outcome.
type Try = (&'static str, Outcome);

/// One line of the table.
struct Row {
    line: &'static str,
    tries: fn(&World, Reach) -> Vec<Try>,
}

const HERE: usize = AT_FDCWD as usize;

/// Calls with the same few arguments.
fn each(arguments: [usize; 6], calls: &[(&'static str, c_long)]) -> Vec<Try> {
    calls.iter().map(|&(name, number)| (name, call(number, arguments))).collect()
}

const ROWS: &[Row] = &[
    Row { line: "opening, making, renaming, linking, cutting, removing or starting a file", tries: files },
    Row { line: "mode, owner, times and attributes of a file, by its name", tries: attributes },
    Row { line: "owner, times and attributes of a file that is open", tries: open_attributes },
    Row { line: "the mode of a file that is open, where no commands come", tries: open_mode },
    Row { line: "sockets of TCP, UDP, netlink, vsock and packets", tries: sockets },
    Row { line: "unix sockets of datagrams, and of any kind where no commands come", tries: datagrams },
    Row { line: "connections and messages to any address", tries: connections },
    Row { line: "new processes and programs", tries: processes },
    Row { line: "other processes: signals, memory, descriptors, limits, processors", tries: others },
    Row { line: "new rings of io_uring, and other operations of those that are there", tries: io_uring },
    Row { line: "mounts, namespaces and other users", tries: mounts },
    Row { line: "keys, but to read a password that a command names", tries: keys },
    Row { line: "input faked for a terminal", tries: terminal },
    Row {
        line: "the kernel: modules, BPF, performance events, userfaultfd, swap, quotas, restart",
        tries: kernel,
    },
    Row { line: "the machine's clock and name", tries: machine },
    Row {
        line: "calls by the numbers of x32, and all calls that were not reviewed (ENOSYS)",
        tries: unknown,
    },
];

/// Tries every line, and compares the lines with the document's.
pub fn measure(world: &World, reach: Reach) {
    let table = DOCUMENT.split_once(HEADING).expect("the heading").1;
    let lines =
        table.lines().skip_while(|line| !line.starts_with("| ")).take_while(|line| line.starts_with('|'));
    let told: Vec<&str> = lines.skip(2).filter_map(|line| line.split('|').nth(1).map(str::trim)).collect();
    assert_eq!(told, ROWS.iter().map(|row| row.line).collect::<Vec<_>>(), "docs/internals/threat-model.md");
    let mut got_out = Vec::new();
    for row in ROWS {
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

fn files(world: &World, _: Reach) -> Vec<Try> {
    let passwd = c"/etc/passwd".as_ptr() as usize;
    let new = path(&world.elsewhere.join("new"));
    let new = new.as_ptr() as usize;
    let how = [libc::O_RDONLY as u64, 0, 0];
    let create = (libc::O_CREAT | libc::O_WRONLY) as usize;
    vec![
        ("openat", call(libc::SYS_openat, [HERE, passwd, 0, 0, 0, 0])),
        ("openat2", call(libc::SYS_openat2, [HERE, passwd, at(&how), size_of_val(&how), 0, 0])),
        ("open to make", call(libc::SYS_openat, [HERE, new, create, 0o600, 0, 0])),
        ("name_to_handle_at", call(libc::SYS_name_to_handle_at, [HERE, passwd, 0, 0, 0, 0])),
        ("open_by_handle_at", call(libc::SYS_open_by_handle_at, [world.fd(), 0, 0, 0, 0, 0])),
        ("renameat2", call(libc::SYS_renameat2, [HERE, world.victim(), HERE, new, 0, 0])),
        ("linkat", call(libc::SYS_linkat, [HERE, world.victim(), HERE, new, 0, 0])),
        ("symlinkat", call(libc::SYS_symlinkat, [passwd, HERE, new, 0, 0, 0])),
        ("mknodat", call(libc::SYS_mknodat, [HERE, new, (libc::S_IFREG | 0o600) as usize, 0, 0, 0])),
        ("mkdirat", call(libc::SYS_mkdirat, [HERE, new, 0o700, 0, 0, 0])),
        ("unlinkat", call(libc::SYS_unlinkat, [HERE, world.victim(), 0, 0, 0, 0])),
        ("truncate", call(libc::SYS_truncate, [world.victim(), 0, 0, 0, 0, 0])),
        ("execve", call(libc::SYS_execve, [c"/bin/true".as_ptr() as usize, 0, 0, 0, 0, 0])),
        ("execveat", call(libc::SYS_execveat, [HERE, c"/bin/true".as_ptr() as usize, 0, 0, 0, 0])),
    ]
}

fn attributes(world: &World, _: Reach) -> Vec<Try> {
    let (victim, name, value) = (world.victim(), c"user.evil".as_ptr() as usize, c"evil".as_ptr() as usize);
    let arguments = [value as u64, 4];
    let mut tries = vec![
        ("fchmodat", call(libc::SYS_fchmodat, [HERE, victim, 0o4777, 0, 0, 0])),
        ("fchmodat2", call(452, [HERE, victim, 0o4777, 0, 0, 0])),
        ("fchownat", call(libc::SYS_fchownat, [HERE, victim, 0, 0, 0, 0])),
        ("utimensat", call(libc::SYS_utimensat, [HERE, victim, 0, 0, 0, 0])),
        ("setxattr", call(libc::SYS_setxattr, [victim, name, value, 4, 0, 0])),
        ("lsetxattr", call(libc::SYS_lsetxattr, [victim, name, value, 4, 0, 0])),
        ("removexattr", call(libc::SYS_removexattr, [victim, name, 0, 0, 0, 0])),
        ("setxattrat", call(463, [HERE, victim, 0, name, at(&arguments), 16])),
        ("removexattrat", call(466, [HERE, victim, 0, name, 0, 0])),
        ("file_setattr", call(469, [HERE, victim, at(&arguments), 16, 0, 0])),
    ];
    #[cfg(target_arch = "x86_64")]
    tries.extend([
        ("chmod", call(libc::SYS_chmod, [victim, 0o4777, 0, 0, 0, 0])),
        ("chown", call(libc::SYS_chown, [victim, 0, 0, 0, 0, 0])),
        ("lchown", call(libc::SYS_lchown, [victim, 0, 0, 0, 0, 0])),
        ("utime", call(libc::SYS_utime, [victim, 0, 0, 0, 0, 0])),
        ("utimes", call(libc::SYS_utimes, [victim, 0, 0, 0, 0, 0])),
        ("futimesat", call(libc::SYS_futimesat, [HERE, victim, 0, 0, 0, 0])),
    ]);
    tries
}

fn open_attributes(world: &World, _: Reach) -> Vec<Try> {
    let (fd, name, value) = (world.fd(), c"user.evil".as_ptr() as usize, c"evil".as_ptr() as usize);
    let flags: c_long = 0;
    vec![
        ("fchown", call(libc::SYS_fchown, [fd, 0, 0, 0, 0, 0])),
        ("utimensat of a descriptor", call(libc::SYS_utimensat, [fd, 0, 0, 0, 0, 0])),
        ("fsetxattr", call(libc::SYS_fsetxattr, [fd, name, value, 4, 0, 0])),
        ("fremovexattr", call(libc::SYS_fremovexattr, [fd, name, 0, 0, 0, 0])),
        ("ioctl FS_IOC_SETFLAGS", call(libc::SYS_ioctl, [fd, 0x4008_6602, at(&flags), 0, 0, 0])),
    ]
}

fn open_mode(world: &World, reach: Reach) -> Vec<Try> {
    match reach {
        Reach::Nothing => vec![("fchmod", call(libc::SYS_fchmod, [world.fd(), 0o666, 0, 0, 0, 0]))],
        Reach::Allowed | Reach::Checkpoints => Vec::new(),
    }
}

fn socket(family: i32, kind: i32) -> Outcome {
    call(libc::SYS_socket, [family as usize, kind as usize, 0, 0, 0, 0])
}

fn sockets(_: &World, _: Reach) -> Vec<Try> {
    vec![
        ("socket TCP", socket(AF_INET, SOCK_STREAM)),
        ("socket TCP of IPv6", socket(AF_INET6, SOCK_STREAM)),
        ("socket UDP", socket(AF_INET, SOCK_DGRAM)),
        ("socket UDP of IPv6", socket(AF_INET6, SOCK_DGRAM)),
        ("socket raw", socket(AF_INET, SOCK_RAW)),
        ("socket netlink", socket(AF_NETLINK, SOCK_RAW)),
        ("socket vsock", socket(AF_VSOCK, SOCK_STREAM)),
        ("socket packet", socket(libc::AF_PACKET, SOCK_RAW)),
        ("socket alg", socket(libc::AF_ALG, libc::SOCK_SEQPACKET)),
    ]
}

fn datagrams(_: &World, reach: Reach) -> Vec<Try> {
    let two = [0_i32; 2];
    let pair = |kind: i32| call(libc::SYS_socketpair, [AF_UNIX as usize, kind as usize, 0, at(&two), 0, 0]);
    let mut tries = vec![
        ("socket unix datagram", socket(AF_UNIX, SOCK_DGRAM)),
        ("socket unix datagram, close on exec", socket(AF_UNIX, SOCK_DGRAM | libc::SOCK_CLOEXEC)),
        ("socket unix raw", socket(AF_UNIX, SOCK_RAW)),
        ("socketpair datagram", pair(SOCK_DGRAM)),
        ("socketpair raw", pair(SOCK_RAW)),
    ];
    if reach != Reach::Allowed {
        tries.push(("socket unix stream", socket(AF_UNIX, SOCK_STREAM)));
        tries.push(("socket unix seqpacket", socket(AF_UNIX, libc::SOCK_SEQPACKET)));
    }
    tries
}

fn connections(world: &World, reach: Reach) -> Vec<Try> {
    let (address, len) = unix_address(&world.foreign);
    let client = world.client.as_raw_fd() as usize;
    let message = [0_u64; 7];
    let mut tries = vec![
        ("connect", call(libc::SYS_connect, [client, at(&address), len, 0, 0, 0])),
        ("sendto with an address", call(libc::SYS_sendto, [client, at(&address), 1, 0, at(&address), len])),
        ("sendmmsg", call(libc::SYS_sendmmsg, [client, 0, 0, 0, 0, 0])),
        // MSG_FASTOPEN connects.
        ("sendmsg MSG_FASTOPEN", call(libc::SYS_sendmsg, [client, at(&message), FASTOPEN, 0, 0, 0])),
        ("sendto MSG_FASTOPEN", call(libc::SYS_sendto, [client, at(&address), 1, FASTOPEN, 0, 0])),
    ];
    if reach == Reach::Allowed {
        let made = socket(AF_UNIX, SOCK_STREAM).expect("a socket to listen at");
        tries.push((
            "connect a new socket",
            call(libc::SYS_connect, [made as usize, at(&address), len, 0, 0, 0]),
        ));
    }
    tries
}

fn processes(_: &World, _: Reach) -> Vec<Try> {
    let mut tries = vec![
        ("clone without CLONE_THREAD", call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0])),
        ("clone3", call(libc::SYS_clone3, [0, 0, 0, 0, 0, 0])),
    ];
    #[cfg(target_arch = "x86_64")]
    tries.extend(each([0; 6], &[("fork", libc::SYS_fork), ("vfork", libc::SYS_vfork)]));
    tries
}

fn others(_: &World, _: Reach) -> Vec<Try> {
    let parent = std::os::unix::process::parent_id() as usize;
    let (info, all) = ([0_u64; 16], [u64::MAX]);
    vec![
        ("kill", call(libc::SYS_kill, [parent, 0, 0, 0, 0, 0])),
        ("tkill", call(libc::SYS_tkill, [parent, 0, 0, 0, 0, 0])),
        ("tgkill", call(libc::SYS_tgkill, [parent, parent, 0, 0, 0, 0])),
        ("rt_sigqueueinfo", call(libc::SYS_rt_sigqueueinfo, [parent, 0, at(&info), 0, 0, 0])),
        ("rt_tgsigqueueinfo", call(libc::SYS_rt_tgsigqueueinfo, [parent, parent, 0, at(&info), 0, 0])),
        ("ptrace", call(libc::SYS_ptrace, [libc::PTRACE_SEIZE as usize, parent, 0, 0, 0, 0])),
        ("process_vm_readv", call(libc::SYS_process_vm_readv, [parent, 0, 0, 0, 0, 0])),
        ("process_vm_writev", call(libc::SYS_process_vm_writev, [parent, 0, 0, 0, 0, 0])),
        ("pidfd_open", call(libc::SYS_pidfd_open, [parent, 0, 0, 0, 0, 0])),
        ("pidfd_getfd", call(libc::SYS_pidfd_getfd, [0, 0, 0, 0, 0, 0])),
        ("pidfd_send_signal", call(libc::SYS_pidfd_send_signal, [0, 0, 0, 0, 0, 0])),
        ("prlimit64", call(libc::SYS_prlimit64, [parent, libc::RLIMIT_NOFILE as usize, 0, 0, 0, 0])),
        ("sched_setaffinity", call(libc::SYS_sched_setaffinity, [parent, 8, at(&all), 0, 0, 0])),
        ("fcntl F_SETOWN", call(libc::SYS_fcntl, [0, libc::F_SETOWN as usize, parent, 0, 0, 0])),
        ("fcntl F_SETSIG", call(libc::SYS_fcntl, [0, 10, 9, 0, 0, 0])),
    ]
}

fn io_uring(world: &World, _: Reach) -> Vec<Try> {
    let parameters = [0_u32; 30];
    let mut ring = world.ring.borrow_mut();
    let fd = ring.as_raw_fd() as usize;
    let mut tries = vec![
        ("io_uring_setup", call(libc::SYS_io_uring_setup, [4, at(&parameters), 0, 0, 0, 0])),
        // IORING_REGISTER_RESTRICTIONS, _FILES and _PBUF_RING.
        ("io_uring_register restrictions", call(libc::SYS_io_uring_register, [fd, 11, 0, 0, 0, 0])),
        ("io_uring_register files", call(libc::SYS_io_uring_register, [fd, 2, 0, 0, 0, 0])),
        ("io_uring_register buffers", call(libc::SYS_io_uring_register, [fd, 22, 0, 0, 0, 0])),
        ("io_setup", call(libc::SYS_io_setup, [1, 0, 0, 0, 0, 0])),
    ];
    ring.submitter().register_enable_rings().expect("a ring that was made before is enabled");
    let nothing = io_uring::opcode::Nop::new().build();
    rings::run(&mut ring, &nothing).expect("what is listed is done");
    tries.extend([
        ("ring: SOCKET", rings::run(&mut ring, &rings::socket())),
        ("ring: SETXATTR", rings::run(&mut ring, &rings::attribute(&world.victim))),
        ("ring: OPENAT", rings::run(&mut ring, &rings::open(&world.victim))),
    ]);
    tries
}

fn mounts(_: &World, _: Reach) -> Vec<Try> {
    each(
        [0; 6],
        &[
            ("mount", libc::SYS_mount),
            ("umount2", libc::SYS_umount2),
            ("pivot_root", libc::SYS_pivot_root),
            ("chroot", libc::SYS_chroot),
            ("setns", libc::SYS_setns),
            ("unshare", libc::SYS_unshare),
            ("move_mount", libc::SYS_move_mount),
            ("open_tree", libc::SYS_open_tree),
            ("open_tree_attr", 467),
            ("fsopen", libc::SYS_fsopen),
            ("fsmount", libc::SYS_fsmount),
            ("mount_setattr", libc::SYS_mount_setattr),
            ("setuid", libc::SYS_setuid),
            ("setgid", libc::SYS_setgid),
            ("setresuid", libc::SYS_setresuid),
            ("setgroups", libc::SYS_setgroups),
            ("capset", libc::SYS_capset),
        ],
    )
}

fn keys(_: &World, _: Reach) -> Vec<Try> {
    // KEYCTL_GET_KEYRING_ID of the session.
    let mut tries = vec![("keyctl", call(libc::SYS_keyctl, [0, -3_isize as usize, 0, 0, 0, 0]))];
    tries.extend(each([0; 6], &[("add_key", libc::SYS_add_key), ("request_key", libc::SYS_request_key)]));
    tries
}

fn terminal(_: &World, _: Reach) -> Vec<Try> {
    let letter = b'x';
    vec![
        ("ioctl TIOCSTI", call(libc::SYS_ioctl, [0, libc::TIOCSTI as usize, at(&letter), 0, 0, 0])),
        ("ioctl TIOCLINUX", call(libc::SYS_ioctl, [0, libc::TIOCLINUX as usize, at(&letter), 0, 0, 0])),
    ]
}

fn kernel(_: &World, _: Reach) -> Vec<Try> {
    each(
        [0; 6],
        &[
            ("bpf", libc::SYS_bpf),
            ("perf_event_open", libc::SYS_perf_event_open),
            ("userfaultfd", libc::SYS_userfaultfd),
            ("init_module", libc::SYS_init_module),
            ("finit_module", libc::SYS_finit_module),
            ("delete_module", libc::SYS_delete_module),
            ("kexec_load", libc::SYS_kexec_load),
            ("reboot", libc::SYS_reboot),
            ("swapon", libc::SYS_swapon),
            ("acct", libc::SYS_acct),
            ("quotactl", libc::SYS_quotactl),
            ("syslog", libc::SYS_syslog),
            ("fanotify_init", libc::SYS_fanotify_init),
        ],
    )
}

fn machine(_: &World, _: Reach) -> Vec<Try> {
    each(
        [0; 6],
        &[
            ("settimeofday", libc::SYS_settimeofday),
            ("clock_settime", libc::SYS_clock_settime),
            ("clock_adjtime", libc::SYS_clock_adjtime),
            ("adjtimex", libc::SYS_adjtimex),
            ("sethostname", libc::SYS_sethostname),
            ("setdomainname", libc::SYS_setdomainname),
        ],
    )
}

fn unknown(_: &World, _: Reach) -> Vec<Try> {
    let mut tries =
        vec![("call 1000", call(1000, [0; 6])), ("syncfs", call(libc::SYS_syncfs, [usize::MAX; 6]))];
    #[cfg(target_arch = "x86_64")]
    tries.push(("getpid of x32", call(0x4000_0000 | libc::SYS_getpid, [0; 6])));
    tries
}
