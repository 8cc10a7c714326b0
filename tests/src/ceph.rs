//! Ceph: a cluster of one node at ports of its own. Needs root, as its programs do.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::ports::free_port;
use crate::{Run, Server};

/// How long a part of it may take to come up.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// Where its objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objects {
    /// In memory: gone with the OSD, and soon made.
    Memory,
    /// In a file: an OSD that was killed has them when it is started again.
    File,
}

/// A monitor, an OSD, and a pool `rbd`. Users are known by keys.
#[derive(Debug)]
pub struct Ceph {
    directory: tempfile::TempDir,
    monitor: Child,
    osd: Child,
}

impl Ceph {
    /// An empty cluster.
    pub fn start(objects: Objects) -> Self {
        let directory = tempfile::Builder::new().prefix("cowhand-ceph-").tempdir();
        let directory = directory.expect("a directory");
        let (new, legacy) = (free_port(), free_port());
        let addresses = format!("[v2:127.0.0.1:{new},v1:127.0.0.1:{legacy}]");
        let id = uuid();
        for part in ["mon", "osd"] {
            std::fs::create_dir(directory.path().join(part)).expect("a directory");
        }
        std::fs::write(
            directory.path().join("ceph.conf"),
            configuration(directory.path(), &id, &addresses, objects),
        )
        .expect("a file");
        let here = Here(directory.path());
        let key = |name: &str, rights: &[&str]| {
            let words = ["keyring", "-n", name, "--gen-key"];
            here.run("ceph-authtool", words.into_iter().chain(rights.iter().copied()));
        };
        here.run(
            "ceph-authtool",
            ["--create-keyring", "keyring", "-n", "mon.", "--gen-key", "--cap", "mon", "allow *"],
        );
        key("client.admin", &["--cap", "mon", "allow *", "--cap", "osd", "allow *"]);
        here.run("monmaptool", ["--create", "--fsid", &id, "--addv", "a", &addresses, "monmap"]);
        here.ceph("ceph-mon", ["--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", "keyring"]);
        let monitor = here.spawn("ceph-mon", ["-i", "a", "-f"]);
        let osd = uuid();
        assert_eq!(here.ceph("ceph", ["osd", "new", &osd]).trim(), "0");
        here.know("osd.0", &["mon", "allow profile osd", "osd", "allow *"]);
        here.ceph("ceph-osd", ["-i", "0", "--mkfs", "--osd-uuid", &osd]);
        let osd = here.spawn("ceph-osd", ["-i", "0", "-f"]);
        let cluster = Self { directory, monitor, osd };
        cluster.wait_for_osd();
        cluster.ceph(["osd", "pool", "create", "rbd", "8"]);
        cluster.ceph(["osd", "pool", "application", "enable", "rbd", "rbd"]);
        cluster
    }

