//! The C interface of cowhand's disks, shaped like libblkio's: `include/cowhand.h` is made of this crate.
//!
//! A function of the interface checks what came from C (null pointers, texts, handles, flags), calls the library `cowhand`, and turns
//! the result into a number and words. No panic crosses the border, and no handle is followed that is not one of ours.

#![warn(missing_docs)]

// A function's comment becomes the header's, which speaks of C: what pointers must be is said at its beginning.

mod blocking;
mod checkpoints;
mod disk;
mod extents;
mod failure;
mod handles;
mod image;
mod jobs;
mod limits;
mod pointers;
mod properties;
mod queue;
mod requests;
mod secrets;
mod settings;
mod snapshots;
mod stores;
