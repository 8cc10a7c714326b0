//! The options of `cowhand serve`, each once: an argument of the command line and, under its long name, of the configuration file.

use std::ffi::OsString;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ArgAction;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use graph::probe::Format;
use monitor::endpoint::parse_listen;
use monitor::sandbox::Sandbox;
use monitor::socket_mode::SocketMode;
use net::dial::Target;
use serde::de::{Deserialize, Deserializer, Error};

use super::drive_options::{self, ListFormat};
use super::drives::PlacedDrive;
use super::guest_memory::GuestMemory;
use super::help;
use super::map_memory::parse_map_memory;
use crate::drive::{DRIVE_HELP, formats, parse_format};

/// Options of `cowhand serve`. What does not stand in the file is skipped there; the default is that of the type.
#[derive(Clone, Debug, Default, clap::Args, serde::Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[command(
    long_about = "Serve disks over NBD to QEMU, libnbd, fio or the kernel's client, over vhost-user-blk to virtual machines, and as files.\n\n\
        Every DRIVE is an export of this one process. Ctrl-C, SIGTERM, SIGHUP (a closed terminal) and SIGQUIT end it in \
        order: requests in flight are answered, metadata is written, locks are given back. Where they were ignored \
        (nohup) they stay so. The third Ctrl-C ends it at once.\n\n\
        Started by systemd it takes the sockets of LISTEN_FDS, and notifies NOTIFY_SOCKET when clients can connect.",
    after_help = help::AFTER,
    after_long_help = after_long_help(),
    disable_help_flag = true,
    mut_args = help::arranged
)]
pub struct Args {
    /// The disks to serve: paths, or DRIVEs with options (see below)
    #[arg(value_name = "DRIVE")]
    #[serde(skip)]
    pub drives: Vec<OsString>,

    /// Those of the file.
    #[arg(skip)]
    #[serde(rename = "drive")]
    pub configured: Vec<PlacedDrive>,

    /// Create each missing image first, as a qcow2 disk of SIZE; an existing one is never touched
    #[arg(long, value_name = "SIZE", help_heading = "Disks")]
    pub create: Option<String>,

