//! What `serve` is going to do: its options, checked once, and what they come to.

use std::path::PathBuf;

use door_fuse::mount::AllowOther;
use door_ublk::Number;
use door_ublk::limits::NUMBER_MAX;
use export::few_names;
use graph::drive::OptionTree;
use graph::names::Policy;
use graph::options::DiskOptions;
use graph::probe::Format;
use graph::size::parse_size;
use monitor::endpoint::{Endpoint, Protection, check_tcp};
use monitor::exports::{export_names, stable_path};
use monitor::socket_path::private_name;
use net::tls::{ServerFiles, Terms};
use tool::create::options::NewImage;
use tool::failure::Failure;

use super::args::Args;
use super::drives::disks;
use super::overlay::Overlay;
use crate::policy::policy;

/// Connections of an export unless said otherwise: more than any client opens today (QEMU: 1, nbdcopy: 4,
/// fio: one a job), few enough that their buffers are bounded.
pub const SHARED_DEFAULT: u32 = 16;

/// Everything `serve` needs to know.
#[derive(Debug)]
pub struct Settings {
    /// The options; those below are what others of them come to.
    pub options: Args,
    /// The disks and their exports' names.
    pub exports: Vec<Export>,
    /// How missing images are created, if they are.
    pub create: Option<NewImage>,
    /// The image over the only disk, if there is one.
    pub overlay: Option<Overlay>,
    /// Where names in images may lead.
    pub policy: Policy,
    /// Where clients come in; `None` until a command says.
    pub endpoint: Option<Endpoint>,
    /// Sockets for virtual machines.
    pub vhost_user_blk: Vec<Placed>,
    /// Files that disks are mounted over.
    pub fuse: Vec<FuseFile>,
    /// Disks that are block devices.
    pub ublk: Vec<UblkDevice>,
    /// The program ends when its mounts have.
    pub ends_with_mounts: bool,
    /// TLS, if clients must use it.
    pub tls: Option<ServerFiles>,
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

/// A path that leads to a disk: a socket, or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What the disk's export is called.
    pub export: String,
    /// Where it is.
    pub path: PathBuf,
}

/// A disk that is mounted as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseFile {
    /// Which one, and where.
    pub placed: Placed,
    /// Programs may change its size.
    pub growable: bool,
    /// Which other users may use it.
    pub allow_other: AllowOther,
}

impl FuseFile {
    /// As `--fuse` makes it.
    fn plain(placed: Placed) -> Self {
        Self { placed, growable: false, allow_other: AllowOther::Auto }
    }
}

/// A disk that is a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UblkDevice {
    /// What the disk's export is called.
    pub export: String,
    /// Which device.
    pub number: Number,
}

impl UblkDevice {
    /// As `--ublk` says it, with the number where paths are elsewhere.
    fn parse(placed: Placed) -> Result<Self, Failure> {
        let Placed { export, path } = placed;
        let text = path.to_string_lossy();
        let number = match text.parse() {
            Ok(number) if number <= NUMBER_MAX => Number::Given(number),
            _ if text == "auto" => Number::Auto,
            _ => {
                return Err(Failure::new(format!(
                    "--ublk {text}: it is no number of a device; give auto, or N for /dev/ublkbN, 0 to {NUMBER_MAX}"
                )));
            }
        };
        Ok(Self { export, number })
    }
}

impl Settings {
    /// What the options come to. `sockets_inherited` says that systemd handed sockets over.
    ///
    /// # Errors
    /// For the first thing that is missing, unknown or contradicts another.
    pub fn new(mut options: Args, sockets_inherited: bool) -> Result<Self, Failure> {
        let mut disks = disks(&options)?;
        let overlay = overlay(&options, &mut disks)?;
        let (trees, disks): (Vec<_>, Vec<_>) = disks.into_iter().unzip();
        let names = export_names(&disks, options.export.as_deref())?;
        check_default_export(&names, options.default_export.as_deref())?;
        let tls = tls_files(&options)?;
        options.take_over_socket = options.take_over_socket.or(options.take_over.take());
        Ok(Self {
            create: new_image(&options)?,
            overlay,
            policy: policy(&options.allow_path, &options.allow_name)?,
            endpoint: endpoint(&options, &names, &disks, tls.is_some(), sockets_inherited)?,
            vhost_user_blk: placed(&names, "--vhost-user-blk", &options.vhost_user_blk)?,
            fuse: placed(&names, "--fuse", &options.fuse)?.into_iter().map(FuseFile::plain).collect(),
            ublk: ublk_devices(&names, &options.ublk)?,
            ends_with_mounts: false,
            tls,
            exports: names
                .into_iter()
                .zip(disks)
                .zip(trees)
                .map(|((name, disk), tree)| Export { name, disk, tree })
                .collect(),
            options,
        })
    }
}

