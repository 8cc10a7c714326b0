//! What `serve` is going to do: command line and configuration, put together and checked once.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use image::drive::OptionTree;
use image::names::Policy;
use image::options::DiskOptions;
use image::probe::Format;
use image::size::parse_size;

use super::args::Args;
use super::config::{Config, ConfigDrive};
use super::endpoint::{Endpoint, Protection, check_tcp};
use super::exports::export_names;
use super::sandbox::Sandbox;
use crate::create::options::NewImage;
use crate::failure::Failure;

/// Connections of an export unless said otherwise: more than any client opens today (QEMU: 1, nbdcopy: 4,
/// fio: one a job), few enough that their buffers are bounded.
pub const SHARED_DEFAULT: u32 = 16;

/// What is logged unless said otherwise.
pub const LOG_DEFAULT: &str = "warn";

/// Everything `serve` needs to know.
#[derive(Debug)]
pub struct Settings {
    /// The disks and their exports' names.
    pub exports: Vec<Export>,
    /// How missing images are created, if they are.
    pub create: Option<NewImage>,
    /// Where names in images may lead.
    pub policy: Policy,
    /// `--allow-path`, as given.
    pub allowed: Vec<PathBuf>,
    /// `--qmp`.
    pub qmp: Option<PathBuf>,
    /// `--metrics`.
    pub metrics: Option<SocketAddr>,
    /// `--allow-plain-tcp`.
    pub plain_tcp_allowed: bool,
    /// Connections of each export.
    pub shared: u32,
    /// Where clients come in; `None` until a command says.
    pub endpoint: Option<Endpoint>,
    /// TLS, if clients must use it.
    pub tls: Option<TlsFiles>,
    /// Event loops.
    pub threads: usize,
    /// `--map-memory`.
    pub map_memory: Option<u64>,
    /// `--pid-file`.
    pub pid_file: Option<PathBuf>,
    /// `--sandbox`.
    pub sandbox: Sandbox,
    /// `--trace`.
    pub trace: Option<PathBuf>,
    /// `--log`.
    pub log: String,
}

/// A disk to serve.
#[derive(Clone, Debug)]
pub struct Export {
    /// What clients call it.
    pub name: String,
    /// The disk.
    pub disk: DiskOptions,
    /// The options that it was made of.
    pub tree: OptionTree,
}

/// PEM files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Our certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who signs clients' certificates, if they must have one.
    pub client_ca: Option<PathBuf>,
}

/// The environment that settings depend on.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// systemd handed sockets over.
    pub sockets_inherited: bool,
    /// Processors.
    pub processors: usize,
}

impl Surroundings {
    /// Those of this process.
    pub fn here(sockets_inherited: bool) -> Self {
        Self { sockets_inherited, processors: std::thread::available_parallelism().map_or(1, NonZero::get) }
    }
}

impl Settings {
    /// Puts everything together.
    ///
    /// # Errors
    /// For the first thing that is missing, unknown or contradicts another.
    pub fn new(mut args: Args, surroundings: Surroundings) -> Result<Self, Failure> {
        let config = args.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
        let configured = config.fill(&mut args)?;
        let (trees, disks): (Vec<_>, Vec<_>) = disks(&args, &configured)?.into_iter().unzip();
        let names = export_names(&disks, args.export.as_deref())?;
        let tls = tls_files(&args)?;
        Ok(Self {
            create: new_image(&args)?,
            policy: Policy::new(&args.allow_path)
                .map_err(|error| Failure::because("cannot allow a directory", &error))?,
            shared: args.shared.unwrap_or(SHARED_DEFAULT).max(1),
            endpoint: endpoint(&args, &disks, tls.is_some(), surroundings)?,
            plain_tcp_allowed: args.allow_plain_tcp == Some(true),
            allowed: args.allow_path,
            qmp: args.qmp,
            metrics: args.metrics,
            threads: args.threads.map_or(surroundings.processors, |threads| threads.max(1) as usize),
            map_memory: args.map_memory,
            pid_file: args.pid_file,
            sandbox: args.sandbox.unwrap_or_default(),
            trace: args.trace,
            log: args.log.unwrap_or_else(|| LOG_DEFAULT.to_owned()),
            tls,
            exports: names
                .into_iter()
                .zip(disks)
                .zip(trees)
                .map(|((name, disk), tree)| Export { name, disk, tree })
                .collect(),
        })
    }
}

