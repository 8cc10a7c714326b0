//! `cowhand check`: whether an image's metadata is right, and its repair.

pub mod report;
