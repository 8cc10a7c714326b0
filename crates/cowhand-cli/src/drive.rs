//! The arguments that every tool takes to name an image, and what they mean together.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use graph::cache_mode::CacheMode;
use graph::drive::{OptionTree, bare_driver, names_device, parse_drive, path_of, shown, unknown_protocol};
use graph::drivers::{format_called, format_names, format_of_backing};
use graph::names::{Policy, beside};
use graph::options::DiskOptions;
use graph::probe::{Format, INSTEAD, UNSUPPORTED};
use tool::create::options::MADE;
use tool::failure::Failure;
use tool::voice;

use crate::policy::policy;

/// What stands under every subcommand's help.
pub const DRIVE_HELP: &str = "\
A DRIVE is one of:
  disk.qcow2                                  a path (anything that exists is a path)
  file=disk.qcow2,l2-cache-size=2M,cache=none QEMU's syntax; a comma in a value is doubled
  file=top.qcow2,backing.l2-cache-size=1M     dotted keys reach into the backing chain
  nbd://host:10809/export                     an NBD server's; nbd+unix:///export?socket=PATH
  nbds://host/export?tls-certificates=DIR     with TLS; DIR/ca-cert.pem signed the server's
  https://host/disk.qcow2                     a file on an HTTP server; http:// too
  s3://bucket/key                             an object of a store
  gs://bucket/key                             of Google's; az://account/container/blob of Azure's
  chunked:s3://bucket/folder/name             what cowhand push makes; of gs, az and https too
  rbd:pool/image                              an image of a Ceph cluster
  json:{\"driver\":\"qcow2\",\"file\":{\"filename\":\"disk.qcow2\"}}
cowhand serve --drive-options lists the options.";

/// How an image is named and opened by a tool.
#[derive(Clone, Debug, Args)]
pub struct DriveArgs {
    /// The image: a path, or a DRIVE (see below)
    #[arg(value_name = "DRIVE")]
    pub drive: OsString,

    /// Format of the image: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = backing_formats(), hide_possible_values = true)]
    pub format: Option<BackingFormat>,

    #[command(flatten)]
    opening: OpenArgs,
}

/// How every image of a command is opened.
#[derive(Clone, Debug, Args)]
pub struct OpenArgs {
    /// Read DRIVE as key=value options, even if a file of that name exists
    #[arg(long)]
    image_opts: bool,

    /// Read the image without regard for who is writing it (results may be inconsistent)
    #[arg(short = 'U', long)]
    force_share: bool,

    #[command(flatten)]
    names: NamesArgs,
}

/// Where names inside images may lead.
#[derive(Clone, Debug, Args)]
pub struct NamesArgs {
    /// Also follow names in the image that lead under DIR (may be repeated; the administrator's rules are in /etc/cowhand/policy.d)
    #[arg(long, value_name = "DIR")]
    allow_path: Vec<PathBuf>,

    /// Also follow names in the image that lead to this server, or to this part of it, as the image writes it: nbd://HOST:PORT/EXPORT,
    /// https://HOST, s3://BUCKET, chunked:s3://BUCKET/NAME (may be repeated; the administrator's
    /// rules are in /etc/cowhand/policy.d)
    #[arg(long, value_name = "NAME")]
    allow_name: Vec<String>,
}

impl DriveArgs {
    /// The options that DRIVE and the arguments beside it come to, for reading.
    pub fn options(&self) -> Result<DiskOptions, Failure> {
        self.opening.options(&self.drive, "-f", self.format.as_ref().and_then(BackingFormat::format))
    }

    /// Whether arguments say how the image is opened.
    pub fn is_opened_in_some_way(&self) -> bool {
        let OpenArgs { image_opts, force_share, names } = &self.opening;
        let has_names = !names.allow_path.is_empty() || !names.allow_name.is_empty();
        self.format.is_some() || *image_opts || *force_share || has_names
    }

    /// What DRIVE says, as it was written.
    pub fn tree(&self) -> Result<OptionTree, Failure> {
        self.opening.tree(&self.drive)
    }

    /// The driver of storage that DRIVE names with no format over it, where no option says one either, or that the option says instead.
    pub fn bare_driver(&self) -> Option<&'static str> {
        let exists = |path: &Path| !self.opening.image_opts && path.symlink_metadata().is_ok();
        match &self.format {
            Some(format) => Format::BARE.into_iter().find(|name| *name == format.name()),
            None => bare_driver(&self.drive, exists),
        }
    }

    /// Where names inside the image may lead.
    pub fn policy(&self) -> Result<Policy, Failure> {
        self.opening.policy()
    }
}

