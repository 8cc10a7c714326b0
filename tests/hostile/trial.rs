//! What every hostile image goes through, and the bounds it is held to.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use black_box::client::{Client, Failed};
use black_box::server::{NotStarted, Start};
use black_box::{Outcome, Run, Scratch, Server, cowhand};

/// Opening, looking at and checking an image takes at most this long.
const WALL_MAX: Duration = Duration::from_secs(1);

/// And at most this much memory.
const RSS_BYTES_MAX: u64 = 256 << 20;

/// Descriptors of a process with one image open: event loops, sockets, the image. A chain has more.
const DESCRIPTORS_MAX: usize = 64;

/// A command that was too slow is given this many chances: the machine may have been busy.
const TRIES: usize = 3;

/// What is asked of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It must not be served.
    Error,
    /// It must be served, with the right bytes.
    Data,
    /// Each read gives an error or the right bytes.
    ErrorOrData,
    /// What the bytes are is unknown: bounds only.
    Bounded,
}

/// One hostile image.
pub struct Trial<'a> {
    /// What is wrong with it.
    pub name: &'a str,
    /// Where it and its neighbours are; the image is `disk.qcow2`.
    pub scratch: &'a Scratch,
    /// What is asked.
    pub expect: Expect,
    /// What the refusal must say.
    pub says: &'a str,
    /// The right bytes.
    pub disk: &'a [u8],
    /// Files that the image may legally hold open.
    pub layers: usize,
}

/// Bytes written into hostile images: they must never be found in metadata.
const GUEST_PATTERN: [u8; 512] = [0xa7; 512];

