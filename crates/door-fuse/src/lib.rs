//! The FUSE door: a disk as a regular file of this machine, for every program that knows only files.
//!
//! [`mount::mount`] puts the kernel's FUSE over a regular file and gives the device by which it asks; [`Server::serve`] answers there, on all of
//! the [`export::Loops`]: each has a descriptor of its own (`cloned`) and a session, which takes requests and answers them. The file system is one file: its root.
//!
//! The way of a request: `reader` (bytes of the device) -> `abi` (checked values) -> `session` (answered at once, or a task each) ->
//! `requests` -> [`export::Export`] -> the device. Reads and writes pass the page cache by (but for mapped memory), go on side by side and
//! keep to the bytes that they name: nothing is read, changed and written back here.
//!
//! The kernel is trusted; programs are behind it. A request that makes no sense is answered with an error.
#![deny(unsafe_code)]

mod abi;
mod attributes;
#[expect(unsafe_code, reason = "an ioctl that no crate wraps")]
mod cloned;
pub mod limits;
pub mod mount;
mod mounted;
mod reader;
mod requests;
mod server;
mod session;
mod space;
pub mod watcher;

pub use server::{FileOptions, FuseExport, Server, SizeRequest, SizeRequests};
