//! The drives that `serve` is given, on the command line or in the configuration: from what was written to what it means.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use graph::drive::{OptionTree, parse_drive, shown};
use graph::options::DiskOptions;
use serde::Deserialize;
use toml::Spanned;
use tool::failure::Failure;

use super::args::Args;

/// Drives of the command line, or of the configuration, with what was said for all of them.
///
/// # Errors
/// When one cannot be understood, or there are none and no command can add any.
pub fn disks(args: &Args) -> Result<Vec<(OptionTree, DiskOptions)>, Failure> {
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    let given = args.drives.iter().map(|drive| {
        let tree = crate::drive::option_tree(drive, exists)?;
        let file = tree.filename().map_or_else(OsString::new, PathBuf::into_os_string);
        disk_of_tree(tree, args, &format!("drive {}", shown(&file)))
    });
    let in_file = args.configured.iter().map(|placed| disk_of_tree(placed.tree()?, args, &placed.place));
    let disks: Vec<_> = given.chain(in_file).collect::<Result<_, _>>()?;
    if disks.is_empty() && args.qmp.is_none() {
        return Err(Failure::new("no DRIVE is given; try cowhand serve --create 20G disk.qcow2"));
    }
    Ok(disks)
}

/// The options, changed to what they mean with those for all drives. `place` says in errors which drive it is.
fn disk_of_tree(
    mut tree: OptionTree,
    args: &Args,
    place: &str,
) -> Result<(OptionTree, DiskOptions), Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot understand {place}"), error);
    let of_tree = |tree: &OptionTree| DiskOptions::of_tree(tree.clone()).map_err(|error| failed(&error));
    let before = of_tree(&tree)?;
    if args.read_only {
        tree.replace("read-only", "on").map_err(|error| failed(&error))?;
    }
    if let (None, Some(format)) = (before.layer.format, args.format) {
        tree.replace("driver", format.name()).map_err(|error| failed(&error))?;
    }
    let disk = of_tree(&tree)?;
    Ok((tree, disk))
}

/// A drive in a configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a drive is a text as on the command line, or a table of options")]
pub enum ConfigDrive {
    /// As on the command line.
    Text(String),
    /// Option by option.
    Table(toml::Table),
}

/// A drive in a configuration file, and where it stands there.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Spanned<ConfigDrive>")]
pub struct PlacedDrive {
    /// The drive.
    pub drive: ConfigDrive,
    /// Bytes of the file before it.
    pub begin: usize,
    /// For errors: which one, and in which line of which file.
    pub place: String,
}

impl From<Spanned<ConfigDrive>> for PlacedDrive {
    fn from(drive: Spanned<ConfigDrive>) -> Self {
        Self { begin: drive.span().start, drive: drive.into_inner(), place: String::new() }
    }
}

impl PlacedDrive {
    /// Its options.
    ///
    /// # Errors
    /// When they cannot be read; which options there are is looked at later.
    pub fn tree(&self) -> Result<OptionTree, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot understand {}", self.place), error)
        };
        match &self.drive {
            ConfigDrive::Text(text) => {
                let exists = |path: &Path| path.symlink_metadata().is_ok();
                parse_drive(&OsString::from(text), exists).map_err(|error| failed(&error))
            }
            ConfigDrive::Table(table) => {
                let value = serde_json::to_value(table).map_err(|error| failed(&error))?;
                let object = value.as_object().cloned().unwrap_or_default();
                OptionTree::of_json(object).map_err(|error| failed(&error))
            }
        }
    }
}
