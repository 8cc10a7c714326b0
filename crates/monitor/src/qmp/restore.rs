//! cowhand-restore: a disk that begins as a published checkpoint is served at once, and a job fetches the rest.

use std::path::Path;
use std::rc::Rc;

use checkpoints::Source;
use control::{Kind, QmpError, arguments};
use cowhand::NewImage;
use graph::Change;
use graph::probe::Format;
use lineage::Place;
use serde_json::{Map, Value, json};

use super::checkpoints::exported;
use super::exports::SERVE;
use super::publish::failed;
use super::shortening::{self, Stream};
use crate::inventory::Inventory;
use crate::made_file::MadeFile;

const KIND: &str = "cowhand-restore";

arguments! {
    /// A disk to be, and the job that fetches it.
    pub struct Restore {
        source: String, new: String, node_name: Option<String>, at: Option<String>,
        encrypt_key_secret: Option<String>, serve: Option<Map<String, Value>> = Kind::Ref(&SERVE),
        job_id: Option<String>, speed: Option<u64>, auto_finalize: Option<bool>, auto_dismiss: Option<bool>,
    }
}

/// Finds the checkpoint at the store. Other commands do not wait for that.
///
/// # Errors
/// When there is none, or the store does not answer.
pub async fn source(given: &Restore) -> Result<Source, QmpError> {
    Source::find(&given.source, given.at.as_deref(), given.encrypt_key_secret.as_deref())
        .await
        .map_err(failed)
}

/// Makes the disk, opens and exports it, and begins to fetch what is not read yet. When one of these fails nothing of them is left.
///
/// # Errors
/// As blockdev-create, blockdev-add, block-export-add and block-stream.
pub async fn restore(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    source: &Source,
    given: &Restore,
) -> Result<Value, QmpError> {
    let new = given.new.as_str();
    Place::check_new_disk(Path::new(new)).map_err(|error| QmpError::generic(error.to_string()))?;
    let name = match (&given.node_name, Path::new(new).file_stem()) {
        (Some(name), _) => name.clone(),
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
    let names = exported::Names::of(&name);
    let opened = exported::open(inventory, change, &names, (node, given.serve.as_ref())).await;
    if let Err(error) = opened {
        made.remove();
        return Err(error);
    }
    let stream = Stream {
        device: name.clone(),
        job_id: given.job_id.clone(),
        speed: given.speed,
        auto_finalize: given.auto_finalize,
        auto_dismiss: given.auto_dismiss,
        ..Stream::default()
    };
    if let Err(mut error) = shortening::stream(inventory, change, KIND, &stream).await {
        exported::take_back(inventory, change, &names, &mut error).await;
        made.remove();
        return Err(error);
    }
    Ok(
        json!({ "disk": new, "node-name": name, "image": source.name, "backing": source.backing(), "size": source.size }),
    )
}
