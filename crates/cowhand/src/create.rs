//! `cowhand create`: a new image.

pub mod options;
