//! One commit at a time; requests that come meanwhile share the next one.

use sync::{Event, EventListener, Mutex};

use crate::Error;

/// How far metadata goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is on disk afterwards: a power cut leaves it.
    Medium,
    /// The kernel has it afterwards: the death of this process leaves it.
    Kernel,
}

/// One commit at a time; requests that come meanwhile share the next one.
#[derive(Debug, Default)]
pub(crate) struct Committer {
    state: Mutex<State>,
    finished: Event,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Reach>,
    to_medium: Line,
    to_kernel: Line,
}

/// Commits of one reach, counted.
#[derive(Debug, Default)]
struct Line {
    started: u64,
    finished: u64,
    /// The number of the last commit that failed, and why. A request that waits for it or for an earlier one
    /// is reported, also if a later commit made good what it missed: no error goes unreported.
    failed: Option<(u64, Error)>,
}

impl Line {
    /// How commit number `target` ended, or a later one; `None`: not yet.
    fn ended(&self, target: u64) -> Option<Result<(), Error>> {
        let failed = self.failed.as_ref().filter(|(number, _)| *number >= target);
        (self.finished >= target).then(|| failed.map_or(Ok(()), |(_, error)| Err(error.clone())))
    }

    fn finish(&mut self, result: Result<(), Error>) {
        self.finished = self.started;
        if let Err(error) = result {
            self.failed = Some((self.started, error));
        }
    }
}

/// The first commits that start after a request for one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    reach: Reach,
    to_medium: u64,
    to_kernel: u64,
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
            if self.state.lock().running.is_none() {
                return;
            }
            finished.await;
        }
    }

    /// Whether a commit is under way.
    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().running.is_some()
    }

    /// The next commit that reaches so far.
    pub(crate) fn next(&self, reach: Reach) -> Target {
        let state = self.state.lock();
        Target { reach, to_medium: state.to_medium.started + 1, to_kernel: state.to_kernel.started + 1 }
    }

    /// What is to be done for `target`. With [`Turn::Start`] the caller owes [`Committer::finish`].
    pub(crate) fn turn(&self, target: Target) -> Turn {
        let mut state = self.state.lock();
        // What is on disk the kernel has, too.
        let to_kernel = match target.reach {
            Reach::Medium => None,
            Reach::Kernel => state.to_kernel.ended(target.to_kernel),
        };
        if let Some(result) = state.to_medium.ended(target.to_medium).or(to_kernel) {
            return Turn::Done(result);
        }
        if state.running.is_some() {
            return Turn::Wait(self.finished.listen());
        }
        state.running = Some(target.reach);
        state.line(target.reach).started += 1;
        Turn::Start
    }

    /// The commit that is under way has ended.
    pub(crate) fn finish(&self, result: Result<(), Error>) {
        let mut state = self.state.lock();
        if let Some(reach) = state.running.take() {
            state.line(reach).finish(result);
        }
        drop(state);
        self.finished.notify(usize::MAX);
    }
}

impl State {
    fn line(&mut self, reach: Reach) -> &mut Line {
        match reach {
            Reach::Medium => &mut self.to_medium,
            Reach::Kernel => &mut self.to_kernel,
        }
    }
}
