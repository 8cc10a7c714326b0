//! Which system calls a process in the sandbox may make.
//!
//! Three answers. What is in `USED`, or in the list of the process's role, is allowed. What was reviewed and is not needed fails with EPERM (`DENIED`, and
//! arguments of used calls: [`fenced`]). Everything else, and every call that a later kernel adds, fails with ENOSYS: a C library that tries a new call
//! falls back to the one it used before. What is added to the server is to be tested with the sandbox on (tests/sandbox.rs), not guessed at here.
//!
//! Two filters do this: one knows what is denied and allows the rest, one knows all names of this file and answers ENOSYS to the others. A call passes both.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

/// A process, by what it is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves what is open. Commands may have it listen at new unix sockets, if `listens`, and take checkpoints of disks, if `seals`.
    Server { listens: bool, seals: bool },
    /// Looks up names of hosts and connects.
    Broker,
    /// Has librbd, a library of others, which we have not reviewed call by call.
    RbdWorker,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("this processor is not known")]
    Processor,
    #[error("the filter is not one: {0}")]
    Filter(#[from] BackendError),
    #[error("the kernel does not take it: {0}")]
    Kernel(#[from] seccompiler::Error),
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that every role uses.
#[rustfmt::skip]
const USED: &[i64] = &[
    // Memory.
    libc::SYS_brk, libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_munmap, libc::SYS_madvise, libc::SYS_msync, libc::SYS_mincore,
    libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_munlock, libc::SYS_memfd_create, libc::SYS_membarrier, libc::SYS_get_mempolicy,
    // Threads and signals.
    libc::SYS_clone, libc::SYS_futex, libc::SYS_futex_waitv, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq,
    libc::SYS_set_tid_address, libc::SYS_gettid, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_restart_syscall, libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity, libc::SYS_sched_getparam, libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_min, libc::SYS_sched_get_priority_max, libc::SYS_getcpu, libc::SYS_prctl, libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend, libc::SYS_signalfd4, libc::SYS_tgkill, libc::SYS_wait4, libc::SYS_waitid,
    // Time, limits, names of ourselves.
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_gettimeofday, libc::SYS_times,
    libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime, libc::SYS_getrusage, libc::SYS_getrandom, libc::SYS_uname,
    libc::SYS_sysinfo, libc::SYS_prlimit64, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getpgid, libc::SYS_getsid, libc::SYS_getuid,
    libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid, libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_capget,
    // What is open.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_preadv, libc::SYS_pwritev,
    libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_lseek, libc::SYS_close, libc::SYS_close_range, libc::SYS_dup, libc::SYS_dup3, libc::SYS_fcntl,
    libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync_file_range, libc::SYS_sync, libc::SYS_ftruncate, libc::SYS_fallocate,
    libc::SYS_fadvise64, libc::SYS_readahead, libc::SYS_copy_file_range, libc::SYS_sendfile, libc::SYS_splice, libc::SYS_fstat, libc::SYS_fstatfs,
    libc::SYS_getdents64, libc::SYS_pipe2, libc::SYS_eventfd2, libc::SYS_ioctl, libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    // Names of files: Landlock says which.
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_statfs, libc::SYS_faccessat, libc::SYS_faccessat2,
    libc::SYS_readlinkat, libc::SYS_getcwd, libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_umask,
    // A new file gets its name when it is whole: Landlock keeps that within one directory.
    libc::SYS_linkat,
    // Sockets.
    libc::SYS_socket, libc::SYS_socketpair, libc::SYS_bind, libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_getsockopt,
    libc::SYS_setsockopt, libc::SYS_shutdown, libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_recvfrom, libc::SYS_recvmsg,
    // Rings that were made before, and passwords in a keyring.
    libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_keyctl,
];

/// The same, of calls that only this processor's kernel has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const USED_HERE: &[i64] = &[
    libc::SYS_arch_prctl, libc::SYS_time, libc::SYS_getpgrp, libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_open, libc::SYS_stat,
    libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink, libc::SYS_unlink, libc::SYS_rename, libc::SYS_pipe, libc::SYS_eventfd, libc::SYS_dup2,
    libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_create, libc::SYS_epoll_wait,
];
#[cfg(not(target_arch = "x86_64"))]
const USED_HERE: &[i64] = &[];

/// A server that makes sockets gives them their mode before they have a name; one that takes checkpoints seals layers, and overlays have the mode of the disk.
const USED_TO_SET_MODES: &[i64] = &[libc::SYS_fchmod];

/// Clients of our own. (A resolver binds sockets, and accepts none.)
const USED_TO_LISTEN: &[i64] = &[libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4];

/// Connections, and the questions to name servers.
const USED_TO_CONNECT: &[i64] = &[libc::SYS_connect, libc::SYS_sendmmsg, libc::SYS_recvmmsg];

/// What a library like librbd has a use for.
#[rustfmt::skip]
const USED_BY_LIBRARIES: &[i64] = &[
    libc::SYS_getpriority, libc::SYS_setpriority, libc::SYS_sched_setaffinity, libc::SYS_sched_setscheduler, libc::SYS_sched_setparam, libc::SYS_set_mempolicy, libc::SYS_mbind,
    libc::SYS_mlockall, libc::SYS_ioprio_set, libc::SYS_ioprio_get, libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    libc::SYS_timer_create, libc::SYS_timer_settime, libc::SYS_timer_delete, libc::SYS_getitimer, libc::SYS_setitimer, libc::SYS_mkdirat,
    libc::SYS_getxattr, libc::SYS_fgetxattr, libc::SYS_chdir, libc::SYS_fchmod, libc::SYS_truncate, libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmdt,
    libc::SYS_shmctl, libc::SYS_pkey_alloc, libc::SYS_pkey_free, libc::SYS_pkey_mprotect, libc::SYS_tee, libc::SYS_vmsplice,
];

/// Calls that no role has a use for, by what they would open up: EPERM.
#[rustfmt::skip]
const DENIED: &[i64] = &[
    // Other programs, and other processes.
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_process_madvise,
    libc::SYS_process_mrelease, libc::SYS_kcmp, libc::SYS_pidfd_open, libc::SYS_pidfd_getfd, libc::SYS_pidfd_send_signal, libc::SYS_kill,
    libc::SYS_tkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo,
    // Files past the fence of directories, special files.
    libc::SYS_open_by_handle_at, libc::SYS_name_to_handle_at, libc::SYS_mknodat, libc::SYS_symlinkat, libc::SYS_fanotify_init, libc::SYS_fanotify_mark,
    // Mode, owner, times and attributes of files, which Landlock does not know; also of those that are open.
    libc::SYS_fchmodat, FCHMODAT2, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_utimensat, libc::SYS_setxattr, libc::SYS_lsetxattr,
    libc::SYS_fsetxattr, libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr, SETXATTRAT, REMOVEXATTRAT, FILE_SETATTR,
    // Mounts and namespaces.
    libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_setns, libc::SYS_unshare, libc::SYS_move_mount,
    libc::SYS_open_tree, libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount, libc::SYS_fspick, libc::SYS_mount_setattr, OPEN_TREE_ATTR,
    // Other users.
    libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setfsuid,
    libc::SYS_setfsgid, libc::SYS_setgroups, libc::SYS_capset, libc::SYS_personality,
    // Rings with other operations than ours. Restrictions of a new ring lie in memory, where a filter cannot look.
    libc::SYS_io_uring_setup, libc::SYS_io_setup,
    // The kernel itself, and its corners that bugs are found in.
    libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_add_key, libc::SYS_request_key, libc::SYS_kexec_load,
    libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module, libc::SYS_reboot, libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_acct,
    libc::SYS_quotactl, libc::SYS_syslog, libc::SYS_vhangup,
    // The machine's clock and name.
    libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime, libc::SYS_adjtimex, libc::SYS_sethostname, libc::SYS_setdomainname,
];

/// Of newer kernels than the libc crate knows: the numbers are the same for every processor.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;

/// The same, of calls that only this processor's kernel has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const DENIED_HERE: &[i64] = &[
    libc::SYS_fork, libc::SYS_vfork, libc::SYS_mknod, libc::SYS_symlink, libc::SYS_link, libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown,
    libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_kexec_file_load,
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: &[i64] = &[libc::SYS_kexec_file_load];

/// The only requests of io_uring_register: a ring that was made before is enabled by the thread that uses it.
const IORING_REGISTER_ENABLE_RINGS: u64 = 12;

/// Requests of ioctl that a server uses: of files and devices (discard, length, sharing), terminals (is it one, how wide), sockets, and FUSE.
const IOCTLS: &[u64] = &[
    0x1277,      // BLKDISCARD
    0x127d,      // BLKSECDISCARD
    0x127f,      // BLKZEROOUT
    0x125e,      // BLKROGET
    0x1260,      // BLKGETSIZE
    0x1268,      // BLKSSZGET
    0x127b,      // BLKPBSZGET
    0x1278,      // BLKIOMIN
    0x1279,      // BLKIOOPT
    0x127c,      // BLKDISCARDZEROES
    0x1261,      // BLKFLSBUF
    0x8008_1272, // BLKGETSIZE64
    0x4004_9409, // FICLONE
    0x4020_940d, // FICLONERANGE
    0xc018_9436, // FIDEDUPERANGE
    0xc020_660b, // FS_IOC_FIEMAP
    0x8008_6601, // FS_IOC_GETFLAGS
    0x8070_5864, // XFS_IOC_FSGEOMETRY_V1
    0x8100_587e, // XFS_IOC_FSGEOMETRY
    0x5401,      // TCGETS
    0x802c_542a, // TCGETS2
    0x5413,      // TIOCGWINSZ
    0x5421,      // FIONBIO
    0x541b,      // FIONREAD
    0x5451,      // FIOCLEX
    0x8004_e500, // FUSE_DEV_IOC_CLONE
];

/// Attributes of a file that is open. The libc crate has these for no processor.
const FS_IOC_SETFLAGS: u64 = 0x4008_6602;
const FS_IOC_FSSETXATTR: u64 = 0x401c_5820;

/// Options of prctl: names of threads and mappings, core dumps, what seccomp itself asks for.
const PRCTLS: &[i32] = &[
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_VMA,
    libc::PR_SET_DUMPABLE,
    libc::PR_GET_DUMPABLE,
    libc::PR_SET_PDEATHSIG,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_GET_SECCOMP,
    libc::PR_CAPBSET_READ,
];

/// Commands of fcntl that have the kernel send signals.
const SIGNALLING_FCNTLS: [i32; 4] = [libc::F_SETOWN, F_SETSIG, F_SETOWN_EX, libc::F_NOTIFY];
// The libc crate has them for some processors only.
const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;

impl Role {
    /// Calls that this role uses beside `USED`.
    fn uses(self) -> Vec<i64> {
        match self {
            Self::Server { listens: false, seals: false } => USED_TO_LISTEN.to_vec(),
            Self::Server { .. } => [USED_TO_LISTEN, USED_TO_SET_MODES].concat(),
            Self::Broker => USED_TO_CONNECT.to_vec(),
            Self::RbdWorker => [USED_TO_LISTEN, USED_TO_CONNECT, USED_BY_LIBRARIES].concat(),
        }
    }

    fn connects(self) -> bool {
        matches!(self, Self::Broker | Self::RbdWorker)
    }
}

/// Calls that some roles use, and others may not make.
fn used_by_some() -> Vec<i64> {
    [USED_TO_SET_MODES, USED_TO_LISTEN, USED_TO_CONNECT].concat()
}

/// Puts all threads of this process behind the filters of `role`.
pub fn fence(role: Role) -> Result<(), FilterError> {
    let processor = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| FilterError::Processor)?;
    // Both are made before one is on.
    let filters = filters(role, processor)?;
    filters.iter().try_for_each(|filter| apply_filter_all_threads(filter))?;
    Ok(())
}

