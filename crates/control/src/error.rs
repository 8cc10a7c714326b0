//! What a client receives when a command cannot be done.

use std::fmt;

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
}

impl QmpError {
    /// Of the general class.
    pub fn generic(desc: impl Into<String>) -> Self {
        Self { class: Class::GenericError, desc: desc.into() }
    }

    /// A command that there is not.
    pub fn not_found(desc: impl Into<String>) -> Self {
        Self { class: Class::CommandNotFound, desc: desc.into() }
    }

    /// A device or node that there is not.
    pub fn no_device(name: &str) -> Self {
        Self { class: Class::DeviceNotFound, desc: format!("there is no device or node {name:?}") }
    }

    /// A failure with its causes in one line, each said once: a cause may begin with what it is the cause of.
    pub fn because(what: impl Into<String>, error: &dyn std::error::Error) -> Self {
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
        Self::generic(desc)
    }
}

impl fmt::Display for QmpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.desc)
    }
}

impl std::error::Error for QmpError {}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_a_cause_repeats_is_said_once() {
        let told =
            |what: &str, cause: &str| QmpError::because(what, &io::Error::other(cause.to_owned())).desc;
        assert_eq!(told("cannot open x", "cannot open x: no answer"), "cannot open x: no answer");
        assert_eq!(told("cannot open x", "no answer"), "cannot open x: no answer");
        assert_eq!(told("cannot open x", "cannot open xy: no"), "cannot open x: cannot open xy: no");
        assert_eq!(told("cannot open x: no answer", "no answer"), "cannot open x: no answer");
    }
}
