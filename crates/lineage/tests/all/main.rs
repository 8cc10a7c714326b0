//! Lineages on a real file system, without a server.

mod commands;
mod copied;
mod hostile;
mod stopped;
mod support;
mod two_managers;
