//! One request, from the words of a line to its result.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::pace::Unpaced;
use block::{Blame, Block, Error, SECTOR_BYTES, ZeroOptions};
use graph::Disk;
use qcow2::Compressing;
use storage::{Hints, IoBuf, IoBytes, IoVec};
use tool::failure::Failure;
use tool::output::tell;

use super::report::{Moved, dump, reason};
use super::words::{REQUEST_BYTES_MAX, Words, bytes, length, pattern};

/// What fills a write unless said otherwise, as in qemu-io.
const FILLING: u8 = 0xcd;

/// Which command makes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `read` and `write`: one buffer.
    Plain,
    /// `readv` and `writev`: several.
    Vectored,
    /// `aio_read` and `aio_write`: likewise, without waiting.
    Aside,
}

/// A request to be made.
#[derive(Debug)]
pub struct Request {
    action: Action,
    offset: u64,
    bytes: u64,
    show: Show,
}

#[derive(Debug)]
enum Action {
    Read,
    Write {
        data: IoVec,
        fua: bool,
    },
    Compress(IoVec),
    Zero {
        options: ZeroOptions,
        fua: bool,
    },
    Discard,
    /// The state of a machine beside the disk is read, or written where there is data.
    MachineState(Option<IoVec>),
}

/// What is printed of it.
#[derive(Clone, Copy, Debug)]
struct Show {
    verb: &'static str,
    /// What has failed, if it did.
    failed: &'static str,
    quiet: bool,
    machine: bool,
    dump: bool,
    check: Option<Check>,
}

/// What a read must have found.
#[derive(Clone, Copy, Debug)]
struct Check {
    byte: u8,
    /// In the bytes read.
    start: usize,
    len: usize,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Ended {
    show: Show,
    offset: u64,
    bytes: u64,
    elapsed: Duration,
    result: Result<Option<IoBuf>, Error>,
}

impl Show {
    fn of(words: &Words, verb: &'static str, failed: &'static str) -> Self {
        let (quiet, machine, dump) = (words.has('q'), words.has('C'), words.has('v'));
        Self { verb, failed, quiet, machine, dump, check: None }
    }
}

/// A number that must be one of whole sectors.
fn whole_sectors(number: u64, what: &str) -> Result<(), Failure> {
    match number.is_multiple_of(SECTOR_BYTES) {
        true => Ok(()),
        false => Err(Failure::new(format!("the {what} is {number}; allowed: multiples of {SECTOR_BYTES}"))),
    }
}

fn contradiction(rule: &str) -> Failure {
    Failure::new(format!("the options contradict each other: {rule}"))
}

/// The lengths from operand 1 on.
fn lengths(words: &Words, form: Form) -> Result<Vec<u64>, Failure> {
    words.operand(1, "the length")?;
    if form == Form::Plain {
        words.at_most(2)?;
    }
    let lengths: Vec<u64> =
        words.operands.iter().skip(1).map(|text| length(text)).collect::<Result<_, _>>()?;
    match lengths.iter().try_fold(0_u64, |sum, len| sum.checked_add(*len)) {
        Some(sum) if sum <= REQUEST_BYTES_MAX => Ok(lengths),
        _ => Err(Failure::new(format!("the lengths together are too much; allowed: {REQUEST_BYTES_MAX}"))),
    }
}

impl Request {
    /// `read`, `readv`, `aio_read`.
    ///
    /// # Errors
    /// When the words make no request; nothing was done then.
    pub fn read(words: &[&str], form: Form) -> Result<Self, Failure> {
        let (known, failed) = match form {
            Form::Plain => ("bCl:pP:qrs:v", "read"),
            Form::Vectored => ("CP:qrv", "readv"),
            Form::Aside => ("CiP:qrv", "readv"),
        };
        let words = Words::parse(words, known)?;
        let offset = bytes(words.operand(0, "the offset")?, "offset")?;
        let sum: u64 = lengths(&words, form)?.iter().sum();
        let mut show = Show::of(&words, "read", failed);
        show.check = check(&words, sum)?;
        let action = match words.has('b') {
            true => {
                whole_sectors(offset, "offset")?;
                whole_sectors(sum, "length")?;
                Action::MachineState(None)
            }
            false => Action::Read,
        };
        Ok(Self { action, offset, bytes: sum, show })
    }

