//! What is asked of a job, and what it tells.

use thiserror::Error;

use crate::error::Side;
use crate::state::{Status, Verb};

/// What a failed request of a job comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The job fails.
    #[default]
    Report,
    /// It is tried again later.
    Ignore,
    /// The job rests until a user resumes it.
    Stop,
    /// It rests if there is no room, and fails otherwise.
    Enospc,
}

/// What was made of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The job fails.
    Report,
    /// It is tried again.
    Ignore,
    /// The job rests first.
    Stop,
}

/// What a job tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It is somewhere else in its life.
    Status(Status),
    /// A request failed.
    Failed(Side, Verdict),
}

/// How requests of a job failed since it was last let go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoStatus {
    /// None that stopped it.
    #[default]
    Ok,
    /// One that stopped it.
    Failed,
    /// Likewise, for want of room.
    NoSpace,
}

/// Why a job does not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerbError {
    /// Not in this state.
    #[error("job {id:?} is {}; it cannot {} now", .status.name(), .verb.name())]
    NotNow {
        /// The job.
        id: String,
        /// Where it is.
        status: Status,
        /// What was asked.
        verb: Verb,
    },
    /// It was asked before.
    #[error("job {id:?} is paused already")]
    PausedAlready {
        /// The job.
        id: String,
    },
    /// It is not paused.
    #[error("job {id:?} is not paused")]
    NotPaused {
        /// The job.
        id: String,
    },
    /// It rests, and would not look.
    #[error("job {id:?} is paused; resume it, or cancel it with force")]
    Rests {
        /// The job.
        id: String,
    },
}

/// How a job was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By cancelling it: one that is ready leaves a whole copy.
    Cancel,
    /// By force: what it has done so far is worth nothing.
    Force,
    /// By completing it.
    Complete,
}

/// What stays the same in a job's life.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Its name.
    pub id: String,
    /// What failed reads come to.
    pub on_source_error: OnError,
    /// What failed writes come to.
    pub on_target_error: OnError,
    /// A user has to ask for its last step.
    pub waits_for_finalize: bool,
    /// A user has to dismiss it.
    pub waits_for_dismiss: bool,
}

impl Terms {
    /// What failed requests of that side come to.
    pub fn on_error(&self, side: Side) -> OnError {
        match side {
            Side::Source => self.on_source_error,
            Side::Target => self.on_target_error,
        }
    }
}
