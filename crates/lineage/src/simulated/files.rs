//! The simulated file system as commands and the engine reach it, and what happens to a process at work on it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sim::Rng;
use storage::FileAccess;

use super::tree::{Change, Kind, Node, ROOT, Tree};
use crate::files::{FileFacts, FileSystem};

/// Links that are followed before there seems to be a circle.
const LINKS_MAX: usize = 40;
/// Ticks of a second: each change of a file takes one.
const TICKS: i64 = 1000;

/// What happens to the process at one of its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It ends, and with it all that it would have done.
    Killed,
    /// The change fails; the process goes on.
    NoSpace,
}

/// A file system that all processes of the simulation share.
#[derive(Clone, Debug)]
pub struct Files(Arc<Mutex<State>>);

#[derive(Debug)]
pub struct State {
    pub tree: Tree,
    pub rng: Rng,
    ticks: i64,
    /// What happens at the change with this number from now.
    fate: Option<(u64, Fate)>,
    is_dead: bool,
    /// A change failed since the process began.
    has_failed: bool,
    /// Users of files: of each the number that let others read it, and of those that do not.
    pub users: BTreeMap<u64, [u32; 2]>,
}

/// A process has a file open.
#[derive(Debug)]
pub struct User {
    files: Files,
    node: u64,
    is_writer: bool,
}

impl Drop for User {
    fn drop(&mut self) {
        let mut state = self.files.state();
        if let Some(users) = state.users.get_mut(&self.node) {
            users[usize::from(self.is_writer)] -= 1;
            if *users == [0, 0] {
                state.users.remove(&self.node);
            }
        }
    }
}

thread_local! {
    static MOUNTED: RefCell<Option<Files>> = const { RefCell::new(None) };
}

/// What commands on this thread use from now on.
pub fn mount(files: Option<Files>) {
    crate::kept::forget_all();
    MOUNTED.set(files);
}

/// What is mounted on this thread.
pub fn mounted() -> Option<Rc<dyn FileSystem>> {
    MOUNTED.with_borrow(|files| files.clone().map(|files| Rc::new(files) as Rc<dyn FileSystem>))
}

