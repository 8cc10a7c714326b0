//! What of an image changes after it was made.

pub mod keys;
pub mod options;
