//! Why a name in an image is not followed, and what to do.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Where the rules of a machine's administrator are, which cowhand's programs read.
pub const ADMINISTRATORS: &str = "/etc/cowhand/policy.d";

/// A name that is not followed.
#[derive(Debug, Error)]
#[error("{} names {role} {name:?}: {reason}", .image.display())]
pub struct Refused {
    /// The image in which the name stands.
    pub image: PathBuf,
    /// What the name is for ("backing file").
    pub role: &'static str,
    /// The name as it stands there.
    pub name: OsString,
    /// Why not.
    #[source]
    pub reason: Reason,
}

/// Why a name is not followed.
#[derive(Debug, Error)]
pub enum Reason {
    /// No name.
    #[error("the name is empty")]
    Empty,
    /// No file system has such names.
    #[error("the name contains a zero byte")]
    ZeroByte,
    /// Options in disguise.
    #[error(
        "json: inside an image is not followed unless it is allowed; if it is right, give --allow-name with all of it (for all programs: \
         allow-name in {ADMINISTRATORS}), or name the file on the command line ({hint})"
    )]
    Json {
        /// Option to use instead.
        hint: &'static str,
    },
    /// Its content would decide what it is.
    #[error(
        "the image does not say in which format it is, and the administrator's policy (strict) lets no content decide that; \
         say it (backing.driver=FORMAT), or record it: rebase -u -b FILE -F FORMAT OVERLAY"
    )]
    NoFormat,
    /// Something other than a local file, of which no driver is known here.
    #[error(
        "{protocol}: inside an image is not followed; only local files are (a file of that name: ./{protocol}:...)"
    )]
    Protocol {
        /// What stands before the colon.
        protocol: String,
    },
    /// Storage elsewhere that the user did not allow.
    #[error(
        "{driver}: inside an image is not followed unless it is allowed; if it is right, give --allow-name {name} (for all programs: \
         allow-name in {ADMINISTRATORS}; or name it on the command line: {hint})"
    )]
    NotAllowed {
        /// Its driver.
        driver: &'static str,
        /// What to allow.
        name: Box<str>,
        /// Option to use instead.
        hint: &'static str,
    },
    /// A driver's prefix, and behind it what the driver does not know.
    #[error("it is no name that its driver knows; allowed: {allowed}")]
    Malformed {
        /// What would be one.
        allowed: String,
    },
    /// A regular file behind the name of a driver of devices.
    #[error("{} is no device; a file's name has no such prefix", .path.display())]
    NoDevice {
        /// Where the name leads.
        path: PathBuf,
    },
    /// FIFO, device, directory, socket.
    #[error("{} is {found}; only regular files are followed (to use it, name it on the command line: {hint})", .path.display())]
    NotRegular {
        /// Where the name leads.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// Option to use instead.
        hint: &'static str,
    },
    /// A file of /proc or /sys.
    #[error("{} belongs to the kernel and is not an image", .path.display())]
    KernelFile {
        /// Where the name leads.
        path: PathBuf,
    },
    /// A regular file elsewhere.
    #[error(
        "it leads to {}, outside the image's own directory; if that is right, give --allow-path {} (for all programs: allow-path in {ADMINISTRATORS})",
        .path.display(), .directory.display()
    )]
    Outside {
        /// Where the name leads.
        path: PathBuf,
        /// The directory to allow.
        directory: PathBuf,
    },
    /// A relative name in an image that lies nowhere.
    #[error(
        "the image was given as a descriptor and lies in no directory where the name could start; name the file in the options: {hint}"
    )]
    NoDirectory {
        /// Option to use instead.
        hint: &'static str,
    },
    /// The file was unlinked in between.
    #[error("the file was deleted while it was opened")]
    Deleted,
    /// Nothing is there, or it may not be reached.
    #[error("it leads to {}: {source}", .path.display())]
    NotFound {
        /// Where the name leads.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The system says no.
    #[error("{0}")]
    Io(#[from] io::Error),
}
