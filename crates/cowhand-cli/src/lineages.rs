//! What the commands on checkpoints share: how disks and checkpoints are named, overlays made, a lineage changed without a server.

pub mod args;
pub mod difference;
pub mod merged;
pub mod offline;
pub mod overlay;
pub mod sealed;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lineage::{CheckpointName, Error, Labels, LayerId, NewCheckpoint};
use storage::LockError;

use crate::failure::Failure;

/// How long a command waits for another one on the same lineage: each takes milliseconds, a thousand forks some seconds.
pub const PATIENCE: Duration = Duration::from_secs(10);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = Self::because(error.to_string(), &error);
        match &error {
            Error::Busy { source: LockError::Busy { .. }, .. } => failure.with_hint(
                "the disk of a server is named by the server's control socket (cowhand serve --qmp)",
            ),
            Error::NoLineage { .. } => failure.with_hint("cowhand checkpoint DISK makes one"),
            _ => failure,
        }
    }
}

/// A checkpoint of this moment.
///
/// # Errors
/// When a checkpoint cannot be called so, or have these labels.
pub fn new_checkpoint(name: Option<&str>, labels: &[String]) -> Result<NewCheckpoint, String> {
    let name = name.map(CheckpointName::parse).transpose().map_err(|error| error.to_string())?;
    let labels = Labels::parse(labels.iter().map(String::as_str))?;
    let id = LayerId::new().map_err(|error| format!("there is no id: {error}"))?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(NewCheckpoint { id, name, labels, time })
}

/// What a checkpoint is called: its name, or else the id of its layer.
pub fn called(new: &NewCheckpoint) -> String {
    new.name.as_ref().map_or_else(|| new.id.to_string(), ToString::to_string)
}

/// Paths of forks: `new` itself, or so many with a number before the extension.
pub fn fork_paths(new: &Path, count: Option<u32>) -> Vec<PathBuf> {
    let Some(count) = count else { return vec![new.to_owned()] };
    let stem = new.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension =
        new.extension().map_or_else(String::new, |extension| format!(".{}", extension.to_string_lossy()));
    (1..=count).map(|number| new.with_file_name(format!("{stem}-{number}{extension}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_forks_are_numbered_before_the_extension() {
        let paths = |new: &str, count| fork_paths(Path::new(new), count);
        assert_eq!(paths("/a/vm.qcow2", None), [Path::new("/a/vm.qcow2")]);
        assert_eq!(paths("/a/vm.qcow2", Some(2)), [Path::new("/a/vm-1.qcow2"), Path::new("/a/vm-2.qcow2")]);
        assert_eq!(paths("vm", Some(1)), [Path::new("vm-1")]);
    }
}
