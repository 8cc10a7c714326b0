//! cowhand-publish: a checkpoint of a disk that is served goes to an object store, as a job.

use std::rc::Rc;

use checkpoints::{Publication, PublishError, Sealed, Target};
use control::{QmpError, arguments, choice};
use remote::chunked::{ChunkSize, Compression};
use serde_json::{Value, json};
use tool::failure::Failure;

use super::checkpoints::{checkpoint_of, disk_of, refused};
use super::live::{job_options, new_job};
use crate::inventory::Inventory;
use crate::jobs::Work;

const KIND: &str = "cowhand-publish";

arguments! {
    /// cowhand-publish.
    pub struct Publish { node_name: String, checkpoint: String, parent: Option<String>, ..upload: Upload }

    /// cowhand-push.
    pub struct Push { node_name: String, bitmap: Option<String>, ..upload: Upload }

    /// Where an image goes, how its objects are made, and how the job lives that uploads it.
    pub struct Upload {
        target: String, chunk_size: Option<u64>, compress: Option<Compress>,
        encrypt_key_secret: Option<String>, force: Option<bool>, job_id: Option<String>, speed: Option<u64>,
        auto_finalize: Option<bool>, auto_dismiss: Option<bool>,
    }
}

choice! {
    /// How objects are compressed.
    pub enum Compress { Zstd, None }
}

/// Begins to publish a checkpoint of a disk.
///
/// # Errors
/// When there is no such checkpoint, or the target is no name in a store. What the store says is the job's.
pub async fn publish(inventory: &Rc<Inventory>, given: &Publish) -> Result<Value, QmpError> {
    let (node, disk) = disk_of(inventory, &given.node_name)?;
    let checkpoint = checkpoint_of(&given.checkpoint)?;
    let upload = &given.upload;
    let target = target_of(upload)?;
    let new = new_job(inventory, KIND, &node.name(), job_options!(upload))?;
    let place = target.place("publish to").await.map_err(failed)?;
    let sealed = reactor::blocking(move || Sealed::of_disk(&disk, &checkpoint)).await;
    let sealed = sealed.map_err(|error| refused(inventory, &error))?;
    sealed.chain().map_err(|error| refused(inventory, &error))?;
    let id = sealed.id.to_string();
    let answer = json!({ "image": place.of_checkpoint(&id).image(), "id": id });
    let parent = given.parent.clone();
    let work = Work::Publish(Publication { sealed, target, parent, is_dry: false });
    inventory.jobs.start(new, work, Vec::new());
    Ok(answer)
}

/// Why an image is not uploaded, or a disk not made of one.
pub(super) fn failed(error: PublishError) -> QmpError {
    QmpError::generic(Failure::from(error).in_one_line())
}

/// Where an image goes.
///
/// # Errors
/// When the chunks cannot have that size.
pub(super) fn target_of(upload: &Upload) -> Result<Target, QmpError> {
    let chunk_size = upload.chunk_size.map(ChunkSize::new).transpose();
    Ok(Target {
        image: upload.target.clone(),
        chunk_size: chunk_size
            .map_err(|error| QmpError::generic(format!("argument 'chunk-size': {error}")))?,
        compression: upload.compress.map(|how| match how {
            Compress::Zstd => Compression::Zstd,
            Compress::None => Compression::None,
        }),
        key_secret: upload.encrypt_key_secret.clone(),
        force: upload.force == Some(true),
    })
}
