//! One loop as its own thread sees it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use reactor::Task;

use super::{Counted, Ending, HangUp, Lane, Loops, Served};
use crate::exports::ExportEntry;
use crate::limits::HAND_OVER_GRACE;
use crate::local_event::LocalEvent;
use crate::turns::{Pace, Party, Turns};

/// What a client finds on its loop.
#[derive(Clone, Debug)]
pub struct Seat {
    key: u64,
    turns: Rc<Turns>,
}

impl Seat {
    /// When steps of its requests on `entry`'s disk may begin: the loop's time is shared by bytes, between disks first.
    pub fn pace(&self, entry: &ExportEntry) -> Pace {
        Pace::new(&self.turns, Party { disk: entry.number(), connection: self.key })
    }
}

pub(super) struct OwnLane {
    loops: Arc<Loops>,
    index: usize,
    /// Clients that live here.
    clients: RefCell<HashMap<u64, Rc<dyn HangUp>>>,
    /// Tasks of doors, which end with the loop.
    tasks: RefCell<Vec<Task<()>>>,
    next_key: Cell<u64>,
    ended: LocalEvent,
    turns: Rc<Turns>,
}

impl OwnLane {
    pub(super) fn new(loops: &Arc<Loops>, index: usize) -> Self {
        Self {
            loops: Arc::clone(loops),
            index,
            clients: RefCell::default(),
            tasks: RefCell::default(),
            next_key: Cell::new(0),
            ended: LocalEvent::default(),
            turns: Rc::default(),
        }
    }

    fn lane(&self) -> &Lane {
        &self.loops.lanes[self.index]
    }

    /// Starts who arrives, for ever.
    pub(super) async fn take_arriving(self: Rc<Self>) {
        loop {
            let arrived = self.lane().arrived.listen();
            self.lane().answer();
            let arrivals = self.lane().take();
            if arrivals.is_empty() {
                arrived.await;
            }
            for start in arrivals {
                start(&self);
            }
        }
    }

    /// Gives signs of life, and nothing else, for ever.
    pub(super) async fn answer(self: Rc<Self>) {
        loop {
            let arrived = self.lane().arrived.listen();
            self.lane().answer();
            arrived.await;
        }
    }

    /// Starts who has arrived, to be given to another process with all others.
    pub(super) fn take_last(self: &Rc<Self>) {
        if self.loops.shutdown.hands_over() {
            self.lane().take().into_iter().for_each(|start| start(self));
        }
    }

    /// Starts a client. It lives here until its work ends.
    pub(super) fn seat(self: &Rc<Self>, counted: Counted, begin: impl FnOnce(&Seat) -> Served) {
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        let Served { hang_up, work } = begin(&Seat { key, turns: Rc::clone(&self.turns) });
        self.clients.borrow_mut().insert(key, hang_up);
        let own = Rc::clone(self);
        let served = async move {
            work.await;
            let gone = own.clients.borrow_mut().remove(&key);
            drop((gone, counted));
            own.ended.wake();
        };
        reactor::spawn(served).detach();
    }

    /// Starts a task that ends with the loop.
    pub(super) fn run_task(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.borrow_mut().push(reactor::spawn(task));
    }

    pub(super) async fn end_tasks(&self) {
        let tasks = self.tasks.take();
        for task in tasks {
            task.cancel().await;
        }
    }

    /// Ends every client: first in order, so that what is in flight is answered; after `grace` at once.
    pub(super) async fn end_clients(&self, grace: Duration) {
        let hands_over = self.loops.shutdown.hands_over();
        let (how, grace) =
            if hands_over { (Ending::HandOver, HAND_OVER_GRACE) } else { (Ending::InOrder, grace) };
        self.hang_up(how);
        let all_ended = || self.clients.borrow().is_empty();
        reactor::within(grace, self.ended.until(all_ended)).await;
        if !all_ended() {
            tracing::warn!("clients do not read their replies; their connections are cut");
            self.hang_up(Ending::AtOnce);
        }
        self.ended.until(all_ended).await;
    }

    fn hang_up(&self, how: Ending) {
        let clients: Vec<_> = self.clients.borrow().values().cloned().collect();
        clients.iter().for_each(|client| client.hang_up(how));
    }
}
