//! A store, a way to it that loses things, and a directory for disks.

use crate::peer::converted;
use crate::qmp::Qmp;
use crate::server::{Server, Start};
use crate::{FaultyStore, Moto, Run, Scratch, cowhand};

/// An empty bucket `images`, and a directory.
pub struct StoreScene {
    /// The directory.
    pub scratch: Scratch,
    /// The store.
    pub store: Moto,
    /// What stands before it.
    pub way: FaultyStore,
}

impl StoreScene {
    /// Starts both servers.
    #[expect(clippy::new_without_default, reason = "it starts servers")]
    pub fn new() -> Self {
        let (scratch, store) = (Scratch::new(), Moto::start());
        store.put("/images", b"");
        let way = FaultyStore::start(store.port());
        Self { scratch, store, way }
    }

    /// A command in the directory, which reaches the store by the way.
    pub fn run(&self, words: &[&str]) -> Run {
        self.way.below(cowhand(words).current_dir(self.scratch.path()))
    }

    /// A server with the control socket `qmp`, and the store at `endpoint`.
    pub fn serve_with(
        &self,
        endpoint: String,
        words: impl IntoIterator<Item = impl Into<std::ffi::OsString>>,
    ) -> (Server, Qmp) {
        let qmp = self.scratch.name("qmp");
        let start = Start::new(["--qmp", &qmp]).env("AWS_ENDPOINT_URL", endpoint);
        let start = start.env("AWS_ACCESS_KEY_ID", "A").env("AWS_SECRET_ACCESS_KEY", "hush");
        let start = start.args(words.into_iter().map(Into::into));
        let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
        let client = Qmp::connect(qmp.as_ref());
        (server, client)
    }

    /// The bytes of the disk `file`, as QEMU reads them.
    pub fn bytes(&self, file: &str) -> Vec<u8> {
        converted(&self.scratch.name(file), "qcow2", &[], &self.scratch.file("by-qemu.raw"))
    }

    /// Fails unless the image in the store has these bytes.
    pub fn assert_reads_as(&self, image: &str, bytes: &[u8]) {
        self.run(&["pull", "-q", image, "back.raw"]).ok();
        assert!(std::fs::read(self.scratch.file("back.raw")).expect("an image") == bytes, "{image}");
    }
}
