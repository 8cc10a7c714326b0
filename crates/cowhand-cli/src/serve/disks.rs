//! The disks: those that are missing are created, all are opened.

use std::path::Path;

use graph::{DiskNode, OpenRules};
use reactor::Reactor;
use rustix::process::{Resource, getrlimit, setrlimit};
use tool::create::options::NewImage;
use tool::failure::Failure;

use super::settings::{Export, Settings};
use crate::create::make_if_missing;
use crate::{ask, objects};

/// A disk that was opened for an export.
#[derive(Debug)]
pub struct OpenedDisk {
    /// What the export is called.
    pub export: String,
    /// The disk.
    pub node: DiskNode,
    /// Its image was made just now.
    pub created: bool,
}

/// Opens all disks, in order. Missing passwords are asked for on the terminal, if there is one; afterwards no
/// password is asked for.
///
/// # Errors
/// For the first that cannot be created or opened.
pub fn open_all(
    reactor: &Reactor,
    settings: &Settings,
    rules: &OpenRules,
) -> Result<Vec<OpenedDisk>, Failure> {
    let opened = settings.exports.iter().map(|export| open(reactor, export, settings, rules)).collect();
    // Clients wait from here on: no command may wait for a person.
    ask::nobody();
    objects::warn_of_swap();
    opened
}

fn open(
    reactor: &Reactor,
    export: &Export,
    settings: &Settings,
    rules: &OpenRules,
) -> Result<OpenedDisk, Failure> {
    let path = &export.disk.filename;
    let create = settings.create.as_ref();
    let created = match (create, &settings.overlay) {
        (Some(image), _) => {
            let format = export.disk.layer.format.unwrap_or(image.format);
            make_if_missing(path, &NewImage { format, ..image.clone() })?
        }
        (None, Some(overlay)) => overlay.make_if_missing(path)?,
        (None, None) => false,
    };
    let disk =
        reactor.run(graph::open(&export.disk, rules)).map_err(|error| cannot_open(path, create, &error))?;
    let name = export.disk.layer.node_name.clone().unwrap_or_else(|| export.name.clone());
    let node = DiskNode::new(name, path.clone(), export.tree.clone(), disk);
    Ok(OpenedDisk { export: export.name.clone(), node, created })
}

fn cannot_open(path: &Path, create: Option<&NewImage>, error: &graph::OpenError) -> Failure {
    let failure = Failure::because(format!("cannot serve {}", path.display()), error);
    let is_missing = graph::drivers::elsewhere(path).is_none() && path.symlink_metadata().is_err();
    match create.is_none() && is_missing {
        true => failure.with_hint("to make a new disk, give --create SIZE"),
        false => failure,
    }
}

/// Chains take a descriptor an image: the limit is raised as far as it may be.
pub fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit on open files stays as it is");
    }
}
