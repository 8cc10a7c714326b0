//! The target of drive-mirror and drive-backup: a file that is made or opened, and a node for it.

use std::path::Path;
use std::rc::Rc;

use control::QmpError;
use graph::drive::parse_drive;
use graph::drivers::{elsewhere, format_called, options_of_name};
use graph::options::DiskOptions;
use graph::probe::Format;
use graph::{ChainWalk, Change, DataFiles, LayerView, file_name};
use serde_json::{Map, Value, json};

use super::bitmap_sync::Sync;
use super::chain::Chain;
use super::overlay::make_image;
use crate::inventory::Inventory;
use crate::jobs::OwnTarget;
use crate::made_file::MadeFile;

/// What a job copies to.
pub enum Target<'a> {
    /// A node that the user has named.
    Node(&'a str),
    /// One that was opened for the job.
    Own(&'a OwnTarget),
}

impl<'a> Target<'a> {
    /// Its node.
    pub fn node(&self) -> &'a str {
        match self {
            Self::Node(node) => node,
            Self::Own(own) => &own.node,
        }
    }

    /// What goes when the job ends.
    pub fn own(&self) -> Option<OwnTarget> {
        match self {
            Self::Node(_) => None,
            Self::Own(own) => Some((*own).clone()),
        }
    }
}

/// The target of a job, as a command describes it.
pub struct NewTarget<'a> {
    /// The disk that is copied.
    pub device: &'a str,
    /// Its file.
    pub file: &'a str,
    /// Its format, if it is given.
    pub format: Option<&'a str>,
    /// The file is made.
    pub is_made: bool,
    /// What of the disk is copied.
    pub sync: Sync,
    /// The name of its node, if it is given.
    pub node_name: Option<&'a String>,
    /// Zeroes are written, not discarded.
    pub keeps_zeroes: bool,
    /// An image that exists is opened with the backing file that its header names, if that can be opened.
    pub keeps_backing: bool,
}

/// Adds a node for the file of `new`, which may be made, and has `begin` work with it; the node goes when the job ends. A
/// failure leaves neither. With sync `none` the file is an overlay of the source. One that does not get everything is opened without a
/// backing file, unless that is kept.
///
/// # Errors
/// When the file cannot be made or opened; what `begin` says.
pub async fn with(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    new: &NewTarget<'_>,
    begin: impl AsyncFnOnce(Target<'_>) -> Result<(), QmpError>,
) -> Result<(), QmpError> {
    let &NewTarget { file, is_made, sync, .. } = new;
    let Chain { disk, layers } = Chain::of(inventory, new.device)?;
    let is_guessed = !is_made && new.format.is_none();
    let format = match new.format {
        // The driver of the file alone: its bytes are the disk.
        Some("file" | "host_device") => Format::Raw.name(),
        Some(format) => format,
        None if is_made => format_of_source(&layers),
        None => probed(inventory, file).await?.name(),
    };
    if let Some(driver) = elsewhere(Path::new(file)).filter(|_| is_made) {
        return Err(QmpError::generic(format!(
            "{file:?} is a name of driver {driver}: a new target is made as a file; make it there, and give mode existing"
        )));
    }
    let mut made = None;
    if is_made {
        let kind = format_called(format).filter(|format| matches!(*format, Format::Qcow2 | Format::Raw));
        let Some(kind) = kind else {
            return Err(QmpError::generic(format!(
                "a new target of format {format:?} is not made here; make it, and give mode existing"
            )));
        };
        let below = match sync {
            Sync::Top => layers.get(1),
            Sync::None => layers.first(),
            Sync::Full | Sync::Incremental | Sync::Bitmap => None,
        };
        let below = below.map(|layer| &layer.block).filter(|_| kind == Format::Qcow2);
        let backing = below.map(|below| (file_name(&**below), below.driver().to_owned()));
        made = Some(make_image(file, (kind, disk.disk.size()), backing, inventory.as_qemu).await?);
    }
    let name = match new.node_name {
        Some(name) => name.clone(),
        None if inventory.as_qemu => inventory.graph.make_name(),
        None => format!("target-{}", disk.name().replace('#', "")),
    };
    let mut options = json!({
        "driver": format,
        "node-name": name,
        "discard": if new.keeps_zeroes { "ignore" } else { "unmap" },
        "file": options_of_name(file).map_err(QmpError::generic)?,
    });
    if is_guessed && format == Format::Raw.name() {
        // What is copied must not have another format found the next time.
        options["protect-start"] = true.into();
    }
    let Value::Object(mut options) = options else { return Err(QmpError::generic("options are an object")) };
    let own = OwnTarget { node: name, made };
    let without_backing = ("backing".to_owned(), Value::Null);
    let is_part = format == "qcow2" && sync != Sync::Full;
    let is_followed = is_part && new.keeps_backing && !is_made;
    if is_part && !is_followed {
        options.extend([without_backing.clone()]);
    }
    let mut added = add(inventory, change, (new.node_name.is_some(), &options)).await;
    if is_followed && added.is_err() {
        options.extend([without_backing]);
        added = add(inventory, change, (new.node_name.is_some(), &options)).await;
    }
    if let Err(error) = added {
        own.made.iter().for_each(MadeFile::remove);
        return Err(error);
    }
    let begun = begin(Target::Own(&own)).await;
    if begun.is_err() {
        own.close(inventory, change, false).await;
    }
    begun
}

/// Adds the node, whose name a user gave if `is_given`.
async fn add(
    inventory: &Inventory,
    change: &Change<'_>,
    (is_given, options): (bool, &Map<String, Value>),
) -> Result<(), QmpError> {
    match is_given {
        true => inventory.add_node(change, options).await,
        false => inventory.add_target(change, options).await,
    }
}

/// A new target has the format of the disk's image, where that is one that is made here.
fn format_of_source(layers: &[LayerView]) -> &'static str {
    let source = layers.first().map(|layer| layer.block.driver());
    if source == Some(Format::Raw.name()) { Format::Raw.name() } else { Format::Qcow2.name() }
}

/// What the first bytes of the file say.
async fn probed(inventory: &Inventory, file: &str) -> Result<Format, QmpError> {
    let failed = |error: &dyn std::error::Error| {
        QmpError::generic(format!(
            "cannot tell the format of {file:?} (argument 'format' is not given): {error}"
        ))
    };
    let tree = parse_drive(file.as_ref(), |_| true).map_err(|error| failed(&error))?;
    let mut options = DiskOptions::of_tree(tree).map_err(|error| failed(&error))?;
    options.layer.read_only = true;
    let mut walk = ChainWalk::new(&options, inventory.graph.rules(), DataFiles::Leave)
        .map_err(|error| failed(&error))?;
    let found = walk.next(None).await.map_err(|error| failed(&error))?;
    found.map(|image| image.format()).ok_or_else(|| QmpError::generic(format!("{file:?} is no image")))
}
