//! `--sandbox`: once disks and sockets are open, the process gives up what it does not need any more.
//!
//! What a hostile image or client could make of a bug in us ends here: no program can be started, no file opened,
//! nothing connected to. Three fences, each as far as the kernel has it; what it has not is told in the log, and
//! serving goes on:
//!
//! - `no_new_privs`: no set-user-id program gives rights back.
//! - Landlock: no file is opened (but for those under `--allow-path` where commands may come), made, renamed or executed, no TCP port bound or connected to, no process outside
//!   signalled. What is open stays open. Left is the right to remove files in the directories of our own socket
//!   and pid file: landlock knows directories only.
//! - seccomp: the calls in `DENIED` fail with EPERM, and with them processes (threads are needed) and all sockets but
//!   local ones (systemd is told of the end over one).
//!
//! seccomp does not see what io_uring does, Landlock does: so that neither file system nor network opens up there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, NetPort, PathBeneath, PathFd, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};
use serde::Deserialize;

/// Whether privileges are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sandbox {
    /// As far as the kernel can.
    #[default]
    On,
    /// The process keeps all rights of its user.
    Off,
}

/// The newest Landlock whose rights are known here; older kernels enforce what they have.
const LANDLOCK: ABI = ABI::V7;

/// Calls that a server has no use for once it serves, by what they would open up. What is added to the server is to be
/// tested with the sandbox on (tests/sandbox.rs), not guessed at here.
const DENIED: &[i64] = &[
    // Other programs, and other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_rt_sigqueueinfo,
    // Files past the fence of directories, special files, ownership. Not linkat, by which a new file gets its name when it is whole: Landlock
    // keeps it within one directory.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fanotify_init,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    // Other users.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_personality,
    // The kernel itself, and its corners that bugs are found in.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // The machine's clock and name.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

/// The same, of calls that only this processor's kernel has.
#[cfg(target_arch = "x86_64")]
const DENIED_HERE: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_mknod,
    libc::SYS_symlink,
    libc::SYS_link,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_kexec_file_load,
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: &[i64] = &[libc::SYS_kexec_file_load];

/// Gives up what is not needed to serve from now on. `names` are files that are removed at the end; under `reach`,
/// files are still opened and sockets made; `disks` are files that this process may have to open again.
///
/// All threads that exist must be the caller's, idle, or able to do without; later ones inherit.
pub fn enter(names: &[&Path], reach: &[PathBuf], disks: &[PathBuf]) {
    // Landlock holds a thread and those it starts: so none may be left that was started before.
    reactor::end_blocking_threads();
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        tracing::warn!(%error, "sandbox: the kernel has no no_new_privs");
    }
    match fence_files(names, reach, disks) {
        Ok(status) => tell(&status),
        Err(error) => tracing::warn!(%error, "sandbox: no landlock: files and network are not fenced off"),
    }
    match fence_calls(&[libc::AF_UNIX]) {
        Ok(()) => tracing::info!("sandbox: seccomp is on"),
        Err(error) => tracing::warn!(%error, "sandbox: no seccomp: system calls are not fenced off"),
    }
}

/// Files that say how names of hosts are looked up. They are fenced as they are when a broker begins: one that is replaced needs a new broker.
pub const LOOKUP_FILES: [&str; 9] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/networks",
    "/etc/services",
    "/etc/mdns.allow",
    // Modules that look names up are libraries that are found through it.
    "/etc/ld.so.cache",
];

/// Where names of hosts are looked up besides, and the libraries that do it.
const RESOLVER: [&str; 7] =
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/run/systemd/resolve", "/run/nscd", "/run/NetworkManager"];

/// The port of name servers, for answers that are too long for one packet.
const DNS: u16 = 53;

/// Gives up what is not needed to connect to `ports` of hosts by their names: nothing is written, started or listened on.
pub fn enter_as_broker(ports: &[u16]) {
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        tracing::warn!(%error, "sandbox of connections: the kernel has no no_new_privs");
    }
    if let Err(error) = fence_connections(ports) {
        tracing::warn!(%error, "sandbox of connections: no landlock");
    }
    if let Err(error) = fence_calls(&[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]) {
        tracing::warn!(%error, "sandbox of connections: no seccomp");
    }
}

