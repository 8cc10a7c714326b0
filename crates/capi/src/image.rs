//! New images.

use std::ffi::{c_char, c_int};

use cowhand::{NewImage, ResizeOptions, create, format_called};

use crate::disk::{CowhandDisk, open_disk};
use crate::failure::{Failure, call};
use crate::pointers;

/// A smaller size is meant: what lies beyond it is lost.
pub const COWHAND_RESIZE_SHRINK: u32 = 1;

/// Makes an image for a disk of size bytes, with QEMU's defaults. format is "qcow2" or "raw". backing is null, or the
/// name of a backing file as it is to be stored, and backing_format its format; a relative name begins at the new
/// image's directory. A file that exists is refused with -EEXIST. Durable when the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_create_image(
    path: *const c_char,
    format: *const c_char,
    size: u64,
    backing: *const c_char,
    backing_format: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let path = unsafe { pointers::bytes(path, "path") }?;
        // SAFETY: the header requires it of the caller.
        let format = unsafe { pointers::text(format, "format") }?;
        // SAFETY: the header requires it of the caller.
        let backing = unsafe { pointers::optional_text(backing, "backing") }?;
        // SAFETY: the header requires it of the caller.
        let backing_format = unsafe { pointers::optional_text(backing_format, "backing_format") }?;
        create(path, new_image(format, size, backing, backing_format)?).wait()?;
        Ok(0)
    })
}

fn new_image(
    format: &str,
    size: u64,
    backing: Option<&str>,
    backing_format: Option<&str>,
) -> Result<NewImage, Failure> {
    match (format, backing, backing_format) {
        ("qcow2", None, None) => Ok(NewImage::qcow2(size)),
        ("raw", None, None) => Ok(NewImage::raw(size)),
        ("qcow2", Some(name), Some(format)) => match format_called(format) {
            Some(format) => Ok(NewImage::overlay(size, name, format)),
            None => Err(Failure::invalid(format!("there is no format {format:?} of backing files"))),
        },
        ("qcow2", ..) => Err(Failure::invalid("backing and backing_format are given together or not at all")),
        ("raw", ..) => Err(Failure::invalid("a raw image has no backing file")),
        _ => Err(Failure::invalid(format!("the format is {format:?}; allowed: qcow2, raw"))),
    }
}

/// Changes the size of an open disk to size bytes, while it is in use. What is added reads as zeroes. A smaller size is
/// refused unless flags has COWHAND_RESIZE_SHRINK. Durable when the call returns.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_resize(disk: *mut CowhandDisk, size: u64, flags: u32) -> c_int {
    call(|| {
        if flags & !COWHAND_RESIZE_SHRINK != 0 {
            let text = format!("the flags are {flags:#x}; allowed: COWHAND_RESIZE_SHRINK");
            return Err(Failure::invalid(text));
        }
        let options = ResizeOptions { shrink: flags != 0, ..ResizeOptions::default() };
        open_disk(disk)?.resize(size, options).wait()?;
        Ok(0)
    })
}