impl OpenArgs {
    /// What `drive` says, as it was written.
    fn tree(&self, drive: &OsString) -> Result<OptionTree, Failure> {
        option_tree(drive, |path| !self.image_opts && path.symlink_metadata().is_ok())
    }

    /// The options of `drive` whose format, if it is given, `option` gave.
    pub fn options(
        &self,
        drive: &OsString,
        option: &str,
        format: Option<Format>,
    ) -> Result<DiskOptions, Failure> {
        let exists = |path: &Path| !self.image_opts && path.symlink_metadata().is_ok();
        let mut tree = option_tree(drive, exists)?;
        // QEMU's tools say by themselves whether they write; an image that is shared by force is only read.
        if voice::is_qemu()
            && tree.at("force-share").as_deref() == Some("on")
            && tree.at("read-only").is_none()
        {
            tree.replace("read-only", "on").map_err(|error| unreadable(drive, &error))?;
        }
        let mut options = DiskOptions::of_tree(tree).map_err(|error| unreadable(drive, &error))?;
        match (format, options.layer.format) {
            (Some(asked), Some(other)) if asked != other => {
                let what = format!("{option} says {asked}, DRIVE says {other}; give one of them");
                return Err(Failure::new(what));
            }
            (asked, other) => options.layer.format = asked.or(other),
        }
        if self.force_share {
            options.set_force_share();
        }
        Ok(options)
    }

    /// Where names inside the images may lead.
    pub fn policy(&self) -> Result<Policy, Failure> {
        self.names.policy()
    }
}

impl NamesArgs {
    /// Where they may lead.
    pub fn policy(&self) -> Result<Policy, Failure> {
        policy(&self.allow_path, &self.allow_name)
    }
}

/// The options of one DRIVE.
pub fn disk_options(drive: &OsString, exists: impl Fn(&Path) -> bool) -> Result<DiskOptions, Failure> {
    DiskOptions::of_tree(option_tree(drive, exists)?).map_err(|error| unreadable(drive, &error))
}

/// The options of one DRIVE, as they were written.
pub fn option_tree(drive: &OsString, exists: impl Fn(&Path) -> bool) -> Result<OptionTree, Failure> {
    check_protocol(drive)?;
    parse_drive(drive, exists).map_err(|error| unreadable(drive, &error))
}

/// The path of a file to create that a user calls `name`.
///
/// # Errors
/// When it can be no path; under QEMU's names also when it begins with a protocol.
pub fn new_path(name: &Path) -> Result<PathBuf, Failure> {
    check_protocol(name.as_os_str())?;
    let path = path_of(name);
    let text = name.to_string_lossy();
    if voice::is_qemu() && text.starts_with("json:") {
        return Err(Failure::new(format!(
            "cannot create {}: json: describes what is there",
            shown(name.as_os_str())
        )));
    }
    if path != *name {
        check_device(name.as_os_str(), &path)?;
    }
    Ok(path)
}

/// Checks the name of a backing file that is put into `image`.
///
/// # Errors
/// As [`new_path`].
pub fn check_backing_name(image: &Path, name: &str) -> Result<(), Failure> {
    check_protocol(name.as_ref())?;
    check_device(name.as_ref(), &beside(image, name))
}

/// Whether `name` leads to a block device.
pub fn is_device(name: &Path) -> bool {
    name.metadata().is_ok_and(|found| found.file_type().is_block_device())
}

fn check_device(name: &OsStr, path: &Path) -> Result<(), Failure> {
    match names_device(name) && !is_device(path) {
        true => Err(Failure::new(format!("{}: {} is no device", shown(name), path.display()))),
        false => Ok(()),
    }
}

/// Under QEMU's names a protocol that no driver has is an error, also where a file is called so: nothing is made by a name that QEMU does not open.
fn check_protocol(drive: &OsStr) -> Result<(), Failure> {
    match unknown_protocol(drive).filter(|_| voice::is_qemu()) {
        None => Ok(()),
        Some(protocol) => {
            let name = shown(drive);
            let what = format!(
                "{name}: {protocol:?} is no protocol of a driver, or names nothing (a file of that name: ./{name})"
            );
            Err(Failure::new(what))
        }
    }
}

