//! The command line of `qemu-nbd`, and the disk that it means.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args as _, Command};
use door_nbd::ServerOptions;
use graph::cache_mode::CacheMode;
use graph::drive::OptionTree;
use graph::options::{Aio, DiskOptions};
use graph::probe::Format;
use qcow2::snapshot::SnapshotName;
use tool::failure::Failure;
use tool::numbers::whole;

use crate::compat::names::NBD_VERSION;
use crate::convert::snapshot;
use crate::drive::{cache_modes, formats, option_tree, parse_bytes};

/// Connections where any number may come (`-e 0`): as many as the server can count.
const CONNECTIONS_MAX: u32 = 65_536;

/// Arguments of `qemu-nbd`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image
    #[arg(value_name = "FILE")]
    file: Option<OsString>,

    /// TCP port
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 10_809, value_parser = whole::<u16>)]
    pub port: u16,

    /// Address to listen at
    #[arg(short = 'b', long, value_name = "ADDR", default_value = "0.0.0.0")]
    pub bind: String,

    /// Listen on a Unix socket
    #[arg(short = 'k', long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Connections at a time; 0 is any number
    #[arg(short = 'e', long, value_name = "NUM", default_value_t = 1, value_parser = whole::<u32>)]
    shared: u32,

    /// Do not end when the last client leaves
    #[arg(short = 't', long)]
    pub persistent: bool,

    /// Tell more on standard error
    #[arg(short = 'v', long)]
    pub verbose: bool,

    /// Name of the export
    #[arg(short = 'x', long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub export_name: String,

    /// What the export is, for people
    #[arg(short = 'D', long, value_name = "TEXT")]
    pub description: Option<String>,

    /// Seconds within which a client must choose the export; 0 is any time
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = whole::<u32>)]
    handshake_limit: u32,

    /// Begin at this byte of a raw image
    #[arg(short = 'o', long, value_name = "OFFSET", value_parser = parse_bytes)]
    offset: Option<u64>,

    /// Tell which image of the chain holds a range
    #[arg(short = 'A', long)]
    pub allocation_depth: bool,

    /// Show a persistent bitmap (may be repeated)
    #[arg(short = 'B', long = "bitmap", value_name = "NAME")]
    pub bitmaps: Vec<String>,

    /// An object, with its properties: tls-creds-x509, secret, throttle-group or authz-simple
    #[arg(long = "object", value_name = "TYPE,id=ID,...")]
    pub objects: Vec<String>,

    /// Clients must use TLS, with the credentials of this object
    #[arg(long, value_name = "ID")]
    pub tls_creds: Option<String>,

    /// Which clients are admitted, by the name of their certificate: an object, authz-simple, authz-list or authz-listfile
    #[arg(long, value_name = "ID", requires = "tls_creds")]
    pub tls_authz: Option<String>,

    /// Serve in the background; end when clients can connect
    #[arg(long)]
    pub fork: bool,

    /// Write the process's number to a file
    #[arg(long, value_name = "PATH")]
    pub pid_file: Option<PathBuf>,

    /// Format of the image: qcow2 or raw
    #[arg(short = 'f', long, value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    pub format: Option<Format>,

    /// Refuse writes
    #[arg(short = 'r', long)]
    read_only: bool,

    /// Write to an overlay that goes at the end, not to the image
    #[arg(short = 's', long)]
    pub snapshot: bool,

    /// Serve a snapshot of the image, for reading: an id or a name, or snapshot.id=ID,snapshot.name=NAME
    #[arg(short = 'l', long, value_name = "SNAPSHOT", conflicts_with = "snapshot", value_parser = snapshot::parse)]
    pub load_snapshot: Option<SnapshotName>,

    /// The same as --cache none
    #[arg(short = 'n', long, conflicts_with = "cache")]
    nocache: bool,

    /// Cache mode: writeback, writethrough, none, directsync, unsafe
    #[arg(long, value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    pub cache: Option<CacheMode>,

    /// How requests reach the kernel: threads or io_uring; native is io_uring here
    #[arg(long, value_name = "MODE", value_parser = ["threads", "native", "io_uring"])]
    aio: Option<String>,

    /// What a discard does: ignore or unmap
    #[arg(long, value_name = "MODE", value_parser = ["ignore", "off", "unmap", "on"])]
    discard: Option<String>,

    /// What becomes of zeroes that are written: off, on or unmap
    #[arg(long, value_name = "MODE", value_parser = ["off", "on", "unmap"])]
    detect_zeroes: Option<String>,

    /// FILE is key=value options
    #[arg(long)]
    pub image_opts: bool,

    /// List the exports of the server at the socket or port, and serve nothing
    #[arg(short = 'L', long)]
    pub list: bool,

    /// Name that the server's certificate must be for (with -L)
    #[arg(long, value_name = "NAME")]
    pub tls_hostname: Option<String>,

    /// Make the disk the kernel's device DEV (/dev/nbd0); in the background, unless -v is given. As root
    #[arg(short = 'c', long, value_name = "DEV")]
    pub connect: Option<PathBuf>,

    /// Disconnect the kernel's device FILE
    #[arg(short = 'd', long)]
    pub disconnect: bool,

    #[command(flatten)]
    refused: Refused,
}

