//! `--metrics`: figures for Prometheus over HTTP, as little of it as a scrape needs.

pub mod family;
pub mod http;
pub mod table;
pub mod text;

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use export::repeats::{self, Level};
use memory::{IoBuf, IoBytes};
use reactor::net::{Listener, Stream};
use tool::failure::Failure;

use self::http::{REQUEST_BYTES_MAX, Request, answer, ask};
use super::inventory::Inventory;
use super::take_over::message::Place;
use super::take_over::sockets::{self, Handed};

/// Scrapes at a time: more than any number of servers that look at one process.
const CLIENTS_MAX: usize = 16;

/// How long one scrape may take, from connecting to the last byte read.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long accepting rests after a failure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket for scrapes.
#[derive(Clone, Debug)]
pub struct MetricsSocket {
    listener: Listener,
    /// Where it really listens.
    pub address: SocketAddr,
}

impl MetricsSocket {
    /// Listens at `address`. Every client that can connect can read the figures: names of disks, and what
    /// they do.
    ///
    /// # Errors
    /// When the address is in use or not to be had.
    pub fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let failed = |error| Failure::because(format!("cannot serve metrics at {address}"), &error);
        let listener =
            sockets::tcp(address).map_or_else(|| TcpListener::bind(address), Ok).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener: Listener::from_tcp(listener).map_err(failed)?, address })
    }

    /// The socket itself, for the next process.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn handed(&self) -> io::Result<Handed> {
        Ok(Handed { place: Place::Tcp(self.address), fd: self.listener.as_fd().try_clone_to_owned()? })
    }

    /// Answers scrapes for ever.
    pub fn serve(&self, inventory: Rc<Inventory>) -> impl Future<Output = ()> + 'static {
        let listener = self.listener.clone();
        let clients = Rc::new(Cell::new(0));
        async move {
            loop {
                match listener.accept().await {
                    // One too many is closed at once: a scrape comes again.
                    Ok(_) if clients.get() >= CLIENTS_MAX => {}
                    Ok(stream) => start(stream, Rc::clone(&inventory), Rc::clone(&clients)),
                    Err(error) => {
                        let text = format!("cannot accept a scrape: {error}");
                        repeats::tell(Level::Warn, "accept", "metrics", &text);
                        reactor::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }
}

fn start(stream: Stream, inventory: Rc<Inventory>, clients: Rc<Cell<usize>>) {
    clients.set(clients.get() + 1);
    reactor::spawn(async move {
        reactor::within(PATIENCE, talk(&stream, &inventory)).await;
        clients.set(clients.get() - 1);
    })
    .detach();
}

/// One question, one answer, the end.
async fn talk(stream: &Stream, inventory: &Inventory) {
    let mut request = Vec::new();
    let mut buf = IoBuf::uninit(REQUEST_BYTES_MAX);
    let asked = loop {
        let (result, back) = stream.recv(buf).await;
        buf = back;
        match result {
            Ok(count) if count > 0 => request.extend_from_slice(&buf[..count]),
            _ => return,
        }
        if let Some(asked) = ask(&request) {
            break asked;
        }
    };
    let body = match &asked {
        Request::Metrics { wanted, .. } => text::encode(inventory, wanted).await,
        _ => String::new(),
    };
    // A client that is gone needs no answer.
    let _ = stream.send_all(IoBytes::copy_from(&answer(&asked, &body)).into()).await;
    let _ = stream.shutdown(std::net::Shutdown::Write);
}