fn new_image(args: &Args) -> Result<Option<NewImage>, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::because("cannot create a disk as asked", error);
    let Some(size) = &args.create else {
        return match args.create_options.is_empty() || args.overlay.is_some() {
            true => Ok(None),
            false => Err(Failure::new(
                "-o is for disks that are created; give --create SIZE or --overlay IMAGE with it",
            )),
        };
    };
    if args.read_only {
        return Err(Failure::new(
            "--create makes a disk to write on, and --read-only forbids it; give one of them",
        ));
    }
    let format = args.format.unwrap_or(Format::Qcow2);
    let mut image = NewImage::parse(&args.create_options, format).map_err(|error| failed(&error))?;
    image.size = Some(parse_size(size).map_err(|error| failed(&error))?);
    Ok(Some(image))
}

/// Puts the image of `--overlay` over the only one of `disks`.
fn overlay(args: &Args, disks: &mut [(OptionTree, DiskOptions)]) -> Result<Option<Overlay>, Failure> {
    let Some(image) = &args.overlay else { return Ok(None) };
    // Also where one of them stands in the configuration.
    if args.create.is_some() || args.read_only {
        return Err(Failure::new(
            "--overlay makes what it needs and is written to; give no --create and no --read-only with it",
        ));
    }
    Overlay::put_over(disks, image, &args.create_options).map(Some)
}

/// Refuses a default export that is none.
fn check_default_export(names: &[String], asked: Option<&str>) -> Result<(), Failure> {
    match asked {
        Some(asked) if !names.is_empty() && !names.iter().any(|name| name == asked) => {
            Err(Failure::new(format!(
                "--default-export {asked}: there is no such export; name one of {}",
                few_names(names.iter().map(String::as_str))
            )))
        }
        _ => Ok(()),
    }
}

/// The meaning of each `[EXPORT=]PATH` of an option. The text before the first `=` is an export only if there
/// is one of that name: paths may contain `=`, too.
fn placed(names: &[String], option: &str, given: &[String]) -> Result<Vec<Placed>, Failure> {
    let one = |text: &String| {
        let named = names.iter().filter_map(|name| {
            let path = text.strip_prefix(name.as_str())?.strip_prefix('=')?;
            Some(Placed { export: name.clone(), path: PathBuf::from(path) })
        });
        // The longest name: one may begin with another.
        let found = match (named.max_by_key(|placed| placed.export.len()), names) {
            (Some(named), _) => named,
            (None, [only]) => Placed { export: only.clone(), path: PathBuf::from(text) },
            (None, _) => {
                return Err(Failure::new(format!(
                    "{option} {text}: say which disk, as EXPORT={text}; the exports are {}",
                    few_names(names.iter().map(String::as_str))
                )));
            }
        };
        if found.path.as_os_str().is_empty() {
            return Err(Failure::new(format!("{option} {text}: there is no path")));
        }
        Ok(found)
    };
    given.iter().map(one).collect()
}

fn ublk_devices(names: &[String], given: &[String]) -> Result<Vec<UblkDevice>, Failure> {
    placed(names, "--ublk", given)?.into_iter().map(UblkDevice::parse).collect()
}

fn tls_files(args: &Args) -> Result<Option<ServerFiles>, Failure> {
    match (&args.tls_cert, &args.tls_key, &args.tls_client_ca) {
        (Some(cert), Some(key), client_ca) => {
            let (certificate, key, client_ca) = (cert.clone(), key.clone(), client_ca.clone());
            Ok(Some(ServerFiles { certificate, key, client_ca, terms: Terms::default() }))
        }
        (None, None, None) => Ok(None),
        (Some(_), None, _) => Err(Failure::new("--tls-cert needs its --tls-key")),
        (None, Some(_), _) => Err(Failure::new("--tls-key needs its --tls-cert")),
        (None, None, Some(_)) => Err(Failure::new("--tls-client-ca needs --tls-cert and --tls-key")),
    }
}

