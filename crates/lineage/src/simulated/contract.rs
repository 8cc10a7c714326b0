//! The simulated file system as commands reach it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use storage::{Conflict, LockError, Permissions, Role};

use super::files::{Files, error};
use super::tree::{Change, Kind};
use crate::files::{FileFacts, FileSystem, LockGuard, OpenFile, Purpose};

impl FileSystem for Files {
    fn look(&self, path: &Path) -> io::Result<FileFacts> {
        let state = self.state();
        state.found(state.node(path, true)?)
    }

    fn look_at_name(&self, path: &Path) -> io::Result<FileFacts> {
        let state = self.state();
        state.found(state.node(path, false)?)
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let state = self.state();
        state.check_alive()?;
        let node = state.node(directory, true)?;
        match state.tree.now.get(&node).map(|node| &node.kind) {
            Some(Kind::Directory(entries)) => Ok(entries.keys().map(OsString::from).collect()),
            _ => Err(error(io::ErrorKind::NotADirectory)),
        }
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.resolved(path)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let state = self.state();
        match state.tree.now.get(&state.node(path, false)?).map(|node| &node.kind) {
            Some(Kind::Link(leads_to)) => Ok(leads_to.clone()),
            _ => Err(error(io::ErrorKind::InvalidInput)),
        }
    }

    fn open(&self, path: &Path, purpose: Purpose) -> io::Result<Box<dyn OpenFile>> {
        let mut state = self.state();
        state.check_alive()?;
        let node = match purpose {
            Purpose::Read => state.node(path, false)?,
            Purpose::Write => state.node(path, true)?,
            Purpose::Make(mode) => state.make(path, Kind::File(Vec::new()), mode)?,
        };
        Ok(Box::new(Opened { files: self.clone(), node }))
    }

    fn read(&self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        let node = self.node(path)?;
        let length = self.length(node).min(max);
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        Files::read(self, node, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.state().make(path, Kind::Directory(BTreeMap::new()), 0o755).map(drop)
    }

    fn link_to(&self, leads_to: &Path, path: &Path) -> io::Result<()> {
        self.state().make(path, Kind::Link(leads_to.to_owned()), 0o777).map(drop)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.node(from, false)?;
        let (directory, name, there, _) = state.find(to, false)?;
        if there.is_some() {
            return Err(error(io::ErrorKind::AlreadyExists));
        }
        state.about_to_change()?;
        state.tree.change(Change::Names(vec![(directory, name, Some(node))]));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let (left, old, node, _) = state.find(from, false)?;
        let node = node.ok_or_else(|| error(io::ErrorKind::NotFound))?;
        let (entered, new, there, _) = state.find(to, false)?;
        state.about_to_change()?;
        // Two names of one file: the kernel does nothing.
        if there != Some(node) {
            state.tree.change(Change::Names(vec![(left, old, None), (entered, new, Some(node))]));
        }
        Ok(())
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.look_at_name(to) {
            Ok(_) => Err(error(io::ErrorKind::AlreadyExists)),
            Err(_) => self.rename(from, to),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let (directory, name, node, _) = state.find(path, false)?;
        node.ok_or_else(|| error(io::ErrorKind::NotFound))?;
        state.about_to_change()?;
        state.tree.change(Change::Names(vec![(directory, name, None)]));
        Ok(())
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let node = self.node(path)?;
        self.sync_node(node)
    }

    fn lock(&self, path: &Path, role: Role, is_made: bool) -> Result<io::Result<LockGuard>, LockError> {
        let found = match self.node(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_made => self.make_file(path, 0o644),
            found => found,
        };
        let node = match found {
            Ok(node) => node,
            Err(error) => return Ok(Err(error)),
        };
        let is_written = role == Role::Writer;
        let [readers, writers] = self.state().users.get(&node).copied().unwrap_or_default();
        if writers > 0 || is_written && readers > 0 {
            let conflict = Conflict::Used(Permissions::WRITE);
            return Err(LockError::Busy { conflict, holders: Vec::new() });
        }
        Ok(Ok(Box::new(self.user(node, is_written))))
    }

    fn random(&self) -> io::Result<u64> {
        Ok(self.state().rng.next_u64())
    }
}

struct Opened {
    files: Files,
    node: u64,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opened({})", self.node)
    }
}

impl OpenFile for Opened {
    fn found(&self) -> io::Result<FileFacts> {
        self.files.state().found(self.node)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.files.read(self.node, offset, buffer)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.files.write(self.node, offset, bytes)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.files.set_mode(self.node, mode)
    }

    fn give(&self, _owner: u32, _group: u32) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.files.sync_node(self.node)
    }
}
