//! The disks that a server offers, by name.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use event_listener::Event;
use nbd_wire::server::{Catalogue, Refusal};
use nbd_wire::{BlockSizes, ExportFlags, ExportInfo, limits};
use parking_lot::RwLock;

use crate::counters::Counters;
use crate::export::Export;
use crate::server::Server;
use crate::shutdown::Shutdown;

/// Stands for a number of connections: nobody may connect any more.
const CLOSED: u32 = u32::MAX;

/// One disk under one name.
#[derive(Debug)]
pub struct ExportEntry {
    name: String,
    description: String,
    disk: Arc<dyn Export>,
    counters: Counters,
    connections: AtomicU32,
    /// Connections are to end: the export is taken away.
    leaving: Shutdown,
    /// The last connection has ended.
    left: Event,
}

impl ExportEntry {
    /// What clients call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bytes behind it.
    pub fn disk(&self) -> &Arc<dyn Export> {
        &self.disk
    }

    /// What it has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections that use it now.
    pub fn connections(&self) -> u32 {
        match self.connections.load(Ordering::SeqCst) {
            CLOSED => 0,
            connections => connections,
        }
    }

    /// Waits until no connection uses it. After [`Exports::remove`] that is the end of it.
    pub async fn unused(&self) {
        loop {
            let left = self.left.listen();
            if self.connections() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Triggered when the export is taken away from its clients.
    pub(crate) fn leaving(&self) -> &Shutdown {
        &self.leaving
    }

    fn info(&self) -> ExportInfo {
        let (disk, can) = (&self.disk, self.disk.abilities());
        let writable = !disk.read_only();
        // Every connection reaches the same disk, so that a flush on one covers all: multi-conn is
        // true by construction.
        let flags = ExportFlags::HAS_FLAGS
            .and_if(true, ExportFlags::FLUSH)
            .and_if(true, ExportFlags::FUA)
            .and_if(true, ExportFlags::MULTI_CONN)
            .and_if(!writable, ExportFlags::READ_ONLY)
            .and_if(writable && can.trim, ExportFlags::TRIM)
            .and_if(writable && can.zero, ExportFlags::WRITE_ZEROES)
            .and_if(writable && can.zero && can.fast_zero, ExportFlags::FAST_ZERO)
            .and_if(can.cache, ExportFlags::CACHE);
        let blocks = disk.block_sizes();
        ExportInfo {
            name: self.name.clone(),
            description: self.description.clone(),
            size: disk.size(),
            flags,
            blocks: BlockSizes { maximum: blocks.maximum.min(limits::REQUEST_BYTES_MAX), ..blocks },
            allocation_depth: can.allocation_depth,
            bitmaps: disk.bitmaps(),
        }
    }
}

/// Two exports cannot have one name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is an export named {0:?} already")]
pub struct DuplicateName(pub String);

/// Why an export stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRemoved {
    /// No export has this name.
    #[error("there is no export named {0:?}")]
    Unknown(String),
    /// Clients use it.
    #[error("export {name:?} is in use by {connections} connections")]
    InUse {
        /// Its name.
        name: String,
        /// How many.
        connections: u32,
    },
}

/// What happens to the clients of an export that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// If there are any, nothing is removed.
    Safe,
    /// They are disconnected.
    Hard,
}

/// The disks of a server, in order; the first one is what the empty name means, unless an export
/// has the empty name itself. They may come and go while clients are connected.
#[derive(Debug, Default)]
pub struct Exports {
    shelf: RwLock<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    offered: Vec<Arc<ExportEntry>>,
    /// Removed; clients may not have ended yet.
    removed: Vec<Weak<ExportEntry>>,
}

impl Exports {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers `disk` as `name`, of at most 4096 bytes without NUL as the protocol wants it;
    /// `description` is for humans and may be empty.
    pub fn add(
        &self,
        name: impl Into<String>,
        description: impl Into<String>,
        disk: Arc<dyn Export>,
    ) -> Result<Arc<ExportEntry>, DuplicateName> {
        let name = name.into();
        let mut shelf = self.shelf.write();
        if find_exact(&shelf.offered, &name).is_some() {
            return Err(DuplicateName(name));
        }
        let entry = Arc::new(ExportEntry {
            name,
            description: description.into(),
            disk,
            counters: Counters::default(),
            connections: AtomicU32::new(0),
            leaving: Shutdown::new(),
            left: Event::new(),
        });
        shelf.offered.push(Arc::clone(&entry));
        Ok(entry)
    }

