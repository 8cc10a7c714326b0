//! The configuration file of `cowhand serve`: the options of the command line under their long names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use image::drive::{OptionTree, parse_drive};
use serde::Deserialize;

use super::endpoint::parse_listen;
use super::map_memory::parse_map_memory;
use super::sandbox::Sandbox;
use crate::drive::parse_format;
use crate::failure::Failure;

/// Bytes of a configuration at most: a typing error must not read a disk.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// What a configuration file may say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Drives: texts as on the command line, or tables of options.
    #[serde(default)]
    pub drive: Vec<ConfigDrive>,
    /// As `--create`.
    pub create: Option<String>,
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
    /// As `--export`.
    pub export: Option<String>,
    /// As `--shared`.
    pub shared: Option<u32>,
    /// As `--socket`.
    pub socket: Option<PathBuf>,
    /// As `--listen`.
    pub listen: Option<String>,
    /// As `--qmp`.
    pub qmp: Option<PathBuf>,
    /// As `--metrics`.
    pub metrics: Option<String>,
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
}

/// A drive in a configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum ConfigDrive {
    /// As on the command line.
    Text(String),
    /// Option by option.
    Table(toml::Table),
}

impl ConfigDrive {
    /// Its options.
    pub fn tree(&self) -> Result<OptionTree, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::because("cannot understand a drive", error);
        match self {
            Self::Text(text) => {
                let exists = |path: &Path| path.symlink_metadata().is_ok();
                parse_drive(&OsString::from(text), exists).map_err(|error| failed(&error))
            }
            Self::Table(table) => {
                let value = serde_json::to_value(table).map_err(|error| failed(&error))?;
                let object = value.as_object().cloned().unwrap_or_default();
                OptionTree::of_json(object).map_err(|error| failed(&error))
            }
        }
    }
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
        Self::parse(&text).map_err(|error| failed(&error))
    }

    /// Reads a text.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// What the command line leaves open is taken from here.
    pub fn fill(self, args: &mut super::args::Args) -> Result<Vec<ConfigDrive>, Failure> {
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
        fill(&mut args.qmp, self.qmp);
        fill(&mut args.create, self.create);
        fill_list(&mut args.create_options, self.create_option);
        fill(&mut args.read_only, self.read_only);
        fill_list(&mut args.allow_path, self.allow_path);
        fill(&mut args.export, self.export);
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
        Ok(if args.drives.is_empty() { self.drive } else { Vec::new() })
    }
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
    use image::options::DiskOptions;

    use super::super::args::Args;
    use super::*;

    const FILE: &str = r#"
        socket = "/run/x.sock"
        shared = 4
        read-only = true
        allow-path = ["/images"]

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
        let expected = ConfigDrive::Text(line.to_owned()).tree().unwrap();
        let found = DiskOptions::of_tree(drive.tree().unwrap());
        assert_eq!(found, DiskOptions::of_tree(expected));
        assert!(found.is_ok());
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let mut args = Args { shared: Some(9), read_only: Some(false), ..Args::default() };
        Config::parse(FILE).unwrap().fill(&mut args).unwrap();
        assert_eq!((args.shared, args.read_only), (Some(9), Some(false)));
        assert_eq!(args.socket, Some(PathBuf::from("/run/x.sock")));
        assert_eq!(args.allow_path, [PathBuf::from("/images")]);
    }

    #[test]
    fn a_place_to_listen_on_the_command_line_replaces_that_of_the_file() {
        let listen = Some("127.0.0.1:1".parse().unwrap());
        let mut args = Args { listen, drives: vec!["b".into()], ..Args::default() };
        let drives = Config::parse(FILE).unwrap().fill(&mut args).unwrap();
        assert_eq!((args.socket, args.listen), (None, listen));
        assert!(drives.is_empty());
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = Config::parse("sockte = \"x\"").unwrap_err().to_string();
        assert!(error.contains("unknown field `sockte`") && error.contains("`socket`"), "{error}");
        let tree =
            Config::parse("[[drive]]\nfile = \"a\"\nl2-cache = \"1M\"").unwrap().drive[0].tree().unwrap();
        let error = DiskOptions::of_tree(tree).unwrap_err().to_string();
        assert!(error.starts_with("unknown option l2-cache"), "{error}");
    }

    #[test]
    fn two_places_to_listen_are_one_too_many() {
        let config = Config::parse("socket = \"x\"\nlisten = \"1\"").unwrap();
        assert!(config.fill(&mut Args::default()).is_err());
    }
}
