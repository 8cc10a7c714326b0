//! An image as storage.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use memory::{IoBuf, IoVec};
use net::dial::line::UnflushedMode;
use storage::{Allocation, Capabilities, Extent, ExtentKind, Hints, IoFuture, Storage, Zeroing};

use crate::rbd::client::Client;
use crate::rbd::connection::Connection;
use crate::rbd::errors::Error;
use crate::rbd::message::{Ask, Kind, SLOT_BYTES};
use crate::rbd::opening::Opening;

/// Most bytes that one discard or zeroing is about: librbd makes a request of each object in it.
const CHANGE_BYTES_MAX: u64 = 1 << 30;
/// Most bytes that one status asks about: without an object map the cluster is asked for each object.
const STATUS_BYTES_MAX: u64 = 4 << 30;

/// How an image is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// What messages call it.
    pub name: String,
    /// What the worker opens.
    pub opening: Opening,
    /// A flush does nothing.
    pub no_flush: bool,
    /// How long a request may take before it fails, lost workers included. `None`: for ever.
    pub remote_timeout: Option<Duration>,
}

/// An image of a Ceph cluster as storage. No other user is kept from it.
#[derive(Debug)]
pub struct RbdStorage {
    name: String,
    client: Arc<Client>,
    writable: bool,
    no_flush: bool,
}

impl RbdStorage {
    /// Starts a worker, which opens the image.
    ///
    /// # Errors
    /// When librbd is not installed, the cluster does not answer or refuses the user, or the image is not there.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let Options { name, opening, no_flush, remote_timeout } = options;
        let writable = opening.writable;
        let mode = if no_flush || !writable { UnflushedMode::Forget } else { UnflushedMode::Keep };
        let client = Client::open(name.clone(), opening, remote_timeout, mode).await?;
        Ok(Self { name, client, writable, no_flush })
    }

    /// Starts a worker, which makes an image of so many bytes: they read as zeroes.
    ///
    /// # Errors
    /// When librbd is not installed, the cluster does not answer or refuses the user, or the image is there.
    pub async fn create(opening: Opening, bytes: u64) -> Result<(), Error> {
        Connection::create(opening, bytes).await
    }

    /// Reads what is inside the image, in pieces that fit into slots.
    async fn read_inside(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let pieces = buf.chunks_mut(SLOT_BYTES).enumerate().map(async |(place, piece)| {
            let offset = offset + (place * SLOT_BYTES) as u64;
            self.client.run(&Ask::new(Kind::Read, offset, piece.len() as u64), piece).await
        });
        // All end before the buffer is given back.
        join_all(pieces).await.into_iter().try_for_each(|answer| answer.map(drop))
    }

    async fn write_all(&self, offset: u64, data: IoVec) -> io::Result<()> {
        self.grow(offset.saturating_add(data.len() as u64)).await?;
        self.make_room().await?;
        let pieces = (0..data.len()).step_by(SLOT_BYTES).map(async |from| {
            let piece = data.slice(from, data.len().min(from + SLOT_BYTES));
            self.client.run(&Ask::write(Kind::Write, offset + from as u64, piece), &mut []).await
        });
        Ok(try_join_all(pieces).await.map(drop)?)
    }

    /// Changes a range, a part after the other.
    async fn change(&self, kind: Kind, offset: u64, len: u64) -> io::Result<()> {
        self.make_room().await?;
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let len = (end - at).min(CHANGE_BYTES_MAX);
            self.client.run(&Ask::new(kind, at, len), &mut []).await?;
            at += len;
        }
        Ok(())
    }

    async fn grow(&self, length: u64) -> Result<(), Error> {
        if length > self.length() {
            self.client.run(&Ask::new(Kind::Grow, 0, length), &mut []).await?;
            self.client.length.fetch_max(length, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Has the cluster keep what is kept here, when that is much.
    async fn make_room(&self) -> Result<(), Error> {
        if self.client.unflushed.is_full() { self.flush_all().await } else { Ok(()) }
    }

    async fn flush_all(&self) -> Result<(), Error> {
        if self.no_flush || !self.writable {
            return Ok(());
        }
        self.client.run(&Ask::flush(), &mut []).await.map(drop)
    }

    async fn ask_extent(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        let inside = len.min(self.length().saturating_sub(offset));
        if inside == 0 {
            return Err(Error::Unsupported("say what is beyond its end"));
        }
        let asked = inside.min(STATUS_BYTES_MAX);
        let answer = self.client.run(&Ask::new(Kind::Status, offset, asked), &mut []).await?;
        if answer.value == 0 || answer.value > asked {
            return Err(Error::Answer("a status of other bytes than were asked about"));
        }
        let kind = if answer.is_data { ExtentKind::Data } else { ExtentKind::Hole };
        Ok(Extent { len: answer.value, kind })
    }
}

impl Storage for RbdStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            alignment: 1,
            // Others may change the length: there is no lock.
            grows_zeroed: false,
            // librbd leaves out parts of objects.
            discards_to_zero: false,
            resizable: self.writable,
            read_only: !self.writable,
            cached: false,
        }
    }

    fn length(&self) -> u64 {
        self.client.length.load(Ordering::Acquire)
    }

    fn read(&self, offset: u64, mut buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            let inside = self.length().saturating_sub(offset).min(buf.len() as u64);
            let inside = usize::try_from(inside).unwrap_or(usize::MAX);
            let (inside, beyond) = buf.split_at_mut(inside);
            beyond.fill(0);
            let result = self.read_inside(offset, inside).await;
            (result.map_err(io::Error::from), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.write_all(offset, data))
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move { Ok(self.flush_all().await?) })
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.grow(offset.saturating_add(len)).await?;
            let kind = match how {
                Zeroing::Keep => Kind::ZeroKept,
                Zeroing::Unmap | Zeroing::FastOnly => Kind::Zero,
            };
            self.change(kind, offset, len).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let end = offset.saturating_add(len).min(self.length());
            self.change(Kind::Discard, offset, end.saturating_sub(offset)).await
        })
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move { Ok(self.grow(length).await?) })
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            if length >= self.length() {
                return Ok(());
            }
            // What lies beyond the new end is not to be repeated.
            self.flush_all().await?;
            // First: a worker that is lost meanwhile may have cut it.
            self.client.length.store(length, Ordering::Release);
            self.client.run(&Ask::new(Kind::Shorten, 0, length), &mut []).await?;
            Ok(())
        })
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            match how {
                Allocation::Write => self.zero(offset, len, Zeroing::Keep).await,
                Allocation::Reserve => Err(Error::Unsupported("reserve space").into()),
            }
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(async move { Ok(self.ask_extent(offset, len).await?) })
    }
}
