//! One commit at a time; requests that come meanwhile share the next one.

use sync::{Event, EventListener, Mutex};

use crate::Error;

/// One commit at a time; requests that come meanwhile share the next one.
#[derive(Debug, Default)]
pub(crate) struct Committer {
    state: Mutex<State>,
    finished: Event,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    started: u64,
    finished: u64,
    /// The number of the last commit that failed, and why. A request that waits for it or for an earlier one
    /// is told, also if a later commit made good what it missed: no error goes unreported.
    failed: Option<(u64, Error)>,
}

/// What to do to be sure of a commit that starts from now on.
pub(crate) enum Turn {
    Start,
    Wait(EventListener),
    Done(Result<(), Error>),
}

impl Committer {
    /// Waits until no commit is under way.
    pub(crate) async fn idle(&self) {
        loop {
            let finished = self.finished.listen();
            if !self.state.lock().running {
                return;
            }
            finished.await;
        }
    }

    /// Whether a commit is under way.
    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().running
    }

    pub(crate) fn next(&self) -> u64 {
        self.state.lock().started + 1
    }

    pub(crate) fn turn(&self, target: u64) -> Turn {
        let mut state = self.state.lock();
        if state.finished >= target {
            let failed = state.failed.as_ref().filter(|(number, _)| *number >= target);
            return Turn::Done(failed.map_or(Ok(()), |(_, error)| Err(error.clone())));
        }
        if state.running {
            return Turn::Wait(self.finished.listen());
        }
        state.running = true;
        state.started += 1;
        Turn::Start
    }

    pub(crate) fn finish(&self, result: Result<(), Error>) {
        let mut state = self.state.lock();
        state.running = false;
        state.finished = state.started;
        if let Err(error) = result {
            state.failed = Some((state.started, error));
        }
        drop(state);
        self.finished.notify(usize::MAX);
    }
}
