//! Completions that were not taken yet, and the descriptor that says so.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;

use crate::buffer::Buffer;
use crate::error::Error;

/// A request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The number that it was submitted with.
    pub user_data: u64,
    /// How it ended.
    pub result: Result<(), Error>,
    /// Its bytes; empty for requests without.
    pub buffer: Buffer,
}

/// Completions that were not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) state: Mutex<State>,
    pub(crate) enough: Condvar,
    /// Made when it is first asked for.
    event: OnceLock<OwnedFd>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) list: VecDeque<Completion>,
    /// A caller waits for so many.
    pub(crate) awaited: Option<usize>,
    /// The event is readable: it is exactly while the list is not empty.
    is_readable: bool,
}

impl Done {
    fn push(&self, completion: Completion) {
        let mut state = self.state.lock();
        state.list.push_back(completion);
        self.signal(&mut state);
        let enough = state.awaited.is_some_and(|count| state.list.len() >= count);
        drop(state);
        if enough {
            self.enough.notify_all();
        }
    }

    fn signal(&self, state: &mut State) {
        if let Some(event) = self.event.get()
            && !state.is_readable
        {
            // A counter of 0 takes a 1.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
            state.is_readable = true;
        }
    }

    /// Moves at most `max` of those that are there to `into`, the oldest first; gives their count.
    pub(crate) fn take(&self, state: &mut State, into: &mut Vec<Completion>, max: usize) -> usize {
        let count = state.list.len().min(max);
        into.extend(state.list.drain(..count));
        if let Some(event) = self.event.get()
            && state.is_readable
            && state.list.is_empty()
        {
            let _ = rustix::io::read(event, &mut [0; 8]);
            state.is_readable = false;
        }
        count
    }

    pub(crate) fn event(&self) -> io::Result<&OwnedFd> {
        if self.event.get().is_none() {
            let made = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let mut state = self.state.lock();
            if self.event.set(made).is_ok() && !state.list.is_empty() {
                self.signal(&mut state);
            }
        }
        self.event.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The duty to add a completion. Dropped, it says that the loop has ended.
pub(crate) struct QueueReply {
    pub(crate) done: Option<Arc<Done>>,
    pub(crate) user_data: u64,
}

impl QueueReply {
    pub(crate) fn send(mut self, result: Result<Buffer, Error>) {
        self.end(result);
    }

    fn end(&mut self, result: Result<Buffer, Error>) {
        let Some(done) = self.done.take() else { return };
        let (result, buffer) = match result {
            Ok(buffer) => (Ok(()), buffer),
            Err(mut error) => {
                let buffer = error.take_buffer().unwrap_or_default();
                (Err(error), buffer)
            }
        };
        done.push(Completion { user_data: self.user_data, result, buffer });
    }
}

impl Drop for QueueReply {
    fn drop(&mut self) {
        self.end(Err(Error::loop_ended()));
    }
}
