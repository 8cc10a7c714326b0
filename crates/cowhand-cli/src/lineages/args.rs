//! DISK and CHECKPOINT, as arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use checkpoints::Sealed;
use lineage::{CheckpointRef, DiskPlace, Place};
use serde_json::json;
use tool::failure::Failure;
use tool::lineages::seen::Seen;

use crate::remote::Remote;

/// What stands under the help of each of these commands.
const DISK_HELP: &str = "\
DISK is the path of a qcow2 image that no process has open, or the control socket of the server that has it open (cowhand serve --qmp): \
SOCKET, or SOCKET:NODE where the server has several disks. CHECKPOINT is DISK@NAME, or DISK@ID with the id of a layer, which cowhand log \
shows. docs/guide/checkpoints.md is a walk through all of it.";

/// `examples`, a command on each line, with what DISK and CHECKPOINT are.
pub fn with_disk(examples: &str) -> String {
    format!("{examples}\n{DISK_HELP}")
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskArg {
    /// An image.
    File(PathBuf),
    /// The disk of a server.
    Served {
        /// Its control socket.
        socket: PathBuf,
        /// The disk's node; the only one without.
        node: Option<String>,
    },
}

/// A server, and a disk of it.
pub struct Served {
    /// The connection.
    pub remote: Remote,
    /// The disk's node.
    pub node: String,
}

impl DiskArg {
    /// Understands DISK.
    pub fn of(text: &OsStr) -> Self {
        let is_socket = |path: &Path| path.metadata().is_ok_and(|found| found.file_type().is_socket());
        let whole = Path::new(text);
        if is_socket(whole) {
            return Self::Served { socket: whole.to_owned(), node: None };
        }
        let bytes = text.as_bytes();
        let colon = bytes.iter().rposition(|byte| *byte == b':');
        let parts = colon.map(|at| (Path::new(OsStr::from_bytes(&bytes[..at])), &bytes[at + 1..]));
        match parts {
            // No node has an `@` in its name: that is a checkpoint.
            Some((socket, node)) if is_socket(socket) && !node.contains(&b'@') => Self::Served {
                socket: socket.to_owned(),
                node: Some(String::from_utf8_lossy(node).into_owned()),
            },
            _ => Self::File(whole.to_owned()),
        }
    }

    /// The server, if it is a disk of one.
    ///
    /// # Errors
    /// When the server does not answer, or has several disks of which none is named.
    pub fn served(&self) -> Result<Option<Served>, Failure> {
        let Self::Served { socket, node } = self else { return Ok(None) };
        let mut remote = Remote::connect(socket)?;
        let named = remote.disk_of_job(node.as_deref());
        let node = named.map_err(|failure| {
            failure.with_other_hint("name it as SOCKET:NODE; cowhand status lists all of them")
        })?;
        Ok(Some(Served { remote, node }))
    }

    /// Whether `other` is this disk, which is `served`: SOCKET and SOCKET:NODE may be one.
    ///
    /// # Errors
    /// As [`DiskArg::served`].
    pub fn is_same(&self, served: &Served, other: &Self) -> Result<bool, Failure> {
        Ok(match (self, other) {
            (Self::Served { socket: own, .. }, Self::Served { socket, .. }) if own == socket => {
                other.served()?.is_some_and(|other| other.node == served.node)
            }
            _ => self == other,
        })
    }

    /// Where the disk's image is.
    ///
    /// # Errors
    /// When it is not there, or the server does not say.
    pub fn place(&self) -> Result<DiskPlace, Failure> {
        match (self, self.served()?) {
            (Self::File(path), _) => Ok(DiskPlace::of(path)?),
            (Self::Served { .. }, Some(mut served)) => Ok(DiskPlace::of(&served.path()?)?),
            (Self::Served { .. }, None) => Err(Failure::new("the server has no such disk")),
        }
    }
}

impl Served {
    /// The path of the disk's image.
    fn path(&mut self) -> Result<PathBuf, Failure> {
        let nodes = self.remote.ask("query-named-block-nodes", json!({ "flat": true }))?;
        let mut nodes = nodes.as_array().into_iter().flatten();
        let node = nodes.find(|node| node["node-name"].as_str() == Some(&self.node));
        let file = node.and_then(|node| node["file"].as_str());
        let file = file.ok_or_else(|| {
            Failure::new(format!("the server does not say which file node {} has", self.node))
        })?;
        Ok(PathBuf::from(file))
    }
}

/// A checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointArg {
    /// The disk, as it was written.
    pub disk: PathBuf,
    /// Which of its checkpoints.
    pub checkpoint: CheckpointRef,
}

impl CheckpointArg {
    /// Understands CHECKPOINT.
    ///
    /// # Errors
    /// When it is not of the form DISK@NAME.
    pub fn of(text: &OsStr) -> Result<Self, Failure> {
        let split = CheckpointRef::split(text).map_err(|error| Failure::new(error.to_string()))?;
        Ok(Self { disk: split.0, checkpoint: split.1 })
    }

    /// As [`CheckpointArg::of`]; `@NAME` is one of `disk`.
    ///
    /// # Errors
    /// As there.
    pub fn of_disk(text: &OsStr, disk: &OsString) -> Result<Self, Failure> {
        if !text.as_bytes().starts_with(b"@") {
            return Self::of(text);
        }
        let mut whole = disk.clone();
        whole.push(text);
        Self::of(&whole)
    }

    /// Its disk.
    pub fn disk(&self) -> DiskArg {
        DiskArg::of(self.disk.as_os_str())
    }

    /// Its layer. A disk that is gone may have some.
    ///
    /// # Errors
    /// When there is none, or an image of the lineage cannot be read.
    pub fn find(&self) -> Result<Sealed, Failure> {
        let directory = self.disk.parent().filter(|_| self.disk.symlink_metadata().is_err());
        let seen = match directory.map(|directory| directory.as_os_str()) {
            Some(directory) if directory.is_empty() => look(OsStr::new("."))?,
            Some(directory) => look(directory)?,
            None => look(self.disk.as_os_str())?,
        };
        let disk = match seen.disk {
            Some(disk) => disk,
            None => self.disk().place()?,
        };
        let id = seen.survey.find(&disk, &self.checkpoint)?;
        Ok(Sealed { survey: seen.survey, id })
    }
}

/// Looks at the lineage of a disk, or at that in a directory. Takes no lock.
///
/// # Errors
/// When there is none, or an image of it cannot be read.
pub fn look(text: &OsStr) -> Result<Seen, Failure> {
    let path = Path::new(text);
    let (place, disk) = match path.is_dir() {
        true => (Place::of(path)?, None),
        false => {
            let disk = DiskArg::of(text).place()?;
            (disk.place.clone(), Some(disk))
        }
    };
    Ok(Seen::of(place, disk)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_may_have_a_node_behind_it_and_a_path_may_have_a_colon() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s:1");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let served =
            |node: Option<&str>| DiskArg::Served { socket: socket.clone(), node: node.map(str::to_owned) };
        assert_eq!(DiskArg::of(socket.as_os_str()), served(None));
        let mut with_node = socket.clone().into_os_string();
        with_node.push(":disk0");
        assert_eq!(DiskArg::of(&with_node), served(Some("disk0")));
        assert_eq!(DiskArg::of(OsStr::new("/a:b/d.qcow2")), DiskArg::File("/a:b/d.qcow2".into()));
        let bare = CheckpointArg::of_disk(OsStr::new("@x"), &"d.qcow2".into()).unwrap();
        assert_eq!((bare.disk, bare.checkpoint.to_string()), ("d.qcow2".into(), "x".into()));
    }
}