fn filters(role: Role, processor: TargetArch) -> Result<[BpfProgram; 2], FilterError> {
    let errno = |number: i32| SeccompAction::Errno(number.unsigned_abs());
    let denied = SeccompFilter::new(denied(role)?, SeccompAction::Allow, errno(libc::EPERM), processor)?;
    // clone3 is not known: its flags lie in memory, where a filter cannot look. The C library then uses clone, which has them in a register.
    let known = SeccompFilter::new(known(role), errno(libc::ENOSYS), SeccompAction::Allow, processor)?;
    Ok([denied.try_into()?, known.try_into()?])
}

/// All that is not answered with ENOSYS.
fn known(role: Role) -> Rules {
    let calls = [USED, USED_HERE, DENIED, DENIED_HERE, &used_by_some()].concat();
    calls.into_iter().chain(role.uses()).map(|call| (call, Vec::new())).collect()
}

/// What is answered with EPERM: without conditions, any such call.
fn denied(role: Role) -> Result<Rules, FilterError> {
    let uses = role.uses();
    let all = [DENIED, DENIED_HERE, &used_by_some()].concat();
    let mut rules: Rules =
        all.into_iter().filter(|call| !uses.contains(call)).map(|call| (call, Vec::new())).collect();
    rules.extend(fenced(role)?);
    Ok(rules)
}

