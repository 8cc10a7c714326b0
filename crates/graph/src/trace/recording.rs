//! The file of a trace, written in the background.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::recorder::empty;
use super::{Before, MAGIC, Record, Recorder, SECTOR, TraceDisk, TraceRequest, VERSION, tag, varint};
use crate::front::Kind;

/// How long a request waits to be written at most: what a killed server leaves out of its trace.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// What a trace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Requests in it.
    pub requests: u64,
    /// Requests missing in it, because they came faster than they could be written.
    pub lost: u64,
}

/// A trace that is being written.
#[derive(Clone, Debug)]
pub struct Recording {
    recorder: Arc<Recorder>,
    writer: Arc<Mutex<Writer>>,
}

#[derive(Debug)]
struct Writer {
    file: File,
    encoder: Encoder,
    disks: usize,
    /// The time of the first request.
    origin_us: Option<u64>,
    summary: Summary,
    requests: Vec<TraceRequest>,
    spare: Vec<TraceRequest>,
    bytes: Vec<u8>,
    failed: bool,
}

impl Recording {
    /// Writes what `recorder` takes in to a new file that only this user can read.
    ///
    /// # Errors
    /// When there is something at `path` already, or no file can be made there.
    pub fn create(path: &Path, recorder: Arc<Recorder>) -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let (encoder, beginning) = Encoder::new();
        file.write_all(&beginning)?;
        let writer = Writer {
            file,
            encoder,
            disks: 0,
            origin_us: None,
            summary: Summary::default(),
            requests: Vec::new(),
            spare: empty(),
            bytes: Vec::new(),
            failed: false,
        };
        Ok(Self { recorder, writer: Arc::new(Mutex::new(writer)) })
    }

    /// Writes now and then, beside the loop, until it is dropped or writing fails: then nothing is recorded any
    /// more, and the trace ends there.
    pub async fn keep_writing(self) {
        loop {
            reactor::within(WRITE_INTERVAL, self.recorder.filling()).await;
            let own = self.clone();
            if let Err(error) = reactor::blocking(move || own.write()).await {
                tracing::warn!("the trace ends here: it cannot be written: {error}");
                return;
            }
        }
    }

    fn write(&self) -> io::Result<()> {
        let mut writer = self.writer.lock();
        let written = writer.write(&self.recorder);
        if written.is_err() {
            writer.failed = true;
            self.recorder.stop();
        }
        written
    }

    /// Writes what is left and that this is all. Nothing is recorded any more.
    ///
    /// # Errors
    /// When writing fails. A failure before this call has been logged.
    pub fn finish(&self) -> io::Result<Summary> {
        self.recorder.stop();
        let mut writer = self.writer.lock();
        if !writer.failed {
            writer.write(&self.recorder)?;
            let Summary { requests, lost } = writer.summary;
            writer.append(&[Record::End { requests, lost }])?;
        }
        Ok(writer.summary)
    }
}

impl Writer {
    fn write(&mut self, recorder: &Recorder) -> io::Result<()> {
        let mut requests = std::mem::take(&mut self.requests);
        let lost = recorder.take(&mut requests, &mut self.spare);
        // After the requests: every disk that one of them names has joined before.
        let disks = recorder.disks_behind(self.disks);
        self.disks += disks.len();
        requests.sort_by_key(|request| request.at_us);
        let origin_us = self.origin_us.or_else(|| requests.first().map(|first| first.at_us));
        self.origin_us = origin_us;
        let since = |request: &TraceRequest| request.at_us.saturating_sub(origin_us.unwrap_or(0));
        self.summary.requests += requests.len() as u64;
        self.summary.lost += lost;
        let timed = requests
            .iter()
            .map(|request| Record::Request(TraceRequest { at_us: since(request), ..*request }));
        let records = disks.into_iter().map(Record::Disk).chain(timed);
        records.for_each(|record| self.encoder.put(&mut self.bytes, &record));
        requests.clear();
        self.requests = requests;
        if lost > 0 {
            self.encoder.put(&mut self.bytes, &Record::Lost(lost));
        }
        self.append(&[])
    }

    fn append(&mut self, records: &[Record]) -> io::Result<()> {
        records.iter().for_each(|record| self.encoder.put(&mut self.bytes, record));
        let written = self.file.write_all(&self.bytes);
        self.bytes.clear();
        written
    }
}

/// Writes the records of one trace, in order.
#[derive(Debug, Default)]
pub struct Encoder {
    disks: Vec<Before>,
    disk: u16,
    now_us: u64,
}

impl Encoder {
    /// An encoder, and the bytes that a trace begins with.
    pub fn new() -> (Self, Vec<u8>) {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        (Self::default(), bytes)
    }

    /// Appends a record to `bytes`. A request of a disk that was not named before is left out; one that came
    /// before the last one gets the last one's time.
    pub fn put(&mut self, bytes: &mut Vec<u8>, record: &Record) {
        match record {
            Record::Disk(disk) => self.put_disk(bytes, disk),
            Record::Request(request) => self.put_request(bytes, request),
            Record::Lost(lost) => {
                bytes.push(tag::LOST);
                varint::put(bytes, *lost);
            }
            Record::End { requests, lost } => {
                bytes.push(tag::END);
                varint::put(bytes, *requests);
                varint::put(bytes, *lost);
            }
        }
    }

    fn put_disk(&mut self, bytes: &mut Vec<u8>, disk: &TraceDisk) {
        self.disks.push(Before::default());
        bytes.push(tag::DISK);
        varint::put(bytes, disk.bytes);
        varint::put(bytes, disk.cluster_bytes);
        varint::put(bytes, disk.name.len() as u64);
        bytes.extend_from_slice(disk.name.as_bytes());
    }

    fn put_request(&mut self, bytes: &mut Vec<u8>, request: &TraceRequest) {
        let Some(before) = self.disks.get_mut(usize::from(request.disk)) else { return };
        let same_disk = request.disk == self.disk;
        let place = bytes.len();
        bytes.push(request.kind.index() as u8 | if same_disk { tag::SAME_DISK } else { 0 });
        if !same_disk {
            varint::put(bytes, u64::from(request.disk));
        }
        varint::put(bytes, request.at_us.saturating_sub(self.now_us));
        self.disk = request.disk;
        self.now_us = self.now_us.max(request.at_us);
        if request.kind != Kind::Flush {
            let flags = put_range(bytes, before, request);
            bytes[place] |= flags;
        }
    }
}

/// Appends the range, and gives the flags that say how.
fn put_range(bytes: &mut Vec<u8>, before: &mut Before, request: &TraceRequest) -> u8 {
    let len = request.len.min(u64::MAX - request.offset);
    let distance = request.offset.wrapping_sub(before.end).cast_signed();
    let unit = if distance % SECTOR as i64 == 0 && len.is_multiple_of(SECTOR) { SECTOR } else { 1 };
    let mut flags = if unit == SECTOR { tag::SECTORS } else { 0 };
    match distance {
        0 => flags |= tag::FOLLOWS,
        distance => varint::put(bytes, varint::fold(distance / unit as i64)),
    }
    match len == before.len {
        true => flags |= tag::SAME_LEN,
        false => varint::put(bytes, len / unit),
    }
    *before = Before { end: request.offset + len, len };
    flags
}