    fn here(&self) -> Here<'_> {
        Here(self.directory.path())
    }

    fn wait_for_osd(&self) {
        let until = Instant::now() + STARTS_WITHIN;
        while !self.ceph(["osd", "stat"]).contains("1 up") {
            assert!(Instant::now() < until, "the OSD does not come up");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Its configuration file.
    pub fn conf(&self) -> PathBuf {
        self.directory.path().join("ceph.conf")
    }

    /// The name of an image of the pool, as `IMAGE[@SNAPSHOT]`, for QEMU and for cowhand.
    pub fn name(&self, image: &str) -> String {
        format!("rbd:rbd/{image}:conf={}", self.conf().display())
    }

    /// What `ceph` says to these words.
    pub fn ceph<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> String {
        self.here().ceph("ceph", words)
    }

    /// What `rbd` says to these words.
    pub fn rbd<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> String {
        self.here().ceph("rbd", words)
    }

    /// Runs a program of Ceph's to its end.
    pub fn tool<'a>(&self, program: &str, words: impl IntoIterator<Item = &'a str>) -> String {
        self.here().ceph(program, words)
    }

    /// Makes a user with these rights, whose key is in the keyring.
    pub fn know(&self, user: &str, rights: &[&str]) {
        self.here().know(user, rights);
    }

    /// Starts a program of the cluster.
    pub fn spawn(&self, program: &str, words: &[String]) -> Child {
        self.here().spawn(program, words.iter().map(String::as_str))
    }

    /// The key of a user.
    pub fn key(&self, user: &str) -> String {
        self.ceph(["auth", "get-key", user]).trim().to_owned()
    }

    /// Ends the OSD as SIGKILL does.
    pub fn kill_osd(&mut self) {
        self.osd.kill().expect("it runs");
        self.osd.wait().expect("a child");
    }

    /// Has the OSD rest for `time`, as one does whose machine is too busy.
    pub fn rest_osd(&self, time: Duration) {
        self.stop_osd();
        std::thread::sleep(time);
        self.continue_osd();
    }

    /// Has the OSD rest until [`Ceph::continue_osd`].
    pub fn stop_osd(&self) {
        kill_process(Pid::from_child(&self.osd), Signal::STOP).expect("it runs");
    }

    /// Has the OSD go on.
    pub fn continue_osd(&self) {
        kill_process(Pid::from_child(&self.osd), Signal::CONT).expect("it runs");
    }

    /// Starts it again.
    pub fn restart_osd(&mut self) {
        self.osd = self.here().spawn("ceph-osd", ["-i", "0", "-f"]);
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        for child in [&mut self.osd, &mut self.monitor] {
            // Fails where it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Ends the processes that Ceph's library runs in for a server, as SIGKILL does; gives how many.
pub fn kill_workers_of(server: &Server) -> usize {
    let children = |pid: i32| -> Vec<i32> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        lists
            .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect()
    };
    let is_worker = |pid: &i32| {
        std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("rbd-worker"))
    };
    let starters = children(i32::try_from(server.pid()).expect("a process number"));
    let workers = starters.into_iter().flat_map(children).filter(is_worker).filter_map(Pid::from_raw);
    workers.filter(|worker| kill_process(*worker, Signal::KILL).is_ok()).count()
}

fn uuid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("the kernel has some").trim().to_owned()
}

/// The cluster's directory, in which its programs run.
struct Here<'a>(&'a Path);

impl Here<'_> {
    fn run<'a>(&self, program: &str, words: impl IntoIterator<Item = &'a str>) -> String {
        Run::new(program).args(words).current_dir(self.0).limit(STARTS_WITHIN).ok()
    }

    fn ceph<'a>(&self, program: &str, words: impl IntoIterator<Item = &'a str>) -> String {
        self.run(program, ["-c", "ceph.conf"].into_iter().chain(words))
    }

    fn know(&self, user: &str, rights: &[&str]) {
        let words = ["auth", "get-or-create", user].into_iter().chain(rights.iter().copied());
        let added = self.ceph("ceph", words);
        let path = self.0.join("keyring");
        let known = std::fs::read_to_string(&path).expect("a keyring");
        std::fs::write(path, known + &added).expect("a keyring");
    }

    fn spawn<'a>(&self, program: &str, words: impl IntoIterator<Item = &'a str>) -> Child {
        let mut command = Command::new(program);
        command.args(["-c", "ceph.conf"]).args(words).current_dir(self.0);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        child.unwrap_or_else(|error| panic!("cannot run {program} (needed to test with): {error}"))
    }
}

fn configuration(directory: &Path, id: &str, addresses: &str, objects: Objects) -> String {
    let here = directory.display();
    let store = match objects {
        Objects::Memory => "memstore",
        Objects::File => "bluestore",
    };
    format!(
        "[global]\n\
         fsid = {id}\n\
         mon_host = {addresses}\n\
         public_addr = 127.0.0.1\n\
         cluster_addr = 127.0.0.1\n\
         auth_allow_insecure_global_id_reclaim = false\n\
         osd_pool_default_size = 1\n\
         osd_pool_default_min_size = 1\n\
         osd_pool_default_pg_num = 8\n\
         osd_pool_default_pg_autoscale_mode = off\n\
         osd_crush_chooseleaf_type = 0\n\
         mon_allow_pool_size_one = true\n\
         mon_max_pg_per_osd = 5000\n\
         mon_data_avail_warn = 1\n\
         mon_data_avail_crit = 0\n\
         osd_objectstore = {store}\n\
         memstore_device_bytes = 4294967296\n\
         bluestore_block_size = 4294967296\n\
         bluestore_block_create = true\n\
         osd_memory_target = 939524096\n\
         run_dir = {here}\n\
         admin_socket = {here}/$cluster-$name.$pid.asok\n\
         log_file = {here}/$name.log\n\
         mon_data = {here}/mon\n\
         osd_data = {here}/osd\n\
         keyring = {here}/keyring\n"
    )
}
