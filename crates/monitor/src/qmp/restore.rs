//! cowhand-restore: a disk that begins as a published checkpoint is served at once, and a job fetches the rest.

use std::path::Path;
use std::rc::Rc;

use checkpoints::Source;
use control::{Argument, Arguments, Kind, QmpError, optional, required};
use cowhand::NewImage;
use graph::Change;
use graph::probe::Format;
use lineage::Place;
use serde_json::{Map, Value, json};

use super::checkpoints::exported;
use super::export_schema::SERVE;
use super::kinds::NUMBER;
use super::publish::failed;
use super::shortening;
use crate::inventory::Inventory;
use crate::made_file::MadeFile;

const KIND: &str = "cowhand-restore";
const NEW: Argument = required("new", Kind::Text);

/// What cowhand-restore takes.
pub const RESTORE: Kind = Kind::Object(&[
    required("source", Kind::Text),
    NEW,
    optional("node-name", Kind::Text),
    optional("at", Kind::Text),
    optional("encrypt-key-secret", Kind::Text),
    optional("serve", Kind::Ref(&SERVE)),
    optional("job-id", Kind::Text),
    optional("speed", NUMBER),
    optional("auto-finalize", Kind::Switch),
    optional("auto-dismiss", Kind::Switch),
]);

/// Finds the checkpoint at the store. Other commands do not wait for that.
///
/// # Errors
/// When there is none, or the store does not answer.
pub async fn source(arguments: Arguments<'_>) -> Result<Source, QmpError> {
    let (at, key) = (arguments.maybe_text("at"), arguments.maybe_text("encrypt-key-secret"));
    Source::find(arguments.text("source")?, at, key).await.map_err(failed)
}

/// Makes the disk, opens and exports it, and begins to fetch what is not read yet. When one of these fails nothing of them is left.
///
/// # Errors
/// As blockdev-create, blockdev-add, block-export-add and block-stream.
pub async fn restore(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    source: &Source,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let new = arguments.text("new")?;
    Place::check_new_disk(Path::new(new)).map_err(|error| QmpError::generic(error.to_string()))?;
    let name = match (arguments.maybe_text("node-name"), Path::new(new).file_stem()) {
        (Some(name), _) => name.to_owned(),
        (None, stem) => stem.unwrap_or_default().to_string_lossy().into_owned(),
    };
    let overlay = NewImage::overlay(source.size, source.backing(), Format::Raw);
    let made = MadeFile::make_whole(new, overlay).await;
    let made = made.map_err(|error| QmpError::because(format!("cannot create {new}"), &error))?;
    let mut below = json!({ "driver": "raw", "file": { "driver": "chunked", "url": source.name } });
    if let Some(key) = source.key {
        below["file"]["encrypt-key-id"] = json!(key.to_string());
    }
    let node = json!({
        "driver": "qcow2",
        "node-name": name,
        "file": { "driver": "file", "filename": new },
        "backing": below,
    });
    let serve = arguments.maybe_object("serve").map(|serve| serve.0);
    let names = exported::Names::of(&name);
    let opened = exported::open(inventory, change, &names, (node, serve)).await;
    if let Err(error) = opened {
        made.remove();
        return Err(error);
    }
    let of_job = arguments_of_job(&name, arguments);
    if let Err(mut error) = shortening::stream(inventory, change, KIND, Arguments(&of_job)).await {
        exported::take_back(inventory, change, &names, &mut error).await;
        made.remove();
        return Err(error);
    }
    Ok(
        json!({ "disk": new, "node-name": name, "image": source.name, "backing": source.backing(), "size": source.size }),
    )
}

/// The job is one of block-stream.
fn arguments_of_job(name: &str, arguments: Arguments<'_>) -> Map<String, Value> {
    let shared = ["job-id", "speed", "auto-finalize", "auto-dismiss"];
    let shared = shared.iter().filter_map(|one| Some(((*one).to_owned(), arguments.0.get(*one)?.clone())));
    shared.chain([("device".to_owned(), json!(name))]).collect()
}