/// Options that are understood and refused: a caller that gives one relies on it.
#[derive(Debug, clap::Args)]
struct Refused {
    /// Label of the socket (refused; set it on the directory)
    #[arg(long, value_name = "LABEL")]
    selinux_label: Option<String>,

    /// Trace events of QEMU (refused: there are none here)
    #[arg(short = 'T', long, value_name = "EVENTS")]
    trace: Option<String>,
}

/// The command line.
pub fn command() -> Command {
    let command = Command::new("qemu-nbd")
        .version(NBD_VERSION)
        .about("One disk over NBD, until its last client leaves (cowhand under qemu-nbd's name)")
        .infer_long_args(true)
        .args_override_self(true);
    Args::augment_args(command)
}

impl Args {
    /// Refuses what is not done here, and options that contradict each other.
    ///
    /// # Errors
    /// For the first of them.
    pub fn check(&self) -> Result<(), Failure> {
        let refused = &self.refused;
        let given = [
            (
                refused.selinux_label.is_some(),
                "--selinux-label: sockets are not labelled here",
                "set it on the socket's directory",
            ),
            (refused.trace.is_some(), "-T: there are no trace events of QEMU here", "-v tells more"),
        ];
        if let Some((_, what, hint)) = given.into_iter().find(|(is_given, ..)| *is_given) {
            return Err(Failure::new(what).with_hint(hint));
        }
        if self.disconnect {
            let is_alone = self.connect.is_none() && !self.list && self.file.is_some();
            return match is_alone {
                true => Ok(()),
                false => Err(Failure::new("-d takes the device to disconnect, and neither -c nor -L")),
            };
        }
        if self.connect.is_some() && self.file.is_none() {
            return Err(Failure::new("no FILE is given"));
        }
        if self.connect.is_some() && self.list {
            return Err(Failure::new("-L lists what another server has; -c connects the kernel to this one"));
        }
        if self.connect.is_some() && self.tls_creds.is_some() {
            return Err(Failure::new("the kernel's client speaks no TLS; give --tls-creds without -c"));
        }
        if self.list && self.file.is_some() {
            return Err(Failure::new("-L lists what another server has; give no FILE with it"));
        }
        if self.tls_hostname.is_some() && !self.list {
            return Err(Failure::new("--tls-hostname is for -L; a server has no name to check"));
        }
        match self.socket.is_some() && (self.bind != "0.0.0.0" || self.port != 10_809) {
            true => Err(Failure::new("-k is a Unix socket, -b and -p are for TCP; give one of them")),
            false => Ok(()),
        }
    }

    /// How clients are treated.
    pub fn server_options(&self) -> ServerOptions {
        let seconds = if self.handshake_limit == 0 { u32::MAX } else { self.handshake_limit };
        ServerOptions {
            connections_per_export: self.connections(),
            // As many are connected as -e says, and the others wait: a client often comes back before the server knows that it has left.
            clients_max: self.connections() as usize,
            handshake_timeout: Duration::from_secs(seconds.into()),
            ..ServerOptions::default()
        }
    }

    /// Connections that the export takes.
    fn connections(&self) -> u32 {
        match self.shared {
            0 => CONNECTIONS_MAX,
            shared => shared.min(CONNECTIONS_MAX),
        }
    }

    /// FILE, as it was given.
    pub fn file(&self) -> Option<&OsStr> {
        self.file.as_deref()
    }

    /// FILE, as the device that `-d` disconnects.
    ///
    /// # Errors
    /// When it is not given.
    pub fn device(&self) -> Result<&Path, Failure> {
        self.file().map(Path::new).ok_or_else(|| Failure::new("no device is given"))
    }

    /// Whether the process that was started ends when clients can connect.
    pub fn is_in_background(&self) -> bool {
        self.fork || (self.connect.is_some() && !self.verbose)
    }

    /// What FILE says.
    ///
    /// # Errors
    /// When it is not given, or not understood.
    pub fn tree(&self) -> Result<OptionTree, Failure> {
        let exists = |path: &Path| !self.image_opts && path.symlink_metadata().is_ok();
        let file = self.file.as_ref().ok_or_else(|| Failure::new("no FILE is given"))?;
        option_tree(file, exists)
    }

