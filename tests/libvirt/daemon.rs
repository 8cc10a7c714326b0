//! libvirt's daemon with the program under test as its `qemu-img` and `qemu-nbd`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use black_box::ready;
use black_box::{Run, Scratch, program};

/// How long the daemon may take to listen: it starts QEMU to see what it can do.
const PATIENCE: Duration = Duration::from_secs(120);

/// What libvirt's daemon would write to, and where our package has files of machines; each a file system of its own here.
const STATE: [&str; 8] = [
    "/run/libvirt",
    "/var/lib/libvirt",
    "/var/cache/libvirt",
    "/var/log/libvirt",
    "/run/cowhand",
    "/run/cowhand-vm1",
    "/var/lib/cowhand",
    "/etc/cowhand",
];

/// Machines are processes of root without confinement: there is neither systemd nor a user of their own.
const MACHINES: &str = "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\ncgroup_controllers = []\n\
    namespaces = []\nstdio_handler = \"file\"\nremember_owner = 0\n";

/// The user that Debian makes for machines; the daemon looks for it before it reads its configuration.
const USER: &str = "libvirt-qemu:x:64055:64055::/var/lib/libvirt:/bin/false\n";
const GROUP: &str = "libvirt-qemu:x:64055:\n";

/// A daemon in a mount namespace of its own. Killed when dropped.
pub struct Libvirt {
    child: Child,
    uri: String,
    // Last: removed after the process.
    scratch: Scratch,
}

impl Libvirt {
    /// Starts one.
    pub fn start() -> Self {
        let scratch = Scratch::new();
        for directory in ["links", "etc", "run", "pool"] {
            fs::create_dir(scratch.file(directory)).expect("a directory");
        }
        drop(Run::new(program::path()).args(["compat", "install"]).arg(scratch.file("links")).ok());
        let run = scratch.name("run");
        let daemon = format!("unix_sock_dir = \"{run}\"\nauth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\n");
        scratch.write("etc/libvirtd.conf", daemon.as_bytes());
        scratch.write("etc/qemu.conf", MACHINES.as_bytes());
        for (name, more) in [("passwd", USER), ("group", GROUP)] {
            let own = fs::read_to_string(Path::new("/etc").join(name)).expect("users");
            scratch.write(name, format!("{own}{more}").as_bytes());
        }
        let child = Command::new("unshare")
            .args(["--mount", "--kill-child", "--fork", "sh", "-c", &script(&scratch)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let child = child.expect("unshare");
        let socket = scratch.file("run/libvirt-sock");
        let uri = format!("qemu+unix:///system?socket={}", socket.display());
        let mut libvirt = Self { child, uri, scratch };
        let probe = || socket.exists();
        ready::until("libvirtd", &mut libvirt.child, PATIENCE, probe);
        libvirt
    }

    /// Where `virsh` finds it.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The number of a process in its mount namespace.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `virsh` with words.
    pub fn virsh<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Run {
        Run::new("virsh").args(["-q", "-c", &self.uri]).args(words).limit(Duration::from_secs(120))
    }

    /// The same, which must succeed; gives what it said.
    pub fn ok(&self, words: &str) -> String {
        self.virsh(words.split(' ')).ok()
    }

    /// The same with a description in a file as its last word.
    pub fn describe(&self, words: &str, xml: &str) -> String {
        let file = self.scratch.write("description.xml", xml.as_bytes());
        self.virsh(words.split(' ')).arg(file).ok()
    }

    /// A file of this daemon's.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.file(name)
    }

    /// The same as text.
    pub fn name(&self, name: &str) -> String {
        self.scratch.name(name)
    }

    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // Machines outlive the daemon.
        for machine in self.virsh(["list", "--name"]).outcome().stdout.split_whitespace() {
            drop(self.virsh(["destroy", machine]).outcome());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What becomes the daemon.
fn script(scratch: &Scratch) -> String {
    let own = scratch.path().display();
    let state: String =
        STATE.iter().map(|place| format!("mkdir -p {place} && mount -t tmpfs none {place}\n")).collect();
    format!(
        "set -e\nmount --make-rprivate /\n{state}mkdir -p /etc/libvirt\nmount --bind {own}/etc /etc/libvirt\n\
         mount --bind {own}/passwd /etc/passwd\nmount --bind {own}/group /etc/group\n\
         PATH={own}/links:$PATH exec libvirtd --config {own}/etc/libvirtd.conf --pid-file {own}/pid 2>{own}/log\n"
    )
}
