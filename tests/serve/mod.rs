//! The main job as a user sees it: one command serves disks, says how to reach them, and ends in order.

#![forbid(unsafe_code)]

mod clients;
mod drives;
mod ending;
mod extras;
mod gone;
mod main_job;
mod names;
mod no_memory;
pub mod pages;
mod pasted;
mod printed;
mod refused;
mod refused_rings;
mod surroundings;
mod terminal;
pub mod tls;
pub mod warnings;

use black_box::Scratch;
use black_box::peer::qemu_img;

/// A fresh image; gives its path.
fn create(scratch: &Scratch, name: &str, size: &str) -> String {
    let path = scratch.name(name);
    qemu_img(["create", "-q", "-f", "qcow2", &path, size]).ok();
    path
}
