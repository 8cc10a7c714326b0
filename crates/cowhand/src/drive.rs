//! The arguments that every tool takes to name an image, and what they mean together.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use image::drive::{OptionTree, parse_drive};
use image::names::Policy;
use image::options::DiskOptions;
use image::probe::Format;

use crate::failure::Failure;

/// How an image is named and opened by a tool.
#[derive(Clone, Debug, Args)]
pub struct DriveArgs {
    /// The image: a path, or a DRIVE (see below)
    #[arg(value_name = "DRIVE")]
    pub drive: OsString,

    /// Format of the image: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = parse_format)]
    pub format: Option<Format>,

    /// Read DRIVE as key=value options, even if a file of that name exists
    #[arg(long)]
    pub image_opts: bool,

    /// Read the image without regard for who is writing it (results may be inconsistent)
    #[arg(short = 'U', long)]
    pub force_share: bool,

    /// Also follow names in the image that lead under DIR (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub allow_path: Vec<PathBuf>,
}

impl DriveArgs {
    /// The options that DRIVE and the arguments beside it come to, for reading.
    pub fn options(&self) -> Result<DiskOptions, Failure> {
        let exists = |path: &Path| !self.image_opts && path.symlink_metadata().is_ok();
        let mut options = disk_options(&self.drive, exists)?;
        match (self.format, options.layer.format) {
            (Some(asked), Some(other)) if asked != other => {
                return Err(Failure::new(format!("-f says {asked}, DRIVE says {other}; give one of them")));
            }
            (asked, other) => options.layer.format = asked.or(other),
        }
        options.layer.force_share |= self.force_share;
        Ok(options)
    }

    /// Where names inside the image may lead.
    pub fn policy(&self) -> Result<Policy, Failure> {
        Policy::new(&self.allow_path).map_err(|error| Failure::because("cannot allow a directory", &error))
    }
}

/// The options of one DRIVE.
pub fn disk_options(drive: &OsString, exists: impl Fn(&Path) -> bool) -> Result<DiskOptions, Failure> {
    DiskOptions::of_tree(option_tree(drive, exists)?).map_err(|error| unreadable(drive, &error))
}

/// The options of one DRIVE, as they were written.
pub fn option_tree(drive: &OsString, exists: impl Fn(&Path) -> bool) -> Result<OptionTree, Failure> {
    parse_drive(drive, exists).map_err(|error| unreadable(drive, &error))
}

fn unreadable(drive: &OsString, error: &dyn std::error::Error) -> Failure {
    Failure::because(format!("cannot understand DRIVE {}", drive.display()), error)
}

/// A format's name, as an argument.
pub fn parse_format(name: &str) -> Result<Format, String> {
    Format::of_name(name).ok_or_else(|| "allowed: qcow2, raw".to_owned())
}

/// A number of bytes with a suffix, as an argument.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    image::size::parse_size(text).map_err(|error| error.to_string())
}