    /// Serve IMAGE over DRIVE: clients write to IMAGE, a qcow2 image that is created if it is missing, and DRIVE is only read. It may be
    /// a file on a server, or an object of a store
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["create", "read_only"], help_heading = "Disks")]
    #[serde(deserialize_with = "drive")]
    pub overlay: Option<OsString>,

    /// Options for what --create or --overlay creates: name=value,... (cluster_size=128k,extended_l2=on; -o help lists all)
    #[arg(short = 'o', long = "create-option", value_name = "OPTIONS", help_heading = "Disks")]
    #[serde(rename = "create-option")]
    pub create_options: Vec<String>,

    /// List the options of a drive
    #[arg(long, value_name = "human|json|markdown", num_args = 0..=1, require_equals = true, default_missing_value = "human",
          value_enum, hide_possible_values = true, long_help = drive_options::LONG_HELP, help_heading = "Disks")]
    #[serde(skip)]
    pub drive_options: Option<ListFormat>,

    /// Format of the disks: qcow2 or raw [default: what the first bytes say; raw must be said to write]
    #[arg(short = 'f', long, value_name = "FORMAT", value_parser = formats(), hide_possible_values = true,
          help_heading = "Disks")]
    #[serde(deserialize_with = "format")]
    pub format: Option<Format>,

    /// Refuse every write
    #[arg(short = 'r', long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, help_heading = "Disks")]
    pub read_only: bool,

    /// Also follow names in images that lead under DIR; with --qmp, commands may open files there (may be repeated; the administrator's rules are in /etc/cowhand/policy.d)
    #[arg(long, value_name = "DIR", help_heading = "Disks")]
    pub allow_path: Vec<PathBuf>,

    /// Also follow names in images that lead to this server, or to this part of it, as images write it: nbd://HOST:PORT/EXPORT,
    /// https://HOST, s3://BUCKET, chunked:s3://BUCKET/NAME (may be repeated; the administrator's
    /// rules are in /etc/cowhand/policy.d)
    #[arg(long, value_name = "NAME", help_heading = "Disks")]
    pub allow_name: Vec<String>,

    /// Also connect to this server, HOST:PORT or unix:PATH: where a redirect leads, or where the disks of commands lie; those of the DRIVEs are allowed (may be repeated)
    #[arg(long, value_name = "SERVER", help_heading = "Disks")]
    #[serde(deserialize_with = "texts")]
    pub allow_connect: Vec<Target>,

    /// Name of the export, if there is one DRIVE [default: id= in DRIVE, or the file's name without extension; where several files have one
    /// name, as much of their paths as tells them apart]
    #[arg(short = 'x', long = "export", value_name = "NAME", help_heading = "Exports")]
    pub export: Option<String>,

    /// What the empty name means, where there are several exports [default: nothing; where there is one, that one]
    #[arg(long, value_name = "NAME", help_heading = "Exports")]
    pub default_export: Option<String>,

    /// Connections that each export takes at once [default: 16]
    #[arg(short = 'e', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536),
          help_heading = "Exports")]
    pub shared: Option<u32>,

    /// Listen on a Unix socket at PATH [default: one in a private directory, named after the
    /// path of the first disk]
    #[arg(short = 'k', long, value_name = "PATH", conflicts_with = "listen", help_heading = "Listening")]
    pub socket: Option<PathBuf>,

    /// Who may connect to the Unix socket, as chmod takes it: 0660 admits its group [default: 0600]
    #[arg(long, value_name = "MODE", help_heading = "Listening")]
    #[serde(deserialize_with = "text")]
    pub socket_mode: SocketMode,

    /// Listen on TCP: ADDR:PORT, or PORT on 127.0.0.1
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen, help_heading = "Listening")]
    #[serde(deserialize_with = "address")]
    pub listen: Option<SocketAddr>,

    /// Allow TCP without TLS beyond this machine: each machine on the way can read and change the disk
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, help_heading = "Listening")]
    pub allow_plain_tcp: bool,

    /// Let a virtual machine have a disk over vhost-user-blk at a Unix socket at SOCKET (may be repeated; NBD stays beside it). EXPORT
    /// says which disk, where there are several
    #[arg(long, value_name = "[EXPORT=]SOCKET", help_heading = "Listening")]
    pub vhost_user_blk: Vec<String>,

    /// Where the memory of virtual machines may lie: in files that always answer (local: memory files, tmpfs, hugetlbfs, local file
    /// systems), or also on FUSE and network file systems (any), which can stop the server [default: local]
    #[arg(
        long,
        value_name = "local|any",
        value_enum,
        hide_possible_values = true,
        help_heading = "Listening"
    )]
    pub guest_memory: GuestMemory,

    /// Mount a disk as a regular file over the one at FILE (may be repeated; NBD stays beside it). EXPORT says which disk, where there are
    /// several. The mount goes when the server ends
    #[arg(long, value_name = "[EXPORT=]FILE", help_heading = "Listening")]
    pub fuse: Vec<String>,

    /// Make a disk the block device /dev/ublkbN (Linux 6.0, root; may be repeated; NBD stays beside it). EXPORT says which disk, where there are
    /// several; auto takes a free N. The device goes when the server ends in order; after a crash the next one with the same N takes it over
    #[arg(long, value_name = "[EXPORT=]N|auto", help_heading = "Listening")]
    pub ublk: Vec<String>,

    /// Give contiguous requests of a virtual machine, or of an NBD client, that come together to the disk as one [default: on]
    #[arg(long, value_name = "on|off", value_parser = clap::builder::BoolishValueParser::new(), action = ArgAction::Set,
          help_heading = "Listening")]
    pub request_merging: Option<bool>,

    /// Listen for commands (QMP) on a Unix socket at PATH that only this user may use; DRIVE is optional then
    #[arg(long, value_name = "PATH", help_heading = "Steering")]
    pub qmp: Option<PathBuf>,

    /// Serve figures for Prometheus at http://ADDR:PORT/metrics; PORT alone is on 127.0.0.1
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen, help_heading = "Steering")]
    #[serde(deserialize_with = "address")]
    pub metrics: Option<SocketAddr>,

    /// Let a new process of this user take over at a Unix socket at SOCKET, while clients stay connected (docs/guide/upgrade.md)
    #[arg(long, value_name = "SOCKET", help_heading = "Upgrade")]
    pub take_over_socket: Option<PathBuf>,

    /// Take over from the daemon that listens at SOCKET: its sockets, clients and disks. Give the same options as it has. If this process
    /// fails the daemon serves on; if it serves, the daemon ends. Implies --take-over-socket SOCKET
    #[arg(long, value_name = "SOCKET", help_heading = "Upgrade")]
    #[serde(skip)]
    pub take_over: Option<PathBuf>,

    /// End when clients are served, and leave that to a process of its own, which keeps standard error
    #[arg(long, help_heading = "Process")]
    #[serde(skip)]
    pub background: bool,

    /// Certificate (chain) of this server, PEM; clients must then use TLS
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,

    /// Admit only clients with a certificate that this authority signed, PEM
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_client_ca: Option<PathBuf>,

    /// Read options from a TOML file; what is given here wins
    #[arg(long, value_name = "FILE", help_heading = "Process")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Event loops, one thread each [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024),
          help_heading = "Process")]
    pub threads: Option<u32>,

    /// Write the process's number to FILE, and remove it at the end
    #[arg(long, value_name = "FILE", help_heading = "Process")]
    pub pid_file: Option<PathBuf>,

    /// Once everything is open, give up the file system, new programs and connections [default: on]
    #[arg(long, value_name = "on|off", value_parser = sandboxes(), hide_possible_values = true, help_heading = "Process")]
    pub sandbox: Sandbox,

    /// Memory for the maps of all disks together, such as 64M [default: a 64th of the memory there is]
    #[arg(long, value_name = "SIZE", value_parser = parse_map_memory, help_heading = "Process")]
    #[serde(deserialize_with = "map_memory")]
    pub map_memory: Option<u64>,

    /// Record what is asked of the disks (ranges, never contents) in FILE, for cowhand cache advise --trace; FILE must not exist
    #[arg(long, value_name = "FILE", help_heading = "Process")]
    pub trace: Option<PathBuf>,

    /// What to log to standard error: off, error, warn, info, debug, trace, and PART=LEVEL for parts (info,qcow2=debug)
    /// [default: warn]
    #[arg(long, value_name = "FILTER", help_heading = "Process")]
    pub log: Option<String>,

    /// Print no lines to paste, and no line of figures on a terminal; errors and warnings are printed
    #[arg(short = 'q', long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, help_heading = "Process")]
    pub quiet: bool,

    /// Print the options that are used most
    #[arg(short = 'h', long, action = ArgAction::HelpShort)]
    #[serde(skip)]
    pub help: Option<bool>,

    /// Print every option, and what a DRIVE is
    #[arg(long, action = ArgAction::HelpLong)]
    #[serde(skip)]
    pub help_all: Option<bool>,
}

