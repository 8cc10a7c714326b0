//! Waiting for requests, while asynchronous ones end and breakpoints suspend some.

use std::io;
use std::pin::pin;

use futures_util::StreamExt;
use futures_util::future::{Either, LocalBoxFuture, pending, select};
use futures_util::stream::FuturesUnordered;
use tool::failure::Failure;

use super::breakpoints::{self, LOOK_AGAIN};
use super::failed::Failed;
use super::request::Ended;
use super::session::Session;

impl Session<'_> {
    /// Waits for `work`, which is no request, and reports the ends of asynchronous requests meanwhile.
    ///
    /// # Errors
    /// When nothing can be written any more.
    pub async fn rest_for<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failed> {
        self.wait(work, Waiting::Idly).await
    }

    /// The same for requests: they fail if they wait for what a breakpoint holds back.
    pub(super) async fn wait_for<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failed> {
        self.wait(work, Waiting::ForRequests).await
    }

    async fn wait<T>(&mut self, work: impl Future<Output = T>, waiting: Waiting) -> Result<T, Failed> {
        let mut work = pin!(work);
        let watched = self.disk().ok().filter(|disk| breakpoints::with_watcher(disk, |_| ()).is_some());
        loop {
            if self.aside.is_empty() && watched.is_none() {
                return Ok(work.await);
            }
            let event = {
                let look = pin!(look_again(watched.is_some()));
                let others = select(next_of(&mut self.aside), look);
                match select(work.as_mut(), others).await {
                    Either::Left((done, _)) => Event::Done(done),
                    Either::Right((Either::Left((ended, _)), _)) => Event::Ended(ended),
                    Either::Right((Either::Right(_), _)) => Event::Look,
                }
            };
            self.look_at_breakpoints()?;
            match (event, &watched) {
                (Event::Done(done), _) => return Ok(done),
                (Event::Ended(ended), _) => {
                    ended.show(self.out)?;
                }
                (Event::Look, Some(disk)) if waiting == Waiting::ForRequests => self.watch.check(disk)?,
                (Event::Look, _) => {}
            }
        }
    }

    fn look_at_breakpoints(&mut self) -> io::Result<()> {
        match self.disk() {
            Ok(disk) => self.watch.look(&disk, self.out),
            Err(_) => Ok(()),
        }
    }

    /// Their failures do not count, as in qemu-io.
    pub(super) async fn wait_for_all(&mut self) -> Result<(), Failed> {
        while !self.aside.is_empty() {
            let disk = self.disk()?;
            let look = pin!(reactor::sleep(LOOK_AGAIN));
            let ended = match select(self.aside.next(), look).await {
                Either::Left((ended, _)) => ended,
                Either::Right(_) => None,
            };
            match ended {
                Some(ended) => {
                    ended.show(self.out)?;
                }
                None => {
                    self.look_at_breakpoints()?;
                    self.watch.check(&disk)?;
                }
            }
        }
        Ok(())
    }

    /// `wait_break`: until a request called as the word says is held back.
    pub(super) async fn wait_break(&mut self, words: &[&str]) -> Result<(), Failed> {
        let tag = words.first().copied().unwrap_or_default();
        loop {
            self.look_at_breakpoints()?;
            if self.watch.is_held_back(tag) {
                return Ok(());
            }
            let disk = self.disk()?;
            if self.aside.is_empty() || breakpoints::with_watcher(&disk, |_| ()).is_none() {
                return Err(Failure::new(format!("no request will be held back at {tag}")).into());
            }
            self.rest_for(reactor::sleep(LOOK_AGAIN)).await?;
            self.watch.check(&disk)?;
        }
    }
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    ForRequests,
    /// Something else.
    Idly,
}

/// What happened first.
enum Event<T> {
    Done(T),
    Ended(Ended),
    Look,
}

/// The time for a look at breakpoints; it never comes where there are none.
async fn look_again(watched: bool) {
    match watched {
        true => reactor::sleep(LOOK_AGAIN).await,
        false => pending().await,
    }
}

/// The next request that ends; none does where there are none.
fn next_of<'a>(aside: &'a mut FuturesUnordered<LocalBoxFuture<'static, Ended>>) -> LocalBoxFuture<'a, Ended> {
    Box::pin(async move {
        match aside.next().await {
            Some(ended) => ended,
            None => pending().await,
        }
    })
}