fn endpoint(
    args: &Args,
    names: &[String],
    disks: &[DiskOptions],
    tls: bool,
    sockets_inherited: bool,
) -> Result<Option<Endpoint>, Failure> {
    let protection = Protection { tls, plain_allowed: args.allow_plain_tcp };
    let first = names.first().zip(disks.first());
    match (&args.socket, args.listen) {
        (Some(path), _) => Ok(Some(Endpoint::Socket(path.clone()))),
        (None, Some(address)) => {
            check_tcp(address, protection)?;
            Ok(Some(Endpoint::Tcp(address)))
        }
        (None, None) if sockets_inherited => Ok(Some(Endpoint::Inherited)),
        // Nothing to serve yet: nbd-server-start will say where.
        (None, None) => Ok(first
            .map(|(name, disk)| Endpoint::PrivateSocket(private_name(name, &stable_path(&disk.filename))))),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn args(drives: &[&str]) -> Args {
        Args { drives: drives.iter().map(OsString::from).collect(), ..Args::default() }
    }

    fn refusal(args: Args) -> String {
        Settings::new(args, false).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn one_path_is_enough() {
        let settings = Settings::new(args(&["disk.qcow2"]), false).unwrap();
        assert_eq!(settings.exports[0].name, "disk");
        assert!(matches!(settings.endpoint, Some(Endpoint::PrivateSocket(_))), "{:?}", settings.endpoint);
        assert!(settings.create.is_none() && settings.tls.is_none());
    }

    #[test]
    fn a_socket_for_a_machine_names_its_disk_where_there_are_several() {
        let found = |drives: &[&str], given: &str| {
            let args = Args { vhost_user_blk: vec![given.to_owned()], ..args(drives) };
            Settings::new(args, false).map(|settings| {
                let socket = settings.vhost_user_blk[0].clone();
                (socket.export, socket.path.to_string_lossy().into_owned())
            })
        };
        let two = ["a.qcow2", "file=b.qcow2,id=a=b"];
        let is = |export: &str, path: &str| (export.to_owned(), path.to_owned());
        assert_eq!(found(&two[..1], "/run/x=y").unwrap(), is("a", "/run/x=y"));
        assert_eq!(found(&two[..1], "a=/run/x").unwrap(), is("a", "/run/x"));
        assert_eq!(found(&two, "a=b=/run/x").unwrap(), is("a=b", "/run/x"));
        assert_eq!(found(&two, "a=/run/x").unwrap(), is("a", "/run/x"));
        assert!(found(&two, "/run/x").unwrap_err().to_string().contains("the exports are"));
        assert!(found(&two, "a=").is_err());
    }

    #[test]
    fn what_is_said_for_all_drives_reaches_each() {
        catalog::install();
        let given = Args {
            read_only: true,
            format: Some(Format::Raw),
            ..args(&["a.img", "file=b.qcow2,format=qcow2,id=other"])
        };
        let settings = Settings::new(given, false).unwrap();
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
        let create = Settings::new(given, false).unwrap().create.unwrap();
        assert_eq!((create.size, create.options.cluster_size), (Some(20 << 30), 128 << 10));
    }

    #[test]
    fn what_is_missing_or_contradicts_is_said() {
        let path = || Some(PathBuf::from("x"));
        let table = [
            (args(&[]), "no DRIVE is given; try cowhand serve --create 20G disk.qcow2"),
            (
                Args { create_options: vec!["cluster_size=4k".into()], ..args(&["a"]) },
                "-o is for disks that are created; give --create SIZE or --overlay IMAGE with it",
            ),
            (
                Args { create: Some("1G".into()), read_only: true, ..args(&["a"]) },
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
        let settings = Settings::new(given, false).unwrap();
        assert!(settings.exports.is_empty() && settings.endpoint.is_none());
    }

    #[test]
    fn a_socket_is_named_after_the_path_of_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let name = |path: &str| {
            std::fs::create_dir_all(directory.path().join(path).parent().unwrap()).unwrap();
            let path = directory.path().join(path).display().to_string();
            match Settings::new(args(&[&path]), false).unwrap().endpoint {
                Some(Endpoint::PrivateSocket(name)) => name,
                other => panic!("{other:?}"),
            }
        };
        let (a, b) = (name("aa/disk.qcow2"), name("bb/disk.qcow2"));
        assert!(a.starts_with("disk-") && b.starts_with("disk-") && a != b, "{a} {b}");
        std::os::unix::fs::symlink(directory.path().join("aa"), directory.path().join("cc")).unwrap();
        for same in ["aa/disk.qcow2", "bb/../aa/disk.qcow2", "aa/./disk.qcow2", "cc/disk.qcow2"] {
            assert_eq!(name(same), a, "{same}");
        }
    }

    #[test]
    fn the_default_export_is_one_of_those_that_there_are() {
        let given = |default: &str| Args { default_export: Some(default.into()), ..args(&["a", "b"]) };
        assert!(Settings::new(given("b"), false).is_ok());
        let expected = "--default-export c: there is no such export; name one of \"a\" and \"b\"";
        assert_eq!(refusal(given("c")), expected);
    }

    #[test]
    fn systemds_sockets_are_used_unless_a_place_is_given() {
        let endpoint = |args| Settings::new(args, true).unwrap().endpoint;
        assert_eq!(endpoint(args(&["a"])), Some(Endpoint::Inherited));
        let path = PathBuf::from("/run/s");
        let asked = endpoint(Args { socket: Some(path.clone()), ..args(&["a"]) });
        assert_eq!(asked, Some(Endpoint::Socket(path)));
    }
}