/// Drives of the command line, or of the configuration, with what was said for all of them.
fn disks(args: &Args, configured: &[ConfigDrive]) -> Result<Vec<(OptionTree, DiskOptions)>, Failure> {
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    let given = args.drives.iter().map(|drive| crate::drive::option_tree(drive, exists));
    let in_file = configured.iter().map(ConfigDrive::tree);
    let trees: Vec<OptionTree> = given.chain(in_file).collect::<Result<_, _>>()?;
    if trees.is_empty() && args.qmp.is_none() {
        return Err(Failure::new("no DRIVE is given; try cowhand serve --create 20G disk.qcow2"));
    }
    trees.into_iter().map(|tree| disk_of_tree(tree, args)).collect()
}

/// The options, changed to what they mean with those for all drives.
fn disk_of_tree(mut tree: OptionTree, args: &Args) -> Result<(OptionTree, DiskOptions), Failure> {
    let file = tree.filename().map_or_else(OsString::new, PathBuf::into_os_string);
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot understand drive {}", file.display()), error)
    };
    let of_tree = |tree: &OptionTree| DiskOptions::of_tree(tree.clone()).map_err(|error| failed(&error));
    let before = of_tree(&tree)?;
    if args.read_only == Some(true) {
        tree.replace("read-only", "on").map_err(|error| failed(&error))?;
    }
    if let (None, Some(format)) = (before.layer.format, args.format) {
        tree.replace("driver", format.name()).map_err(|error| failed(&error))?;
    }
    let disk = of_tree(&tree)?;
    Ok((tree, disk))
}

fn new_image(args: &Args) -> Result<Option<NewImage>, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::because("cannot create a disk as asked", error);
    let Some(size) = &args.create else {
        return match args.create_options.is_empty() {
            true => Ok(None),
            false => Err(Failure::new("-o is for disks that are created; give --create SIZE with it")),
        };
    };
    if args.read_only == Some(true) {
        return Err(Failure::new(
            "--create makes a disk to write on, and --read-only forbids it; give one of them",
        ));
    }
    let format = args.format.unwrap_or(Format::Qcow2);
    let mut image = NewImage::parse(&args.create_options, format).map_err(|error| failed(&error))?;
    image.size = Some(parse_size(size).map_err(|error| failed(&error))?);
    Ok(Some(image))
}

fn tls_files(args: &Args) -> Result<Option<TlsFiles>, Failure> {
    match (&args.tls_cert, &args.tls_key, &args.tls_client_ca) {
        (Some(cert), Some(key), client_ca) => {
            Ok(Some(TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: client_ca.clone() }))
        }
        (None, None, None) => Ok(None),
        (Some(_), None, _) => Err(Failure::new("--tls-cert needs its --tls-key")),
        (None, Some(_), _) => Err(Failure::new("--tls-key needs its --tls-cert")),
        (None, None, Some(_)) => Err(Failure::new("--tls-client-ca needs --tls-cert and --tls-key")),
    }
}

