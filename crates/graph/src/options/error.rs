//! What can be wrong with an option.

use thiserror::Error;
use throttle::{Dialect, LimitsError};

/// An option that cannot be used as given. `option` is always the full dotted name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// `encrypt.format` of an image that is not encrypted so.
    #[error("option encrypt.format is {asked}, and the image is not encrypted with it")]
    NotEncrypted {
        /// As given.
        asked: &'static str,
    },
    /// A LUKS file without its password.
    #[error("the file is encrypted (LUKS); its password is needed: give key-secret=ID")]
    NoPassword,
    /// A driver that this build lacks.
    #[error("driver {driver} is not in this program: it was built without the feature {feature}")]
    NotBuilt {
        /// Its name.
        driver: &'static str,
        /// What it takes.
        feature: &'static str,
    },
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
    /// An option of one format on an image of another.
    #[error("option {option} is for {needs} images, and this image is {format}")]
    Format {
        /// Its name.
        option: String,
        /// The format that has it.
        needs: &'static str,
        /// The image's format.
        format: &'static str,
    },
    /// A part of a file that the file does not have.
    #[error(
        "options offset and size ask for {offset} + {size} bytes of a file of {file} bytes; allowed: at most its end"
    )]
    Window {
        /// First byte.
        offset: u64,
        /// Bytes from there on.
        size: u64,
        /// Bytes of the file.
        file: u64,
    },
    /// A driver for another kind of file.
    #[error("option {option} is {driver}, which is for {needs}; this is {found}")]
    FileDriver {
        /// Its name.
        option: &'static str,
        /// As given.
        driver: &'static str,
        /// The kind of file it is for.
        needs: &'static str,
        /// The kind of file that is there.
        found: &'static str,
    },
    /// An option of a path on this machine, for a file that is elsewhere.
    #[error("option {option} is for files of this machine, and driver {driver} has none")]
    NotOfDriver {
        /// Its name.
        option: String,
        /// The driver.
        driver: &'static str,
    },
    /// A data file for an image that keeps its data in itself.
    #[error("option data-file is for images with an external data file, and this image has none")]
    NoDataFile,
    /// A file for bitmaps of an image that keeps them in itself.
    #[error("option bitmaps is for disks that are no qcow2 images: these keep their bitmaps themselves")]
    OwnBitmaps,
}

fn did_you_mean(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        several => format!("; did you mean one of {}?", several.join(", ")),
    }
}