    /// `write`, `writev`, `aio_write`. Reads the file that fills the write.
    ///
    /// # Errors
    /// When the words make no request, or that file cannot be read; nothing was done then.
    pub fn write(words: &[&str], form: Form) -> Result<Self, Failure> {
        let (known, failed) = match form {
            Form::Plain => ("bcCfnpP:qrs:uz", "write"),
            Form::Vectored => ("CfP:qr", "writev"),
            Form::Aside => ("CfiP:qruz", "aio_write"),
        };
        let words = Words::parse(words, known)?;
        check_kind_of_write(&words, form)?;
        let offset = bytes(words.operand(0, "the offset")?, "offset")?;
        let fast_only = words.has('n');
        let lengths = match words.operands.get(1) {
            // Nothing of such a request is in memory.
            Some(text) if fast_only && words.operands.len() == 2 => vec![bytes(text, "length")?],
            _ => lengths(&words, form)?,
        };
        let sum = lengths.iter().sum();
        if words.has('b') || words.has('c') {
            whole_sectors(offset, "offset")?;
            whole_sectors(sum, "length")?;
        }
        let show = Show::of(&words, "wrote", failed);
        let fua = words.has('f');
        let action = if words.has('z') {
            if lengths.len() > 1 {
                return Err(contradiction("-z takes one length"));
            }
            Action::Zero { options: ZeroOptions { unmap: words.has('u'), fast_only }, fua }
        } else {
            let data = in_parts(&filled(&words, sum)?, &lengths);
            if words.has('b') {
                Action::MachineState(Some(data))
            } else if words.has('c') {
                Action::Compress(data)
            } else {
                Action::Write { data, fua }
            }
        };
        Ok(Self { action, offset, bytes: sum, show })
    }

    /// `discard`.
    ///
    /// # Errors
    /// When the words make no request.
    pub fn discard(words: &[&str]) -> Result<Self, Failure> {
        let words = Words::parse(words, "Cq")?;
        let offset = bytes(words.operand(0, "the offset")?, "offset")?;
        let sum: u64 = lengths(&words, Form::Plain)?.iter().sum();
        let show = Show::of(&words, "discard", "discard");
        Ok(Self { action: Action::Discard, offset, bytes: sum, show })
    }

