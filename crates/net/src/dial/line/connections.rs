//! The connections of a driver to one server: which of them are of use, and how they are made again.
//!
//! Connections are lost together: one that is gone says that the server may be another one by now, which has not seen all writes.
//! The first connection that is made then repeats them before other requests are sent.

use std::fmt::{Debug, Display};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use event_listener::Event;
use parking_lot::Mutex;

use crate::dial::ending::unless_ended;
use crate::dial::reach::Reach;

/// Why a connection is of no use any more.
#[derive(Debug)]
pub enum End {
    /// Its loop ended. The server is there without it, and so is what was sent over it.
    Loop,
    /// The server, or the way to it; with what is shown of that.
    Lost(String),
}

/// What a driver does for its [`Line`].
pub trait Redial: Debug + Sized + 'static {
    /// A connection.
    type Connection: Debug;
    /// Why there is none.
    type Error: Clone + Debug + Display;
    /// Pauses between attempts. The first one also separates a connection that was lost from the next.
    const PAUSES: Backoff;

    /// Where this keeps its connections.
    fn line(&self) -> &Line<Self>;

    /// Why `connection` is of no use any more, if that is so.
    fn end_of(connection: &Self::Connection) -> Option<End>;

    /// All `connections` are given up, since one of them is lost. Called under the lock of the line.
    fn lost(&self, connections: Vec<Arc<Self::Connection>>);

    /// Makes a connection to what there was, and repeats over it what was not flushed. Later attempts end at `until`, if at all.
    fn restore(
        &self,
        until: Option<Instant>,
    ) -> impl Future<Output = Result<Arc<Self::Connection>, Self::Error>>;

    /// There is a connection again. Called under the lock of the line.
    fn restored(&self);

    /// The error of a request that waits for a connection when the process ends.
    fn ends(&self) -> Self::Error;
}

/// The connections of one driver to one server.
#[derive(Debug)]
pub struct Line<R: Redial> {
    delay: Option<Duration>,
    state: Mutex<State<R>>,
    /// A connection was made, or an attempt failed.
    changed: Event,
    reach: Arc<Reach>,
}

#[derive(Debug)]
struct State<R: Redial> {
    /// The oldest first; empty while they are lost.
    connections: Vec<Arc<R::Connection>>,
    made: Instant,
    lost: Option<Lost<R::Error>>,
    /// A task tries to connect.
    is_attempting: bool,
}

#[derive(Debug)]
struct Lost<E> {
    since: Instant,
    /// The newest attempt, and what became of it.
    tried: Option<(Instant, E)>,
}

impl<R: Redial> Line<R> {
    /// With a first connection to the server that messages call `name`. When all are lost, new ones are tried for `delay`; `None`: for ever.
    pub fn new(name: &str, first: Arc<R::Connection>, delay: Option<Duration>) -> Self {
        let state =
            State { connections: vec![first], made: Instant::now(), lost: None, is_attempting: false };
        Self { delay, state: Mutex::new(state), changed: Event::new(), reach: Reach::new(name) }
    }

    /// The connection that `pick` chooses, under the lock; waits for one while they are lost. Costs nothing more where none is.
    ///
    /// # Errors
    /// When the time for new ones is over; with what became of the last attempt. When the process ends.
    pub async fn connection(
        client: &Arc<R>,
        pick: impl Fn(&[Arc<R::Connection>]) -> Option<Arc<R::Connection>>,
    ) -> Result<Arc<R::Connection>, R::Error> {
        let line = client.line();
        if let Some(connection) = line.pick(client, &pick) {
            return Ok(connection);
        }
        loop {
            let changed = line.changed.listen();
            if let Some(connection) = line.pick(client, &pick) {
                return Ok(connection);
            }
            line.attempt(client)?;
            unless_ended(changed).await.ok_or_else(|| client.ends())?;
        }
    }

    fn pick(
        &self,
        client: &R,
        pick: impl Fn(&[Arc<R::Connection>]) -> Option<Arc<R::Connection>>,
    ) -> Option<Arc<R::Connection>> {
        let mut state = self.state.lock();
        if let Some(reason) = take_out_ended(&mut state.connections, |connection| R::end_of(connection)) {
            self.reach.fails(&reason);
            state.lost = Some(Lost { since: Instant::now(), tried: None });
            client.lost(std::mem::take(&mut state.connections));
        }
        pick(&state.connections)
    }

