//! What the handshake may see of a server: the exports, in the words of the protocol.

use export::{Export, ExportEntry, NoPlace, Place, UnknownExport};
use wire::nbd::server::{Catalogue, Refusal};
use wire::nbd::{BlockSizes, ExportFlags, ExportInfo, limits};

use crate::server::Server;

/// The exports of a server, for clients that it admits `clients_max` at a time.
pub(crate) struct Offered<'a> {
    pub(crate) server: &'a Server,
    pub(crate) clients_max: usize,
}

impl Catalogue for Offered<'_> {
    type Chosen = Place;

    fn list(&self) -> Vec<(String, String)> {
        let entries = self.server.exports().entries();
        entries.iter().map(|entry| (entry.name().to_owned(), entry.description().to_owned())).collect()
    }

    fn describe(&self, name: &str) -> Result<ExportInfo, Refusal> {
        let found = self.server.exports().find(name).map_err(unknown);
        found.map(|entry| describe(&entry, self.connections_of_one()))
    }

    fn choose(&self, name: &str) -> Result<(Place, ExportInfo), Refusal> {
        if self.server.loops().shutdown().is_triggered() {
            return Err(Refusal::Shutdown);
        }
        let entry = self.server.exports().find(name).map_err(unknown)?;
        let place = Place::take(entry, self.connections_max()).map_err(no_place)?;
        let info = describe(place.entry(), self.connections_of_one());
        Ok((place, info))
    }
}

impl Offered<'_> {
    /// Connections that each export serves.
    fn connections_max(&self) -> u32 {
        self.server.options().connections_per_export.max(1)
    }

    /// Connections that one client can have to an export.
    fn connections_of_one(&self) -> u32 {
        self.connections_max().min(u32::try_from(self.clients_max).unwrap_or(u32::MAX))
    }
}

fn unknown(error: UnknownExport) -> Refusal {
    Refusal::Unknown(error.to_string())
}

fn no_place(error: NoPlace) -> Refusal {
    match error {
        NoPlace::TakenAway(_) => Refusal::Unknown(error.to_string()),
        NoPlace::Full { .. } => Refusal::Policy(error.to_string()),
    }
}

pub(crate) fn describe(entry: &ExportEntry, connections_max: u32) -> ExportInfo {
    let disk: &dyn Export = entry.disk().as_ref();
    let blocks = disk.block_sizes();
    let (minimum, preferred) = (blocks.minimum, blocks.preferred);
    ExportInfo {
        name: entry.name().to_owned(),
        description: entry.description().to_owned(),
        size: disk.size(),
        flags: flags(disk, connections_max),
        blocks: BlockSizes { minimum, preferred, maximum: limits::REQUEST_BYTES_MAX },
        allocation_depth: disk.abilities().allocation_depth,
        bitmaps: disk.bitmaps(),
    }
}

/// Every connection reaches the same disk, so that a flush on one covers all: multi-conn is true by construction, where there may
/// be more than one.
fn flags(disk: &dyn Export, connections_max: u32) -> ExportFlags {
    let (can, writable) = (disk.abilities(), !disk.read_only());
    ExportFlags::HAS_FLAGS
        .and_if(true, ExportFlags::FLUSH)
        .and_if(true, ExportFlags::FUA)
        .and_if(connections_max > 1, ExportFlags::MULTI_CONN)
        .and_if(!writable, ExportFlags::READ_ONLY)
        .and_if(writable && can.discard, ExportFlags::TRIM)
        .and_if(writable && can.zero, ExportFlags::WRITE_ZEROES)
        .and_if(writable && can.zero && can.fast_zero, ExportFlags::FAST_ZERO)
        .and_if(can.prefetch, ExportFlags::CACHE)
}
