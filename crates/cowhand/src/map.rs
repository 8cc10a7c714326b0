//! `cowhand map`: where each part of a disk is stored.

pub mod extent;
pub mod show;
