//! Why a command of a script failed.

use std::io;

use tool::failure::Failure;

/// Why a command failed. The script continues, unless its output is closed.
#[derive(Debug)]
pub enum Failed {
    /// A line of the result says it.
    Shown,
    /// To be said on standard error.
    Because(Failure),
    /// Nothing can be written any more.
    Output(io::Error),
}

impl Failed {
    /// `error` explains `what`.
    pub fn because(what: &str, error: &dyn std::error::Error) -> Self {
        Self::Because(Failure::because(what, error))
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self::Because(failure)
    }
}

/// Where a failure ends the script.
impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Shown => Failure::new("a command failed"),
            Failed::Because(failure) => failure,
            Failed::Output(error) => error.into(),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
