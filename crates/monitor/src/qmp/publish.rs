//! cowhand-publish: a checkpoint of a disk that is served goes to an object store, as a job.

use std::rc::Rc;

use checkpoints::{Publication, PublishError, Sealed, Target};
use control::{Arguments, Kind, QmpError, optional, required};
use remote::chunked::{ChunkSize, Compression};
use serde_json::{Value, json};
use tool::failure::Failure;

use super::checkpoints::{NODE, OF_CHECKPOINT, checkpoint_of, disk_of, refused};
use super::kinds::NUMBER;
use super::live::new_job;
use crate::inventory::Inventory;
use crate::jobs::Work;

const KIND: &str = "cowhand-publish";

/// What a job takes that uploads an image of a disk: its own arguments, where the image goes, how its objects are made, and how the job lives.
macro_rules! upload {
    ($($own:expr),*) => {
        Kind::Object(&[
            NODE,
            $($own,)*
            required("target", Kind::Text),
            optional("chunk-size", NUMBER),
            optional("compress", Kind::Choice(&["zstd", "none"])),
            optional("encrypt-key-secret", Kind::Text),
            optional("force", Kind::Switch),
            optional("job-id", Kind::Text),
            optional("speed", NUMBER),
            optional("auto-finalize", Kind::Switch),
            optional("auto-dismiss", Kind::Switch),
        ])
    };
}

/// What cowhand-publish takes.
pub const PUBLISH: Kind = upload!(OF_CHECKPOINT, optional("parent", Kind::Text));

/// What cowhand-push takes.
pub const PUSH: Kind = upload!(optional("bitmap", Kind::Text));

/// Begins to publish a checkpoint of a disk.
///
/// # Errors
/// When there is no such checkpoint, or the target is no name in a store. What the store says is the job's.
pub async fn publish(inventory: &Rc<Inventory>, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (node, disk) = disk_of(inventory, arguments)?;
    let checkpoint = checkpoint_of(arguments)?;
    let target = target_of(arguments)?;
    let new = new_job(inventory, KIND, &node.name(), arguments)?;
    let place = target.place("publish to").await.map_err(failed)?;
    let sealed = reactor::blocking(move || Sealed::of_disk(&disk, &checkpoint)).await;
    let sealed = sealed.map_err(|error| refused(inventory, &error))?;
    sealed.chain().map_err(|error| refused(inventory, &error))?;
    let id = sealed.id.to_string();
    let answer = json!({ "image": place.of_checkpoint(&id).image(), "id": id });
    let parent = arguments.maybe_text("parent").map(str::to_owned);
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
pub(super) fn target_of(arguments: Arguments<'_>) -> Result<Target, QmpError> {
    let chunk_size = arguments.maybe_whole("chunk-size").map(ChunkSize::new).transpose();
    Ok(Target {
        image: arguments.text("target")?.to_owned(),
        chunk_size: chunk_size
            .map_err(|error| QmpError::generic(format!("argument 'chunk-size': {error}")))?,
        compression: arguments.maybe_text("compress").map(|how| match how {
            "zstd" => Compression::Zstd,
            _ => Compression::None,
        }),
        key_secret: arguments.maybe_text("encrypt-key-secret").map(str::to_owned),
        force: arguments.is_on("force"),
    })
}