/// Used calls, and the arguments with which they are denied.
fn fenced(role: Role) -> Result<Rules, FilterError> {
    let own = u64::from(std::process::id());
    let mut rules = Rules::new();
    // Processes: threads are needed.
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    rules.insert(
        libc::SYS_clone,
        vec![SeccompRule::new(vec![condition(0, SeccompCmpOp::MaskedEq(thread), 0)?])?],
    );
    // Signals and limits of others; an abort signals the thread itself.
    rules.insert(libc::SYS_tgkill, vec![other_than(0, &[own])?]);
    rules.insert(libc::SYS_prlimit64, vec![other_than(0, &[0, own])?]);
    rules.insert(libc::SYS_io_uring_register, vec![other_than(1, &[IORING_REGISTER_ENABLE_RINGS])?]);
    // A password may be read from a keyring (object-add), and nothing else be done there.
    rules.insert(libc::SYS_keyctl, vec![other_than(0, &[libc::KEYCTL_READ.into()])?]);
    rules.insert(libc::SYS_fcntl, one_of(1, &SIGNALLING_FCNTLS)?);
    if role == Role::RbdWorker {
        // Input faked for the user of our terminal, attributes of files.
        let denied = [libc::TIOCSTI, libc::TIOCLINUX, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR];
        rules.insert(
            libc::SYS_ioctl,
            denied.map(|request| equal(1, request)).into_iter().collect::<Result<_, _>>()?,
        );
    } else {
        rules.insert(libc::SYS_ioctl, vec![other_than(1, IOCTLS)?]);
        let options: Vec<u64> = PRCTLS.iter().map(|option| u64::from(option.unsigned_abs())).collect();
        rules.insert(libc::SYS_prctl, vec![other_than(0, &options)?]);
    }
    rules.extend(fenced_sockets(role)?);
    Ok(rules)
}

