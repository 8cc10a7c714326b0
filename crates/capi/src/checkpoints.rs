//! Checkpoints of an open disk: taken, listed, forked, rolled back, compared, deleted and merged.

use std::ffi::{OsStr, c_char, c_int};
use std::time::UNIX_EPOCH;

use cowhand::{Checkpoint, Collect, Difference, Forget, Forgotten, NewCheckpoint, Removal, Removed, Says};
use serde_json::{Map, Value, json};

use crate::disk::{CowhandDisk, open_disk};
use crate::failure::{Failure, call};
use crate::jobs::{CowhandJob, begin};
use crate::pointers::{self, Out, OutArray};

/// What would go is listed, and nothing changes.
pub const COWHAND_LIST_ONLY: u32 = 1;
/// Checkpoints without a name go, too, where nothing is backed by them.
pub const COWHAND_COLLECT_UNNAMED: u32 = 2;
/// The policy becomes the lineage's.
pub const COWHAND_SAVE_POLICY: u32 = 4;

/// Layers are merged whatever they waste.
pub const COWHAND_ANY_WASTE: u32 = 0xffff_ffff;

/// Data, in a layer that only this one of the two has.
pub const COWHAND_DIFFERENCE_DATA: u32 = 0;
/// Zeroes, likewise.
pub const COWHAND_DIFFERENCE_ZERO: u32 = 1;
/// What the layers say that both have.
pub const COWHAND_DIFFERENCE_SHARED: u32 = 2;
/// The range is behind the end.
pub const COWHAND_DIFFERENCE_NOTHING: u32 = 3;

/// A range in which a checkpoint and another one, or the disk, may differ.
#[repr(C)]
pub struct CowhandDifference {
    /// First byte.
    pub offset: u64,
    /// Bytes, never 0.
    pub len: u64,
    /// COWHAND_DIFFERENCE_...: what the checkpoint says of it.
    pub checkpoint: u32,
    /// And the other one, or the disk.
    pub other: u32,
}

impl CowhandDifference {
    fn new(difference: &Difference) -> Self {
        let number = |says| match says {
            Says::Data => COWHAND_DIFFERENCE_DATA,
            Says::Zero => COWHAND_DIFFERENCE_ZERO,
            Says::Shared => COWHAND_DIFFERENCE_SHARED,
            Says::Nothing => COWHAND_DIFFERENCE_NOTHING,
        };
        Self {
            offset: difference.offset,
            len: difference.len,
            checkpoint: number(difference.checkpoint),
            other: number(difference.other),
        }
    }
}

/// Takes a checkpoint of the disk as it is, while it is in use: its image is sealed as layers/ID.qcow2 beside it, and
/// the disk continues in a new overlay at the path that it has. What completed before is in it. Durable when the call
/// returns. name may be null: then the checkpoint is called by its id, which *id is; id may be null, too. labels are
/// count texts KEY=VALUE. The caller releases *id with cowhand_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_checkpoint(
    disk: *mut CowhandDisk,
    name: *const c_char,
    labels: *const *const c_char,
    count: usize,
    id: *mut *mut c_char,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::optional_text(name, "name") }?;
        // SAFETY: as above.
        let labels = unsafe { pointers::elements(labels, count, "labels") }?;
        // SAFETY: as above, for each of them.
        let labels = labels.iter().map(|label| unsafe { pointers::text(*label, "label") }.map(str::to_owned));
        let new = NewCheckpoint { name: name.map(str::to_owned), labels: labels.collect::<Result<_, _>>()? };
        let taken = open_disk(disk)?.checkpoint(new).wait()?;
        // SAFETY: as above.
        unsafe { Out::give_text(id, taken) };
        Ok(0)
    })
}

/// Gets all checkpoints of the disk and its forks as a list in JSON, the oldest first: "id", "name" (or null), "disk"
/// (the file name of the disk that it was taken of), "parent" (an id, or null), "date-sec" and "date-nsec" (since 1970),
/// "labels", "size" and "allocated" (bytes of the disk and of the file), "users" (file names of what is backed by it),
/// "deleted", and "changed" (why it cannot be used any more, or null). The caller releases the text with cowhand_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_checkpoints(disk: *mut CowhandDisk, json: *mut *mut c_char) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let json = unsafe { Out::new(json, "json") }?;
        let checkpoints = open_disk(disk)?.checkpoints().wait()?;
        json.set_text(checkpoints.iter().map(described).collect::<Value>().to_string());
        Ok(0)
    })
}