pub fn error(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

impl State {
    /// A change is about to happen.
    pub fn about_to_change(&mut self) -> io::Result<()> {
        self.check_alive()?;
        match &mut self.fate {
            Some((0, fate)) => {
                let fate = *fate;
                self.fate = None;
                (self.is_dead, self.has_failed) = (fate == Fate::Killed, true);
                Err(if self.is_dead {
                    io::Error::other("the process was killed")
                } else {
                    error(io::ErrorKind::StorageFull)
                })
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub fn check_alive(&self) -> io::Result<()> {
        if self.is_dead { Err(io::Error::other("the process was killed")) } else { Ok(()) }
    }

    fn tick(&mut self) -> i64 {
        self.ticks += 1;
        self.ticks
    }

    /// The directory and the name of a path, and what it leads to; links of the directory are followed, and that of the name if `follows`.
    pub fn find(&self, path: &Path, follows: bool) -> io::Result<(u64, String, Option<u64>, PathBuf)> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            match self.walk(&path, follows)? {
                Ok(found) => return Ok(found),
                Err(next) => path = next,
            }
        }
        Err(error(io::ErrorKind::InvalidInput))
    }

    /// One walk along a path, as far as its first link: then the path behind it.
    #[expect(clippy::type_complexity, reason = "of one caller")]
    fn walk(
        &self,
        path: &Path,
        follows: bool,
    ) -> io::Result<Result<(u64, String, Option<u64>, PathBuf), PathBuf>> {
        let mut parts: Vec<String> = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
                Component::ParentDir => drop(parts.pop()),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        let (mut directory, mut resolved) = (ROOT, PathBuf::from("/"));
        let Some(last) = parts.len().checked_sub(1) else {
            return Ok(Ok((ROOT, String::new(), Some(ROOT), resolved)));
        };
        for (at, name) in parts.iter().enumerate() {
            let Some(Kind::Directory(entries)) = self.tree.now.get(&directory).map(|node| &node.kind) else {
                return Err(error(io::ErrorKind::NotADirectory));
            };
            let node = entries.get(name).copied();
            let link = match node.and_then(|node| self.tree.now.get(&node)).map(|node| &node.kind) {
                Some(Kind::Link(leads_to)) if at < last || follows => Some(leads_to),
                _ => None,
            };
            if let Some(leads_to) = link {
                let rest: PathBuf = parts[at + 1..].iter().collect();
                return Ok(Err(resolved.join(leads_to).join(rest)));
            }
            resolved.push(name);
            if at == last {
                return Ok(Ok((directory, name.clone(), node, resolved)));
            }
            directory = node.ok_or_else(|| error(io::ErrorKind::NotFound))?;
        }
        Err(error(io::ErrorKind::NotFound))
    }

    pub fn node(&self, path: &Path, follows: bool) -> io::Result<u64> {
        self.find(path, follows)?.2.ok_or_else(|| error(io::ErrorKind::NotFound))
    }

    pub fn found(&self, number: u64) -> io::Result<FileFacts> {
        let node = self.tree.now.get(&number).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        let bytes = if let Kind::File(content) = &node.kind { content.len() as u64 } else { 0 };
        Ok(FileFacts {
            is_file: matches!(node.kind, Kind::File(_)),
            is_directory: matches!(node.kind, Kind::Directory(_)),
            access: FileAccess { mode: node.mode, owner: 0, group: 0 },
            bytes,
            allocated_bytes: bytes.next_multiple_of(512),
            modified_sec: node.written / TICKS,
            modified_nsec: node.written % TICKS * 1_000_000,
            links: self.tree.links(number),
            identity: (1, number),
        })
    }

    /// Puts a new node at a path where nothing is.
    pub fn make(&mut self, path: &Path, kind: Kind, mode: u32) -> io::Result<u64> {
        let (directory, name, there, _) = self.find(path, false)?;
        if there.is_some() {
            return Err(error(io::ErrorKind::AlreadyExists));
        }
        self.about_to_change()?;
        let written = self.tick();
        let node = self.tree.add(Node { kind, mode, written });
        self.tree.change(Change::Names(vec![(directory, name, Some(node))]));
        Ok(node)
    }
}

impl Files {
    pub fn new(seed: u64) -> Self {
        let rng = Rng::new(seed);
        let (tree, users) = (Tree::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(State {
            tree,
            rng,
            ticks: 0,
            fate: None,
            is_dead: false,
            has_failed: false,
            users,
        })))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has something happen at the change with this number from now; `None` lets the process live.
    pub fn set_fate(&self, fate: Option<(u64, Fate)>) -> Option<(u64, Fate)> {
        std::mem::replace(&mut self.state().fate, fate)
    }

    /// The process was killed. A new one begins.
    pub fn begin_process(&self) -> bool {
        let mut state = self.state();
        state.fate = None;
        if state.is_dead {
            crate::kept::forget_all();
        }
        std::mem::take(&mut state.is_dead)
    }

    /// Whether a change failed since this was asked last.
    pub fn has_failed(&self) -> bool {
        std::mem::take(&mut self.state().has_failed)
    }

    pub fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    /// All processes have ended before.
    pub fn cut_power(&self) {
        crate::kept::forget_all();
        let mut state = self.state();
        let State { tree, rng, .. } = &mut *state;
        tree.cut_power(rng);
    }

    pub fn drop_unnamed(&self) {
        let mut state = self.state();
        let State { tree, users, .. } = &mut *state;
        tree.drop_unnamed(|node| users.contains_key(&node));
    }

    pub fn node(&self, path: &Path) -> io::Result<u64> {
        self.state().node(path, true)
    }

    pub fn resolved(&self, path: &Path) -> io::Result<PathBuf> {
        let (_, _, node, path) = self.state().find(path, true)?;
        node.map(|_| path).ok_or_else(|| error(io::ErrorKind::NotFound))
    }

    pub fn exists(&self, path: &Path) -> bool {
        self.node(path).is_ok()
    }

    /// A process opens a file, for writing or as the backing file of another one.
    pub fn user(&self, node: u64, is_writer: bool) -> User {
        self.state().users.entry(node).or_default()[usize::from(is_writer)] += 1;
        User { files: self.clone(), node, is_writer }
    }

    pub fn length(&self, node: u64) -> u64 {
        self.state().found(node).map_or(0, |found| found.bytes)
    }

    /// When it was last written: content that was not has not changed.
    pub fn written(&self, node: u64) -> i64 {
        self.state().tree.now.get(&node).map_or(0, |node| node.written)
    }

    pub fn read(&self, node: u64, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.state();
        state.check_alive()?;
        let Some(Node { kind: Kind::File(content), .. }) = state.tree.now.get(&node) else {
            return Err(error(io::ErrorKind::NotFound));
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let bytes = &content[from..content.len().min(from.saturating_add(buffer.len()))];
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    pub fn write(&self, node: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.about_to_change()?;
        let written = state.tick();
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        state.tree.change(Change::Write { node, at, bytes: bytes.to_owned(), written });
        Ok(())
    }

    pub fn set_length(&self, node: u64, length: u64) -> io::Result<()> {
        let mut state = self.state();
        state.about_to_change()?;
        let written = state.tick();
        let length = usize::try_from(length).map_err(io::Error::other)?;
        state.tree.change(Change::Length { node, length, written });
        Ok(())
    }

    pub fn sync_node(&self, node: u64) -> io::Result<()> {
        let mut state = self.state();
        state.about_to_change()?;
        state.tree.sync(node);
        Ok(())
    }

    pub fn make_file(&self, path: &Path, mode: u32) -> io::Result<u64> {
        self.state().make(path, Kind::File(Vec::new()), mode)
    }

    pub fn set_mode(&self, node: u64, mode: u32) -> io::Result<()> {
        let mut state = self.state();
        state.about_to_change()?;
        state.tree.change(Change::Mode { node, mode });
        Ok(())
    }
}
