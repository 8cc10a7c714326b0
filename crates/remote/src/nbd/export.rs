//! The contract, kept over the connections to an export.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::{IoBuf, IoVec};
use net::dial::line::{Unflushed, UnflushedMode};
use net::tls::ClientTls;
use storage::{Allocation, Capabilities, Extent, ExtentKind, Hints, IoFuture, RangeLocks, Storage, Zeroing};
use wire::nbd::{ErrorCode, ExportFlags};

use crate::nbd::ask::{Ask, What};
use crate::nbd::blocks::CHANGE_BYTES_MAX;
use crate::nbd::client::{Client, Opening};
use crate::nbd::connect::{ExportInfo, block_sizes};
use crate::nbd::errors::Error;
use crate::nbd::extents::{Extents, Meaning};
use crate::nbd::name::Server;

/// Most bytes that one status asks about where lengths have 32 bits.
const STATUS_BYTES_MAX: u64 = 1 << 31;

/// How an export is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// What messages call it.
    pub name: String,
    /// Where its server listens.
    pub server: Server,
    /// The export; empty for the server's default.
    pub export: String,
    /// The metadata context of a bitmap, whose dirty parts are shown instead of holes (`qemu:dirty-bitmap:NAME`).
    pub bitmap: Option<String>,
    /// Whose certificate the server must show, and what is shown to it; `None`: the connection is not encrypted.
    pub tls: Option<ClientTls>,
    /// It will be written.
    pub writable: bool,
    /// A flush does nothing.
    pub no_flush: bool,
    /// How long requests wait for a connection that was lost; 0: not at all.
    pub reconnect_delay: Duration,
    /// How long opening tries to connect; 0: once.
    pub open_timeout: Duration,
    /// How long a request waits for its answer; then the connection counts as lost. `None`: for ever.
    pub remote_timeout: Option<Duration>,
}

/// An export as storage. Its length is fixed.
#[derive(Debug)]
pub struct NbdStorage {
    name: String,
    pub(crate) client: Arc<Client>,
    writable: bool,
    no_flush: bool,
    /// Offsets and lengths of requests are multiples of this.
    pub(crate) block: u64,
    /// Most bytes of a read or a write.
    pub(crate) request_bytes_max: u64,
    pub(crate) extents: Extents,
    /// Writes of parts of a block are alone in it.
    pub(crate) blocks: RangeLocks,
    /// Who sends the flush that makes room for more writes.
    pub(crate) making_room: async_lock::Mutex<()>,
}

