//! Internal snapshots of qcow2 images.

use std::ffi::{c_char, c_int};
use std::time::UNIX_EPOCH;

use cowhand::Snapshot;
use serde_json::{Value, json};

use crate::disk::{CowhandDisk, open_disk};
use crate::failure::call;
use crate::pointers::{self, Out};

/// Gets the internal snapshots as a list in JSON, in the order in which they were taken: "id", "name", "date-sec" and
/// "date-nsec" (since 1970), "vm-clock-nsec", and "size" (bytes, or null in old images). The caller releases the text
/// with cowhand_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_snapshots(disk: *mut CowhandDisk, json: *mut *mut c_char) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let json = unsafe { Out::new(json, "json") }?;
        let snapshots = open_disk(disk)?.snapshots().wait()?;
        json.set_text(snapshots.iter().map(described).collect::<Value>().to_string());
        Ok(0)
    })
}

fn described(snapshot: &Snapshot) -> Value {
    let taken = snapshot.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "id": snapshot.id,
        "name": snapshot.name,
        "date-sec": taken.as_secs(),
        "date-nsec": taken.subsec_nanos(),
        "vm-clock-nsec": u64::try_from(snapshot.vm_clock.as_nanos()).unwrap_or(u64::MAX),
        "size": snapshot.size_bytes,
    })
}

/// Takes an internal snapshot of the disk as it is, while it is in use. What completed before is in it. Durable when
/// the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_create_snapshot(disk: *mut CowhandDisk, name: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(name, "name") }?;
        open_disk(disk)?.create_snapshot(name).wait()?;
        Ok(0)
    })
}

/// Goes back to the snapshot with this id, or else of this name, and to the size that the disk had. Everything written
/// since is lost; the snapshot stays. The guest must not use the disk meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_apply_snapshot(disk: *mut CowhandDisk, id_or_name: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(id_or_name, "id_or_name") }?;
        open_disk(disk)?.apply_snapshot(name).wait()?;
        Ok(0)
    })
}

/// Deletes the snapshot with this id, or else of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_delete_snapshot(disk: *mut CowhandDisk, id_or_name: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(id_or_name, "id_or_name") }?;
        open_disk(disk)?.delete_snapshot(name).wait()?;
        Ok(0)
    })
}