fn endpoint(
    args: &Args,
    disks: &[DiskOptions],
    tls: bool,
    surroundings: Surroundings,
) -> Result<Option<Endpoint>, Failure> {
    let protection = Protection { tls, plain_allowed: args.allow_plain_tcp == Some(true) };
    match (&args.socket, args.listen) {
        (Some(path), _) => Ok(Some(Endpoint::Socket(path.clone()))),
        (None, Some(address)) => {
            check_tcp(address, protection)?;
            Ok(Some(Endpoint::Tcp(address)))
        }
        (None, None) if surroundings.sockets_inherited => Ok(Some(Endpoint::Inherited)),
        // Nothing to serve yet: nbd-server-start will say where.
        (None, None) if disks.is_empty() => Ok(None),
        (None, None) => Ok(Some(Endpoint::PrivateSocket)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Surroundings = Surroundings { sockets_inherited: false, processors: 2 };

    fn args(drives: &[&str]) -> Args {
        Args { drives: drives.iter().map(OsString::from).collect(), ..Args::default() }
    }

    fn refusal(args: Args) -> String {
        Settings::new(args, HERE).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn one_path_is_enough() {
        let settings = Settings::new(args(&["disk.qcow2"]), HERE).unwrap();
        assert_eq!(settings.exports[0].name, "disk");
        assert_eq!(settings.endpoint, Some(Endpoint::PrivateSocket));
        assert_eq!((settings.shared, settings.threads), (SHARED_DEFAULT, 2));
        assert!(settings.create.is_none() && settings.tls.is_none());
    }

    #[test]
    fn what_is_said_for_all_drives_reaches_each() {
        let given = Args {
            read_only: Some(true),
            format: Some(Format::Raw),
            ..args(&["a.img", "file=b.qcow2,format=qcow2,id=other"])
        };
        let settings = Settings::new(given, HERE).unwrap();
        let formats: Vec<_> = settings.exports.iter().map(|export| export.disk.layer.format).collect();
        assert_eq!(formats, [Some(Format::Raw), Some(Format::Qcow2)]);
        assert!(settings.exports.iter().all(|export| export.disk.layer.read_only));
        assert_eq!(settings.exports[1].name, "other");
    }

    #[test]
    fn a_disk_is_created_with_its_options() {
        let given = Args {
            create: Some("20G".into()),
            create_options: vec!["cluster_size=128k".into()],
            ..args(&["disk.qcow2"])
        };
        let create = Settings::new(given, HERE).unwrap().create.unwrap();
        assert_eq!((create.size, create.options.cluster_size), (Some(20 << 30), 128 << 10));
    }

    #[test]
    fn what_is_missing_or_contradicts_is_said() {
        let path = || Some(PathBuf::from("x"));
        let table = [
            (args(&[]), "no DRIVE is given; try cowhand serve --create 20G disk.qcow2"),
            (
                Args { create_options: vec!["cluster_size=4k".into()], ..args(&["a"]) },
                "-o is for disks that are created; give --create SIZE with it",
            ),
            (
                Args { create: Some("1G".into()), read_only: Some(true), ..args(&["a"]) },
                "--create makes a disk to write on, and --read-only forbids it; give one of them",
            ),
            (Args { tls_cert: path(), ..args(&["a"]) }, "--tls-cert needs its --tls-key"),
            (Args { tls_key: path(), ..args(&["a"]) }, "--tls-key needs its --tls-cert"),
            (
                Args { tls_client_ca: path(), ..args(&["a"]) },
                "--tls-client-ca needs --tls-cert and --tls-key",
            ),
        ];
        for (args, expected) in table {
            assert_eq!(refusal(args), expected);
        }
        let open = Args { listen: Some("0.0.0.0:1".parse().unwrap()), ..args(&["a"]) };
        assert!(refusal(open).contains("--allow-plain-tcp"));
    }

    #[test]
    fn with_a_control_socket_nothing_needs_to_be_served_at_first() {
        let given = Args { qmp: Some("/run/q".into()), ..args(&[]) };
        let settings = Settings::new(given, HERE).unwrap();
        assert!(settings.exports.is_empty() && settings.endpoint.is_none());
    }

    #[test]
    fn systemds_sockets_are_used_unless_a_place_is_given() {
        let inherited = Surroundings { sockets_inherited: true, ..HERE };
        let endpoint = |args| Settings::new(args, inherited).unwrap().endpoint;
        assert_eq!(endpoint(args(&["a"])), Some(Endpoint::Inherited));
        let path = PathBuf::from("/run/s");
        let asked = endpoint(Args { socket: Some(path.clone()), ..args(&["a"]) });
        assert_eq!(asked, Some(Endpoint::Socket(path)));
    }
}
