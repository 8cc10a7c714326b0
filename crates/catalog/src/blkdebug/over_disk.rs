//! The same over a disk: its requests fail as rules say, and keep to bounds. No image engine is above that would come to steps.

use std::io;
use std::sync::Arc;

use block::{Blame, Block, BlockFuture, BlockStatus, Error, Hints, ReadKind, Step, ZeroOptions};
use memory::{IoBuf, IoVec};
use parking_lot::Mutex;

use super::bounded::{Bounded, Target};
use super::rules::{IoType, Rules};
use super::{OPTIONS, Options, specs};
use graph::drivers::{Below, Children, FilterDriver, MakeFilter, Role, difference};
use graph::options::entry::first_fixed_of;

/// As a filter.
pub(crate) const OVER_DISK: FilterDriver = FilterDriver {
    name: "blkdebug",
    is_snapshot: false,
    grows: true,
    children: Children::Named(&[Role { name: "image", ..Role::FILE }]),
    specs,
    read: |reader| Ok(Arc::new(Options::read(reader)?)),
};

impl MakeFilter for Options {
    fn first_difference(&self, other: &dyn MakeFilter) -> Option<String> {
        difference(self, other, |own, other| {
            let rules = || (own.rules != other.rules).then(|| "inject-error".to_owned());
            first_fixed_of(OPTIONS, own, other).or_else(rules)
        })
    }

    fn make(&self, below: &dyn Below) -> Result<Arc<dyn Block>, Error> {
        let over = below.get("image")?;
        let rules = self.all_rules().map_err(Blame::new(over.name()).io("reading the rules"))?;
        let disk = RuledDisk { over, rules: Mutex::new(rules) };
        Ok(Arc::new(OverDisk { disk: Bounded::new(disk, self.bounds) }))
    }
}

/// A disk that obeys rules.
#[derive(Debug)]
struct RuledDisk {
    over: Arc<dyn Block>,
    rules: Mutex<Rules>,
}

impl RuledDisk {
    /// Fails as the rules say of a request.
    fn pass(&self, io_type: IoType, offset: u64, len: u64) -> Result<(), Error> {
        let range = offset..offset.saturating_add(len);
        let failure = self.rules.lock().failure(io_type, range).filter(|failure| failure.errno != 0);
        let Some(failure) = failure else { return Ok(()) };
        Err(self.failure(io::Error::from_raw_os_error(i32::try_from(failure.errno).unwrap_or(libc::EIO))))
    }
}

impl Target for RuledDisk {
    type Zeroing = ZeroOptions;
    type Error = Error;

    fn length(&self) -> u64 {
        self.over.size()
    }

    fn is_fast_only(how: ZeroOptions) -> bool {
        how.fast_only
    }

    fn failure(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::Unsupported => Blame::new(self.over.name()).unsupported(error.to_string()),
            _ => Blame::new(self.over.name()).io("passing blkdebug")(error),
        }
    }

    fn about_to(&self, step: Step) {
        self.rules.lock().about_to(step);
        self.over.about_to(step);
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> BlockFuture<'_, (Result<(), Error>, IoBuf)> {
        Box::pin(async move {
            match self.pass(IoType::Read, offset, buf.len() as u64) {
                Ok(()) => {
                    let (result, buf) = self.over.read(offset, buf, hints).await;
                    (result.map(drop), buf)
                }
                Err(error) => (Err(error), buf),
            }
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.pass(IoType::Write, offset, data.len() as u64)?;
            self.over.write(offset, data, hints).await
        })
    }

    fn zero(&self, offset: u64, len: u64, how: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.pass(IoType::WriteZeroes, offset, len)?;
            self.over.zero(offset, len, how).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.pass(IoType::Discard, offset, len)?;
            self.over.discard(offset, len).await
        })
    }
}

/// A disk that obeys rules and gets requests within bounds.
#[derive(Debug)]
struct OverDisk {
    disk: Bounded<RuledDisk>,
}

impl OverDisk {
    /// A request beyond the end is refused before it is widened: what it would read around itself may be there.
    fn check(&self, offset: u64, len: u64) -> Result<(), Error> {
        let over = &self.disk.below().over;
        match offset.checked_add(len).is_some_and(|end| end <= over.size()) {
            true => Ok(()),
            false => Err(Blame::new(over.name()).past_end(offset, len, over.size())),
        }
    }
}

impl Block for OverDisk {
    fn driver(&self) -> &'static str {
        OVER_DISK.name
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.disk.below().over)
    }

    fn about_to(&self, step: Step) {
        self.disk.below().about_to(step);
    }

    fn try_read(&self, _offset: u64, _buf: &mut [u8], _hints: Hints) -> Option<ReadKind> {
        // It would pass by the rules.
        None
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            if let Err(error) = self.check(offset, buf.len() as u64) {
                return (Err(error), buf);
            }
            let (result, buf) = self.disk.read_any(offset, buf, hints).await;
            (result.map(|()| ReadKind::Data), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.check(offset, data.len() as u64)?;
            self.disk.write_any(offset, data, hints).await
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.check(offset, len)?;
            self.disk.zero_any(offset..offset + len, options).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.check(offset, len)?;
            self.disk.discard_any(offset..offset + len).await
        })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.disk.below().pass(IoType::Flush, 0, 0)?;
            self.disk.below().over.flush().await
        })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            self.disk.below().pass(IoType::BlockStatus, offset, len)?;
            self.disk.below().over.block_status(offset, len).await
        })
    }
}