    /// Takes an export away. No client finds it any more; those that use it are disconnected, requests in flight are
    /// finished: [`ExportEntry::unused`] tells when.
    ///
    /// # Errors
    /// If there is none of that name; with [`Removal::Safe`], if a client uses it.
    pub fn remove(&self, name: &str, how: Removal) -> Result<Arc<ExportEntry>, NotRemoved> {
        let mut shelf = self.shelf.write();
        let index = shelf.offered.iter().position(|entry| entry.name == name);
        let index = index.ok_or_else(|| NotRemoved::Unknown(name.to_owned()))?;
        let connections = &shelf.offered[index].connections;
        // From nobody to closed in one step: no client can come in between.
        let closed = connections.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst);
        if let (Err(connections), Removal::Safe) = (closed, how) {
            return Err(NotRemoved::InUse { name: name.to_owned(), connections });
        }
        let entry = shelf.offered.remove(index);
        entry.leaving.trigger();
        shelf.removed.retain(|entry| entry.strong_count() > 0);
        shelf.removed.push(Arc::downgrade(&entry));
        Ok(entry)
    }

    /// All of them, in order.
    pub fn entries(&self) -> Vec<Arc<ExportEntry>> {
        self.shelf.read().offered.clone()
    }

    /// All of them, and those that were removed and are still held by somebody.
    pub(crate) fn entries_and_removed(&self) -> Vec<Arc<ExportEntry>> {
        let shelf = self.shelf.read();
        shelf.offered.iter().cloned().chain(shelf.removed.iter().filter_map(Weak::upgrade)).collect()
    }

    /// What a client means by `name`.
    pub fn find(&self, name: &str) -> Option<Arc<ExportEntry>> {
        let shelf = self.shelf.read();
        let default = || if name.is_empty() { shelf.offered.first() } else { None };
        find_exact(&shelf.offered, name).or_else(default).cloned()
    }
}

fn find_exact<'a>(entries: &'a [Arc<ExportEntry>], name: &str) -> Option<&'a Arc<ExportEntry>> {
    entries.iter().find(|entry| entry.name == name)
}

/// A client's place among the connections of an export; given back by dropping.
#[derive(Debug)]
pub(crate) struct Place {
    entry: Arc<ExportEntry>,
}

impl Place {
    pub(crate) fn entry(&self) -> &Arc<ExportEntry> {
        &self.entry
    }

    fn take(entry: Arc<ExportEntry>, most: u32) -> Result<Self, Refusal> {
        let one_more = |connections: u32| (connections < most).then(|| connections + 1);
        match entry.connections.try_update(Ordering::SeqCst, Ordering::SeqCst, one_more) {
            Ok(_) => {
                let place = Self { entry };
                // Whoever removes the export looks at the connections after saying so, we the other way round:
                // one of the two sees the other.
                if place.entry.leaving.is_triggered() { Err(Refusal::Unknown) } else { Ok(place) }
            }
            Err(CLOSED) => Err(Refusal::Unknown),
            Err(connections) => Err(Refusal::Policy(format!(
                "export {:?} has {connections} connections; at most {most} are allowed",
                entry.name
            ))),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.entry.connections.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.entry.left.notify(usize::MAX);
        }
    }
}

/// What the handshake may see of a server.
pub(crate) struct Offered<'a>(pub(crate) &'a Server);

impl Catalogue for Offered<'_> {
    type Chosen = Place;

    fn list(&self) -> Vec<(String, String)> {
        let entries = self.0.exports().entries();
        entries.iter().map(|entry| (entry.name.clone(), entry.description.clone())).collect()
    }

    fn describe(&self, name: &str) -> Result<ExportInfo, Refusal> {
        self.0.exports().find(name).map(|entry| entry.info()).ok_or(Refusal::Unknown)
    }

    fn choose(&self, name: &str) -> Result<(Place, ExportInfo), Refusal> {
        if self.0.shutdown().is_triggered() {
            return Err(Refusal::Shutdown);
        }
        let entry = self.0.exports().find(name).ok_or(Refusal::Unknown)?;
        let place = Place::take(entry, self.0.options().connections_per_export.max(1))?;
        let info = place.entry.info();
        Ok((place, info))
    }
}

#[cfg(test)]
mod tests {
    use image::options::DiskOptions;
    use image::{OpenRules, open};

    use super::*;

    fn exports() -> (Exports, Arc<ExportEntry>, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(1 << 20).expect("a longer one");
        let mut options = DiskOptions::of_path(file.path());
        options.layer.format = Some(image::probe::Format::Raw);
        let reactor = reactor::Reactor::new(reactor::available()).expect("a loop");
        let disk = reactor.run(open(&options, &OpenRules::default())).expect("a disk");
        let exports = Exports::new();
        let entry = exports.add("a", "", Arc::new(disk)).expect("the first");
        (exports, entry, file)
    }

    #[test]
    fn an_export_in_use_is_removed_only_by_force_and_takes_no_new_clients() {
        let (exports, entry, _file) = exports();
        let place = Place::take(Arc::clone(&entry), 1).expect("a place");
        assert!(Place::take(Arc::clone(&entry), 1).is_err(), "one connection is allowed");
        let in_use = NotRemoved::InUse { name: "a".to_owned(), connections: 1 };
        assert_eq!(exports.remove("a", Removal::Safe).err(), Some(in_use));
        assert!(exports.find("a").is_some() && exports.find("").is_some());
        let removed = exports.remove("a", Removal::Hard).expect("by force");
        assert!(removed.leaving().is_triggered() && exports.find("a").is_none());
        drop(place);
        assert!(matches!(Place::take(removed, 9), Err(Refusal::Unknown)));
        assert_eq!(exports.remove("a", Removal::Safe).err(), Some(NotRemoved::Unknown("a".to_owned())));
    }

    #[test]
    fn an_idle_export_is_removed_at_once_and_its_name_is_free_again() {
        let (exports, entry, _file) = exports();
        drop(exports.remove("a", Removal::Safe).expect("nobody is there"));
        assert_eq!(entry.connections(), 0);
        assert!(matches!(Place::take(Arc::clone(&entry), 9), Err(Refusal::Unknown)));
        exports.add("a", "", Arc::clone(entry.disk())).expect("the name is free");
    }
}