fn described(checkpoint: &Checkpoint) -> Value {
    let taken = checkpoint.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
    let labels = checkpoint.labels.iter().map(|(key, value)| (key.clone(), json!(value)));
    json!({
        "id": checkpoint.id,
        "name": checkpoint.name,
        "disk": checkpoint.disk,
        "parent": checkpoint.parent,
        "date-sec": taken.as_secs(),
        "date-nsec": taken.subsec_nanos(),
        "labels": labels.collect::<Map<_, _>>(),
        "size": checkpoint.size_bytes,
        "allocated": checkpoint.allocated_bytes,
        "users": checkpoint.users,
        "deleted": checkpoint.deleted,
        "changed": checkpoint.changed,
    })
}

/// Has the disk continue from a checkpoint, named by its name or its id: requests in flight finish on the old layer, later
/// ones find the new one. What the disk was stays as a checkpoint without a name, whose id is *left; left may be null. The
/// guest must not use the disk meanwhile. The caller releases *left with cowhand_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_rollback(
    disk: *mut CowhandDisk,
    checkpoint: *const c_char,
    left: *mut *mut c_char,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let checkpoint = unsafe { pointers::text(checkpoint, "checkpoint") }?;
        let layer = open_disk(disk)?.rollback(checkpoint).wait()?;
        // SAFETY: as above.
        unsafe { Out::give_text(left, layer) };
        Ok(0)
    })
}

/// Makes a new disk that begins as a checkpoint is, at path, where nothing is, in the directory of the disk. With a count
/// above 0 makes so many, with a number before the extension: vm-1.qcow2 and so on; all are whole before the first has its
/// name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_fork(
    disk: *mut CowhandDisk,
    checkpoint: *const c_char,
    path: *const c_char,
    count: u32,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let checkpoint = unsafe { pointers::text(checkpoint, "checkpoint") }?;
        // SAFETY: as above.
        let path: &OsStr = unsafe { pointers::bytes(path, "path") }?;
        open_disk(disk)?.fork(checkpoint, path, (count > 0).then_some(count)).wait()?;
        Ok(0)
    })
}

/// Deletes a checkpoint. A layer that others need stays, without a name, until they are gone or cowhand_forget merges it.
/// flags: COWHAND_LIST_ONLY. Gets in JSON what goes: "layers" (ids), "bytes", and "needed", a list of "id" and "users" (file
/// names). json may be null. The caller releases the text with cowhand_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_delete_checkpoint(
    disk: *mut CowhandDisk,
    checkpoint: *const c_char,
    flags: u32,
    json: *mut *mut c_char,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let checkpoint = unsafe { pointers::text(checkpoint, "checkpoint") }?;
        let removal = removal(flags, COWHAND_LIST_ONLY, "COWHAND_LIST_ONLY")?;
        let removed = open_disk(disk)?.delete_checkpoints([checkpoint], removal).wait()?;
        // SAFETY: as above.
        unsafe { Out::give_text(json, removed_json(&removed).to_string()) };
        Ok(0)
    })
}

/// Removes layers that nothing needs any more. flags: COWHAND_LIST_ONLY, COWHAND_COLLECT_UNNAMED. json is as for
/// cowhand_delete_checkpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_collect_layers(
    disk: *mut CowhandDisk,
    flags: u32,
    json: *mut *mut c_char,
) -> c_int {
    call(|| {
        let allowed = COWHAND_LIST_ONLY | COWHAND_COLLECT_UNNAMED;
        let removal = removal(flags, allowed, "COWHAND_LIST_ONLY, COWHAND_COLLECT_UNNAMED")?;
        let collect = Collect { unnamed: flags & COWHAND_COLLECT_UNNAMED != 0, removal };
        let removed = open_disk(disk)?.collect_layers(collect).wait()?;
        // SAFETY: the header requires it of the caller.
        unsafe { Out::give_text(json, removed_json(&removed).to_string()) };
        Ok(0)
    })
}

