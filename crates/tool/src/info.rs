//! What an image says about itself, from its metadata alone.

mod luks;
pub mod model;
pub mod name;
pub mod read;
mod vmdk;
