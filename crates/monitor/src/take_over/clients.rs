//! Clients as messages, and back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use door_nbd::{ExportFlags, HandedClient};
use door_vhost_user_blk::{HandedFrontEnd, Said};
use tool::failure::Failure;

use super::line::{Line, LineError, Received};
use super::message::{Dialect, FrontEnd, Message, NbdClient};
use super::{CLOSING_MAX, Estate, journal, levels, sockets};
use crate::inventory::Inventory;
use crate::qmp::Steering;

/// Sends the handover state. Nothing of it is closed here.
///
/// # Errors
/// When the successor is gone.
pub async fn send(line: &Line, estate: &Estate) -> Result<(), LineError> {
    for sockets::Handed { place, fd } in &estate.sockets {
        line.send(&Message::Socket(place.clone()), &[], &[fd.as_fd()]).await?;
    }
    for entry in &estate.commands {
        line.say(&Message::Command(entry.clone())).await?;
    }
    for levels in &estate.levels {
        line.say(&Message::Levels(levels.clone())).await?;
    }
    for client in &estate.clients {
        let message = Message::NbdClient(NbdClient {
            export: client.export.clone(),
            dialect: shown(client.dialect),
            size: client.size,
            flags: client.flags.to_wire(),
            contexts: client.contexts.clone(),
        });
        line.send(&message, &client.begun, &[client.socket.as_fd()]).await?;
    }
    for front in &estate.front_ends {
        send_front_end(line, front).await?;
    }
    line.say(&Message::End {}).await
}

async fn send_front_end(line: &Line, front: &HandedFrontEnd) -> Result<(), LineError> {
    let message = Message::FrontEnd(FrontEnd {
        export: front.export.clone(),
        size: front.size,
        cache: front.cache,
        discard_bytes: front.discard_bytes,
        said: u32::try_from(front.reported.len()).unwrap_or(u32::MAX),
    });
    line.send(&message, &[], &[front.socket.as_fd()]).await?;
    for said in &front.reported {
        let fds: Vec<BorrowedFd<'_>> = said.fd.iter().map(AsFd::as_fd).collect();
        line.send(&Message::Said { request: said.request }, &said.payload, &fds).await?;
    }
    Ok(())
}

/// Receives the handover state.
///
/// # Errors
/// When it does not come, or is malformed.
pub async fn receive(line: &Line) -> Result<Estate, Failure> {
    let mut estate = Estate::default();
    loop {
        let Received { message, data, mut fds } = next(line).await?;
        match message {
            Message::Socket(place) => estate.sockets.push(sockets::Handed { place, fd: only(&mut fds)? }),
            Message::Command(entry) => estate.commands.push(entry),
            Message::Levels(levels) => estate.levels.push(levels),
            Message::NbdClient(client) => estate.clients.push(HandedClient {
                socket: only(&mut fds)?,
                export: client.export,
                dialect: meant(client.dialect),
                size: client.size,
                flags: ExportFlags::from_wire(client.flags),
                contexts: client.contexts,
                begun: data,
            }),
            Message::FrontEnd(front) => {
                let socket = only(&mut fds)?;
                let front_end = receive_front_end(line, front, socket).await?;
                estate.front_ends.push(front_end);
            }
            Message::End {} => return Ok(estate),
            Message::Refused(refused) => return Err(Failure::explained("it refuses", refused.why)),
            other => return Err(unexpected(&other)),
        }
    }
}

async fn receive_front_end(line: &Line, front: FrontEnd, socket: OwnedFd) -> Result<HandedFrontEnd, Failure> {
    let mut reported = Vec::new();
    for _ in 0..front.said {
        let Received { message, data, mut fds } = next(line).await?;
        let Message::Said { request } = message else { return Err(unexpected(&message)) };
        reported.push(Said { request, payload: data, fd: fds.pop() });
    }
    let FrontEnd { export, size, cache, discard_bytes, said: _ } = front;
    Ok(HandedFrontEnd { socket, export, size, cache, discard_bytes, reported })
}

async fn next(line: &Line) -> Result<Received, Failure> {
    line.receive(CLOSING_MAX).await.map_err(|error| Failure::because("it gives nothing more away", &error))
}

fn only(fds: &mut Vec<OwnedFd>) -> Result<OwnedFd, Failure> {
    fds.pop().ok_or_else(|| Failure::new("a descriptor did not come along"))
}

/// What to say of a message at the wrong time.
pub fn unexpected(message: &Message) -> Failure {
    Failure::new(format!("this message was not expected now: {message:?}"))
}

/// Repeats what commands did, then resumes all clients. They are served when the loops run.
///
/// # Errors
/// For the first command that fails, and the first client whose disk is not here: all of `estate` stays as it is.
pub async fn resume(inventory: &Rc<Inventory>, estate: &Estate) -> Result<(), Failure> {
    for entry in &estate.commands {
        repeat(inventory, entry).await?;
    }
    levels::raise(inventory, &estate.levels);
    for client in &estate.clients {
        inventory.server.resume(client).map_err(|error| {
            Failure::because(format!("cannot resume a client of export {:?}", client.export), &error)
        })?;
    }
    for front in &estate.front_ends {
        let export = inventory.export(&front.export);
        let door = export.as_ref().and_then(|export| export.vhost_door());
        let door = door.ok_or_else(|| {
            Failure::new(format!("a virtual machine uses export {:?}, which is not here", front.export))
        })?;
        door.resume(front).map_err(|error| {
            Failure::because(format!("cannot resume the guest of export {:?}", front.export), &error)
        })?;
    }
    Ok(())
}

async fn repeat(inventory: &Rc<Inventory>, entry: &journal::Entry) -> Result<(), Failure> {
    let steering = Steering::new(Rc::clone(inventory), export::Shutdown::new());
    let done = steering.do_again(&entry.command()).await;
    done.map(drop)
        .map_err(|error| Failure::because(format!("cannot repeat the command {}", entry.name), &error))
}

fn shown(dialect: door_nbd::Dialect) -> Dialect {
    match dialect {
        door_nbd::Dialect::Simple => Dialect::Simple,
        door_nbd::Dialect::Structured => Dialect::Structured,
        door_nbd::Dialect::Extended => Dialect::Extended,
    }
}

fn meant(dialect: Dialect) -> door_nbd::Dialect {
    match dialect {
        Dialect::Simple => door_nbd::Dialect::Simple,
        Dialect::Structured => door_nbd::Dialect::Structured,
        Dialect::Extended => door_nbd::Dialect::Extended,
    }
}