/// What `--sandbox` takes.
pub fn sandboxes() -> impl TypedValueParser<Value = Sandbox> {
    let on = PossibleValue::new("on").help("As far as the kernel can");
    let off = PossibleValue::new("off").help("The process keeps all rights of its user");
    let parser = PossibleValuesParser::new([on, off]);
    parser.map(|name| if name == "off" { Sandbox::Off } else { Sandbox::On })
}

/// What the text of an option means in the file, which is what it means on the command line.
fn parsed<'de, T, E: Display, D: Deserializer<'de>>(
    file: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    parse(&String::deserialize(file)?).map_err(Error::custom)
}

fn text<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(file: D) -> Result<T, D::Error> {
    parsed(file, str::parse)
}

fn texts<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(file: D) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(file)?;
    texts.iter().map(|text| text.parse().map_err(Error::custom)).collect()
}

fn drive<'de, D: Deserializer<'de>>(file: D) -> Result<Option<OsString>, D::Error> {
    text(file).map(Some)
}

fn format<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Format>, D::Error> {
    parsed(file, parse_format).map(Some)
}

fn address<'de, D: Deserializer<'de>>(file: D) -> Result<Option<SocketAddr>, D::Error> {
    parsed(file, parse_listen).map(Some)
}

fn map_memory<'de, D: Deserializer<'de>>(file: D) -> Result<Option<u64>, D::Error> {
    parsed(file, parse_map_memory).map(Some)
}

/// What stands behind the arguments.
fn after_long_help() -> String {
    format!("{DRIVE_HELP}\n\n{EXAMPLES}")
}

const EXAMPLES: &str = "\
A configuration file holds the same options under their long names:
  socket = \"/run/cowhand/vm1.sock\"
  shared = 4
  [[drive]]
  file = \"/images/vm1.qcow2\"
  l2-cache-size = \"8M\"
  cache = \"none\"

Examples:
  cowhand serve --create 20G disk.qcow2
  cowhand serve file=disk.qcow2,cache=none,discard=unmap file=data.qcow2,id=data
  cowhand serve --listen 10809 --read-only disk.qcow2
  cowhand serve --vhost-user-blk /run/vm1.vhost disk.qcow2
  cowhand serve --fuse /mnt/disk.raw disk.qcow2
  cowhand serve --ublk 0 disk.qcow2
Record what is read and written, and see how large the map cache should be:
  cowhand serve --trace day.trace disk.qcow2
  cowhand cache advise --trace day.trace disk.qcow2
A new version takes over later:
  cowhand serve --take-over-socket /run/vm1.next disk.qcow2
  cowhand serve --take-over /run/vm1.next disk.qcow2
Commands while it serves:
  cowhand serve --qmp /run/vm1.qmp --allow-path /images disk.qcow2
  cowhand status /run/vm1.qmp";