impl Trial<'_> {
    /// Does everything to it.
    pub fn run(&self) {
        let before = std::fs::read(self.image()).expect("an image");
        self.look_with_tools();
        self.serve_read_only();
        self.serve_and_write(&before);
        self.repair(&before);
        println!("looked at in {}: 1 hostile images", self.name.replace([':', ','], " "));
    }

    fn image(&self) -> std::path::PathBuf {
        self.scratch.file("disk.qcow2")
    }

    fn drive(&self) -> String {
        format!("file={},format=qcow2", self.scratch.name("disk.qcow2"))
    }

    fn look_with_tools(&self) {
        let path = self.scratch.name("disk.qcow2");
        for command in [&["info"][..], &["info", "--backing-chain"], &["check"], &["map"]] {
            let run = || cowhand(command).args(["-f", "qcow2", "--output=json", &path]);
            let outcome = self.bounded(&run);
            let refused = outcome.status.code() == Some(1);
            if self.expect == Expect::Data && command != ["check"] {
                assert!(outcome.status.success(), "{}: {outcome}", self.name);
            }
            if refused {
                assert!(!outcome.stderr.trim().is_empty(), "{}: no word about it: {outcome}", self.name);
            }
        }
    }

    /// Runs a command within bounds.
    fn bounded(&self, run: &dyn Fn() -> Run) -> Outcome {
        let mut outcome = run().limit(WALL_MAX * 4).outcome();
        for _ in 1..TRIES {
            if outcome.wall > WALL_MAX {
                outcome = run().limit(WALL_MAX * 4).outcome();
            }
        }
        let descriptors_max = DESCRIPTORS_MAX + 2 * self.layers;
        assert!(outcome.wall <= WALL_MAX, "{}: too slow: {outcome}", self.name);
        assert!(outcome.peak_rss_bytes <= RSS_BYTES_MAX, "{}: too much memory: {outcome}", self.name);
        assert!(
            outcome.descriptors_max <= descriptors_max,
            "{}: {} descriptors: {outcome}",
            self.name,
            outcome.descriptors_max
        );
        assert!(outcome.status.code().is_some(), "{}: {outcome}", self.name);
        outcome
    }

    fn serve_read_only(&self) {
        let Some(server) = self.serve(&["--read-only"]) else { return };
        let mut client = self.connect(&server);
        self.read_all(&mut client);
        client.disconnect();
        self.end(server);
    }

    /// Serves it, or makes sure that it is refused in an orderly way.
    fn serve(&self, options: &[&str]) -> Option<Server> {
        for attempt in 1..=TRIES {
            let start = std::time::Instant::now();
            let listened = Start::new(options).arg(self.drive()).listen();
            let late = start.elapsed() > WALL_MAX;
            if late && attempt < TRIES {
                continue;
            }
            assert!(!late, "{}: takes {:?} to open", self.name, start.elapsed());
            return self.judge(listened);
        }
        unreachable!("the last attempt returns")
    }

    fn judge(&self, listened: Result<Server, NotStarted>) -> Option<Server> {
        match listened {
            Ok(server) => {
                assert_ne!(self.expect, Expect::Error, "{}: it is served", self.name);
                Some(server)
            }
            Err(NotStarted(outcome)) => {
                assert_ne!(self.expect, Expect::Data, "{}: refused: {outcome}", self.name);
                assert_eq!(outcome.status.code(), Some(1), "{}: {outcome}", self.name);
                let said = outcome.stderr.to_lowercase();
                assert!(
                    said.contains(&self.says.to_lowercase()),
                    "{}: no {:?}: {outcome}",
                    self.name,
                    self.says
                );
                None
            }
        }
    }

    fn connect(&self, server: &Server) -> Client {
        let client = server.client("");
        let right = client.size() == self.disk.len() as u64;
        let bytes = client.size();
        assert!(right || self.expect != Expect::Data, "{}: {bytes} bytes of disk", self.name);
        client
    }

    /// Reads as much as there should be, in pieces of a cluster.
    fn read_all(&self, client: &mut Client) {
        const PIECE: usize = 64 << 10;
        for (index, right) in self.disk.chunks(PIECE).enumerate() {
            let offset = (index * PIECE) as u64;
            if offset + right.len() as u64 > client.size() {
                return;
            }
            match client.read(offset, u32::try_from(right.len()).expect("a piece")) {
                Ok(found) => self.judge_bytes(offset, &found, right),
                Err(Failed::Refused(error)) => {
                    assert_ne!(
                        self.expect,
                        Expect::Data,
                        "{}: read at {offset:#x}: error {error}",
                        self.name
                    );
                }
                Err(Failed::Gone(error)) => panic!("{}: read at {offset:#x}: {error}", self.name),
            }
        }
    }

    fn judge_bytes(&self, offset: u64, found: &[u8], right: &[u8]) {
        if self.expect == Expect::Bounded || found == right {
            return;
        }
        let differs = found.iter().zip(right).position(|(found, right)| found != right).unwrap_or(0);
        panic!(
            "{}: wrong bytes at {:#x}: {:02x?}.., right would be {:02x?}..",
            self.name,
            offset + differs as u64,
            &found[differs..(differs + 8).min(found.len())],
            &right[differs..(differs + 8).min(right.len())]
        );
    }

    /// Ends the server and looks at what it took.
    fn end(&self, mut server: Server) -> Outcome {
        let descriptors = server.descriptors();
        server.signal(rustix::process::Signal::TERM);
        let outcome = server.outcome();
        assert!(outcome.peak_rss_bytes <= RSS_BYTES_MAX, "{}: too much memory: {outcome}", self.name);
        let descriptors_max = DESCRIPTORS_MAX + 2 * self.layers;
        assert!(descriptors <= descriptors_max, "{}: {descriptors} descriptors: {outcome}", self.name);
        // Metadata that cannot be written may be an error at the end: an orderly one.
        assert!(matches!(outcome.status.code(), Some(0 | 1)), "{}: {outcome}", self.name);
        outcome
    }

    fn serve_and_write(&self, before: &[u8]) {
        if let Some(server) = self.serve(&[]) {
            let mut client = self.connect(&server);
            self.write_everywhere(&mut client);
            client.disconnect();
            self.end(server);
            self.assert_header_is_whole(before);
        }
        std::fs::write(self.image(), before).expect("cannot restore an image");
    }

    /// Requests may fail; the connection may not.
    fn write_everywhere(&self, client: &mut Client) {
        const STEP: u64 = 64 << 10;
        let orderly = |outcome: Result<(), Failed>| match outcome {
            Ok(()) | Err(Failed::Refused(_)) => {}
            Err(Failed::Gone(error)) => panic!("{}: a write: {error}", self.name),
        };
        let size = client.size().min(self.disk.len() as u64);
        for offset in (0..size.saturating_sub(STEP)).step_by(64 << 10) {
            orderly(client.write(offset + 512, &GUEST_PATTERN));
            match offset / STEP % 4 {
                1 => orderly(client.write_zeroes(offset, 65536, 0)),
                2 => orderly(client.trim(offset, 65536)),
                _ => {}
            }
        }
        orderly(client.flush());
        let gone = client.read_all().map(drop);
        orderly(gone);
    }

    /// Guest data in the header would be the end of the image.
    fn assert_header_is_whole(&self, before: &[u8]) {
        // Only the beginning: an entry that leads far away makes a long file, with a hole in it.
        let mut header = Vec::new();
        let file = std::fs::File::open(self.image()).expect("an image");
        file.take(512).read_to_end(&mut header).expect("an image");
        assert_eq!(header.get(..8), before.get(..8), "{}: the header is overwritten", self.name);
        let guest = header.windows(16).any(|window| window == &GUEST_PATTERN[..16]);
        assert!(!guest, "{}: guest data in the header", self.name);
    }

    fn repair(&self, before: &[u8]) {
        let path = self.scratch.name("disk.qcow2");
        let run = || {
            std::fs::write(Path::new(&path), before).expect("cannot restore an image");
            cowhand(["check", "-f", "qcow2", "-r", "all", &path])
        };
        self.bounded(&run);
        std::fs::write(self.image(), before).expect("cannot restore an image");
    }
}

/// Puts an image into a scratch directory.
pub fn place(scratch: &Scratch, bytes: &[u8]) -> io::Result<()> {
    std::fs::write(scratch.file("disk.qcow2"), bytes)
}
