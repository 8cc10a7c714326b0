//! Disks in object stores: checkpoints published, disks pushed, and disks that begin as a published checkpoint.

use std::ffi::{OsStr, c_char, c_int};

use cowhand::{Publish, Push, Restore, restore};
use serde_json::json;

use crate::disk::{CowhandDisk, open_disk};
use crate::failure::{Failure, call};
use crate::jobs::{CowhandJob, begin};
use crate::pointers::{self, Out};

/// Chunks are not compressed; otherwise they are as in the image that is there, or by zstd.
pub const COWHAND_PUBLISH_UNCOMPRESSED: u32 = 1;
/// Also a store is written to that cannot detect another upload to the same name at the same time.
pub const COWHAND_PUBLISH_FORCE: u32 = 2;

/// Begins to upload a checkpoint to an object store, as a chunked image, while the disk is in use; only what the store
/// lacks is sent. target is s3://BUCKET/FOLDER/NAME: that name is the checkpoint when the job has ended, and the "image" of
/// *json, an object with "id" and "image", is it for ever. Where the store is, and the credentials, AWS's environment
/// variables and files say. parent is an image of the lineage in the same folder of which unchanged chunks are taken, "none",
/// or null: one is looked for. key_secret is the secret with the key of an encrypted image, or null. chunk_size is 0, or
/// 512 KiB to 4 MiB. speed is in bytes of the disk a second, 0 is no limit. Other jobs and checkpoints continue meanwhile. json
/// may be null; the caller releases *json with cowhand_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_publish(
    disk: *mut CowhandDisk,
    checkpoint: *const c_char,
    target: *const c_char,
    parent: *const c_char,
    key_secret: *const c_char,
    chunk_size: u64,
    flags: u32,
    speed: u64,
    job: *mut *mut CowhandJob,
    json: *mut *mut c_char,
) -> c_int {
    call(|| {
        let (compress, force) = said_by(flags)?;
        // SAFETY: the header requires it of the caller.
        let checkpoint = unsafe { pointers::text(checkpoint, "checkpoint") }?;
        let publish = Publish {
            // SAFETY: as above.
            target: unsafe { pointers::text(target, "target") }?.to_owned(),
            // SAFETY: as above.
            parent: unsafe { pointers::optional_text(parent, "parent") }?.map(str::to_owned),
            // SAFETY: as above.
            key_secret: unsafe { pointers::optional_text(key_secret, "key_secret") }?.map(str::to_owned),
            chunk_bytes: (chunk_size > 0).then_some(chunk_size),
            compress,
            force,
            speed_bytes: speed,
        };
        let disk = open_disk(disk)?;
        let mut found = None;
        let work = || {
            let published = disk.publish(checkpoint, publish).wait()?;
            found = Some(json!({ "id": published.id, "image": published.image }));
            Ok(published.job)
        };
        // SAFETY: as above.
        unsafe { begin(job, work) }?;
        // SAFETY: as above.
        unsafe { Out::give_text(json, found.unwrap_or_default().to_string()) };
        Ok(0)
    })
}

/// Begins to upload the disk as it is when this call returns, as a chunked image, while the disk is in use; it needs no
/// checkpoint. What is overwritten before it is read is read first, and kept in memory until it is sent, 32 MiB at most.
/// Beyond that writes wait for the store, for 20 s at most: then they are done, and the job fails. bitmap is null, or a
/// bitmap of the disk that has recorded all changes since the disk was pushed to target: only what it has as changed is
/// read, and the rest is taken from the image that is there. It is not cleared. Everything else is as for cowhand_publish,
/// flags too. The store is asked before the call returns. Ends by itself; a disk has one job at a time, but for those of
/// cowhand_publish: -EBUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_push(
    disk: *mut CowhandDisk,
    target: *const c_char,
    bitmap: *const c_char,
    key_secret: *const c_char,
    chunk_size: u64,
    flags: u32,
    speed: u64,
    job: *mut *mut CowhandJob,
) -> c_int {
    call(|| {
        let (compress, force) = said_by(flags)?;
        let push = Push {
            // SAFETY: the header requires it of the caller.
            target: unsafe { pointers::text(target, "target") }?.to_owned(),
            // SAFETY: as above.
            bitmap: unsafe { pointers::optional_text(bitmap, "bitmap") }?.map(str::to_owned),
            // SAFETY: as above.
            key_secret: unsafe { pointers::optional_text(key_secret, "key_secret") }?.map(str::to_owned),
            chunk_bytes: (chunk_size > 0).then_some(chunk_size),
            compress,
            force,
            speed_bytes: speed,
        };
        // SAFETY: as above.
        unsafe { begin(job, || Ok(open_disk(disk)?.push(push).wait()?)) }
    })
}

/// Whether chunks are compressed, where the flags of an upload say so, and whether it is forced.
fn said_by(flags: u32) -> Result<(Option<bool>, bool), Failure> {
    if flags & !(COWHAND_PUBLISH_UNCOMPRESSED | COWHAND_PUBLISH_FORCE) != 0 {
        let allowed = "COWHAND_PUBLISH_UNCOMPRESSED, COWHAND_PUBLISH_FORCE";
        return Err(Failure::invalid(format!("the flags are {flags:#x}; allowed: {allowed}")));
    }
    let is_uncompressed = flags & COWHAND_PUBLISH_UNCOMPRESSED != 0;
    Ok((is_uncompressed.then_some(false), flags & COWHAND_PUBLISH_FORCE != 0))
}

/// Makes a disk at path, where nothing is, that begins as a published checkpoint: a qcow2 overlay whose backing file is the
/// image in the store. It is ready at once, and what is read is fetched. source is s3://BUCKET/FOLDER/NAME, or a URL of a web
/// server; at is one of the checkpoints below it that were published to the name, by its name or id, or null; key_secret is
/// as for cowhand_publish. *json is an object with "image", "backing" and "size": the disk is opened with the property
/// "allow-name" set to "backing". cowhand_stream fetches the rest. json may be null; the caller releases *json with
/// cowhand_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_restore(
    path: *const c_char,
    source: *const c_char,
    at: *const c_char,
    key_secret: *const c_char,
    json: *mut *mut c_char,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let path: &OsStr = unsafe { pointers::bytes(path, "path") }?;
        let wanted = Restore {
            // SAFETY: as above.
            source: unsafe { pointers::text(source, "source") }?.to_owned(),
            // SAFETY: as above.
            at: unsafe { pointers::optional_text(at, "at") }?.map(str::to_owned),
            // SAFETY: as above.
            key_secret: unsafe { pointers::optional_text(key_secret, "key_secret") }?.map(str::to_owned),
        };
        let made = restore(path, wanted).wait()?;
        let made = json!({ "image": made.image, "backing": made.backing, "size": made.size_bytes });
        // SAFETY: as above.
        unsafe { Out::give_text(json, made.to_string()) };
        Ok(0)
    })
}