fn unreadable(drive: &OsString, error: &dyn std::error::Error) -> Failure {
    Failure::because(format!("cannot understand DRIVE {}", shown(drive)), error)
}

/// The names of formats, as values of an option that a shell can complete; also drivers of files, which some callers write for a raw disk.
pub fn formats() -> impl TypedValueParser<Value = Format> {
    formats_of(&graph::drivers::formats().map(Format::name).collect::<Vec<_>>(), &Format::BARE)
}

/// The same for what is written: a file that keeps nothing is never made.
pub fn target_formats() -> impl TypedValueParser<Value = Format> {
    formats_of(&MADE, &Format::BARE)
}

/// The names of all formats, as values of an option for a new image: only formats that can be made are suggested.
pub fn made_formats() -> impl TypedValueParser<Value = Format> {
    formats_of(&MADE, &[])
}

fn formats_of(suggested: &[&str], bare: &[&'static str]) -> impl TypedValueParser<Value = Format> + use<> {
    let known = graph::drivers::formats().map(Format::name);
    let known: Vec<_> = known.map(|name| PossibleValue::new(name).hide(!suggested.contains(&name))).collect();
    let hidden = UNSUPPORTED.iter().chain(bare).map(|name| PossibleValue::new(*name).hide(true));
    PossibleValuesParser::new(known.into_iter().chain(hidden))
        .try_map(|name| format_of_backing(&name).map_or_else(|| parse_format(&name), Ok))
}

/// The format of a file, by the name that an image or a caller gives it: also that of a driver of storage, for a raw disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingFormat(String);

impl BackingFormat {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// How the file is opened.
    pub fn format(&self) -> Option<Format> {
        format_of_backing(&self.0)
    }
}

/// The names of formats of backing files, as values of an option: also drivers of files, which some callers write for a raw disk.
pub fn backing_formats() -> impl TypedValueParser<Value = BackingFormat> {
    let known = graph::drivers::formats().map(|format| PossibleValue::new(format.name()));
    let hidden = UNSUPPORTED.into_iter().chain(Format::BARE);
    let hidden = hidden.map(|name| PossibleValue::new(name).hide(true));
    PossibleValuesParser::new(known.chain(hidden)).try_map(|name| {
        if format_of_backing(&name).is_none() {
            parse_format(&name)?;
        }
        Ok::<_, String>(BackingFormat(name))
    })
}

/// The names of formats, as values of an option that also takes any other driver.
pub fn drivers() -> impl TypedValueParser<Value = String> {
    let formats: Vec<&str> = graph::drivers::formats().map(Format::name).collect();
    let hidden = graph::drivers::names().filter(|name| !formats.contains(name)).collect::<Vec<_>>();
    let hidden = hidden.into_iter().chain(UNSUPPORTED).map(|name| PossibleValue::new(name).hide(true));
    let known = graph::drivers::formats().map(|format| PossibleValue::new(format.name()));
    PossibleValuesParser::new(known.chain(hidden)).try_map(|name| {
        match UNSUPPORTED.contains(&name.as_str()) {
            true => parse_format(&name).map(|format| format.name().to_owned()),
            false => Ok(name),
        }
    })
}

/// The names of cache modes, as values of an option that a shell can complete.
pub fn cache_modes() -> impl TypedValueParser<Value = CacheMode> {
    let mode = |name: String| CacheMode::of_name(&name).ok_or("no such mode");
    PossibleValuesParser::new(CacheMode::NAMED.map(|(name, _)| name)).try_map(mode)
}

/// A format's name, as an argument.
pub fn parse_format(name: &str) -> Result<Format, String> {
    let refused = || match UNSUPPORTED.contains(&name) {
        true => format!("{name} is not supported; allowed: {} ({INSTEAD})", format_names()),
        false => format!("allowed: {}", format_names()),
    };
    format_called(name).ok_or_else(refused)
}

/// A number of bytes with a suffix, as an argument.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    graph::size::parse_size(text).map_err(|error| error.to_string())
}