/// Sockets that lead out of the process.
fn fenced_sockets(role: Role) -> Result<Rules, FilterError> {
    let mut rules = Rules::new();
    let number = |value: i32| u64::from(value.unsigned_abs());
    let unix = number(libc::AF_UNIX);
    if role.connects() {
        let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(number);
        let raw = |family| -> Result<SeccompRule, FilterError> {
            let is_raw = condition(1, SeccompCmpOp::MaskedEq(0xf), number(libc::SOCK_RAW))?;
            Ok(SeccompRule::new(vec![condition(0, SeccompCmpOp::Eq, number(family))?, is_raw])?)
        };
        // Which addresses this machine has.
        let netlink = condition(0, SeccompCmpOp::Eq, number(libc::AF_NETLINK))?;
        let others = condition(2, SeccompCmpOp::Ne, number(libc::NETLINK_ROUTE))?;
        let netlink = SeccompRule::new(vec![netlink, others])?;
        let denied = vec![other_than(0, &families)?, raw(libc::AF_INET)?, raw(libc::AF_INET6)?, netlink];
        rules.insert(libc::SYS_socket, denied);
        return Ok(rules);
    }
    // Datagrams need no connection: their address lies in memory. (A raw unix socket is one of datagrams.)
    let kinds = |allowed: &[i32]| -> Result<Vec<SeccompRule>, FilterError> {
        let allowed: Vec<u64> = allowed.iter().map(|&kind| number(kind)).collect();
        let others = (0..16).filter(|kind| !allowed.contains(kind));
        let rule = |kind| Ok(SeccompRule::new(vec![condition(1, SeccompCmpOp::MaskedEq(0xf), kind)?])?);
        std::iter::once(other_than(0, &[unix])).chain(others.map(rule)).collect()
    };
    rules.insert(libc::SYS_socketpair, kinds(&[libc::SOCK_STREAM, libc::SOCK_SEQPACKET])?);
    let listens = matches!(role, Role::Server { listens: true, .. });
    rules.insert(libc::SYS_socket, if listens { kinds(&[libc::SOCK_STREAM])? } else { Vec::new() });
    // With an address.
    let address = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    // A message can connect a socket that is not connected: a listening one after its shutdown.
    let connecting = number(libc::MSG_FASTOPEN);
    let connects = |flags: u8| -> Result<SeccompRule, FilterError> {
        Ok(SeccompRule::new(vec![condition(flags, SeccompCmpOp::MaskedEq(connecting), connecting)?])?)
    };
    rules.insert(libc::SYS_sendto, vec![SeccompRule::new(vec![address])?, connects(3)?]);
    rules.insert(libc::SYS_sendmsg, vec![connects(2)?]);
    Ok(rules)
}