/// Forgets checkpoints of the disk without a name that a policy does not keep, and begins a job that merges layers that
/// nothing needs by themselves, while the disk is in use. keep is such as "hourly:24,daily:7", or null: all stay.
/// max_depth is the number of layers below the disk at most, 0 is no limit. Layers are merged where more than max_waste
/// percent of them is not needed, or COWHAND_ANY_WASTE. Null, 0 and COWHAND_ANY_WASTE together are the policy of the
/// lineage. flags: COWHAND_SAVE_POLICY makes these three its policy, which its servers follow after each checkpoint; empty
/// ones take it away. speed is in bytes a second, 0 is no limit. job may be null: then nothing changes, and what would is
/// listed. json is as for cowhand_delete_checkpoint, and has "forgotten" (ids), "merged" (a list of "into", "layers" and
/// "bytes") and "too-deep": the number of layers where it stays above max_depth, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_forget(
    disk: *mut CowhandDisk,
    keep: *const c_char,
    max_depth: u32,
    max_waste: u32,
    flags: u32,
    speed: u64,
    job: *mut *mut CowhandJob,
    json: *mut *mut c_char,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let keep = unsafe { pointers::optional_text(keep, "keep") }?;
        let keep = keep.map(str::parse).transpose();
        if flags & !COWHAND_SAVE_POLICY != 0 {
            return Err(Failure::invalid(format!("the flags are {flags:#x}; allowed: COWHAND_SAVE_POLICY")));
        }
        let forget = Forget {
            keep: keep.map_err(|error| Failure::invalid(format!("keep: {error}")))?,
            depth_max: (max_depth > 0).then_some(max_depth as usize),
            waste_max: percent(max_waste)?,
            speed_bytes: speed,
            removal: if job.is_null() { Removal::List } else { Removal::Remove },
            is_saved: flags & COWHAND_SAVE_POLICY != 0,
        };
        let disk = open_disk(disk)?;
        let mut forgotten = disk.forget(forget).wait()?;
        if let Some(begun) = forgotten.job.take() {
            // SAFETY: as above.
            unsafe { begin(job, || Ok(begun)) }?;
        }
        // SAFETY: as above.
        unsafe { Out::give_text(json, forgotten_json(&forgotten).to_string()) };
        Ok(0)
    })
}

/// Gets the ranges from offset on in which a checkpoint and another one may differ, or the disk as it is where other is
/// null, in order; returns their count. There are at most max, and at most 4096 a call: the next call begins where the last
/// range ends. 0 is the end. Compares maps, and reads no data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_differences(
    disk: *mut CowhandDisk,
    checkpoint: *const c_char,
    other: *const c_char,
    offset: u64,
    differences: *mut CowhandDifference,
    max: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let checkpoint = unsafe { pointers::text(checkpoint, "checkpoint") }?;
        // SAFETY: as above.
        let other = unsafe { pointers::optional_text(other, "other") }?.map(str::to_owned);
        // SAFETY: as above.
        let places = unsafe { OutArray::new(differences, max, "differences") }?;
        let found = open_disk(disk)?.differences(checkpoint, other, offset).wait()?;
        Ok(places.fill(found.ranges.iter().map(CowhandDifference::new)))
    })
}

fn removal(flags: u32, allowed: u32, names: &str) -> Result<Removal, Failure> {
    match flags & !allowed {
        0 if flags & COWHAND_LIST_ONLY != 0 => Ok(Removal::List),
        0 => Ok(Removal::Remove),
        _ => Err(Failure::invalid(format!("the flags are {flags:#x}; allowed: {names}"))),
    }
}

fn percent(waste: u32) -> Result<Option<u8>, Failure> {
    match (waste, u8::try_from(waste)) {
        (COWHAND_ANY_WASTE, _) => Ok(None),
        (_, Ok(percent)) if percent < 100 => Ok(Some(percent)),
        _ => Err(Failure::invalid(format!("max_waste is {waste}; allowed: 0 to 99, COWHAND_ANY_WASTE"))),
    }
}

fn removed_json(removed: &Removed) -> Value {
    let needed = removed.needed.iter().map(|layer| json!({ "id": layer.id, "users": layer.users }));
    json!({ "layers": removed.layers, "bytes": removed.bytes, "needed": needed.collect::<Value>() })
}

fn forgotten_json(forgotten: &Forgotten) -> Value {
    let merge = |merge: &cowhand::MergedLayers| json!({ "into": merge.into, "layers": merge.layers, "bytes": merge.bytes });
    let mut value = removed_json(&forgotten.removed);
    value["forgotten"] = json!(forgotten.checkpoints);
    value["merged"] = forgotten.merges.iter().map(merge).collect();
    value["too-deep"] = json!(forgotten.too_deep);
    value
}
