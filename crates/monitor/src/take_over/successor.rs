//! The successor: it asks the running process, checks what it can, takes everything over, and serves when it
//! gets the message to go.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use graph::options::DiskOptions;
use reactor::net::Stream;
use reactor::{Backend, Reactor};
use tool::failure::{FAILED, Failure};
use tool::output::tell;

use super::clients::{self, unexpected};
use super::line::{Line, LineError};
use super::message::{Message, Refused, TakeOver};
use super::sockets::{self, Handed};
use super::{CLOSING_MAX, Estate, HEIR_LIFE_MAX, OPENING_MAX, VERSION};

/// A process that is about to take over.
#[derive(Debug)]
pub struct Successor {
    path: PathBuf,
    line: Line,
    /// Dropped, the process lives on.
    _watch: Option<Sender<()>>,
}

impl Successor {
    /// Asks the daemon that listens at `path`. Its listening sockets are ours, too, from here on: code that
    /// listens at the same place later gets them ([`sockets`]).
    ///
    /// # Errors
    /// When no daemon listens there, or it refuses.
    pub fn ask(path: &Path) -> Result<Self, Failure> {
        let failed = |error: &dyn std::error::Error| cannot(path, error);
        let reactor = Reactor::new(Backend::Ring).map_err(|error| failed(&error))?;
        reactor.run(async {
            let stream = Stream::connect_unix(path).await.map_err(|error| failed(&error))?;
            let line = Line::new(stream);
            let program = concat!("cowhand ", env!("CARGO_PKG_VERSION")).to_owned();
            let asked = Message::TakeOver(TakeOver { versions: vec![VERSION], program });
            line.say(&asked).await.map_err(|error| failed(&error))?;
            sockets::offer(offered(&line, path).await?);
            Ok(Self { path: path.to_owned(), line, _watch: None })
        })
    }

    /// Opens every disk for reading, as far as that is possible beside the daemon that writes to it.
    ///
    /// # Errors
    /// For the first that cannot be opened.
    pub fn check(&self, reactor: &Reactor, disks: &[&DiskOptions]) -> Result<(), Failure> {
        for named in disks {
            let mut disk = (*named).clone();
            disk.layer.read_only = true;
            disk.set_force_share();
            let looked = reactor.run(async {
                let disk = graph::open(&disk, &graph::OpenRules::default()).await?;
                // Nothing was changed: there is nothing to lose.
                let _ = disk.close().await;
                Ok::<_, graph::OpenError>(())
            });
            let name = named.filename.display();
            looked.map_err(|error| {
                Failure::because(format!("cannot take over: cannot serve {name}"), &error)
            })?;
        }
        Ok(())
    }

    /// Says that everything is ready, and receives what the daemon gives away. Clients wait from here on.
    ///
    /// # Errors
    /// When the daemon refuses after all, or is gone.
    pub fn inherit(&mut self, reactor: &Reactor) -> Result<Estate, Failure> {
        let estate = reactor.run(async {
            self.line.say(&Message::Ready {}).await.map_err(|error| cannot(&self.path, &error))?;
            clients::receive(&self.line).await
        });
        let mut estate = estate.map_err(|failure| {
            Failure::explained(format!("cannot take over from {}", self.path.display()), failure.to_string())
        })?;
        self._watch = Some(watch_over_this_process());
        sockets::offer(std::mem::take(&mut estate.sockets));
        Ok(estate)
    }

    /// Reports that the disks are open and the clients here, and waits for the message to go. A daemon that
    /// died meanwhile serves no client: then we do.
    ///
    /// # Errors
    /// When the daemon has taken everything back.
    pub fn serve(self, reactor: &Reactor) -> Result<(), Failure> {
        reactor.run(async {
            if self.line.say(&Message::Serving {}).await.is_err() {
                // Whether it has taken everything back is still to be read.
                tracing::debug!("the daemon before us has hung up");
            }
            match self.line.receive(OPENING_MAX).await {
                Ok(answer) => match answer.message {
                    Message::Go {} => Ok(()),
                    Message::TakenBack {} => {
                        Err(Failure::new("this took too long: the running daemon keeps serving"))
                    }
                    other => Err(unexpected(&other)),
                },
                Err(LineError::Ended) => Ok(()),
                Err(error) => Err(cannot(&self.path, &error)),
            }
        })
    }

    /// Says why this process does not take over.
    pub fn give_up(&self, reactor: &Reactor, failure: &Failure) {
        let why = failure.to_string();
        // The running daemon continues even if this message is lost.
        let _ = reactor.run(self.line.say(&Message::Failed(Refused { why })));
    }
}

async fn offered(line: &Line, path: &Path) -> Result<Vec<Handed>, Failure> {
    let mut sockets = Vec::new();
    loop {
        let received = line.receive(CLOSING_MAX).await.map_err(|error| cannot(path, &error))?;
        match (received.message, received.fds.into_iter().next()) {
            (Message::Offer(_), _) => {}
            (Message::Socket(place), Some(fd)) => sockets.push(Handed { place, fd }),
            (Message::End {}, _) => return Ok(sockets),
            (Message::Refused(Refused { why }), _) => {
                return Err(Failure::explained(format!("cannot take over from {}", path.display()), why));
            }
            (other, _) => return Err(unexpected(&other)),
        }
    }
}

fn cannot(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::because(format!("cannot take over from {}", path.display()), error)
}

/// A process that hangs with the disks open would keep the daemon from having them again: it ends itself.
fn watch_over_this_process() -> Sender<()> {
    let (alive, watched): (_, Receiver<()>) = channel();
    let watch = move || {
        if watched.recv_timeout(HEIR_LIFE_MAX) == Err(RecvTimeoutError::Timeout) {
            tell(format_args!("cowhand: the take-over took too long; the running daemon keeps serving"));
            std::process::exit(FAILED.into());
        }
    };
    if let Err(error) = std::thread::Builder::new().name("cowhand-watch".to_owned()).spawn(watch) {
        tracing::warn!(%error, "no thread watches over the take-over");
    }
    alive
}
