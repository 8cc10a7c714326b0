//! The same over a disk: its requests fail as rules say. No image engine is above that would come to steps.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use block::{Blame, Block, BlockFuture, BlockStatus, Error, Hints, ReadKind, Step, ZeroOptions};
use buffer::{IoBuf, IoVec};
use parking_lot::Mutex;

use super::rules::{IoType, Rules};
use super::{OPTIONS, Options, specs};
use crate::drivers::filter::{Below, Children, FilterDriver, MakeFilter, Role, difference};
use crate::options::entry::first_fixed_of;

/// As a filter.
pub(in crate::drivers) const OVER_DISK: FilterDriver = FilterDriver {
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

    fn make(&self, below: &Below) -> Result<Arc<dyn Block>, Error> {
        let over = below.get("image")?;
        if self.bounds.are_given() {
            let why = "blkdebug over a disk has rules, and neither align nor limits: give them to the file below the disk";
            return Err(Blame::new(over.name()).unsupported(why));
        }
        let rules = self.all_rules().map_err(Blame::new(over.name()).io("reading the rules"))?;
        Ok(Arc::new(OverDisk { over, rules: Mutex::new(rules) }))
    }
}

/// A disk that obeys rules.
#[derive(Debug)]
struct OverDisk {
    over: Arc<dyn Block>,
    rules: Mutex<Rules>,
}

impl OverDisk {
    /// Fails as the rules say of a request.
    fn pass(&self, io_type: IoType, range: Range<u64>) -> Result<(), Error> {
        let failure = self.rules.lock().failure(io_type, range).filter(|failure| failure.errno != 0);
        let Some(failure) = failure else { return Ok(()) };
        let error = io::Error::from_raw_os_error(i32::try_from(failure.errno).unwrap_or(libc::EIO));
        Err(Blame::new(self.over.name()).io("passing blkdebug")(error))
    }
}

fn range(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}

impl Block for OverDisk {
    fn driver(&self) -> &'static str {
        OVER_DISK.name
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn about_to(&self, step: Step) {
        self.rules.lock().about_to(step);
        self.over.about_to(step);
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
            match self.pass(IoType::Read, range(offset, buf.len() as u64)) {
                Ok(()) => self.over.read(offset, buf, hints).await,
                Err(error) => (Err(error), buf),
            }
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.pass(IoType::Write, range(offset, data.len() as u64))?;
            self.over.write(offset, data, hints).await
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.pass(IoType::WriteZeroes, range(offset, len))?;
            self.over.zero(offset, len, options).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.pass(IoType::Discard, range(offset, len))?;
            self.over.discard(offset, len).await
        })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.pass(IoType::Flush, 0..0)?;
            self.over.flush().await
        })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            self.pass(IoType::BlockStatus, range(offset, len))?;
            self.over.block_status(offset, len).await
        })
    }
}
