//! The disks that a server offers, by name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nbd_wire::server::{Catalogue, Refusal};
use nbd_wire::{BlockSizes, ExportFlags, ExportInfo, limits};

use crate::counters::Counters;
use crate::export::Export;
use crate::server::Server;

/// One disk under one name.
#[derive(Debug)]
pub struct ExportEntry {
    name: String,
    description: String,
    disk: Arc<dyn Export>,
    counters: Counters,
    connections: AtomicU32,
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
        self.connections.load(Ordering::Relaxed)
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

/// The disks of a server, in order; the first one is what the empty name means, unless an export
/// has the empty name itself.
#[derive(Debug, Default)]
pub struct Exports {
    entries: Vec<Arc<ExportEntry>>,
}

impl Exports {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers `disk` as `name`, of at most 4096 bytes without NUL as the protocol wants it;
    /// `description` is for humans and may be empty.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        description: impl Into<String>,
        disk: Arc<dyn Export>,
    ) -> Result<Arc<ExportEntry>, DuplicateName> {
        let name = name.into();
        if self.find_exact(&name).is_some() {
            return Err(DuplicateName(name));
        }
        let (counters, connections) = (Counters::default(), AtomicU32::new(0));
        let description = description.into();
        let entry = Arc::new(ExportEntry { name, description, disk, counters, connections });
        self.entries.push(Arc::clone(&entry));
        Ok(entry)
    }

    /// All of them, in order.
    pub fn entries(&self) -> &[Arc<ExportEntry>] {
        &self.entries
    }

    fn find_exact(&self, name: &str) -> Option<&Arc<ExportEntry>> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// What a client means by `name`.
    pub fn find(&self, name: &str) -> Option<&Arc<ExportEntry>> {
        let default = || if name.is_empty() { self.entries.first() } else { None };
        self.find_exact(name).or_else(default)
    }
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

    fn take(entry: &Arc<ExportEntry>, most: u32) -> Result<Self, Refusal> {
        let one_more = |connections: u32| (connections < most).then_some(connections + 1);
        match entry.connections.try_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Self { entry: Arc::clone(entry) }),
            Err(connections) => Err(Refusal::Policy(format!(
                "export {:?} has {connections} connections; at most {most} are allowed",
                entry.name
            ))),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.entry.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the handshake may see of a server.
pub(crate) struct Offered<'a>(pub(crate) &'a Server);

impl Catalogue for Offered<'_> {
    type Chosen = Place;

    fn list(&self) -> Vec<(String, String)> {
        let entries = self.0.exports().entries.iter();
        entries.map(|entry| (entry.name.clone(), entry.description.clone())).collect()
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
        Ok((place, entry.info()))
    }
}
