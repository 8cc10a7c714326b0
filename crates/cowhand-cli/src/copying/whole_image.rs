//! An image that is written whole and in order, into a file or a pipe ([`formats::sink`]).

use std::io;
use std::path::Path;

use block::{Blame, Block, BlockFuture, Capabilities, Error, Hints, ZeroOptions};
use formats::sink::{Packing, Piece, Sink, SinkError};
use futures_util::future::try_join_all;
use futures_util::lock::Mutex;
use memory::{IoBytes, IoVec};
use storage::{FileLock, FileOptions, FileStorage, Role, Storage, UnlockedFile};
use tool::failure::Failure;

use super::pipe::PipeTarget;

/// The image.
#[derive(Debug)]
pub struct WholeImage {
    name: String,
    size: u64,
    unit_bytes: u64,
    packing: Option<Packing>,
    // A future's lock: writes await the file while they hold it. They come one at a time.
    making: Mutex<Making>,
}

#[derive(Debug)]
struct Making {
    sink: Box<dyn Sink>,
    output: Output,
}

/// Where the image goes.
#[derive(Debug)]
enum Output {
    File { storage: Box<FileStorage>, _lock: FileLock },
    Pipe(PipeTarget),
}

impl WholeImage {
    /// An image of a disk of `size` bytes in the file `path`; what that holds is lost.
    ///
    /// # Errors
    /// When the file is in use or cannot be written, or the format has no disks of that size.
    pub async fn in_file(path: &Path, size: u64, sink: Box<dyn Sink>) -> Result<Self, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot write {}", path.display()), error)
        };
        let file = UnlockedFile::open(path, &FileOptions::default()).map_err(|error| failed(&error))?;
        let lock = FileLock::acquire_role(file.fd(), Role::Writer).map_err(|error| failed(&error))?;
        let storage = Box::new(file.measured(Some(&lock)).map_err(|error| failed(&error))?);
        storage.shorten_to(0).await.map_err(|error| failed(&error))?;
        Self::begin(path.display().to_string(), size, sink, Output::File { storage, _lock: lock }).await
    }

    /// The same through a pipe, if the format's file can be written from its first byte to its last.
    ///
    /// # Errors
    /// When it cannot, the pipe is closed, or the format has no disks of that size.
    pub async fn in_pipe(pipe: PipeTarget, sink: Box<dyn Sink>) -> Result<Self, Failure> {
        let (name, size) = (pipe.name().to_owned(), pipe.size());
        if !sink.is_sequential() {
            return Err(pipe.refused("this image has a table in front that is known at the end only"));
        }
        Self::begin(name, size, sink, Output::Pipe(pipe)).await
    }

    async fn begin(
        name: String,
        size: u64,
        mut sink: Box<dyn Sink>,
        output: Output,
    ) -> Result<Self, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::because(format!("cannot write {name}"), error);
        let pieces = sink.begin(size).map_err(|error| failed(&error))?;
        let (unit_bytes, packing) = (sink.unit_bytes(), sink.packing());
        let mut making = Making { sink, output };
        making.put(pieces).await.map_err(|error| failed(&error))?;
        Ok(Self { name, size, unit_bytes, packing, making: Mutex::new(making) })
    }

    /// What writes must begin at and end at multiples of, but at the end of the disk.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Everything was written: writes what stands at the end, or can be written then only.
    ///
    /// # Errors
    /// When the file or the pipe does not take it.
    pub async fn finish(&self) -> Result<(), Failure> {
        let mut making = self.making.lock().await;
        let failed =
            |error: &dyn std::error::Error| Failure::because(format!("cannot write {}", self.name), error);
        let pieces = making.sink.finish().map_err(|error| failed(&error))?;
        making.put(pieces).await.map_err(|error| failed(&error))
    }

    fn blame(&self) -> Blame {
        Blame::new(&self.name)
    }

    async fn append(&self, offset: u64, data: IoVec) -> Result<(), Error> {
        let units = match self.packing {
            None => vec![data.to_bytes()],
            Some(packing) => {
                let packed = self.pack(packing, &data).await;
                packed.map_err(self.blame().io("compressing data"))?
            }
        };
        let mut making = self.making.lock().await;
        let mut pieces = Vec::new();
        for (number, unit) in (0..).zip(units) {
            let made = making.sink.data(offset + number * self.unit_bytes, unit);
            let refused = |error: SinkError| self.blame().io("writing data")(io::Error::other(error));
            pieces.extend(made.map_err(refused)?);
        }
        making.put(pieces).await.map_err(self.blame().io("writing data"))
    }

    /// Packs units on all threads that there are for it.
    async fn pack(&self, packing: Packing, data: &IoVec) -> io::Result<Vec<IoBytes>> {
        let unit = usize::try_from(self.unit_bytes).unwrap_or(usize::MAX);
        let starts = (0..data.len()).step_by(unit);
        let units = starts.map(|at| data.slice(at, (at + unit).min(data.len())).to_bytes());
        let packed = units.map(|unit| reactor::blocking(move || packing(&unit)));
        let packed = try_join_all(packed).await?;
        Ok(packed.iter().map(|unit| IoBytes::copy_from(unit)).collect())
    }
}

impl Making {
    /// Writes pieces; neighbours go together.
    async fn put(&mut self, pieces: Vec<Piece>) -> io::Result<()> {
        let mut pieces = pieces.into_iter().peekable();
        while let Some(Piece { at, bytes }) = pieces.next() {
            let mut run = IoVec::from(bytes);
            while let Some(next) = pieces.next_if(|next| next.at == at + run.len() as u64) {
                run.push(next.bytes);
            }
            match &self.output {
                Output::File { storage, .. } => storage.write(at, run, Hints::NONE).await?,
                Output::Pipe(pipe) => pipe.write_behind(at, run).await.map_err(io::Error::other)?,
            }
        }
        Ok(())
    }
}

impl Block for WholeImage {
    fn driver(&self) -> &'static str {
        "image"
    }

    fn refusal(&self) -> &'static str {
        "an image that is made is only written"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: false, alignment: 1, cached: false, cluster_bytes: None }
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.append(offset, data))
    }

    /// What is left out reads as zeroes.
    fn zero(&self, _: u64, _: u64, _: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}
