//! `--sandbox`: once disks and sockets are open, the process gives up what it does not need any more.
//!
//! It bounds what a hostile image or client could do with a bug in us: no program can be started, no file
//! opened, nothing connected to. Three fences, each as far as the kernel has it; what the kernel lacks is
//! logged, and serving continues:
//!
//! - `no_new_privs`: no set-user-id program gives rights back.
//! - Landlock: no file is opened (but for those under `--allow-path` where commands may come), made, renamed or executed, no TCP port bound or connected to, no process outside
//!   signalled. What is open stays open. Left is the right to remove files in the directories of our own socket
//!   and pid file: landlock knows directories only.
//! - seccomp: only the calls of `calls.rs` are made, and with them no process (threads are needed), no connection and no socket but unix sockets to listen at.
//!
//! seccomp does not see what io_uring does. So each ring is restricted to the operations in use (`reactor::prepare_rings`), and none is made in the sandbox.
//! What is denied, to the server and to the processes that it has beside it, are tables of docs/internals/threat-model.md; `tests/sandbox` measures each
//! line of them from inside.

mod calls;

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, NetPort, PathBeneath, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use serde::Deserialize;

use self::calls::{Role, fence};

/// Whether privileges are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
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

/// What a server still does with files once it is in its sandbox.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// Files that are removed at the end.
    pub names: &'a [&'a Path],
    /// Directories under which files are opened and sockets made.
    pub reach: &'a [PathBuf],
    /// Files that this process may have to open again.
    pub disks: &'a [PathBuf],
    /// Directories in which checkpoints and forks of disks are made.
    pub lineages: &'a [PathBuf],
    /// Files that credentials were read from, which are read again before those end.
    pub credentials: &'a [PathBuf],
}

/// Gives up what is not needed to serve from now on.
///
/// All threads that exist must be the caller's, idle, or able to do without; later ones inherit.
pub fn enter(allowed: Allowed<'_>) {
    // Landlock holds a thread and those it starts: so none may be left that was started before.
    reactor::end_blocking_threads();
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        tracing::warn!(%error, "sandbox: the kernel has no no_new_privs");
    }
    match fence_files(allowed) {
        Ok(status) => tell(&status),
        Err(error) => tracing::warn!(%error, "sandbox: no landlock: files and network are not fenced off"),
    }
    match fence(Role::Server { listens: !allowed.reach.is_empty(), seals: !allowed.lineages.is_empty() }) {
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

/// Gives up what is not needed to connect to `ports` of hosts by their names, and to abstract sockets if `abstract_ones`: nothing is written,
/// started or listened on.
pub fn enter_as_broker(ports: &[u16], abstract_ones: bool) {
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        tracing::warn!(%error, "sandbox of connections: the kernel has no no_new_privs");
    }
    if let Err(error) = fence_connections(ports, abstract_ones) {
        tracing::warn!(%error, "sandbox of connections: no landlock");
    }
    if let Err(error) = fence(Role::Broker) {
        tracing::warn!(%error, "sandbox of connections: no seccomp");
    }
}

/// Gives up what librbd has no use for, once it is loaded: other programs and processes, special files, other users, the kernel's corners.
pub fn enter_as_rbd_worker() {
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        tracing::warn!(%error, "sandbox of RBD images: the kernel has no no_new_privs");
    }
    if let Err(error) = fence(Role::RbdWorker) {
        tracing::warn!(%error, "sandbox of RBD images: no seccomp");
    }
}

