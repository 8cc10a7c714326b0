//! The configuration file of `cowhand serve`: the options of the command line under their long names.

use std::path::{Path, PathBuf};

use dial::TargetError;
use serde::Deserialize;
use toml::Spanned;

use super::drives::{ConfigDrive, PlacedDrive};
use super::endpoint::parse_listen;
use super::guest_memory::GuestMemory;
use super::map_memory::parse_map_memory;
use super::sandbox::Sandbox;
use super::socket_mode::parse_socket_mode;
use crate::drive::parse_format;
use crate::failure::Failure;
use crate::output::counted;

/// Bytes of a configuration at most: a typing error must not read a disk.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// What a configuration file may say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Drives: texts as on the command line, or tables of options.
    #[serde(default)]
    pub drive: Vec<Spanned<ConfigDrive>>,
    /// In which line of the file each drive begins.
    #[serde(skip)]
    drive_lines: Vec<usize>,
    /// What the file is called, for errors.
    #[serde(skip)]
    file: String,
    /// As `--create`.
    pub create: Option<String>,
    /// As `--overlay`.
    pub overlay: Option<String>,
    /// As `--create-option`.
    #[serde(default)]
    pub create_option: Vec<String>,
    /// As `--format`.
    pub format: Option<String>,
    /// As `--read-only`.
    pub read_only: Option<bool>,
    /// As `--allow-path`.
    #[serde(default)]
    pub allow_path: Vec<PathBuf>,
    /// As `--allow-name`.
    #[serde(default)]
    pub allow_name: Vec<String>,
    /// As `--allow-connect`.
    #[serde(default)]
    pub allow_connect: Vec<String>,
    /// As `--export`.
    pub export: Option<String>,
    /// As `--default-export`.
    pub default_export: Option<String>,
    /// As `--shared`.
    pub shared: Option<u32>,
    /// As `--socket`.
    pub socket: Option<PathBuf>,
    /// As `--socket-mode`.
    pub socket_mode: Option<String>,
    /// As `--listen`.
    pub listen: Option<String>,
    /// As `--vhost-user-blk`.
    #[serde(default)]
    pub vhost_user_blk: Vec<String>,
    /// As `--guest-memory`.
    pub guest_memory: Option<GuestMemory>,
    /// As `--ublk`.
    #[serde(default)]
    pub ublk: Vec<String>,
    /// As `--fuse`.
    #[serde(default)]
    pub fuse: Vec<String>,
    /// As `--request-merging`.
    pub request_merging: Option<bool>,
    /// As `--qmp`.
    pub qmp: Option<PathBuf>,
    /// As `--metrics`.
    pub metrics: Option<String>,
    /// As `--take-over-socket`.
    pub take_over_socket: Option<PathBuf>,
    /// As `--allow-plain-tcp`.
    pub allow_plain_tcp: Option<bool>,
    /// As `--tls-cert`.
    pub tls_cert: Option<PathBuf>,
    /// As `--tls-key`.
    pub tls_key: Option<PathBuf>,
    /// As `--tls-client-ca`.
    pub tls_client_ca: Option<PathBuf>,
    /// As `--threads`.
    pub threads: Option<u32>,
    /// As `--pid-file`.
    pub pid_file: Option<PathBuf>,
    /// As `--sandbox`.
    pub sandbox: Option<Sandbox>,
    /// As `--map-memory`.
    pub map_memory: Option<String>,
    /// As `--trace`.
    pub trace: Option<PathBuf>,
    /// As `--log`.
    pub log: Option<String>,
    /// As `--quiet`.
    pub quiet: Option<bool>,
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot read the configuration {}", path.display()), error)
        };
        let metadata = std::fs::metadata(path).map_err(|error| failed(&error))?;
        if !metadata.is_file() || metadata.len() > CONFIG_BYTES_MAX {
            return Err(Failure::new(format!(
                "cannot read the configuration {}: not a regular file of at most {CONFIG_BYTES_MAX} bytes",
                path.display()
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        let mut config = Self::parse(&text).map_err(|error| failed(&error))?;
        config.file = path.display().to_string();
        Ok(config)
    }

    /// Reads a text.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let mut config: Self = toml::from_str(text)?;
        config.drive_lines = lines(text, config.drive.iter().map(|drive| drive.span().start));
        Ok(config)
    }

    /// Fills in the options that the command line leaves open.
    ///
    /// # Errors
    /// For an option that cannot be understood, and for drives both here and on the command line: leaving out
    /// either would lose a disk unnoticed.
    pub fn fill(self, args: &mut super::args::Args) -> Result<Vec<PlacedDrive>, Failure> {
        if let (Some(given), false) = (args.drives.first(), self.drive.is_empty()) {
            return Err(Failure::new(format!(
                "the configuration {} has {} and the command line names {}; give drives in one of them",
                self.file,
                counted(self.drive.len() as u64, "drive"),
                given.display()
            )));
        }
        let wrong = |option: &str, error: String| Failure::new(format!("configuration: {option}: {error}"));
        if let (None, Some(format)) = (args.format, self.format) {
            args.format = Some(parse_format(&format).map_err(|error| wrong("format", error))?);
        }
        // A place to listen given on the command line replaces either kind of place.
        if args.socket.is_none() && args.listen.is_none() {
            if let (Some(_), Some(_)) = (&self.socket, &self.listen) {
                return Err(wrong("socket and listen", "give one of them".to_owned()));
            }
            args.socket = self.socket;
            let listen = self.listen.as_deref().map(parse_listen).transpose();
            args.listen = listen.map_err(|error| wrong("listen", error))?;
        }
        if let (None, Some(metrics)) = (args.metrics, &self.metrics) {
            args.metrics = Some(parse_listen(metrics).map_err(|error| wrong("metrics", error))?);
        }
        let socket_mode = self.socket_mode.as_deref().map(parse_socket_mode).transpose();
        fill(&mut args.socket_mode, socket_mode.map_err(|error| wrong("socket-mode", error))?);
        fill_list(&mut args.vhost_user_blk, self.vhost_user_blk);
        fill(&mut args.guest_memory, self.guest_memory);
        fill_list(&mut args.fuse, self.fuse);
        fill_list(&mut args.ublk, self.ublk);
        fill(&mut args.request_merging, self.request_merging);
        fill(&mut args.qmp, self.qmp);
        fill(&mut args.take_over_socket, self.take_over_socket);
        fill(&mut args.create, self.create);
        fill(&mut args.overlay, self.overlay.map(Into::into));
        fill_list(&mut args.create_options, self.create_option);
        fill(&mut args.read_only, self.read_only);
        fill_list(&mut args.allow_path, self.allow_path);
        fill_list(&mut args.allow_name, self.allow_name);
        let addresses = self.allow_connect.iter().map(|address| address.parse()).collect::<Result<_, _>>();
        let addresses =
            addresses.map_err(|allowed: TargetError| wrong("allow-connect", format!("allowed: {allowed}")));
        fill_list(&mut args.allow_connect, addresses?);
        fill(&mut args.export, self.export);
        fill(&mut args.default_export, self.default_export);
        fill(&mut args.shared, self.shared);
        fill(&mut args.allow_plain_tcp, self.allow_plain_tcp);
        fill(&mut args.tls_cert, self.tls_cert);
        fill(&mut args.tls_key, self.tls_key);
        fill(&mut args.tls_client_ca, self.tls_client_ca);
        fill(&mut args.threads, self.threads);
        let map_memory = self.map_memory.as_deref().map(parse_map_memory).transpose();
        fill(&mut args.map_memory, map_memory.map_err(|error| wrong("map-memory", error))?);
        fill(&mut args.pid_file, self.pid_file);
        fill(&mut args.sandbox, self.sandbox);
        fill(&mut args.trace, self.trace);
        fill(&mut args.log, self.log);
        fill(&mut args.quiet, self.quiet);
        let file = self.file;
        let placed = |(index, (drive, line)): (usize, (Spanned<ConfigDrive>, usize))| PlacedDrive {
            drive: drive.into_inner(),
            place: format!("drive {} in {file}, line {line}", index + 1),
        };
        Ok(self.drive.into_iter().zip(self.drive_lines).enumerate().map(placed).collect())
    }
}

/// The lines of ascending places in a text, which is gone through once.
fn lines(text: &str, places: impl Iterator<Item = usize>) -> Vec<usize> {
    let (mut seen, mut line) = (0, 1);
    let line_of = |place: usize| {
        let between = text.as_bytes().get(seen..place).unwrap_or_default();
        line += between.iter().filter(|&&byte| byte == b'\n').count();
        seen = seen.max(place);
        line
    };
    places.map(line_of).collect()
}

fn fill<T>(given: &mut Option<T>, configured: Option<T>) {
    *given = given.take().or(configured);
}

fn fill_list<T>(given: &mut Vec<T>, configured: Vec<T>) {
    if given.is_empty() {
        *given = configured;
    }
}

#[cfg(test)]
mod tests {
    use graph::options::{DiskOptions, Group, Kind, Spec, table};

    use super::super::args::Args;
    use super::*;

    const FILE: &str = r#"
        socket = "/run/x.sock"
        shared = 4
        read-only = true
        allow-path = ["/images"]
        allow-name = ["nbd://host/golden"]

        [[drive]]
        file = "a.qcow2"
        l2-cache-size = "2M"
        cache-clean-interval = 0
        lazy-refcounts = true
        backing.l2-cache-size = "1M"
    "#;

    #[test]
    fn a_drive_in_a_table_has_the_options_of_one_in_a_line() {
        let drives = Config::parse(FILE).unwrap().fill(&mut Args::default()).unwrap();
        let [drive] = &drives[..] else { panic!("{drives:?}") };
        let line =
            "file=a.qcow2,l2-cache-size=2M,cache-clean-interval=0,lazy-refcounts=on,backing.l2-cache-size=1M";
        let expected =
            PlacedDrive { drive: ConfigDrive::Text(line.to_owned()), place: String::new() }.tree().unwrap();
        let found = DiskOptions::of_tree(drive.tree().unwrap());
        assert_eq!(found, DiskOptions::of_tree(expected));
        assert!(found.is_ok());
    }

    /// A drive line with the option, and what must stand beside it.
    fn line_with(spec: &Spec) -> String {
        let name = spec.full_name();
        let value = match spec.kind {
            Kind::Switch => "on",
            // The last one is no driver of paths.
            Kind::Choice(names) if name == "file.driver" => names[0],
            Kind::Choice(names) => names[names.len() - 1],
            Kind::Size { .. } => "512",
            Kind::Whole { .. } => "1",
            Kind::Text { .. } | Kind::Path | Kind::File => "x",
            Kind::Image | Kind::List => "",
        };
        let file = match (spec.group, &*name) {
            (Group::Storage("blkdebug"), "file.image") => "file.driver=blkdebug,".to_owned(),
            (Group::Storage("blkdebug"), _) => "file.driver=blkdebug,file.image=y,".to_owned(),
            (Group::Storage("preallocate"), "file.file") => "file.driver=preallocate,".to_owned(),
            (Group::Storage("preallocate"), _) => "file.driver=preallocate,file.file=y,".to_owned(),
            (Group::Storage(driver), _) => format!("file.driver={driver},"),
            (Group::Filter(driver), name) => {
                let driver = graph::drivers::FILTERS.iter().find(|known| known.name == driver).unwrap();
                let others = driver.children.fewest().into_iter();
                let others = others.filter(|role| role.split('.').next() != Some(name));
                let disks: String = others.map(|role| format!("{role}.file.filename=y,")).collect();
                format!("driver={},{disks}", driver.name)
            }
            (_, "file" | "file.filename") => String::new(),
            _ => "file.filename=y,".to_owned(),
        };
        let of_limit = name.split_once("-max").filter(|_| name.starts_with("throttling."));
        let beside = match (&*name, of_limit) {
            ("force-share", _) => ",read-only=on".to_owned(),
            ("file.tls-hostname", _) => ",file.tls-creds=t".to_owned(),
            ("detect-zeroes", _) => ",discard=unmap".to_owned(),
            ("bitmap.node", _) => ",bitmap.name=x".to_owned(),
            ("bitmap.name", _) => ",bitmap.node=x".to_owned(),
            ("throttling.iops-size", _) => ",throttling.iops-total=1".to_owned(),
            (_, Some((flow, ""))) => format!(",{flow}=1"),
            (_, Some((flow, _))) => format!(",{flow}=1,{flow}-max=1"),
            _ => String::new(),
        };
        format!("{file}{name}={value}{beside}")
    }

    #[test]
    fn every_option_means_the_same_in_a_table_as_in_a_line() {
        for line in table::all().filter(|spec| spec.kind != Kind::List).map(line_with) {
            let parts = line.split(',').filter_map(|part| part.split_once('='));
            let toml: String = parts
                .map(|(name, value)| match (value, value.parse::<u32>()) {
                    ("on", _) => format!("{name} = true\n"),
                    (_, Ok(number)) => format!("{name} = {number}\n"),
                    (text, _) => format!("{name} = \"{text}\"\n"),
                })
                .collect();
            let config = Config::parse(&format!("[[drive]]\n{toml}")).unwrap();
            let drives = config.fill(&mut Args::default()).unwrap();
            let in_line = PlacedDrive { drive: ConfigDrive::Text(line.clone()), place: String::new() };
            let [found, expected] =
                [&drives[0], &in_line].map(|drive| DiskOptions::of_tree(drive.tree().unwrap()));
            assert_eq!(found, expected, "{line}");
            assert!(found.is_ok(), "{line}: {found:?}");
        }
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let mut args = Args { shared: Some(9), read_only: Some(false), ..Args::default() };
        Config::parse(FILE).unwrap().fill(&mut args).unwrap();
        assert_eq!((args.shared, args.read_only), (Some(9), Some(false)));
        assert_eq!(args.socket, Some(PathBuf::from("/run/x.sock")));
        assert_eq!(args.allow_path, [PathBuf::from("/images")]);
        assert_eq!(args.allow_name, ["nbd://host/golden"]);
    }

    #[test]
    fn a_place_to_listen_on_the_command_line_replaces_that_of_the_file() {
        let listen = Some("127.0.0.1:1".parse().unwrap());
        let mut args = Args { listen, ..Args::default() };
        let drives = Config::parse(FILE).unwrap().fill(&mut args).unwrap();
        assert_eq!((args.socket, args.listen), (None, listen));
        assert_eq!(drives.len(), 1);
    }

    #[test]
    fn drives_in_both_places_are_refused() {
        let mut args = Args { drives: vec!["b".into()], ..Args::default() };
        let refused = Config::parse(FILE).unwrap().fill(&mut args).unwrap_err().to_string();
        assert!(refused.contains("has 1 drive and the command line names b"), "{refused}");
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = Config::parse("sockte = \"x\"").unwrap_err().to_string();
        assert!(error.contains("unknown field `sockte`") && error.contains("`socket`"), "{error}");
        let config = Config::parse(
            "shared = 2\n[[drive]]\nfile = \"a\"\n\n[[drive]]\nfile = \"b\"\nl2-cache = \"1M\"",
        )
        .unwrap();
        let drives = config.fill(&mut Args::default()).unwrap();
        let error = DiskOptions::of_tree(drives[1].tree().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("unknown option l2-cache"), "{error}");
        assert!(
            drives[1].place.starts_with("drive 2 in ") && drives[1].place.ends_with("line 5"),
            "{}",
            drives[1].place
        );
    }

    #[test]
    fn two_places_to_listen_are_one_too_many() {
        let config = Config::parse("socket = \"x\"\nlisten = \"1\"").unwrap();
        assert!(config.fill(&mut Args::default()).is_err());
    }
}