/// Gives up what librbd has no use for, once it is loaded: other programs and processes, special files, other users, the kernel's corners.
pub fn enter_as_rbd_worker() {
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        tracing::warn!(%error, "sandbox of RBD images: the kernel has no no_new_privs");
    }
    if let Err(error) = fence_calls(&[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]) {
        tracing::warn!(%error, "sandbox of RBD images: no seccomp");
    }
}

/// Only files that say how names are looked up, and only these ports.
fn fence_connections(ports: &[u16]) -> Result<RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::Signal)?
        .create()?;
    // Not every system has all of them.
    for place in RESOLVER.iter().filter_map(|place| PathFd::new(place).ok()) {
        rules = rules.add_rule(PathBeneath::new(place, AccessFs::ReadFile | AccessFs::ReadDir))?;
    }
    for file in LOOKUP_FILES.iter().filter_map(|file| PathFd::new(file).ok()) {
        rules = rules.add_rule(PathBeneath::new(file, AccessFs::ReadFile))?;
    }
    for port in ports.iter().copied().chain([DNS]) {
        rules = rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    }
    rules.restrict_self()
}

fn tell(status: &RestrictionStatus) {
    let kernel = &status.landlock;
    match status.ruleset {
        RulesetStatus::FullyEnforced => tracing::info!(?kernel, "sandbox: landlock is on"),
        RulesetStatus::PartiallyEnforced => {
            tracing::info!(?kernel, "sandbox: landlock is on, as far as this kernel has it");
        }
        RulesetStatus::NotEnforced => {
            tracing::warn!(?kernel, "sandbox: no landlock: files and network are not fenced off");
        }
    }
}

/// No file system, no TCP, no signals; but for removing `names` and what lies under `reach`.
fn fence_files(
    names: &[&Path],
    reach: &[PathBuf],
    disks: &[PathBuf],
) -> Result<RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::Signal)?
        .create()?;
    for directory in names.iter().filter_map(|name| name.parent()) {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        match PathFd::new(directory) {
            Ok(directory) => rules = rules.add_rule(PathBeneath::new(directory, AccessFs::RemoveFile))?,
            Err(error) => tracing::warn!(%error, "sandbox: a name of ours will stay behind"),
        }
    }
    let open = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    for directory in reach {
        match PathFd::new(directory) {
            Ok(directory) => {
                let made = AccessFs::MakeSock | AccessFs::MakeReg | AccessFs::RemoveFile;
                let rights = open | AccessFs::ReadDir | made;
                rules = rules.add_rule(PathBeneath::new(directory, rights))?;
            }
            Err(error) => tracing::warn!(%error, "sandbox: a directory given with --allow-path stays closed"),
        }
    }
    for disk in disks {
        match PathFd::new(disk) {
            Ok(disk) => rules = rules.add_rule(PathBeneath::new(disk, open))?,
            Err(error) => tracing::warn!(%error, "sandbox: a disk cannot be opened again"),
        }
    }
    rules.restrict_self()
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
enum FilterError {
    #[error("this processor is not known")]
    Processor,
    #[error("the filter is not one: {0}")]
    Filter(#[from] seccompiler::BackendError),
    #[error("the kernel does not take it: {0}")]
    Kernel(#[from] seccompiler::Error),
}

/// Sockets are still made of `families`.
fn fence_calls(families: &[i32]) -> Result<(), FilterError> {
    let processor = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| FilterError::Processor)?;
    // Both are made before one is on.
    let filters = [
        filter(denied(families)?, libc::EPERM, processor)?,
        // Its flags lie in memory, where a filter cannot look. The C library then uses clone, which has them in a register.
        filter(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS, processor)?,
    ];
    filters.iter().try_for_each(|filter| apply_filter_all_threads(filter))?;
    Ok(())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn filter(rules: Rules, error: i32, processor: TargetArch) -> Result<BpfProgram, FilterError> {
    let refuse = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, processor)?;
    Ok(filter.try_into()?)
}

/// What fails: without conditions, any such call.
fn denied(families: &[i32]) -> Result<Rules, FilterError> {
    let mut rules: Rules = DENIED.iter().chain(DENIED_HERE).map(|&call| (call, Vec::new())).collect();
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    rules.insert(libc::SYS_clone, when(0, SeccompCmpOp::MaskedEq(thread), 0)?);
    let other = families.iter().map(|family| condition(0, SeccompCmpOp::Ne, family.unsigned_abs().into()));
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(other.collect::<Result<_, _>>()?)?]);
    // A password may be read from a keyring (object-add), and nothing else be done there.
    rules.insert(libc::SYS_keyctl, when(0, SeccompCmpOp::Ne, libc::KEYCTL_READ.into())?);
    // Input faked for the user of our terminal.
    rules.insert(libc::SYS_ioctl, when(1, SeccompCmpOp::Eq, libc::TIOCSTI)?);
    Ok(rules)
}