/// Matches if an argument is none of `values`.
fn other_than(argument: u8, values: &[u64]) -> Result<SeccompRule, FilterError> {
    let others = values.iter().map(|&value| condition(argument, SeccompCmpOp::Ne, value));
    Ok(SeccompRule::new(others.collect::<Result<_, _>>()?)?)
}

/// Matches if an argument is one of `values`.
fn one_of(argument: u8, values: &[i32]) -> Result<Vec<SeccompRule>, FilterError> {
    values.iter().map(|&value| equal(argument, u64::from(value.unsigned_abs()))).collect()
}

fn equal(argument: u8, value: u64) -> Result<SeccompRule, FilterError> {
    Ok(SeccompRule::new(vec![condition(argument, SeccompCmpOp::Eq, value)?])?)
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLES: [Role; 5] = [
        Role::Server { listens: false, seals: false },
        Role::Server { listens: true, seals: false },
        Role::Server { listens: false, seals: true },
        Role::Broker,
        Role::RbdWorker,
    ];

    #[test]
    fn the_filters_compile_for_every_role() {
        let processor = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        for role in ROLES {
            assert!(filters(role, processor).unwrap().iter().all(|filter| !filter.is_empty()), "{role:?}");
        }
    }

    /// Calls that only a server with a ublk device makes, which tests can have in a guest alone: without the first, what the kernel had in memory for a
    /// device was not written when its server ended.
    #[test]
    fn what_a_block_device_needs_at_its_end_is_allowed() {
        for call in [libc::SYS_sync, libc::SYS_ioctl, libc::SYS_io_uring_enter] {
            assert!(USED.contains(&call), "{call}");
        }
    }

    #[test]
    fn a_call_is_used_or_denied_and_named_once() {
        let mut calls = [USED, USED_HERE, DENIED, DENIED_HERE, &used_by_some()].concat();
        calls.sort_unstable();
        let doubles: Vec<_> = calls.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(doubles.is_empty(), "{doubles:?}");
        assert!(!calls.contains(&libc::SYS_clone3));
    }
}
