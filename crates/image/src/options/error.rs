//! What can be wrong with an option.

use thiserror::Error;
use throttle::{Dialect, LimitsError};

/// An option that cannot be used as given. `option` is always the full dotted name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// No option has this name here.
    #[error("unknown option {option}{}", did_you_mean(.nearest))]
    Unknown {
        /// As given.
        option: String,
        /// Known names that are close, full and dotted.
        nearest: Vec<String>,
    },
    /// An option of QEMU's `-drive` that describes the guest's device, not the image.
    #[error("option {option} describes {of}, not the image; leave it out here")]
    Elsewhere {
        /// As given.
        option: String,
        /// What it belongs to.
        of: &'static str,
    },
    /// A value that the option does not take.
    #[error("option {option} is {found:?}; allowed: {allowed}")]
    Value {
        /// Its name.
        option: String,
        /// As given.
        found: String,
        /// What could have been given.
        allowed: String,
    },
    /// A group where a value belongs, or the reverse.
    #[error("option {option} {problem}")]
    Shape {
        /// Its name.
        option: String,
        /// What is wrong, as the rest of a sentence.
        problem: &'static str,
    },
    /// Two options that cannot both be true.
    #[error("options {option} and {other} contradict each other: {rule}")]
    Conflict {
        /// One.
        option: String,
        /// The other.
        other: String,
        /// What would be right.
        rule: &'static str,
    },
    /// Limits that no disk can have.
    #[error("{}", .source.describe(*.dialect))]
    Limits {
        /// The rule that is broken.
        source: LimitsError,
        /// Whose names the message uses.
        dialect: Dialect,
    },
    /// The drive names no file.
    #[error("the drive names no file; give file=PATH")]
    NoFile,
    /// An option of qcow2 on a raw image.
    #[error("option {option} is for qcow2 images, and this image is {format}")]
    Format {
        /// Its name.
        option: String,
        /// The image's format.
        format: &'static str,
    },
}

fn did_you_mean(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        several => format!("; did you mean one of {}?", several.join(", ")),
    }
}
