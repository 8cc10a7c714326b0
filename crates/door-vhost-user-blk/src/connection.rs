//! One front-end's connection: its messages, in order, and the rings that they start and stop.

use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use export::repeats::{self, Level};
use export::{Departure, NoPlace, Place};
use futures_util::future::{Either, select};
use memory::{IoBuf, IoBytes};
use reactor::net::Stream;

use crate::aside::{Arriving, Aside, Passed};
use crate::channel::Channel;
use crate::handed::{HandedFrontEnd, Said};
use crate::limits::{MESSAGE_DESCRIPTORS_MAX, MESSAGE_PATIENCE, PREDECESSOR_PATIENCE};
use crate::message::{self, HEADER_BYTES, Header, Message, MessageError};
use crate::server::Server;
use crate::session::{Answer, Refused, Session};
use crate::shown_disk::VhostExport;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("connection closed by the front-end")]
    Gone,
    #[error("another process resumes the front-end")]
    HandOver,
    #[error("it cannot resume where another process was: {0}")]
    NotResumed(Refused),
    #[error("another front-end uses the disk")]
    Busy,
    #[error("{0}")]
    NoPlace(NoPlace),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("descriptors that front-ends of the export have sent are still being closed")]
    Unclosed,
    #[error("a message brings {found} descriptors; at most {MESSAGE_DESCRIPTORS_MAX} are allowed")]
    Descriptors { found: usize },
    #[error("a message is not complete {} s after its beginning", MESSAGE_PATIENCE.as_secs())]
    Slow,
    #[error("{name}: {why}")]
    Refused { name: &'static str, why: Refused },
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl End {
    /// It has to be reported.
    fn is_fault(&self) -> bool {
        !matches!(self, Self::Gone | Self::HandOver)
    }
}

/// Serves one front-end to its end, and the end of all that it asked for. Another process has received `reported` from it.
pub(crate) async fn serve(
    server: Arc<Server>,
    (stream, departure): (Rc<Stream>, Rc<Departure>),
    export: Arc<VhostExport>,
    reported: Vec<Said>,
) {
    let entry = Arc::clone(&export.entry);
    let leaving = {
        let (stream, entry) = (Rc::clone(&stream), Arc::clone(&entry));
        reactor::spawn(async move {
            entry.leaving().wait().await;
            // Whatever waits for this front-end, in either direction, ends.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        })
    };
    let end = match place(&export, &stream).await {
        Ok(place) => {
            tracing::info!(export = entry.name(), "front-end uses export");
            departure.can_be_given();
            let end = talk(&server, (&stream, &departure), &export, reported).await;
            // Who comes next repeats what was in flight: not before all of it has ended.
            drop(place);
            end
        }
        Err(end) => end,
    };
    drop(leaving);
    if !matches!(end, End::HandOver) {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    if end.is_fault() {
        let text = format!("export {:?}: the connection of a front-end ends: {end}", entry.name());
        repeats::tell(Level::Warn, "vhost-user-blk", entry.name(), &text);
    } else {
        tracing::info!(export = entry.name(), reason = %end, "connection ends");
    }
}

/// The only place at the export. The front-end before may be on its way out: it is waited for.
async fn place(export: &VhostExport, stream: &Stream) -> Result<Place, End> {
    let patience = pin!(reactor::sleep(PREDECESSOR_PATIENCE));
    let gone = pin!(stream.hung_up());
    let mut given_up = select(patience, gone);
    loop {
        match Place::take(Arc::clone(&export.entry), 1) {
            Ok(place) => return Ok(place),
            Err(gone @ NoPlace::TakenAway(_)) => return Err(End::NoPlace(gone)),
            Err(NoPlace::Full { .. }) => {}
        }
        match select(pin!(export.entry.unused()), given_up).await {
            Either::Left((_, waiting)) => given_up = waiting,
            Either::Right((Either::Left(_), _)) => return Err(End::Busy),
            Either::Right((Either::Right(_), _)) => return Err(End::Gone),
        }
    }
}

/// Answers messages until there are no more; then stops every ring.
async fn talk(
    server: &Arc<Server>,
    (stream, departure): (&Stream, &Departure),
    export: &Arc<VhostExport>,
    reported: Vec<Said>,
) -> End {
    let channel = Rc::new(Channel::default());
    let telling = reactor::spawn(Rc::clone(&channel).tell_of_sizes(Arc::clone(export)));
    let mut session = Session::new(server, export, channel);
    let end = match session.repeat(reported).await {
        Ok(()) => answer_all(&mut session, (stream, departure)).await,
        Err(why) => End::NotResumed(why),
    };
    telling.cancel().await;
    if matches!(end, End::HandOver) {
        session.rest().await;
        return match hand(server, &session, stream) {
            Ok(()) => end,
            Err(error) => End::Io(error),
        };
    }
    session.stop_all().await;
    end
}

/// Answers messages until there are no more, or the front-end is to be given away. That happens between two messages.
async fn answer_all(session: &mut Session, (stream, departure): (&Stream, &Departure)) -> End {
    loop {
        match select(pin!(departure.asked()), pin!(stream.readable())).await {
            Either::Left(((), _)) => return End::HandOver,
            Either::Right(_) => {}
        }
        if let Err(end) = answer_next(session, stream).await {
            return end;
        }
    }
}

/// Gives a front-end whose rings are at rest to another process.
fn hand(server: &Server, session: &Session, stream: &Stream) -> io::Result<()> {
    let export = session.export();
    let front = HandedFrontEnd {
        socket: stream.as_fd().try_clone_to_owned()?,
        export: export.entry.name().to_owned(),
        size: export.entry.disk().size(),
        cache: *export.cache.lock(),
        discard_bytes: Some(export.discard_bytes()),
        reported: session.reported()?,
    };
    server.hand(front);
    Ok(())
}

/// A whole message: its head, its payload, its descriptors.
async fn next(stream: &Stream, aside: &Arc<Aside>) -> Result<(Header, Vec<u8>, Vec<Passed>), End> {
    let mut arriving = Arriving::new(aside);
    let head = receive(stream, HEADER_BYTES, &mut arriving).await?;
    let header = Header::decode(head.first_chunk().copied().unwrap_or_default())?;
    let payload = receive(stream, header.payload_bytes, &mut arriving).await?;
    Ok((header, payload, arriving.arrived()))
}

/// The next message, unless it takes longer than `patience`.
async fn next_in_time(
    stream: &Stream,
    aside: &Arc<Aside>,
    patience: Duration,
) -> Result<(Header, Vec<u8>, Vec<Passed>), End> {
    let (message, patience) = (pin!(next(stream, aside)), pin!(reactor::sleep(patience)));
    match select(message, patience).await {
        Either::Left((message, _)) => message,
        Either::Right(_) => Err(End::Slow),
    }
}

async fn answer_next(session: &mut Session, stream: &Stream) -> Result<(), End> {
    let aside = Arc::clone(&session.export().aside);
    if !aside.has_room(MESSAGE_PATIENCE).await {
        return Err(End::Unclosed);
    }
    let (header, payload, fds) = next_in_time(stream, &aside, MESSAGE_PATIENCE).await?;
    let asked = Message::decode(header.request, &payload)?;
    tracing::debug!(?asked, fds = fds.len(), "message");
    let name = message::name(header.request);
    let answered = session.handle(asked, payload.len(), fds).await;
    let acknowledged = header.needs_reply && session.acknowledges();
    match answered {
        Ok(Answer::Payload(payload)) => send(stream, header.request, &payload).await?,
        Ok(Answer::WithFd(payload, fd)) => {
            stream.send_with_fds_now(&message::answer(header.request, &payload), &[fd.as_fd()])?;
        }
        Ok(Answer::None) if acknowledged => send(stream, header.request, &message::number(0)).await?,
        Ok(Answer::None) => {}
        // The front-end decides what comes of it.
        Err(why) if acknowledged => {
            let entry = &session.export().entry;
            let text = format!("export {:?}: {name} is refused: {why}", entry.name());
            repeats::tell(Level::Warn, "vhost-user-blk", entry.name(), &text);
            send(stream, header.request, &message::number(1)).await?;
        }
        Err(why) => return Err(End::Refused { name, why }),
    }
    Ok(())
}

async fn send(stream: &Stream, request: u32, payload: &[u8]) -> io::Result<()> {
    stream.send_all(IoBytes::copy_from(&message::answer(request, payload)).into()).await
}

/// Exactly `len` bytes: descriptors come with the message that they belong to. Each part of a message may bring some.
async fn receive(stream: &Stream, len: usize, arriving: &mut Arriving) -> Result<Vec<u8>, End> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let (count, buf) = stream.recv_with_fds(IoBuf::zeroed(len - bytes.len()), &mut arriving.fds).await;
        let found = arriving.fds.len();
        if found > MESSAGE_DESCRIPTORS_MAX {
            return Err(End::Descriptors { found });
        }
        match count? {
            0 => return Err(End::Gone),
            count => bytes.extend_from_slice(&buf[..count]),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use futures_util::future::join_all;

    use super::*;

    const SOON: Duration = Duration::from_millis(200);
    const LATE: Duration = Duration::from_secs(60);

    /// Both ends of a connection.
    fn pair() -> (Stream, Stream) {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        (Stream::from_fd(near.into()), Stream::from_fd(far.into()))
    }

    /// A message that was begun and never ended kept its descriptors, and the only place at the disk, for ever.
    #[test]
    fn a_message_that_does_not_end_in_time_ends_its_connection_and_holds_up_no_other() {
        let whole = [&[16u32, 1, 8].map(u32::to_ne_bytes).concat()[..], &[0; 8]].concat();
        for backend in [reactor::Backend::Ring, reactor::Backend::Threads] {
            let reactor = reactor::Reactor::new(backend).expect("a loop");
            let aside = Arc::new(Aside::default());
            let (from, to) = rustix::pipe::pipe().expect("a pipe");
            // A byte, half a header, a header alone, half a payload: each brings a descriptor.
            let begun = [1, HEADER_BYTES / 2, HEADER_BYTES, HEADER_BYTES + 4].map(|len| {
                let (near, far) = pair();
                far.send_with_fds_now(&whole[..len], &[to.as_fd()]).expect("room for it");
                (near, far)
            });
            drop(to);
            let (honest, front_end) = pair();
            reactor.run(async {
                let slow = join_all(begun.iter().map(|(near, _)| next_in_time(near, &aside, SOON)));
                let served = async {
                    front_end.send_all(IoBytes::copy_from(&whole).into()).await.expect("room for it");
                    next_in_time(&honest, &aside, LATE).await
                };
                let (slow, served) = match select(pin!(slow), pin!(served)).await {
                    Either::Right((served, slow)) => (slow.await, served),
                    Either::Left((slow, _)) => panic!("others wait for {slow:?}"),
                };
                let (header, payload, _) = served.expect("a message");
                assert_eq!((header.request, payload.len()), (16, 8));
                for end in slow {
                    assert!(matches!(&end, Err(end @ End::Slow) if end.is_fault()), "{end:?}");
                }
                // The other end of a pipe that is closed everywhere reads the end.
                let end = aside.call(LATE, move || rustix::io::read(&from, &mut [0; 1])).await;
                assert_eq!(end, Some(Ok(0)));
            });
        }
    }
}
