//! Passwords and keys that properties name by an id.

use std::ffi::{c_char, c_int, c_void};

use cowhand::{add_secret, remove_secret};

use crate::failure::{Failure, call};
use crate::pointers;

/// Adds a password or a key of len bytes, which properties call id ("encrypt.key-secret" of a qcow2 image, "key-secret" of
/// a LUKS file), for all disks of the process. The bytes are copied into locked memory that core dumps leave out. A disk
/// looks its secret up when it is connected. -EEXIST where there is one of that id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_add_secret(id: *const c_char, bytes: *const c_void, len: usize) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let id = unsafe { pointers::text(id, "id") }?;
        // SAFETY: as above.
        let bytes = unsafe { pointers::elements(bytes.cast::<u8>(), len, "bytes") }?;
        add_secret(id, bytes)?;
        Ok(0)
    })
}

/// Removes the secret called id and overwrites it; disks that were connected with it stay open. -ENOENT where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_remove_secret(id: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let id = unsafe { pointers::text(id, "id") }?;
        match remove_secret(id) {
            true => Ok(0),
            false => Err(Failure::new(libc::ENOENT, format!("there is no secret {id:?}"))),
        }
    })
}