    /// Has a task of this loop connect, unless one does.
    fn attempt(&self, client: &Arc<R>) -> Result<(), R::Error> {
        let mut state = self.state.lock();
        if state.is_attempting || !state.connections.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        let until = self.delay.map(|delay| state.lost.as_ref().map_or(now, |lost| lost.since + delay));
        if let Some((tried, error)) = state.lost.as_ref().and_then(|lost| lost.tried.as_ref())
            && until.is_some_and(|until| now >= until)
            && now < *tried + R::PAUSES.longest
        {
            return Err(error.clone());
        }
        state.is_attempting = true;
        let not_before = state.made + R::PAUSES.next;
        drop(state);
        let attempt = Attempt(Arc::downgrade(client));
        reactor::spawn(async move { attempt.run(not_before, until).await }).detach();
        Ok(())
    }

    /// What became of an attempt; whether there is a connection now.
    fn attempted(&self, client: &R, restored: Result<Arc<R::Connection>, R::Error>) -> bool {
        let (mut state, now) = (self.state.lock(), Instant::now());
        match restored {
            Ok(connection) => {
                self.reach.answers();
                state.connections.push(connection);
                (state.made, state.lost) = (now, None);
                client.restored();
                true
            }
            Err(error) => {
                self.reach.fails(&error);
                let lost = state.lost.get_or_insert(Lost { since: now, tried: None });
                lost.tried = Some((now, error));
                false
            }
        }
    }

    /// Adds one more connection. False if all are lost: the next one repeats what was not flushed.
    pub fn add(&self, connection: &Arc<R::Connection>) -> bool {
        let mut state = self.state.lock();
        let has_others = !state.connections.is_empty();
        if has_others {
            state.connections.push(Arc::clone(connection));
        }
        has_others
    }

    /// What became of the last attempt, while all connections are lost.
    pub fn failure(&self) -> Option<R::Error> {
        let state = self.state.lock();
        state.lost.as_ref().and_then(|lost| lost.tried.as_ref()).map(|(_, error)| error.clone())
    }

    /// The connections, of a client that is dropped.
    pub fn take_all(&mut self) -> Vec<Arc<R::Connection>> {
        std::mem::take(&mut self.state.get_mut().connections)
    }
}

/// Takes out connections whose loop has ended: the server goes on without them, what they brought it is there. Gives the reason if another one is
/// lost. Each is looked at once: one whose loop ends between two looks would be taken for lost.
fn take_out_ended<C>(connections: &mut Vec<C>, end_of: impl Fn(&C) -> Option<End>) -> Option<String> {
    let mut lost = None;
    connections.retain(|connection| match end_of(connection) {
        None => true,
        Some(End::Loop) => false,
        Some(End::Lost(reason)) => {
            lost.get_or_insert(reason);
            true
        }
    });
    lost
}

/// A task that tries to connect, until that succeeds, the time is over, or nothing uses the client any more.
struct Attempt<R: Redial>(Weak<R>);

impl<R: Redial> Attempt<R> {
    async fn run(self, not_before: Instant, until: Option<Instant>) {
        // A server that ends every connection at once is not asked without a pause.
        reactor::sleep_until(not_before).await;
        let mut pauses = R::PAUSES;
        loop {
            let Some(client) = self.0.upgrade() else { return };
            let restored = client.restore(until).await;
            if client.line().attempted(&client, restored) {
                return;
            }
            drop(client);
            let pause = pauses.pause();
            if until.is_some_and(|until| Instant::now() + pause >= until) {
                return;
            }
            reactor::sleep(pause).await;
        }
    }
}

impl<R: Redial> Drop for Attempt<R> {
    /// Also when its loop ends in the middle: another task tries then.
    fn drop(&mut self) {
        if let Some(client) = self.0.upgrade() {
            client.line().state.lock().is_attempting = false;
            client.line().changed.notify(usize::MAX);
        }
    }
}

/// Pauses, each twice as long as the one before, up to a longest one.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// The next one.
    pub next: Duration,
    /// The longest one.
    pub longest: Duration,
}

impl Backoff {
    /// The pause after an attempt that has failed.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A loop that ended between two looks was taken for a lost server, and what was not flushed for lost with it.
    #[test]
    fn a_connection_whose_loop_ends_while_it_is_looked_at_is_no_lost_server() {
        // Of each connection: from which look on its loop has ended.
        let mut connections: Vec<(Cell<u32>, u32)> = [1, 0, 9].map(|ends| (Cell::new(0), ends)).into();
        let look = |(looks, ends): &(Cell<u32>, u32)| {
            let ended = looks.replace(looks.get() + 1) >= *ends;
            ended.then_some(End::Loop)
        };
        assert_eq!(take_out_ended(&mut connections, look), None);
        assert_eq!(connections.len(), 2);
        let lost = take_out_ended(&mut vec![()], |()| Some(End::Lost("gone".to_owned())));
        assert_eq!(lost.as_deref(), Some("gone"));
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let [next, longest] = [20, 100].map(Duration::from_millis);
        let mut pauses = Backoff { next, longest };
        assert_eq!([(); 5].map(|()| pauses.pause().as_millis()), [20, 40, 80, 100, 100]);
    }
}
