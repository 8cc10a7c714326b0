//! Requests of one connection that wait for memory, in the order they came.
//!
//! They wait outside of the socket, and cost some hundred bytes each: so the reader goes on, and meets the end of the
//! connection behind them. What waits here when the client goes is never begun.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use export::LocalEvent;

use crate::client::{Client, PendingRequest};
use crate::limits::REQUESTS_WAITING_MAX;

/// The line of one connection.
#[derive(Debug)]
pub(crate) struct Line {
    client: Rc<Client>,
    waiting: RefCell<VecDeque<PendingRequest>>,
    /// Something was put in: for the task of [`Line::run`].
    put: LocalEvent,
    /// Something was taken out: for the reader.
    taken: LocalEvent,
}

impl Line {
    pub(crate) fn new(client: &Rc<Client>) -> Rc<Self> {
        Rc::new(Self {
            client: Rc::clone(client),
            waiting: RefCell::default(),
            put: LocalEvent::default(),
            taken: LocalEvent::default(),
        })
    }

    /// Starts `asked`, now or when there is memory for it and for those before it. Ends when the line has room.
    pub(crate) async fn put(&self, asked: PendingRequest) {
        if self.is_empty()
            && let Some(permit) = self.client.in_flight.try_admit(asked.bytes())
        {
            return self.client.start(asked, permit);
        }
        self.client.outbox.send().await;
        self.taken.until(|| self.waiting.borrow().len() < REQUESTS_WAITING_MAX).await;
        self.waiting.borrow_mut().push_back(asked);
        self.put.wake();
    }

    /// Starts those that wait, for ever.
    pub(crate) async fn run(&self) {
        loop {
            self.put.until(|| !self.is_empty()).await;
            let Some(bytes) = self.waiting.borrow().front().map(PendingRequest::bytes) else { continue };
            let permit = self.client.in_flight.admit(bytes).await;
            // It stayed in line meanwhile, or was given up with it.
            let asked = self.waiting.borrow_mut().pop_front();
            if let Some(asked) = asked {
                self.client.start(asked, permit);
                // Its reply may be there already, and the reader may be waiting for bytes.
                self.client.outbox.nudge();
            }
            self.taken.wake();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Ends when nothing waits.
    pub(crate) async fn emptied(&self) {
        self.taken.until(|| self.is_empty()).await;
    }

    /// Gives up what waits. Says how many.
    pub(crate) fn clear(&self) -> usize {
        let given_up = std::mem::take(&mut *self.waiting.borrow_mut());
        self.taken.wake();
        given_up.len()
    }
}
