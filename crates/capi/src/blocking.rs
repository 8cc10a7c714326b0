//! Requests that block the calling thread until they have ended.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cowhand::Request;

use crate::disk::{CowhandDisk, open_disk};
use crate::failure::call;
use crate::pointers;
use crate::requests::Flags;

/// Up to so many bytes a read is copied: it may find them in memory.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// Reads len bytes at offset into buf; blocks until that is done. All of them are read, or the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_read_blocking(
    disk: *mut CowhandDisk,
    offset: u64,
    buf: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        let disk = open_disk(disk)?;
        // SAFETY: the header requires it of the caller; the read has ended when the call returns.
        let memory = unsafe { pointers::buffer(buf.cast(), len, &Arc::new(())) }?;
        if len > COPIED_BYTES_MAX {
            disk.read_into(offset, memory).wait()?;
            return Ok(0);
        }
        let mut bytes = vec![0; len];
        disk.read_at(offset, &mut bytes)?;
        memory.copy_from(0, &bytes);
        Ok(0)
    })
}

/// Writes len bytes of buf at offset; blocks until that is done. flags: 0 or COWHAND_REQ_FUA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_write_blocking(
    disk: *mut CowhandDisk,
    offset: u64,
    buf: *const c_void,
    len: usize,
    flags: u32,
) -> c_int {
    call(|| {
        let fua = Flags::of_write(flags)?.fua();
        let disk = open_disk(disk)?;
        // SAFETY: the header requires it of the caller; the write has ended when the call returns.
        let memory = unsafe { pointers::buffer(buf.cast_mut().cast(), len, &Arc::new(())) }?;
        disk.submit(Request::WriteFrom { offset, memory, fua }).wait()?;
        Ok(0)
    })
}

/// Makes durable what has completed before; blocks until that is done.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_flush_blocking(disk: *mut CowhandDisk) -> c_int {
    call(|| Ok(open_disk(disk)?.flush().wait().map(|()| 0)?))
}

/// As cowhand_discard; blocks until it is done.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_discard_blocking(disk: *mut CowhandDisk, offset: u64, len: u64) -> c_int {
    call(|| Ok(open_disk(disk)?.discard(offset, len).wait().map(|()| 0)?))
}

/// As cowhand_write_zeroes; blocks until it is done.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_write_zeroes_blocking(
    disk: *mut CowhandDisk,
    offset: u64,
    len: u64,
    flags: u32,
) -> c_int {
    call(|| {
        let flags = Flags::of_zeroes(flags)?;
        let (options, fua) = (flags.zero_options(), flags.fua());
        open_disk(disk)?.submit(Request::WriteZeroes { offset, len, options, fua }).wait()?;
        Ok(0)
    })
}
