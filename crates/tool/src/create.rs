//! What new images are made of.

pub mod encryption;
pub mod options;
