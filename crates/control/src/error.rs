//! What a client receives when a command cannot be done.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

/// The kinds of errors that QMP's clients tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing more special.
    GenericError,
    /// No such command, or not at this moment.
    CommandNotFound,
    /// The device is there, but not in use.
    DeviceNotActive,
    /// No such device or node.
    DeviceNotFound,
}

impl Class {
    /// Its name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GenericError => "GenericError",
            Self::CommandNotFound => "CommandNotFound",
            Self::DeviceNotActive => "DeviceNotActive",
            Self::DeviceNotFound => "DeviceNotFound",
        }
    }
}

/// A command that was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QmpError {
    /// For programs.
    pub class: Class,
    /// For people.
    pub desc: String,
    /// Whether the system denied an access, and no hint says yet what to do about it.
    pub is_denied: bool,
}

impl QmpError {
    /// Of the general class.
    pub fn generic(desc: impl Into<String>) -> Self {
        Self { class: Class::GenericError, desc: desc.into(), is_denied: false }
    }

    /// A command that there is not.
    pub fn not_found(desc: impl Into<String>) -> Self {
        Self { class: Class::CommandNotFound, ..Self::generic(desc) }
    }

    /// A device or node that there is not.
    pub fn no_device(name: &str) -> Self {
        Self { class: Class::DeviceNotFound, ..Self::generic(format!("there is no device or node {name:?}")) }
    }

    /// A failure with its causes in one line, each said once: a cause may begin with what it is the cause of.
    pub fn because(what: impl Into<String>, error: &(dyn Error + 'static)) -> Self {
        let is_denied = is_denied(error);
        let mut last = what.into();
        let mut desc = last.clone();
        let mut cause = Some(error);
        while let Some(error) = cause {
            let text = error.to_string();
            let new = text.strip_prefix(&last).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text);
            if !desc.contains(new) {
                desc.push_str(": ");
                desc.push_str(new);
            }
            cause = error.source();
            last = text;
        }
        Self { is_denied, ..Self::generic(desc) }
    }

    /// A failure and its causes in one line.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        Self::because(error.to_string(), error)
    }

    /// The same with what to do about it, if an access was denied and no other hint is there.
    #[must_use]
    pub fn hinted_if_denied(mut self, hint: &str) -> Self {
        if std::mem::take(&mut self.is_denied) {
            self.desc.push_str(&format!(" ({hint})"));
        }
        self
    }
}

/// Whether the system denied an access for what failed with `error`: the user has no such right, or the sandbox dropped it.
pub fn is_denied(error: &(dyn Error + 'static)) -> bool {
    let denied = |error: &(dyn Error + 'static)| {
        let kept = error.downcast_ref::<io::Error>();
        let shared = || error.downcast_ref::<Arc<io::Error>>().map(Arc::as_ref);
        let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        // A server's refusal, or the broker's, has no number of the system.
        kept.or_else(shared).is_some_and(|error| is_denied(error) && error.raw_os_error().is_some())
    };
    std::iter::successors(Some(error), |&error| error.source()).any(denied)
}

impl fmt::Display for QmpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.desc)
    }
}

impl Error for QmpError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cause_repeats_is_said_once() {
        let reported =
            |what: &str, cause: &str| QmpError::because(what, &io::Error::other(cause.to_owned())).desc;
        assert_eq!(reported("cannot open x", "cannot open x: no answer"), "cannot open x: no answer");
        assert_eq!(reported("cannot open x", "no answer"), "cannot open x: no answer");
        assert_eq!(reported("cannot open x", "cannot open xy: no"), "cannot open x: cannot open xy: no");
        assert_eq!(reported("cannot open x: no answer", "no answer"), "cannot open x: no answer");
    }

    #[test]
    fn the_first_hint_about_a_denied_access_is_the_only_one() {
        let denied = io::Error::from_raw_os_error(13);
        let hinted = QmpError::because("cannot open x", &denied).hinted_if_denied("do this");
        assert_eq!(hinted.desc, "cannot open x: Permission denied (os error 13) (do this)");
        assert_eq!(hinted.clone().hinted_if_denied("do that"), hinted);
        let missing = QmpError::of(&io::Error::from_raw_os_error(2));
        assert_eq!(missing.clone().hinted_if_denied("do this"), missing);
    }
}
