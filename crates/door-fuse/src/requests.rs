//! Requests that reach the disk, from their start to their answer.

use std::rc::Rc;

use export::{Error, ErrorKind, Hints, Permit, ReadKind, RequestCount, RequestKind};
use memory::{IoBuf, IoVec};
use rustix::io::Errno;

use crate::abi::{self, Body, Fallocate, SeekTarget};
use crate::limits::{INLINE_READ_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::reader::Data;
use crate::session::Session;
use crate::space;

/// Work on the disk that moves no data of the request's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Flush,
    Fallocate { what: Fallocate, offset: u64, len: u64 },
    Seek { offset: u64, target: SeekTarget },
    Truncate { size: u64 },
}

/// Why a request fails: the disk's reason, which the log has to know, or a plain refusal.
#[derive(Debug)]
pub(crate) enum Failed {
    Disk(RequestKind, Error),
    Refused(Errno),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// Reads what of `[offset, offset + len)` lies in the disk: at once where that needs no waiting, as a task elsewhere.
pub(crate) async fn read(session: &Rc<Session>, unique: u64, offset: u64, len: u32) {
    let entry = &session.export.entry;
    let there = entry.disk().size().saturating_sub(offset);
    let len = there.min(u64::from(len)).min(REQUEST_BYTES_MAX as u64);
    // At most 1 MiB.
    let size = len as usize;
    if size == 0 {
        return session.send(unique, Ok(&[]));
    }
    let Some(mut buf) = IoBuf::try_uninit(size) else { return session.refuse(unique, Errno::NOMEM) };
    let hints = session.hints(0);
    let known =
        if size <= INLINE_READ_BYTES_MAX { entry.disk().try_read(offset, &mut buf, hints) } else { None };
    match known {
        Some(kind) => {
            if kind == ReadKind::Zeroes {
                buf.fill(0);
            }
            entry.counters().read_inline(1, len);
            session.send(unique, Ok(&buf));
        }
        None => {
            let permit = session.in_flight.admit(len).await;
            let session = Rc::clone(session);
            reactor::spawn_now(
                async move { read_waiting(&session, unique, (offset, buf, hints), permit).await },
            )
            .detach();
        }
    }
}

async fn read_waiting(
    session: &Session,
    unique: u64,
    (offset, buf, hints): (u64, IoBuf, Hints),
    permit: Permit,
) {
    let entry = &session.export.entry;
    let counted = RequestCount::new(entry);
    let (result, buf) = entry.disk().read(offset, buf, hints, &session.pace).await;
    entry.counters().ended(RequestKind::Read, result.is_ok(), buf.len() as u64);
    match result {
        Ok(_) => session.send(unique, Ok(&buf)),
        Err(error) => fail(session, unique, &Failed::Disk(RequestKind::Read, error)),
    }
    drop((counted, permit));
}

/// Writes what of `data` finds a place in the disk, which may be made larger for it.
pub(crate) async fn write(session: &Rc<Session>, unique: u64, offset: u64, data: Data) {
    if session.export.entry.disk().read_only() {
        let error = if session.export.options.as_qemu { Errno::ACCESS } else { Errno::ROFS };
        return session.refuse(unique, error);
    }
    let permit = session.in_flight.admit(data.held).await;
    let (session, hints) = (Rc::clone(session), session.hints(1));
    let task = async move {
        let counted = RequestCount::new(&session.export.entry);
        match write_now(&session, offset, data.bytes.into(), hints).await {
            Ok(written) => session.answer(unique, Ok(abi::written(written))),
            Err(failed) => fail(&session, unique, &failed),
        }
        drop((counted, permit));
    };
    reactor::spawn_now(task).detach();
}

async fn write_now(session: &Session, offset: u64, mut data: IoVec, hints: Hints) -> Result<u32, Failed> {
    let (export, disk) = (&session.export, session.export.entry.disk());
    let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
    if end > disk.size() && export.options.growable {
        space::grow(export, end).await?;
    }
    let there = disk.size().saturating_sub(offset);
    if there == 0 && !data.is_empty() {
        return Err(if export.options.as_qemu { Errno::IO } else { Errno::NOSPC }.into());
    }
    if there < data.len() as u64 {
        // Shorter than the data: it fits its type.
        data = data.slice(0, there as usize);
    }
    let bytes = data.len();
    let result = disk.write(offset, data, false, hints, &session.pace).await;
    export.entry.counters().ended(RequestKind::Write, result.is_ok(), bytes as u64);
    result.map_err(|error| Failed::Disk(RequestKind::Write, error))?;
    export.kept.lock().was_written();
    // At most 1 MiB.
    Ok(u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// Starts work that may wait.
pub(crate) async fn start(session: &Rc<Session>, unique: u64, work: Work) {
    let permit = session.in_flight.admit(0).await;
    let session = Rc::clone(session);
    let task = async move {
        let counted = RequestCount::new(&session.export.entry);
        match perform(&session, unique, work).await {
            Ok(body) => session.answer(unique, Ok(body)),
            Err(failed) => fail(&session, unique, &failed),
        }
        drop((counted, permit));
    };
    reactor::spawn_now(task).detach();
}

async fn perform(session: &Rc<Session>, unique: u64, work: Work) -> Result<Body, Failed> {
    let export = &session.export;
    match work {
        Work::Flush => {
            let result = export.entry.disk().flush().await;
            export.entry.counters().ended(RequestKind::Flush, result.is_ok(), 0);
            result.map_err(|error| Failed::Disk(RequestKind::Flush, error))?;
            Ok(Body::default())
        }
        Work::Fallocate { what, offset, len } => {
            let interruptible = session.mounted.interruptible(unique);
            let is_interrupted = || interruptible.is_interrupted();
            space::fallocate((export, &session.pace), what, offset, len, is_interrupted).await?;
            export.kept.lock().was_written();
            Ok(Body::default())
        }
        Work::Seek { offset, target } => space::seek(export, offset, target).await.map(abi::found),
        Work::Truncate { size } => {
            space::truncate(export, size).await?;
            Ok(session.attributes())
        }
    }
}

/// The log gets the whole story, the program the number.
fn fail(session: &Session, unique: u64, failed: &Failed) {
    match failed {
        Failed::Disk(kind, error) => {
            error.log();
            let errno = errno(error.kind(), *kind);
            tracing::debug!(unique, %errno, "request failed");
            session.send(unique, Err(errno));
        }
        Failed::Refused(errno) => session.refuse(unique, *errno),
    }
}

/// What a program receives whose request, of this kind, has failed.
pub(crate) fn errno(failed: ErrorKind, request: RequestKind) -> Errno {
    match failed {
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::ReadOnly => Errno::ROFS,
        // As of a block device: there is no place behind its end. The disk can be made smaller while programs use it.
        ErrorKind::PastEnd => match request {
            RequestKind::Write | RequestKind::Zero => Errno::NOSPC,
            RequestKind::Read
            | RequestKind::Flush
            | RequestKind::Discard
            | RequestKind::Prefetch
            | RequestKind::BlockStatus => Errno::IO,
        },
        ErrorKind::NotSupported => Errno::OPNOTSUPP,
        ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::Io | ErrorKind::Corrupt => Errno::IO,
        ErrorKind::NoMemory => Errno::NOMEM,
        ErrorKind::ShuttingDown => Errno::SHUTDOWN,
    }
}