/// Only files that say how names are looked up, and only these ports.
fn fence_connections(ports: &[u16], abstract_ones: bool) -> Result<RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(if abstract_ones { Scope::Signal.into() } else { Scope::Signal | Scope::AbstractUnixSocket })?
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
    match (&status.ruleset, &status.landlock) {
        (RulesetStatus::FullyEnforced, _) => tracing::info!("sandbox: landlock is on"),
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            tracing::info!("sandbox: landlock is on, as far as this kernel has it ({effective_abi:?})");
        }
        (RulesetStatus::PartiallyEnforced, _) => {
            tracing::info!("sandbox: landlock is on, as far as this kernel has it");
        }
        (RulesetStatus::NotEnforced, found) => {
            let reason = match found {
                LandlockStatus::NotEnabled => "it is off in this kernel",
                LandlockStatus::NotImplemented => "this kernel has none",
                LandlockStatus::Available { .. } => "this kernel has none of its rights",
            };
            tracing::warn!("sandbox: no landlock ({reason}): files and network are not fenced off");
        }
    }
}

/// No file system, no TCP, no abstract sockets, no signals; but for what is allowed.
fn fence_files(allowed: Allowed<'_>) -> Result<RestrictionStatus, RulesetError> {
    let Allowed { names, reach, disks, lineages, credentials } = allowed;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::Signal | Scope::AbstractUnixSocket)?
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
                // It may be the directory of a lineage by then.
                let made = AccessFs::MakeSock | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Refer;
                let rights = open | AccessFs::ReadDir | made;
                rules = rules.add_rule(PathBeneath::new(directory, rights))?;
            }
            Err(error) => tracing::warn!(%error, "sandbox: a directory given with --allow-path stays closed"),
        }
    }
    for directory in lineages {
        match PathFd::new(directory) {
            Ok(directory) => {
                // A layer gets its name in the directory of the layers, and an overlay its own above that.
                let made = AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Refer;
                rules = rules.add_rule(PathBeneath::new(directory, open | AccessFs::ReadDir | made))?;
            }
            Err(error) => tracing::warn!(%error, "sandbox: no checkpoint is taken in a directory of disks"),
        }
    }
    for disk in disks {
        match PathFd::new(disk) {
            Ok(disk) => rules = rules.add_rule(PathBeneath::new(disk, open))?,
            Err(error) => tracing::warn!(%error, "sandbox: a disk cannot be opened again"),
        }
    }
    for file in credentials.iter().map(|file| readable_for(file)) {
        match PathFd::new(file) {
            Ok(file) => rules = rules.add_rule(PathBeneath::new(file, AccessFs::ReadFile))?,
            Err(error) => {
                tracing::warn!(%error, "sandbox: credentials cannot be read again from {}", file.display())
            }
        }
    }
    rules.restrict_self()
}

/// What must be readable for a file of credentials to be read again: the file; its directory if the name is a link, which a cluster replaces with each new token.
fn readable_for(file: &Path) -> &Path {
    match file.is_symlink() {
        true => file.parent().unwrap_or(file),
        false => file,
    }
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
    fn in_the_sandbox_nothing_opens_runs_or_connects_and_names_can_be_removed() {
        let Some(directory) = std::env::var_os(CHILD) else { return run_in_a_child() };
        let directory = Path::new(&directory);
        let own = directory.join("own").join("socket");
        std::fs::write(&own, "x").unwrap();
        let mut open = File::options().read(true).write(true).open(directory.join("disk")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        enter(Allowed { names: &[&own], credentials: &[directory.join("token")], ..Allowed::default() });
        assert_eq!(std::fs::read(directory.join("token")).unwrap(), b"again");
        let denied = |what: &str, result: io::Result<()>| {
            let kind = result.map_err(|error| error.kind());
            assert_eq!(kind, Err(io::ErrorKind::PermissionDenied), "{what}");
        };
        denied("read", File::open("/etc/passwd").map(drop));
        denied("write credentials", File::options().write(true).open(directory.join("token")).map(drop));
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
        enter_as_broker(&[listener.local_addr().unwrap().port()], false);
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
        std::fs::write(directory.path().join("token"), "again").unwrap();
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
            .args([&format!("sandbox::tests::{test}"), "--exact", "--nocapture"])
            .env(CHILD, directory)
            .output()
            .unwrap();
        let said =
            String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }
}
