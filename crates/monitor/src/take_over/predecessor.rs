//! The running daemon: it listens for a process that wants to take over, and gives away what it serves.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use reactor::net::Stream;
use tool::failure::Failure;

use super::clients::{self, unexpected};
use super::line::{Line, LineError};
use super::message::{Message, Offer, Refused};
use super::refusal::refusal;
use super::sockets::Handed;
use super::{Estate, OPENING_MAX, PREPARING_MAX, VERSION};
use crate::inventory::Inventory;
use crate::owners_socket::OwnersSocket;

/// How long accepting rests after a failure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a successor may take to send its first message.
const FIRST_WORD_MAX: Duration = Duration::from_secs(5);

/// How long a successor that failed is waited for, so that its locks are released.
const LEAVING_MAX: Duration = Duration::from_secs(3);

/// A successor that is ready: from here on clients wait.
#[derive(Debug)]
pub struct Exchange {
    line: Line,
    successor: String,
    began: Instant,
}

/// Waits for a successor that is ready. Clients connect to `sockets`. A process that may not
/// take over gets the reason.
pub async fn wait_for_successor(
    socket: &OwnersSocket,
    inventory: &Rc<Inventory>,
    sockets: impl Fn() -> io::Result<Vec<Handed>>,
) -> Exchange {
    loop {
        let stream = match socket.listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a process that wants to take over");
                reactor::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match prepare(stream, inventory, &sockets).await {
            Ok(exchange) => return exchange,
            Err(failure) => tracing::warn!(%failure, "no process takes over; this process keeps serving"),
        }
    }
}

async fn prepare(
    stream: Stream,
    inventory: &Rc<Inventory>,
    sockets: &impl Fn() -> io::Result<Vec<Handed>>,
) -> Result<Exchange, Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because("a process that wanted to take over", error);
    let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|error| failed(&error))?;
    let line = Line::new(stream);
    if peer.uid != rustix::process::geteuid() {
        let (theirs, ours) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
        return Err(refuse(&line, format!("user {theirs} asks; only user {ours} may take over")).await);
    }
    let first = line.receive(FIRST_WORD_MAX).await.map_err(|error| failed(&error))?;
    let Message::TakeOver(asked) = first.message else { return Err(unexpected(&first.message)) };
    if !asked.versions.contains(&VERSION) {
        let why =
            format!("it speaks versions {:?} of the hand-over; this daemon speaks {VERSION}", asked.versions);
        return Err(refuse(&line, why).await);
    }
    if let Some(why) = refusal(inventory) {
        return Err(refuse(&line, why).await);
    }
    let handed = sockets().map_err(|error| failed(&error))?;
    offer(&line, &handed).await.map_err(|error| failed(&error))?;
    let answer = line.receive(PREPARING_MAX).await.map_err(|error| failed(&error))?;
    match answer.message {
        Message::Ready {} => {}
        Message::Failed(Refused { why }) => return Err(Failure::explained("it cannot take over", why)),
        other => return Err(unexpected(&other)),
    }
    // The last check: the running command has ended, and later ones fail, since the program is ending.
    let change = inventory.graph.change().await;
    if let Some(why) = refusal(inventory) {
        return Err(refuse(&line, why).await);
    }
    drop(change);
    let successor = format!("process {} ({})", peer.pid.as_raw_nonzero(), asked.program);
    Ok(Exchange { line, successor, began: Instant::now() })
}

async fn refuse(line: &Line, why: String) -> Failure {
    // It may be gone already.
    let _ = line.say(&Message::Refused(Refused { why: why.clone() })).await;
    Failure::explained("a process that wanted to take over is refused", why)
}

async fn offer(line: &Line, sockets: &[Handed]) -> Result<(), LineError> {
    let program = concat!("cowhand ", env!("CARGO_PKG_VERSION")).to_owned();
    line.say(&Message::Offer(Offer { version: VERSION, program })).await?;
    for Handed { place, fd } in sockets {
        line.send(&Message::Socket(place.clone()), &[], &[fd.as_fd()]).await?;
    }
    line.say(&Message::End {}).await
}

impl Exchange {
    /// Hands everything over, and waits until the successor serves. When this fails the successor has ended,
    /// or will soon, and has served no client: everything is ours again.
    ///
    /// # Errors
    /// When the successor fails, disconnects, or takes too long.
    pub async fn give(&self, estate: &Estate) -> Result<(), Failure> {
        let given = self.give_in_time(estate).await;
        if given.is_err() {
            let _ = self.line.say(&Message::TakenBack {}).await;
            self.see_off().await;
        }
        given
    }

    async fn give_in_time(&self, estate: &Estate) -> Result<(), Failure> {
        let failed =
            |error: LineError| Failure::because(format!("{} does not take over", self.successor), &error);
        let late = LineError::Silent(OPENING_MAX);
        let sent = reactor::within(OPENING_MAX, clients::send(&self.line, estate)).await;
        sent.unwrap_or(Err(late)).map_err(failed)?;
        match self.line.receive(OPENING_MAX).await.map_err(failed)?.message {
            Message::Serving {} => {}
            Message::Failed(Refused { why }) => {
                return Err(Failure::explained(format!("{} does not take over", self.successor), why));
            }
            other => return Err(unexpected(&other)),
        }
        self.line.say(&Message::Go {}).await.map_err(failed)?;
        let paused = self.began.elapsed();
        let (clients, machines) = (estate.clients.len(), estate.front_ends.len());
        tracing::info!(successor = self.successor, ?paused, clients, machines, "another process serves now");
        Ok(())
    }

    /// Reports that nothing is handed over.
    pub async fn refuse(&self, why: String) {
        refuse(&self.line, why).await;
        self.see_off().await;
    }

    /// Waits until the successor has disconnected.
    async fn see_off(&self) {
        // An error says the same: it is gone.
        let _ = reactor::within(LEAVING_MAX, self.line.stream().hung_up()).await;
    }
}