    /// Does it. `compressing` is there where the image can have compressed clusters.
    pub async fn perform(self, disk: Arc<Disk>, compressing: Option<Arc<Compressing>>) -> Ended {
        let Self { action, offset, bytes, show } = self;
        let began = Instant::now();
        let written = |result: Result<(), Error>| result.map(|()| None);
        let result = match action {
            Action::MachineState(data) => machine_state(&disk, offset, bytes, data).await,
            // Before memory is taken for it.
            _ if offset.checked_add(bytes).is_none_or(|end| end > disk.size()) => {
                Err(Blame::new(disk.root().name()).past_end(offset, bytes, disk.size()))
            }
            Action::Read => read(&disk, offset, bytes).await,
            Action::Write { data, fua } => written(disk.write(offset, data, fua, Hints::NONE).await),
            Action::Compress(data) => written(compress(&disk, compressing, offset, data).await),
            Action::Zero { options, fua } => written(disk.zero(offset, bytes, options, fua, &Unpaced).await),
            Action::Discard => written(disk.discard(offset, bytes, false, &Unpaced).await),
        };
        Ended { show, offset, bytes, elapsed: began.elapsed(), result }
    }
}

fn check(words: &Words, sum: u64) -> Result<Option<Check>, Failure> {
    let number = |letter: char, what| words.value(letter).map(|text| bytes(text, what)).transpose();
    let (start, len) = (number('s', "start of the pattern")?, number('l', "length of the pattern")?);
    let Some(byte) = words.value('P') else {
        return match start.or(len) {
            None => Ok(None),
            Some(_) => Err(contradiction("-s and -l are for -P")),
        };
    };
    let byte = pattern(byte)?;
    let start = start.unwrap_or(0);
    let len = len.unwrap_or_else(|| sum.saturating_sub(start));
    match start.checked_add(len) {
        // Both fit a length in memory, `sum`.
        Some(end) if end <= sum => Ok(Some(Check { byte, start: start as usize, len: len as usize })),
        _ => Err(Failure::new(format!("the pattern ends behind the {sum} bytes that are read"))),
    }
}

fn check_kind_of_write(words: &Words, form: Form) -> Result<(), Failure> {
    let has = |letter| words.has(letter);
    // Of an asynchronous one -z counts, as in qemu-io.
    let content = ['z', 'P', 's'].into_iter().filter(|letter| has(*letter)).count();
    if content > 1 && form != Form::Aside {
        return Err(contradiction("give one of -z, -P and -s"));
    }
    if let Some(letter) = ['n', 'u'].into_iter().find(|letter| has(*letter) && !has('z')) {
        return Err(contradiction(&format!("-{letter} is for -z")));
    }
    if has('b') && has('z') {
        return Err(contradiction("-b does not go with -z"));
    }
    if has('f') && (has('b') || has('c')) {
        return Err(contradiction("-f goes with neither -b nor -c"));
    }
    Ok(())
}

/// The bytes of a write.
fn filled(words: &Words, len: u64) -> Result<IoBytes, Failure> {
    let mut data = room(len)?;
    match (words.value('s'), words.value('P')) {
        (Some(path), _) => {
            let content = start_of_file(path, len)?;
            for piece in data.chunks_mut(content.len()) {
                piece.copy_from_slice(&content[..piece.len()]);
            }
        }
        (None, Some(byte)) => data.fill(pattern(byte)?),
        (None, None) => data.fill(FILLING),
    }
    Ok(data.freeze())
}

fn room(len: u64) -> Result<IoBuf, Failure> {
    let buf = usize::try_from(len).ok().and_then(IoBuf::try_uninit);
    buf.ok_or_else(|| Failure::new(format!("there is no memory for {len} bytes")))
}

/// At most `len` bytes, at least one, unless `len` is 0.
fn start_of_file(path: &str, len: u64) -> Result<Vec<u8>, Failure> {
    use std::io::Read;
    let failed = |error: &io::Error| Failure::of_system(format!("cannot read {path}"), error);
    let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let mut content = Vec::new();
    file.take(len.max(1)).read_to_end(&mut content).map_err(|error| failed(&error))?;
    match content.is_empty() {
        false => Ok(content),
        true => Err(Failure::new(format!("{path} is empty: there is nothing to write"))),
    }
}

fn in_parts(data: &IoBytes, lengths: &[u64]) -> IoVec {
    let (mut parts, mut from) = (IoVec::new(), 0);
    for len in lengths {
        // All of them together fit a length in memory.
        let to = from + *len as usize;
        parts.push(data.slice(from, to));
        from = to;
    }
    parts
}

/// Writes `data` to the state of a machine that the image holds, or reads `bytes` of it.
async fn machine_state(
    disk: &Disk,
    offset: u64,
    bytes: u64,
    data: Option<IoVec>,
) -> Result<Option<IoBuf>, Error> {
    let image = disk.image().ok_or_else(|| {
        Blame::new(disk.root().name()).unsupported("a raw disk has no room for the state of a machine")
    })?;
    match data {
        Some(data) => image.write_machine_state(offset, data).await.map(|()| None),
        None => {
            let (result, buf) = image.read_machine_state(offset, room_to_read(disk, bytes)?).await;
            result.map(|()| Some(buf))
        }
    }
}

fn room_to_read(disk: &Disk, bytes: u64) -> Result<IoBuf, Error> {
    let buf = usize::try_from(bytes).ok().and_then(IoBuf::try_uninit);
    buf.ok_or_else(|| Blame::new(disk.root().name()).no_memory("what is read"))
}

async fn read(disk: &Disk, offset: u64, bytes: u64) -> Result<Option<IoBuf>, Error> {
    let buf = room_to_read(disk, bytes)?;
    let (result, buf) = disk.read(offset, buf, Hints::NONE).await;
    result.map(|_| Some(buf))
}

/// Writes whole clusters compressed; the last one of the disk may be short.
async fn compress(
    disk: &Disk,
    compressing: Option<Arc<Compressing>>,
    offset: u64,
    data: IoVec,
) -> Result<(), Error> {
    let blame = Blame::new(disk.root().name());
    let (size, end) = (disk.size(), offset + data.len() as u64);
    let compressing = compressing.ok_or_else(|| blame.unsupported("it cannot have compressed clusters"))?;
    let cluster = compressing.cluster_bytes();
    if !offset.is_multiple_of(cluster) || !(end.is_multiple_of(cluster) || end == size) {
        return Err(blame.invalid(format!("only whole clusters ({cluster} bytes) can be compressed")));
    }
    Block::write(&*compressing, offset, data, Hints::NONE).await?;
    Block::flush(&*compressing).await
}

impl Ended {
    /// Writes what came of it; whether that is what was asked for.
    pub fn show(self, out: &mut dyn Write) -> io::Result<bool> {
        let Self { show, offset, bytes, elapsed, result } = self;
        let read = match result {
            Ok(read) => read,
            Err(error) => {
                tell_details(&error);
                writeln!(out, "{} failed: {}", show.failed, reason(&error))?;
                return Ok(false);
            }
        };
        let read = read.as_deref().unwrap_or_default();
        let wrong = show.check.filter(|check| !check.holds(read));
        if let Some(Check { start, len, .. }) = wrong {
            let at = offset + start as u64;
            writeln!(out, "Pattern verification failed at offset {at}, {len} bytes")?;
        }
        if !show.quiet {
            if show.dump {
                dump(out, offset, read)?;
            }
            let moved = Moved { verb: show.verb, offset, bytes, elapsed };
            if show.machine { moved.write_machine(out)? } else { moved.write_human(out)? }
        }
        Ok(wrong.is_none())
    }
}

impl Check {
    fn holds(&self, read: &[u8]) -> bool {
        let range = read.get(self.start..self.start + self.len);
        range.is_some_and(|bytes| bytes.iter().all(|byte| *byte == self.byte))
    }
}

/// What the system's words do not tell.
fn tell_details(error: &Error) {
    if !matches!(error, Error::Io { .. } | Error::PastEnd { .. }) {
        tell(format_args!("cowhand: {error}"));
    }
}
