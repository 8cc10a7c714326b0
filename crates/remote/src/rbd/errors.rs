//! What can go wrong with an image of a cluster.

use std::io;

use thiserror::Error;

/// Why an image cannot be used, or a request of it failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// It cannot be opened.
    #[error("{reason}")]
    Open {
        /// The library's words.
        reason: String,
        /// The system's kind.
        kind: io::ErrorKind,
    },
    /// The worker ended while the request was on its way.
    #[error("the process that has the RBD image ended")]
    Lost,
    /// The cluster refuses the request.
    #[error("the cluster answers: {}", io::Error::from_raw_os_error(*.number))]
    Failed {
        /// The system's number.
        number: i32,
    },
    /// Nothing came of it in time.
    #[error("{name}: no answer within {seconds} s (remote-timeout){}", because(.reason))]
    Silent {
        /// The image.
        name: String,
        /// How long it was waited for.
        seconds: u64,
        /// What became of the last attempt to start a worker.
        reason: Option<String>,
    },
    /// The program ends, and waits no more.
    #[error("{name}: this program ends")]
    Ends {
        /// The image.
        name: String,
    },
    /// A worker's answer that cannot be true.
    #[error("the process that has the RBD image answers {0}")]
    Answer(&'static str),
    /// It cannot be done with an image of a cluster.
    #[error("an RBD image cannot {0}")]
    Unsupported(&'static str),
}

fn because(reason: &Option<String>) -> String {
    reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Open { kind, .. } => *kind,
            Error::Lost | Error::Ends { .. } => io::ErrorKind::ConnectionAborted,
            Error::Failed { number } => io::Error::from_raw_os_error(*number).kind(),
            Error::Silent { .. } => io::ErrorKind::TimedOut,
            Error::Answer(_) => io::ErrorKind::InvalidData,
            Error::Unsupported(_) => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}
