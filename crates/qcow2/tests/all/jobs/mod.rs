//! A disk with a job at work on it, under the simulation: the chain of images, the disk's front, the job, and the platform's note of
//! which image the disk is backed by.

mod disk;
mod exchange;
mod host;
mod images;
mod judge;
mod machine;
mod note;
mod target;
mod work;

pub use target::{JobTarget, Kind};
