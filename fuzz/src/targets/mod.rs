//! The targets, one file each.

mod bitmap_directory;
mod check;
mod compressed;
mod config;
mod create_options;
mod disk;
mod entries;
mod foreign;
mod header;
mod limits;
mod lineage;
mod luks;
mod nbd_client;
mod nbd_server;
mod open;
mod operations;
mod options;
mod published;
mod qmp;
mod repair;
mod snapshot_table;
mod trace;
mod vhost_user;
mod vhost_user_moving;

/// A function that may be given any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is called.
    pub name: &'static str,
    /// The function. It panics if something is wrong.
    pub run: fn(&[u8]),
    /// Cases that the test suite makes up beside the corpus, so that all of it takes well under a minute.
    pub test_cases: u32,
}

const fn target(name: &'static str, run: fn(&[u8]), test_cases: u32) -> Target {
    Target { name, run, test_cases }
}

/// All of them.
pub const TARGETS: &[Target] = &[
    target("open", open::run, 3_000),
    target("check", check::run, 1_500),
    target("repair", repair::run, 600),
    target("operations", operations::run, 600),
    target("snapshot_table", snapshot_table::run, 2_000),
    target("bitmap_directory", bitmap_directory::run, 2_000),
    target("compressed", compressed::run, 1_500),
    target("header", header::run, 5_000),
    target("entries", entries::run, 5_000),
    target("options", options::run, 5_000),
    target("create_options", create_options::run, 3_000),
    target("config", config::run, 5_000),
    target("vdi", foreign::vdi, 1_500),
    target("vpc", foreign::vpc, 1_500),
    target("qcow", foreign::qcow, 1_500),
    target("vmdk", foreign::vmdk, 1_500),
    target("vhdx", foreign::vhdx, 400),
    target("lineage", lineage::run, 5_000),
    target("published", published::run, 5_000),
    target("limits", limits::run, 5_000),
    target("luks", luks::run, 1_000),
    target("nbd_server", nbd_server::run, 5_000),
    target("nbd_client", nbd_client::run, 5_000),
    target("qmp", qmp::run, 5_000),
    target("trace", trace::run, 5_000),
    target("vhost_user", vhost_user::run, 3_000),
    target("vhost_user_moving", vhost_user_moving::run, 3_000),
];
