//! `null-co` and `null-aio`: storage that keeps nothing and reads as zeroes, to measure and test everything above.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use storage::{
    Allocation, Capabilities, Extent, ExtentKind, Hints, IoBuf, IoFuture, IoVec, Storage, Zeroing,
};

use graph::drive::OptionTree;
use graph::drivers::{Access, Elsewhere, StorageDriver, StorageKind, Target};
use graph::options::entry::{at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, OptionError, Reader};

pub(super) const NULL_CO: StorageDriver = StorageDriver {
    name: "null-co",
    prefixes: &["null-co:"],
    kind: StorageKind::Elsewhere(Elsewhere {
        specs: || OPTIONS_CO.iter().map(Entry::spec).collect(),
        options_of,
        shown: str::to_owned,
        read: |reader| read(OPTIONS_CO, "null-co", reader),
        is_within_process: true,
    }),
};

pub(super) const NULL_AIO: StorageDriver = StorageDriver {
    name: "null-aio",
    prefixes: &["null-aio:"],
    kind: StorageKind::Elsewhere(Elsewhere {
        specs: || OPTIONS_AIO.iter().map(Entry::spec).collect(),
        options_of,
        shown: str::to_owned,
        read: |reader| read(OPTIONS_AIO, "null-aio", reader),
        is_within_process: true,
    }),
};

/// Its size unless said otherwise, as in QEMU.
const SIZE_DEFAULT: u64 = 1 << 30;

/// What options say.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Null {
    driver: &'static str,
    /// `size`, in bytes.
    size: u64,
    /// `latency-ns`: how long each request takes at least.
    latency_ns: u64,
    /// `read-zeroes`. It reads so in any case.
    read_zeroes: bool,
}

const fn options(driver: &'static str) -> [Entry<Null>; 3] {
    in_group(
        Group::Storage(driver),
        [
            Entry::size("size", at!(Null, size), "its bytes").default("1G"),
            Entry::size("latency-ns", at!(Null, latency_ns), "nanoseconds that each request takes")
                .default("0"),
            Entry::switch("read-zeroes", at!(Null, read_zeroes), "reads give zeroes, as they do in any case"),
        ],
    )
}

const OPTIONS_CO: &[Entry<Null>] = &options("null-co");
const OPTIONS_AIO: &[Entry<Null>] = &options("null-aio");

/// `null-co://`: nothing stands in such a name.
fn options_of(name: &str) -> Result<OptionTree, String> {
    match name.split_once(':') {
        Some((_, "//")) => Ok(OptionTree::default()),
        _ => Err("null-co://, null-aio://".to_owned()),
    }
}

fn read(
    entries: &'static [Entry<Null>],
    driver: &'static str,
    reader: &mut Reader,
) -> Result<Arc<dyn Target>, OptionError> {
    let mut null = Null { driver, size: SIZE_DEFAULT, latency_ns: 0, read_zeroes: false };
    read_all(entries, reader, &mut null)?;
    Ok(Arc::new(null))
}

impl Target for Null {
    fn name(&self) -> String {
        format!("{}://", self.driver)
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        match (other as &dyn Any).downcast_ref::<Self>() {
            Some(other) if other.driver == self.driver => first_fixed_of(OPTIONS_CO, self, other),
            _ => Some("file.driver".to_owned()),
        }
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        let latency = Duration::from_nanos(self.latency_ns);
        let null = NullStorage {
            name: self.name(),
            size: self.size,
            latency,
            read_only: !access.writable,
            read_zeroes: self.read_zeroes,
        };
        Box::pin(async move {
            match i64::try_from(null.size) {
                Ok(_) => Ok(Arc::new(null) as Arc<dyn Storage>),
                Err(_) => {
                    let what = format!("its size is {}; allowed: less than 2^63", null.size);
                    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
                }
            }
        })
    }
}

/// Storage without bytes.
#[derive(Debug)]
struct NullStorage {
    name: String,
    size: u64,
    latency: Duration,
    read_only: bool,
    read_zeroes: bool,
}

impl NullStorage {
    async fn take_time(&self) {
        if !self.latency.is_zero() {
            reactor::sleep(self.latency).await;
        }
    }

    /// A request that changes nothing; it may not make the storage longer.
    async fn ignore(&self, end: Option<u64>) -> io::Result<()> {
        self.take_time().await;
        match end {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::StorageFull, format!("it has {} bytes", self.size))),
        }
    }
}

impl Storage for NullStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let read_only = self.read_only;
        Capabilities { resizable: false, cached: false, read_only, ..Capabilities::REGULAR_FILE }
    }

    fn length(&self) -> u64 {
        self.size
    }

    fn read(&self, _offset: u64, mut buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            self.take_time().await;
            buf.fill(0);
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.ignore(offset.checked_add(data.len() as u64)))
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.ignore(Some(0)))
    }

    fn zero(&self, offset: u64, len: u64, _how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.ignore(offset.checked_add(len)))
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.ignore(Some(0)))
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.ignore(Some(length)))
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        let what = "its size is what its options say";
        let stays = length >= self.size;
        Box::pin(
            async move { if stays { Ok(()) } else { Err(io::Error::new(io::ErrorKind::Unsupported, what)) } },
        )
    }

    fn allocate(&self, offset: u64, len: u64, _how: Allocation) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.ignore(offset.checked_add(len)))
    }

    fn extent(&self, _offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        // As in QEMU, where unless that is promised what is read is anything.
        let kind = if self.read_zeroes { ExtentKind::Hole } else { ExtentKind::Marked };
        Box::pin(async move { Ok(Extent { len, kind }) })
    }

    fn allocated_bytes(&self) -> Option<u64> {
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use graph::drive::parse_drive;
    use graph::options::DiskOptions;
    use graph::{OpenRules, open};

    fn options(drive: &str) -> Result<DiskOptions, String> {
        let tree = parse_drive(OsStr::new(drive), |_| false).map_err(|error| error.to_string())?;
        DiskOptions::of_tree(tree).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_gone_and_everything_reads_as_zeroes() {
        let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
        for (drive, size) in [
            ("driver=raw,file=null-co://", 1 << 30),
            ("driver=raw,file.driver=null-co,file.size=1M", 1 << 20),
            ("driver=raw,file.driver=null-aio,file.size=1M,file.latency-ns=1000", 1 << 20),
        ] {
            reactor.run(async {
                let disk = open(&options(drive).unwrap(), &OpenRules::default()).await.unwrap();
                assert_eq!(disk.size(), size, "{drive}");
                let data = IoVec::from(storage::IoBytes::copy_from(&[7; 4096]));
                disk.write(0, data, true, Hints::NONE).await.unwrap();
                let (result, buf) = disk.read(0, IoBuf::uninit(4096), Hints::NONE).await;
                result.unwrap();
                assert!(buf.iter().all(|byte| *byte == 0), "{drive}");
                disk.close().await.unwrap();
            });
        }
        let huge = options("driver=raw,file.driver=null-aio,file.size=8E").unwrap();
        let refused = reactor.run(open(&huge, &OpenRules::default())).unwrap_err().to_string();
        assert!(refused.ends_with("its size is 9223372036854775808; allowed: less than 2^63"), "{refused}");
        assert!(options("null-co:x").unwrap_err().ends_with("allowed: null-co://, null-aio://"));
    }
}
