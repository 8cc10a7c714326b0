//! How each line of the tables is tried: calls that have to fail.

use std::ffi::c_long;
use std::os::fd::AsRawFd;

use libc::{AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, AF_VSOCK, AT_FDCWD, SOCK_DGRAM, SOCK_RAW, SOCK_STREAM};

use crate::calls::{Outcome, at, call, inet_address, path, unix_address};
use crate::rings;
use crate::table::{Reach, Try, World};

const FASTOPEN: usize = libc::MSG_FASTOPEN as usize;

const HERE: usize = AT_FDCWD as usize;

/// Calls with the same few arguments.
fn each(arguments: [usize; 6], calls: &[(&'static str, c_long)]) -> Vec<Try> {
    calls.iter().map(|&(name, number)| (name, call(number, arguments))).collect()
}

pub fn files(world: &World, _: Reach) -> Vec<Try> {
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

pub fn attributes(world: &World, _: Reach) -> Vec<Try> {
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

pub fn open_attributes(world: &World, _: Reach) -> Vec<Try> {
    let (fd, name, value) = (world.fd(), c"user.evil".as_ptr() as usize, c"evil".as_ptr() as usize);
    let (flags, extended): (c_long, _) = (0, [0_u8; 28]);
    vec![
        ("fchown", call(libc::SYS_fchown, [fd, 0, 0, 0, 0, 0])),
        ("utimensat of a descriptor", call(libc::SYS_utimensat, [fd, 0, 0, 0, 0, 0])),
        ("fsetxattr", call(libc::SYS_fsetxattr, [fd, name, value, 4, 0, 0])),
        ("fremovexattr", call(libc::SYS_fremovexattr, [fd, name, 0, 0, 0, 0])),
        ("ioctl FS_IOC_SETFLAGS", call(libc::SYS_ioctl, [fd, 0x4008_6602, at(&flags), 0, 0, 0])),
        ("ioctl FS_IOC_FSSETXATTR", call(libc::SYS_ioctl, [fd, 0x401c_5820, at(&extended), 0, 0, 0])),
    ]
}

fn fchmod(world: &World) -> Try {
    ("fchmod", call(libc::SYS_fchmod, [world.fd(), 0o666, 0, 0, 0, 0]))
}

pub fn open_mode(world: &World, reach: Reach) -> Vec<Try> {
    if reach == Reach::Nothing { vec![fchmod(world)] } else { Vec::new() }
}

pub fn open_attributes_and_mode(world: &World, reach: Reach) -> Vec<Try> {
    let mut tries = open_attributes(world, reach);
    tries.push(fchmod(world));
    tries
}

fn socket(family: i32, kind: i32) -> Outcome {
    socket_of(family, kind, 0)
}

fn socket_of(family: i32, kind: i32, protocol: i32) -> Outcome {
    call(libc::SYS_socket, [family as usize, kind as usize, protocol as usize, 0, 0, 0])
}

pub fn sockets(_: &World, _: Reach) -> Vec<Try> {
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

/// What neither a resolver nor librbd has a use for.
pub fn odd_sockets(_: &World, _: Reach) -> Vec<Try> {
    vec![
        ("socket raw", socket_of(AF_INET, SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_ICMP)),
        ("socket raw of IPv6", socket_of(AF_INET6, SOCK_RAW, libc::IPPROTO_ICMPV6)),
        ("socket netlink netfilter", socket_of(AF_NETLINK, SOCK_RAW, libc::NETLINK_NETFILTER)),
        ("socket netlink uevent", socket_of(AF_NETLINK, SOCK_DGRAM, libc::NETLINK_KOBJECT_UEVENT)),
        ("socket vsock", socket(AF_VSOCK, SOCK_STREAM)),
        ("socket packet", socket(libc::AF_PACKET, SOCK_RAW)),
        ("socket alg", socket(libc::AF_ALG, libc::SOCK_SEQPACKET)),
    ]
}

fn descriptor(made: Outcome) -> usize {
    usize::try_from(made.expect("a resolver makes such sockets")).unwrap()
}

pub fn other_ports(world: &World, _: Reach) -> Vec<Try> {
    let connect = |port: u16| {
        let address = inet_address(port);
        let made = descriptor(socket(AF_INET, SOCK_STREAM));
        call(libc::SYS_connect, [made, at(&address), size_of_val(&address), 0, 0, 0])
    };
    connect(world.named_port()).expect("its own server is reached");
    vec![("connect to a port that was not named", connect(world.unnamed_port()))]
}

pub fn abstract_sockets(world: &World, _: Reach) -> Vec<Try> {
    let (address, len) = world.abstract_address();
    let made = descriptor(socket(AF_UNIX, SOCK_STREAM));
    vec![("connect to an abstract socket", call(libc::SYS_connect, [made, at(&address), len, 0, 0, 0]))]
}

pub fn listening(world: &World, _: Reach) -> Vec<Try> {
    let address = inet_address(0);
    let (name, len) = unix_address(&world.elsewhere.join("listens"));
    let [bound, unbound] = [(); 2].map(|()| descriptor(socket(AF_INET, SOCK_STREAM)));
    let unix = descriptor(socket(AF_UNIX, SOCK_STREAM));
    let waiting = world.listener();
    vec![
        ("bind of TCP", call(libc::SYS_bind, [bound, at(&address), size_of_val(&address), 0, 0, 0])),
        ("bind to a name", call(libc::SYS_bind, [unix, at(&name), len, 0, 0, 0])),
        // At a port that the kernel chooses.
        ("listen", call(libc::SYS_listen, [unbound, 1, 0, 0, 0, 0])),
        ("accept", call(libc::SYS_accept, [waiting, 0, 0, 0, 0, 0])),
        ("accept4", call(libc::SYS_accept4, [waiting, 0, 0, 0, 0, 0])),
    ]
}

/// Names that lead past a mode or a fence.
pub fn special_files(world: &World, _: Reach) -> Vec<Try> {
    let passwd = c"/etc/passwd".as_ptr() as usize;
    let new = path(&world.elsewhere.join("special"));
    let new = new.as_ptr() as usize;
    vec![
        ("name_to_handle_at", call(libc::SYS_name_to_handle_at, [HERE, passwd, 0, 0, 0, 0])),
        ("open_by_handle_at", call(libc::SYS_open_by_handle_at, [world.fd(), 0, 0, 0, 0, 0])),
        ("symlinkat", call(libc::SYS_symlinkat, [passwd, HERE, new, 0, 0, 0])),
        ("mknodat", call(libc::SYS_mknodat, [HERE, new, (libc::S_IFCHR | 0o600) as usize, 0x103, 0, 0])),
    ]
}

pub fn datagrams(_: &World, reach: Reach) -> Vec<Try> {
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

pub fn connections(world: &World, reach: Reach) -> Vec<Try> {
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

pub fn processes(_: &World, _: Reach) -> Vec<Try> {
    let mut tries = vec![
        ("clone without CLONE_THREAD", call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0])),
        ("clone3", call(libc::SYS_clone3, [0, 0, 0, 0, 0, 0])),
    ];
    #[cfg(target_arch = "x86_64")]
    tries.extend(each([0; 6], &[("fork", libc::SYS_fork), ("vfork", libc::SYS_vfork)]));
    tries
}

pub fn others(world: &World, reach: Reach) -> Vec<Try> {
    let (parent, all) = (std::os::unix::process::parent_id() as usize, [u64::MAX]);
    let mut tries = others_but_processors(world, reach);
    tries.push(("sched_setaffinity", call(libc::SYS_sched_setaffinity, [parent, 8, at(&all), 0, 0, 0])));
    tries
}

/// A library may pin threads, which the kernel does not tell from those of others.
pub fn others_but_processors(_: &World, _: Reach) -> Vec<Try> {
    let parent = std::os::unix::process::parent_id() as usize;
    let info = [0_u64; 16];
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
        ("fcntl F_SETOWN", call(libc::SYS_fcntl, [0, libc::F_SETOWN as usize, parent, 0, 0, 0])),
        ("fcntl F_SETSIG", call(libc::SYS_fcntl, [0, 10, 9, 0, 0, 0])),
    ]
}

pub fn new_rings(world: &World, _: Reach) -> Vec<Try> {
    let parameters = [0_u32; 30];
    let fd = world.ring.borrow().as_raw_fd() as usize;
    vec![
        ("io_uring_setup", call(libc::SYS_io_uring_setup, [4, at(&parameters), 0, 0, 0, 0])),
        // IORING_REGISTER_RESTRICTIONS, _FILES and _PBUF_RING.
        ("io_uring_register restrictions", call(libc::SYS_io_uring_register, [fd, 11, 0, 0, 0, 0])),
        ("io_uring_register files", call(libc::SYS_io_uring_register, [fd, 2, 0, 0, 0, 0])),
        ("io_uring_register buffers", call(libc::SYS_io_uring_register, [fd, 22, 0, 0, 0, 0])),
        ("io_setup", call(libc::SYS_io_setup, [1, 0, 0, 0, 0, 0])),
    ]
}

pub fn io_uring(world: &World, reach: Reach) -> Vec<Try> {
    let mut tries = new_rings(world, reach);
    let mut ring = world.ring.borrow_mut();
    ring.submitter().register_enable_rings().expect("a ring that was made before is enabled");
    let nothing = io_uring::opcode::Nop::new().build();
    rings::run(&mut ring, &nothing).expect("what is listed is done");
    tries.extend([
        ("ring: SOCKET", rings::run(&mut ring, &rings::socket())),
        ("ring: SETXATTR", rings::run(&mut ring, &rings::attribute(world.victim_path()))),
        ("ring: OPENAT", rings::run(&mut ring, &rings::open(world.victim_path()))),
    ]);
    tries
}

pub fn mounts(_: &World, _: Reach) -> Vec<Try> {
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

pub fn keys(_: &World, _: Reach) -> Vec<Try> {
    // KEYCTL_GET_KEYRING_ID of the session.
    let mut tries = vec![("keyctl", call(libc::SYS_keyctl, [0, -3_isize as usize, 0, 0, 0, 0]))];
    tries.extend(each([0; 6], &[("add_key", libc::SYS_add_key), ("request_key", libc::SYS_request_key)]));
    tries
}

pub fn terminal(_: &World, _: Reach) -> Vec<Try> {
    let letter = b'x';
    vec![
        ("ioctl TIOCSTI", call(libc::SYS_ioctl, [0, libc::TIOCSTI as usize, at(&letter), 0, 0, 0])),
        ("ioctl TIOCLINUX", call(libc::SYS_ioctl, [0, libc::TIOCLINUX as usize, at(&letter), 0, 0, 0])),
    ]
}

pub fn kernel(_: &World, _: Reach) -> Vec<Try> {
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

pub fn machine(_: &World, _: Reach) -> Vec<Try> {
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

pub fn unknown(_: &World, _: Reach) -> Vec<Try> {
    let mut tries =
        vec![("call 1000", call(1000, [0; 6])), ("syncfs", call(libc::SYS_syncfs, [usize::MAX; 6]))];
    #[cfg(target_arch = "x86_64")]
    tries.push(("getpid of x32", call(0x4000_0000 | libc::SYS_getpid, [0; 6])));
    tries
}