fn when(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<Vec<SeccompRule>, FilterError> {
    Ok(vec![SeccompRule::new(vec![condition(argument, operator, value)?])?])
}

fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{self, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;

    use super::*;

    /// Set in a child of the test, which then enters the sandbox.
    const CHILD: &str = "COWHAND_TEST_SANDBOX";

    #[test]
    fn the_filters_compile_and_name_every_call_once() {
        let processor = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let rules = denied(&[libc::AF_UNIX]).unwrap();
        assert_eq!(rules.len(), DENIED.len() + DENIED_HERE.len() + 4);
        assert!(!filter(rules, libc::EPERM, processor).unwrap().is_empty());
    }

    #[test]
    fn in_the_sandbox_nothing_opens_runs_or_connects_and_names_can_be_removed() {
        let Some(directory) = std::env::var_os(CHILD) else { return run_in_a_child() };
        let directory = Path::new(&directory);
        let own = directory.join("own").join("socket");
        std::fs::write(&own, "x").unwrap();
        let mut open = File::options().read(true).write(true).open(directory.join("disk")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        enter(&[&own], &[], &[]);
        let denied = |what: &str, result: io::Result<()>| {
            let kind = result.map_err(|error| error.kind());
            assert_eq!(kind, Err(io::ErrorKind::PermissionDenied), "{what}");
        };
        denied("read", File::open("/etc/passwd").map(drop));
        denied("make", File::create(directory.join("new")).map(drop));
        denied("run", Command::new("/bin/true").status().map(drop));
        denied("connect", TcpStream::connect(listener.local_addr().unwrap()).map(drop));
        denied("remove elsewhere", std::fs::remove_file(directory.join("elsewhere").join("image")));
        std::thread::spawn(move || denied("read in a new thread", File::open("/etc/passwd").map(drop)))
            .join()
            .unwrap();
        open.write_all(b"still open").unwrap();
        std::fs::remove_file(&own).unwrap();
    }

    /// It could read all of /etc: passwords, and keys of other services.
    #[test]
    fn a_process_that_connects_reads_files_of_names_only() {
        if std::env::var_os(CHILD).is_none() {
            return in_a_child("a_process_that_connects_reads_files_of_names_only", Path::new("/"));
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        enter_as_broker(&[listener.local_addr().unwrap().port()]);
        for file in ["/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf"] {
            assert!(!Path::new(file).exists() || std::fs::read(file).is_ok(), "{file}");
        }
        for file in ["/etc/passwd", "/etc/shadow", "/etc/hostname", "/proc/self/environ", "/root/.profile"] {
            let kind = File::open(file).map_err(|error| error.kind()).map(drop);
            let is_there = Path::new(file).exists();
            assert!(kind == Err(io::ErrorKind::PermissionDenied) || !is_there, "{file}: {kind:?}");
        }
        assert!(std::fs::read_dir("/etc").is_err());
        TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(TcpStream::connect(other.local_addr().unwrap()).is_err());
    }

    /// What is given up does not come back, so another process does it.
    fn run_in_a_child() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("disk"), "").unwrap();
        std::fs::create_dir(directory.path().join("own")).unwrap();
        std::fs::create_dir(directory.path().join("elsewhere")).unwrap();
        std::fs::write(directory.path().join("elsewhere").join("image"), "").unwrap();
        in_a_child(
            "in_the_sandbox_nothing_opens_runs_or_connects_and_names_can_be_removed",
            directory.path(),
        );
    }

    fn in_a_child(test: &str, directory: &Path) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([&format!("serve::sandbox::tests::{test}"), "--exact", "--nocapture"])
            .env(CHILD, directory)
            .output()
            .unwrap();
        let said =
            String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }
}
