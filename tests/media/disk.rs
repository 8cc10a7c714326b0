//! A disk on a medium: what is done to it, and what it must hold then.

use std::path::{Path, PathBuf};

use black_box::bytes::{are_kept_or_zero, first_difference};
use black_box::peer::{assert_leaks_at_most, qemu_img, qemu_io_ok};
use black_box::{Client, Random, Run, Scratch, Server, cowhand, wire};
use rustix::fs::{Mode, OFlags};

/// Bytes of each disk.
const DISK: usize = 4 << 20;
/// Requests between two looks at the whole disk.
const REQUESTS: usize = 50;

/// What `cache=` takes.
pub const CACHE_MODES: [&str; 5] = ["writeback", "none", "writethrough", "directsync", "unsafe"];

/// Whether a mode goes beside the page cache.
pub fn is_direct(mode: &str) -> bool {
    ["none", "directsync"].contains(&mode)
}

/// Whether the file system takes O_DIRECT (tmpfs does since Linux 6.6). `probe` is a name for a file on it.
pub fn takes_direct(probe: &Path) -> bool {
    std::fs::write(probe, b"x").expect("room");
    rustix::fs::open(probe, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).is_ok()
}

/// Format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Raw,
    Qcow2,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
        }
    }
}

/// A disk in a file or on a device.
#[derive(Debug)]
pub struct Disk {
    pub path: String,
    pub format: Format,
    /// What the image is created with.
    pub options: &'static str,
    pub mode: &'static str,
    pub aio: &'static str,
    /// The cache mode in which QEMU comes to it.
    pub qemus_mode: &'static str,
}

impl Disk {
    /// Makes the image: by us, or by QEMU. A raw disk on a device is there already.
    pub fn create(&self, ours: bool) {
        if self.format == Format::Raw && self.path.starts_with("/dev/") {
            return;
        }
        let size = DISK.to_string();
        let options = if self.options.is_empty() { vec![] } else { vec!["-o", self.options] };
        let words =
            [&["create", "-q", "-f", self.format.name()], &options[..], &[&self.path, &size]].concat();
        if ours {
            cowhand(words).ok()
        } else {
            qemu_img(words).ok()
        };
    }

    fn drive(&self) -> String {
        let (path, format, mode, aio) = (&self.path, self.format.name(), self.mode, self.aio);
        format!("file={path},format={format},cache={mode},aio={aio},discard=unmap")
    }

    fn serve(&self) -> Server {
        Server::start([self.drive()])
    }

    /// A medium without O_DIRECT says so, before anything is served.
    pub fn is_refused_in_words(&self) {
        self.create(true);
        let said = Server::refuses([self.drive()]);
        assert!(said.contains("O_DIRECT") && said.contains("writeback"), "{said}");
        std::fs::remove_file(&self.path).expect("our image");
    }

    /// Writes, zeroes and trims; what was flushed is there after `kill -9`; at the end QEMU reads the same.
    pub fn lives_through_a_kill_and_is_what_qemu_reads(&self) {
        // The path is another one each time; the requests are the same.
        let mut random = Random::of_name(&format!("{:?} {} {}", self.format, self.options, self.mode));
        let server = self.serve();
        let mut client = server.client("");
        let mut model = client.read_all().expect("a read");
        change(&mut client, &mut model, &mut random);
        client.flush().expect("a flush");
        server.kill();
        let server = self.serve();
        let mut client = server.client("");
        self.same(&client.read_all().expect("a read"), &model, "after kill -9");
        change(&mut client, &mut model, &mut random);
        self.same(&client.read_all().expect("a read"), &model, "before the end");
        client.disconnect();
        server.stop();
        let scratch = Scratch::new();
        if self.format == Format::Qcow2 {
            assert_leaks_at_most(Path::new(&self.path));
            qemu_img(["check", "-q", "-f", "qcow2", &self.path]).ok();
            cowhand(["check", "-f", "qcow2", &self.path]).ok();
        }
        self.same(&self.as_qemu_reads_it(&scratch), &model, "as QEMU reads it");
    }

    fn as_qemu_reads_it(&self, scratch: &Scratch) -> Vec<u8> {
        let back = scratch.file("back");
        // QEMU takes the alignment of O_DIRECT to be 4096 where a raw file begins with a hole, and aborts where a block of the file system is smaller.
        let mode = if self.format == Format::Raw { "writeback" } else { self.qemus_mode };
        qemu_img(["convert", "-T", mode, "-f", self.format.name(), "-O", "raw", &self.path]).arg(&back).ok();
        std::fs::read(&back).expect("what QEMU wrote")
    }

    /// QEMU writes; libnbd reads it from us.
    pub fn is_read_as_qemu_wrote_it(&self) {
        let scratch = Scratch::new();
        let commands = [
            "write -P 0x31 0 64k",
            "write -P 0x32 1000448 512",
            "write -z 1M 128k",
            "discard 2M 1M",
            "write -P 0x33 3M 1M",
        ];
        qemu_io_ok(&["-f", self.format.name(), "-t", self.qemus_mode, "-d", "unmap"], &self.path, &commands);
        let expected = self.as_qemu_reads_it(&scratch);
        let server = self.serve();
        let back: PathBuf = scratch.file("copied");
        Run::new("nbdcopy").arg(server.uri("")).arg(&back).ok();
        self.same(&std::fs::read(&back).expect("what nbdcopy wrote"), &expected, "as QEMU wrote it");
        server.stop();
    }

    fn same(&self, found: &[u8], expected: &[u8], when: &str) {
        assert_eq!(found.len(), expected.len(), "{when}: {self:?}");
        let wrong = first_difference(found, expected);
        assert_eq!(wrong, None, "{when}, the first byte that differs: {self:?}");
    }
}

/// A range of the disk: whole blocks, whole sectors, or any bytes.
fn range(random: &mut Random, end: usize) -> (usize, usize) {
    let unit = *random.pick(&[1, 512, 4096, 65_536]);
    let offset = random.below(end as u64) / unit * unit;
    let len = (random.between(1, 100_000).div_ceil(unit) * unit).min(end as u64 - offset);
    (offset as usize, len as usize)
}

/// Changes the disk and the model alike. What a trim leaves is what was there, or zeroes.
fn change(client: &mut Client, model: &mut [u8], random: &mut Random) {
    // Where the end is, nothing is left out: that is where media differ.
    let end = model.len().min(DISK);
    for number in 0..REQUESTS {
        let (mut offset, len) = range(random, end);
        if number % 10 == 9 {
            offset = model.len() - len;
        }
        let (at, bytes) = (offset as u64, u32::try_from(len).expect("a short range"));
        match random.below(8) {
            0 => client.write_zeroes(at, bytes, 0).expect("zeroes"),
            1 => client.write_zeroes(at, bytes, wire::NO_HOLE).expect("zeroes that keep their space"),
            2 => {
                client.trim(at, bytes).expect("a trim");
                let left = client.read(at, bytes).expect("a read of what was trimmed");
                let was = &model[offset..offset + len];
                assert!(are_kept_or_zero(&left, was), "a trim made bytes up");
                model[offset..offset + len].copy_from_slice(&left);
                continue;
            }
            _ => {
                let data = random.bytes(len);
                client.write(at, &data).expect("a write");
                model[offset..offset + len].copy_from_slice(&data);
                continue;
            }
        }
        model[offset..offset + len].fill(0);
    }
}
