//! Clients between two processes: what the next server has to know to resume a connection.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use export::{ExportEntry, NoPlace, Place, UnknownExport};
use reactor::net::Stream;
use wire::nbd::server::Session;
use wire::nbd::{Context, Dialect, ExportFlags, ExportInfo, Selected};

/// A client that no process serves at this moment. It has no request in flight, and every reply was sent. Dropping it hangs up, unless
/// another process has its socket.
#[derive(Debug)]
pub struct HandedClient {
    /// Its connection.
    pub socket: OwnedFd,
    /// The name of its export.
    pub export: String,
    /// How messages look.
    pub dialect: Dialect,
    /// Bytes of the disk, as it knows them.
    pub size: u64,
    /// What its export can do, as it knows it.
    pub flags: ExportFlags,
    /// The metadata contexts that it has selected: the id of each, and its name.
    pub contexts: Vec<(u32, String)>,
    /// Bytes that it sent and that were not carried out: the beginning of a request.
    pub begun: Vec<u8>,
}

/// Why a client cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum NotResumed {
    /// Its export.
    #[error(transparent)]
    Unknown(#[from] UnknownExport),
    /// No room there.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// No descriptor for it.
    #[error(transparent)]
    Io(io::Error),
    /// The disk is another one.
    #[error("export {export:?} has {found} bytes; its client knows {known}")]
    Size {
        /// Its name.
        export: String,
        /// Now.
        found: u64,
        /// As the client knows it.
        known: u64,
    },
    /// The export can do less.
    #[error("export {export:?} has flags {found:#x}; its client knows {known:#x}")]
    Flags {
        /// Its name.
        export: String,
        /// Now.
        found: u16,
        /// As the client knows them.
        known: u16,
    },
    /// A context that it asks about is gone.
    #[error("export {export:?} has no metadata context {name:?}, which its client has selected")]
    Context {
        /// The export's name.
        export: String,
        /// The context's.
        name: String,
    },
}

impl HandedClient {
    /// A client in transmission that stopped taking requests in.
    pub(crate) fn new(stream: &Stream, session: &Session<Place>, begun: Vec<u8>) -> io::Result<Self> {
        Ok(Self {
            socket: stream.as_fd().try_clone_to_owned()?,
            export: session.chosen.entry().name().to_owned(),
            dialect: session.dialect,
            size: session.export.size,
            flags: session.export.flags,
            contexts: session.contexts.iter().map(|one| (one.id, one.context.name())).collect(),
            begun,
        })
    }

    /// What its handshake led to, at an export of this server: `describe` says what that can do.
    pub(crate) fn session(
        &self,
        entry: Arc<ExportEntry>,
        most: u32,
        describe: impl FnOnce(&ExportEntry) -> ExportInfo,
    ) -> Result<Session<Place>, NotResumed> {
        let now = describe(&entry);
        let export = || self.export.clone();
        // A disk may have grown under its client, who keeps to what it received; one that is smaller is another disk.
        if now.size < self.size {
            return Err(NotResumed::Size { export: export(), found: now.size, known: self.size });
        }
        let agreed = ExportFlags::DF | ExportFlags::BLOCK_STATUS_PAYLOAD;
        let missing = self.flags.without(now.flags | agreed);
        let writable_then = !self.flags.has(ExportFlags::READ_ONLY);
        if !missing.is_empty() || writable_then && now.flags.has(ExportFlags::READ_ONLY) {
            let (found, known) = (now.flags.to_wire(), self.flags.to_wire());
            return Err(NotResumed::Flags { export: export(), found, known });
        }
        let selected = |(id, name): &(u32, String)| {
            let context = Context::find(name.as_bytes(), &now);
            let context =
                context.ok_or_else(|| NotResumed::Context { export: export(), name: name.clone() })?;
            Ok(Selected { id: *id, context })
        };
        let contexts = self.contexts.iter().map(selected).collect::<Result<_, NotResumed>>()?;
        let chosen = Place::take(entry, most)?;
        let export = ExportInfo { size: self.size, flags: self.flags, ..now };
        Ok(Session { chosen, export, dialect: self.dialect, contexts })
    }
}
