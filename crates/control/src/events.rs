//! What happened, reported to every client that has negotiated.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::SystemTime;

use serde_json::Value;

use crate::outbox::Outbox;
use crate::wire;

/// The clients that listen.
#[derive(Default)]
pub struct Events {
    listeners: RefCell<Vec<Weak<Outbox>>>,
}

impl Events {
    /// No client listens yet.
    pub fn new() -> Rc<Self> {
        Rc::default()
    }

    /// Tells all clients. Never waits: a client that does not read is disconnected.
    pub fn emit(&self, name: &str, data: &Value) {
        let line = wire::event(name, data, SystemTime::now());
        self.listeners.borrow_mut().retain(|listener| match listener.upgrade() {
            Some(outbox) if !outbox.is_closed() => {
                outbox.tell(line.clone());
                true
            }
            _ => false,
        });
    }

    pub(crate) fn subscribe(&self, outbox: &Rc<Outbox>) {
        self.listeners.borrow_mut().push(Rc::downgrade(outbox));
    }
}
