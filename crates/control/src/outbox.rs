//! What waits for one client to read it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use event_listener::Event;
use memory::IoBytes;
use reactor::net::Stream;

use crate::limits::{BACKLOG_BYTES, BACKLOG_BYTES_MAX};
use crate::wire::Form;

/// One object.
struct Line {
    bytes: Vec<u8>,
    is_asked_for: bool,
}

impl Line {
    fn unasked(&self) -> usize {
        if self.is_asked_for { 0 } else { self.bytes.len() }
    }
}

/// Lines on their way to a client. Putting one in never waits.
pub(crate) struct Outbox {
    stream: Rc<Stream>,
    form: Form,
    lines: RefCell<VecDeque<Line>>,
    /// In `lines`, and in the piece that is being sent.
    bytes: Cell<usize>,
    /// Those of them that the client did not ask for.
    unasked: Cell<usize>,
    closed: Cell<bool>,
    changed: Event,
}

impl Outbox {
    pub(crate) fn new(stream: Rc<Stream>, form: Form) -> Rc<Self> {
        Rc::new(Self {
            stream,
            form,
            lines: RefCell::default(),
            bytes: Cell::new(0),
            unasked: Cell::new(0),
            closed: Cell::new(false),
            changed: Event::new(),
        })
    }

    /// An answer to the client. There is no other question before it has read most of them ([`Self::has_room`]).
    pub(crate) fn push(&self, line: Vec<u8>) {
        self.put(Line { bytes: self.form.of(line), is_asked_for: true });
    }

    /// A line that the client did not ask for. One that lets too many of these pile up is cut off; the answer before them may be of any length.
    pub(crate) fn tell(&self, line: Vec<u8>) {
        let line = Line { bytes: self.form.of(line), is_asked_for: false };
        let unasked = self.unasked.get() + line.bytes.len();
        if unasked > BACKLOG_BYTES_MAX {
            tracing::warn!(bytes = unasked, "a control client does not read; its connection is cut");
            self.close();
            return;
        }
        self.put(line);
    }

    fn put(&self, line: Line) {
        if self.closed.get() {
            return;
        }
        self.bytes.set(self.bytes.get() + line.bytes.len());
        self.unasked.set(self.unasked.get() + line.unasked());
        self.lines.borrow_mut().push_back(line);
        self.changed.notify(usize::MAX);
    }

    /// Nothing more is taken or sent, and the other end hears of it.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.lines.borrow_mut().clear();
        // Fails where the client was faster.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.changed.notify(usize::MAX);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Waits until the client has read enough to be asked for more.
    pub(crate) async fn has_room(&self) {
        self.until(|outbox| outbox.bytes.get() <= BACKLOG_BYTES).await;
    }

    /// Waits until the client was sent everything.
    pub(crate) async fn is_empty(&self) {
        self.until(|outbox| outbox.bytes.get() == 0).await;
    }

    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.listen();
            if self.closed.get() || holds(self) {
                return;
            }
            changed.await;
        }
    }

    /// Sends what comes, until the outbox is closed or the client is gone.
    pub(crate) async fn send(self: Rc<Self>) {
        loop {
            self.until(|outbox| !outbox.lines.borrow().is_empty()).await;
            let Some(line) = self.lines.borrow_mut().pop_front() else { return };
            if self.stream.send_all(IoBytes::copy_from(&line.bytes).into()).await.is_err() {
                self.bytes.set(0);
                self.close();
                return;
            }
            self.bytes.set(self.bytes.get().saturating_sub(line.bytes.len()));
            self.unasked.set(self.unasked.get().saturating_sub(line.unasked()));
            self.changed.notify(usize::MAX);
        }
    }
}