    /// How the disk that `tree` describes is opened: FILE, or with `-s` what lies over it.
    ///
    /// # Errors
    /// When options do not go with it.
    pub fn disk_options(&self, mut tree: OptionTree) -> Result<DiskOptions, Failure> {
        // Before the rest is read: what contradicts FILE's options is refused there.
        for (name, value) in [("discard", &self.discard), ("detect-zeroes", &self.detect_zeroes)] {
            let set = value.as_ref().map(|value| tree.replace(name, value));
            set.transpose().map_err(|error| Failure::because(format!("cannot set {name}"), &error))?;
        }
        let mut options = DiskOptions::of_tree(tree)
            .map_err(|error| Failure::because("cannot understand the options of the disk", &error))?;
        if let Some(aio) = &self.aio {
            options.set_aio(if aio == "threads" { Aio::Threads } else { Aio::IoUring });
        }
        let layer = &mut options.layer;
        layer.format = self.format.filter(|_| !self.snapshot).or(layer.format);
        layer.read_only |= self.read_only || self.load_snapshot.is_some();
        if let Some(offset) = self.offset {
            if layer.format != Some(Format::Raw) {
                return Err(Failure::new("-o is a byte of a raw image; give -f raw with it, and not -s"));
            }
            layer.raw.offset = offset;
        }
        let mode = if self.nocache { CacheMode::of_name("none") } else { self.cache };
        if let Some(mode) = mode {
            options.set_cache(mode);
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;
    use graph::options::{DetectZeroes, Discard};

    use super::*;

    fn parsed(line: &str) -> Args {
        let words = std::iter::once("qemu-nbd").chain(line.split_whitespace());
        Args::from_arg_matches(&command().try_get_matches_from(words).unwrap()).unwrap()
    }

    #[test]
    fn without_options_it_is_what_qemu_nbd_is() {
        let args = parsed("disk.img");
        assert_eq!((args.port, args.bind.as_str(), args.export_name.as_str()), (10_809, "0.0.0.0", ""));
        assert_eq!((args.connections(), args.persistent, args.fork), (1, false, false));
        assert_eq!(parsed("-e 0 x").connections(), CONNECTIONS_MAX);
        let limit = |line: &str| parsed(line).server_options().handshake_timeout.as_secs();
        assert_eq!((limit("x"), limit("--handshake-limit=3 x")), (10, 3));
        assert_eq!(limit("--handshake-limit=0 x"), u64::from(u32::MAX));
    }

    /// Callers give "-e 2" as one word.
    #[test]
    fn numbers_may_have_a_space_before_them() {
        let matches = command().try_get_matches_from(["qemu-nbd", "-e 2", "x"]).unwrap();
        assert_eq!(Args::from_arg_matches(&matches).unwrap().connections(), 2);
    }

    #[test]
    fn options_reach_the_disk() {
        catalog::install();
        let options = |line: &str| {
            let args = parsed(line);
            args.disk_options(args.tree()?)
        };
        let disk =
            options("-f raw -o 64k -r --cache=none --aio=threads --discard=unmap --detect-zeroes=unmap x")
                .unwrap();
        let layer = &disk.layer;
        assert_eq!((layer.format, layer.raw.offset, layer.read_only), (Some(Format::Raw), 65_536, true));
        assert!(layer.cache().direct && layer.file.direct && layer.file.aio == Some(Aio::Threads));
        assert_eq!((layer.discard, layer.detect_zeroes), (Discard::Unmap, DetectZeroes::Unmap));
        assert!(options("-n x").unwrap().layer.cache().direct);
        let with = |line: &str| options(line).unwrap().layer.detect_zeroes;
        let image = "--image-opts driver=qcow2,file.filename=x";
        assert_eq!(with(&format!("--discard=unmap {image},detect-zeroes=unmap")), DetectZeroes::Unmap);
        for line in [
            "-o 64k x",
            "-f qcow2 -o 64k x",
            "--detect-zeroes=unmap x",
            "--discard=ignore --image-opts driver=qcow2,file.filename=x,discard=unmap,detect-zeroes=unmap",
            "",
        ] {
            assert!(options(line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_is_not_done_here_is_refused_by_name() {
        for option in ["-T a", "--selinux-label a"] {
            let refused = parsed(&format!("{option} x")).check().unwrap_err().to_string();
            let name = option.split(' ').next().unwrap();
            assert!(refused.starts_with(name) && refused.contains("hint"), "{refused}");
        }
        for line in ["-d", "-d -L", "-d -c /dev/nbd0 x", "-c /dev/nbd0 -L x", "-c /dev/nbd0 --tls-creds t x"]
        {
            assert!(parsed(line).check().is_err(), "{line}");
        }
        assert!(parsed("-d /dev/nbd0").check().is_ok() && parsed("-c /dev/nbd0 x").is_in_background());
        assert!(parsed("-c /dev/nbd0 x").check().is_ok() && !parsed("-v -c /dev/nbd0 x").is_in_background());
        assert!(parsed("-k s -p 10 x").check().is_err() && parsed("-k s x").check().is_ok());
        assert!(parsed("-L -k s").check().is_ok() && parsed("-L --tls-hostname h").check().is_ok());
        assert!(parsed("-L -k s x").check().is_err() && parsed("--tls-hostname h x").check().is_err());
    }
}
