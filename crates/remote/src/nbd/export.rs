//! The contract, kept over the connections to an export.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::{IoBuf, IoVec};
use net::dial::line::{Unflushed, UnflushedMode};
use net::tls::ClientTls;
use parking_lot::Mutex;
use storage::{Allocation, Capabilities, Extent, ExtentKind, Hints, IoFuture, RangeLocks, Storage, Zeroing};
use wire::nbd::{ALLOCATION_ZERO, Descriptor, ErrorCode, ExportFlags};

use crate::nbd::ask::{Ask, What};
use crate::nbd::blocks::CHANGE_BYTES_MAX;
use crate::nbd::client::{Client, Opening};
use crate::nbd::connect::{ExportInfo, block_sizes};
use crate::nbd::errors::Error;
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

/// How long an answer is believed.
const BELIEVED: Duration = Duration::from_secs(1);

/// What the server last said of holes and data. Tools walk a disk from one end to the other and ask at each step; one answer
/// covers many steps. It is forgotten when this driver changes the disk, and soon anyway: others may.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    state: Mutex<State>,
    meaning: Meaning,
}

/// What the numbers of an answer mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Meaning {
    /// `base:allocation`: which bytes read as zeroes.
    #[default]
    Allocation,
    /// A bitmap: which bytes are dirty.
    Bitmap,
}

/// A bitmap: the extent is dirty.
const DIRTY: u64 = 1;

#[derive(Debug, Default)]
struct State {
    /// Ends of its extents, ascending, and what each is; the first begins at `start`.
    ends: Vec<(u64, ExtentKind)>,
    start: u64,
    until: Option<Instant>,
    /// How often the disk was changed: an answer from before a change is not kept.
    changes: u64,
}

impl Meaning {
    fn kind(self, flags: u64) -> ExtentKind {
        match self {
            Self::Allocation if flags & ALLOCATION_ZERO != 0 => ExtentKind::Hole,
            Self::Bitmap if flags & DIRTY != 0 => ExtentKind::Marked,
            Self::Allocation | Self::Bitmap => ExtentKind::Data,
        }
    }
}

impl Extents {
    /// Of answers that mean this.
    fn new(meaning: Meaning) -> Self {
        Self { state: Mutex::default(), meaning }
    }

    /// What is at `offset`, for at most `len` bytes, if the newest answer says so.
    fn at(&self, offset: u64, len: u64, now: Instant) -> Option<Extent> {
        let state = self.state.lock();
        if state.until.is_none_or(|until| now >= until) || offset < state.start {
            return None;
        }
        let at = state.ends.partition_point(|(end, _)| *end <= offset);
        let (end, kind) = state.ends.get(at)?;
        Some(Extent { len: (end - offset).min(len), kind: *kind })
    }

    /// To be asked for before a status is, and given with its answer.
    fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// The disk changes, or has changed: call it before and after.
    pub(super) fn changed(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.ends.clear();
        state.until = None;
    }

    /// Takes an answer to a status at `start` of a disk that ends at `end`. The first extent; None if the answer says nothing of it.
    fn take(&self, start: u64, end: u64, said: &[Descriptor], changes: u64, now: Instant) -> Option<Extent> {
        let ends = ends(start, end, said, self.meaning);
        let first = ends.first().map(|(end, kind)| Extent { len: end - start, kind: *kind });
        let mut state = self.state.lock();
        if state.changes == changes {
            (state.ends, state.start, state.until) = (ends, start, Some(now + BELIEVED));
        }
        first
    }
}

/// Neighbours of one kind are one extent. Lengths are a server's: an extent without bytes ends what is believed, and none goes beyond
/// `end`.
fn ends(start: u64, end: u64, said: &[Descriptor], meaning: Meaning) -> Vec<(u64, ExtentKind)> {
    let mut ends: Vec<(u64, ExtentKind)> = Vec::new();
    let mut at = start;
    for Descriptor { len, flags } in said.iter().take_while(|said| said.len > 0) {
        let kind = meaning.kind(*flags);
        at = at.saturating_add(*len).min(end);
        match ends.last_mut() {
            Some((last, known)) if *known == kind => *last = at,
            _ => ends.push((at, kind)),
        }
        if at == end {
            break;
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::nbd::ALLOCATION_HOLE;

    const DATA: u64 = 0;
    const ZERO: u64 = ALLOCATION_HOLE | ALLOCATION_ZERO;

    fn said(extents: &[(u64, u64)]) -> Vec<Descriptor> {
        extents.iter().map(|&(len, flags)| Descriptor { len, flags }).collect()
    }

    fn extent(len: u64, kind: ExtentKind) -> Option<Extent> {
        Some(Extent { len, kind })
    }

    #[test]
    fn one_answer_covers_the_steps_behind_it() {
        let (extents, now) = (Extents::default(), Instant::now());
        let answer = said(&[(4096, DATA), (4096, ZERO), (4096, ALLOCATION_ZERO), (4096, ALLOCATION_HOLE)]);
        assert_eq!(extents.take(4096, 1 << 20, &answer, 0, now), extent(4096, ExtentKind::Data));
        assert_eq!(extents.at(0, 512, now), None);
        assert_eq!(extents.at(5000, 512, now), extent(512, ExtentKind::Data));
        assert_eq!(extents.at(8192, 1 << 20, now), extent(8192, ExtentKind::Hole));
        assert_eq!(extents.at(16384, 1 << 20, now), extent(4096, ExtentKind::Data));
        assert_eq!(extents.at(20480, 512, now), None);
        assert_eq!(extents.at(8192, 512, now + BELIEVED), None);
    }

    /// What is dirty is not zero: a copy that took it for a hole would leave out what changed.
    #[test]
    fn what_a_bitmap_marks_is_no_hole() {
        let (extents, now) = (Extents::new(Meaning::Bitmap), Instant::now());
        let answer = said(&[(4096, DIRTY), (4096, 0), (4096, DIRTY | ALLOCATION_ZERO)]);
        assert_eq!(extents.take(0, 1 << 20, &answer, 0, now), extent(4096, ExtentKind::Marked));
        assert_eq!(extents.at(4096, 512, now), extent(512, ExtentKind::Data));
        assert_eq!(extents.at(8192, 512, now), extent(512, ExtentKind::Marked));
    }

    /// A hole that is believed after data was written there is data lost: a copy would leave it out.
    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let (extents, now) = (Extents::default(), Instant::now());
        let asked = extents.changes();
        extents.changed();
        assert_eq!(extents.take(0, 8192, &said(&[(8192, ZERO)]), asked, now), extent(8192, ExtentKind::Hole));
        assert_eq!(extents.at(0, 512, now), None);
        extents.take(0, 8192, &said(&[(8192, ZERO)]), extents.changes(), now);
        assert!(extents.at(0, 512, now).is_some());
        extents.changed();
        assert_eq!(extents.at(0, 512, now), None);
    }

    #[test]
    fn lengths_of_a_liar_lead_nowhere() {
        let (extents, now) = (Extents::default(), Instant::now());
        assert_eq!(extents.take(512, 4096, &said(&[(0, DATA), (512, ZERO)]), 0, now), None);
        let long = said(&[(u64::MAX, ZERO), (u64::MAX, DATA)]);
        assert_eq!(extents.take(512, 4096, &long, 0, now), extent(3584, ExtentKind::Hole));
        assert_eq!(extents.at(512, u64::MAX, now), extent(3584, ExtentKind::Hole));
    }
}
