//! Lineages on a real file system, without a server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod beside;
mod commands;
mod copied;
mod forgotten;
mod hostile;
mod refused;
mod stopped;
mod support;
mod two_managers;
