//! `cowhand serve`: disks over NBD until told to stop.

pub mod args;
pub mod config;
pub mod endpoint;
pub mod exports;
pub mod paste;
pub mod pid_file;
pub mod settings;
pub mod signals;
pub mod socket_path;
pub mod status_line;
pub mod systemd;