impl NbdStorage {
    /// Connects to the export.
    ///
    /// # Errors
    /// When no server answers within `open_timeout` (ten seconds at most for one attempt), the server has no such export, it is
    /// read-only and to be written, or the server has no TLS or another certificate than `tls` asks for.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let Options {
            name,
            server,
            export,
            bitmap,
            tls,
            writable,
            no_flush,
            reconnect_delay,
            open_timeout,
            remote_timeout,
        } = options;
        let meaning = if bitmap.is_some() { Meaning::Bitmap } else { Meaning::Allocation };
        let found = ExportInfo::new(&server, &export, bitmap, tls)?;
        let mode = match (no_flush, reconnect_delay.is_zero()) {
            (true, _) => UnflushedMode::Forget,
            (false, true) => UnflushedMode::Count,
            (false, false) => UnflushedMode::Keep,
        };
        let server = found.name.clone();
        let unflushed = Unflushed::new(mode);
        let opening =
            Opening { found, is_written: writable, reconnect_delay, open_timeout, remote_timeout, unflushed };
        let client = Client::open(opening).await?;
        if writable && client.negotiated.flags.has(ExportFlags::READ_ONLY) {
            return Err(Error::ReadOnly { server });
        }
        let blocks = block_sizes(&client.negotiated);
        Ok(Self {
            name,
            client,
            writable,
            no_flush,
            block: u64::from(blocks.minimum),
            request_bytes_max: u64::from(blocks.maximum),
            extents: Extents::new(meaning),
            blocks: RangeLocks::default(),
            making_room: async_lock::Mutex::new(()),
        })
    }

    pub(crate) fn has(&self, flag: ExportFlags) -> bool {
        self.client.negotiated.flags.has(flag)
    }

    /// The export must reach as far as a change does.
    fn check_end(&self, offset: u64, len: u64) -> Result<(), Error> {
        let (wanted, length) = (offset.saturating_add(len), self.length());
        if wanted > length { Err(Error::PastEnd { length, wanted }) } else { Ok(()) }
    }

    async fn flush_all(&self) -> io::Result<()> {
        if self.no_flush || !self.writable || !self.has(ExportFlags::FLUSH) {
            return Ok(());
        }
        let reply = self.client.run(&Ask::flush(), None).await;
        // Also when the connection was made again on the way.
        if self.client.unflushed.are_lost() {
            return Err(Error::Unflushed.into());
        }
        Ok(reply.result?)
    }

    async fn ask_extent(&self, offset: u64, len: u64) -> io::Result<Extent> {
        let (length, now) = (self.length(), Instant::now());
        let inside = len.min(length.saturating_sub(offset));
        let data = Extent { len: inside, kind: ExtentKind::Data };
        if inside == 0 {
            return Err(Error::PastEnd { length, wanted: offset.saturating_add(len) }.into());
        }
        if self.client.negotiated.contexts.is_empty() {
            return Ok(data);
        }
        if let Some(known) = self.extents.at(offset, inside, now) {
            return Ok(known);
        }
        let changes = self.extents.changes();
        let start = offset - offset % self.block;
        let is_long = self.client.negotiated.dialect == wire::nbd::Dialect::Extended;
        let asked = if is_long { length - start } else { (length - start).min(STATUS_BYTES_MAX) };
        let reply = self.client.run(&Ask::new(What::Status, start, asked), None).await;
        match reply.result {
            Ok(()) => {}
            // It knows nothing of this place: what is read there is right in any case.
            Err(Error::Refused {
                code: ErrorCode::NotSup | ErrorCode::Inval | ErrorCode::Overflow, ..
            }) => return Ok(data),
            Err(error) => return Err(error.into()),
        }
        let first = self.extents.take(start, length, &reply.extents, changes, now);
        let skip = offset - start;
        let first = first.filter(|first| first.len > skip);
        Ok(first.map_or(data, |first| Extent { len: (first.len - skip).min(inside), kind: first.kind }))
    }
}

impl Storage for NbdStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            alignment: u32::try_from(self.block).unwrap_or(1),
            grows_zeroed: false,
            discards_to_zero: false,
            resizable: false,
            read_only: !self.writable,
            cached: false,
        }
    }

    fn length(&self) -> u64 {
        self.client.negotiated.size
    }

    fn read(&self, offset: u64, mut buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            let inside = self.length().saturating_sub(offset).min(buf.len() as u64);
            let inside = usize::try_from(inside).unwrap_or(usize::MAX);
            if inside == buf.len() {
                return self.read_inside(offset, buf).await;
            }
            let mut beyond = buf.split_off(inside);
            beyond.fill(0);
            let (result, mut buf) = self.read_inside(offset, buf).await;
            buf.rejoin(beyond);
            (result, buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.check_end(offset, data.len() as u64)?;
            self.write_inside(offset, data).await
        })
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.flush_all())
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.check_end(offset, len)?;
            self.zero_inside(offset, len, how).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let end = offset.saturating_add(len).min(self.length());
            let mut at = offset.next_multiple_of(self.block);
            let end = end - end % self.block;
            while at < end && self.has(ExportFlags::TRIM) {
                let len = (end - at).min(CHANGE_BYTES_MAX);
                self.change(&Ask::new(What::Trim, at, len)).await?;
                at += len;
            }
            Ok(())
        })
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move { Ok(self.check_end(0, length)?) })
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            if length >= self.length() { Ok(()) } else { Err(Error::Unsupported("shorten an export").into()) }
        })
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        let _ = how;
        Box::pin(async move {
            self.check_end(offset, len)?;
            Err(Error::Unsupported("reserve space").into())
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(self.ask_extent(offset, len))
    }
}
