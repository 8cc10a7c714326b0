//! What commands on checkpoints answer, and why they fail.

mod natural_order;
pub mod part;
pub mod removal;
pub mod seen;
pub mod tree;
mod unpublished;

use std::path::Path;

use lineage::{Error, LAYERS};
use storage::LockError;

use crate::failure::Failure;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = Self::because(error.to_string(), &error);
        match &error {
            // Not of the lineage's own locks: those are other commands'.
            Error::Busy { path, source: LockError::Busy { .. } } if !is_in_layers(path) => failure.with_hint(
                "the disk of a server is named by the server's control socket (cowhand serve --qmp)",
            ),
            Error::Changed { .. } => failure.with_hint(
                "a copy that did not keep times (cp -a and rsync -a do) has changed in nothing else; without layers/lineage.json, the next checkpoint takes layers as they are, without names and labels",
            ),
            Error::NoLineage { .. } => failure.with_hint("cowhand checkpoint DISK makes one"),
            _ => failure,
        }
    }
}

fn is_in_layers(path: &Path) -> bool {
    path.parent().is_some_and(|directory| directory.ends_with(LAYERS))
}

impl From<checkpoints::Error> for Failure {
    fn from(error: checkpoints::Error) -> Self {
        match error {
            checkpoints::Error::Lineage(error) => error.into(),
            error => Self::because(error.to_string(), &error),
        }
    }
}
