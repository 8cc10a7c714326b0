//! Why a job ended early, in the words of its events.

use graph::NodeError;
use job::Error;

/// Why a job ended early.
#[derive(Debug)]
pub(super) enum Failed {
    Cancelled,
    Because(String),
    /// A request failed of what the system said.
    OfSystem {
        said: String,
        by_system: String,
    },
}

impl Failed {
    pub(super) fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        match said_by_system(error) {
            Some(by_system) => Self::OfSystem { said: said(error), by_system },
            None => Self::Because(said(error)),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::Cancelled => Self::Cancelled,
            error => Self::of(&error),
        }
    }
}

impl From<checkpoints::Error> for Failed {
    fn from(error: checkpoints::Error) -> Self {
        match error {
            checkpoints::Error::Cancelled => Self::Cancelled,
            error => Self::Because(said(&error)),
        }
    }
}

/// What the system said, where it was the system, or would say of a node that others use: QEMU's jobs tell no more.
fn said_by_system(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let number = causes.filter_map(|error| {
        let block = error.downcast_ref::<block::Error>().and_then(block::Error::raw_os_error);
        let of_system = block.or_else(|| error.downcast_ref::<std::io::Error>()?.raw_os_error());
        let in_use = matches!(error.downcast_ref(), Some(NodeError::InUse { .. }));
        of_system.or_else(|| in_use.then_some(libc::EPERM))
    });
    let text = std::io::Error::from_raw_os_error(number.last()?).to_string();
    Some(text.split(" (os error").next().unwrap_or_default().to_owned())
}

/// An error with its causes in one line.
fn said(error: &(dyn std::error::Error + 'static)) -> String {
    control::QmpError::because(String::new(), error).desc.trim_start_matches(": ").to_owned()
}
