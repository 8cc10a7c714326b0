//! Storage that is no path on this machine: what a driver of it brings.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

use serde_json::{Map, Value};
use storage::{IoFuture, Storage};

use crate::drive::OptionTree;
use crate::options::{OptionError, Reader, Spec};

/// What a driver says of itself.
#[derive(Debug)]
pub struct Elsewhere {
    /// Its options, beside those that every file has.
    pub specs: fn() -> Vec<&'static Spec>,
    /// The options that a file name with its prefix stands for; otherwise what is wrong with the name, as the rest of a sentence.
    pub options_of: fn(&str) -> Result<OptionTree, String>,
    /// What messages call it by a file name with its prefix: the name without credentials.
    pub shown: fn(&str) -> String,
    /// Takes its options, checked.
    pub read: fn(&mut Reader) -> Result<Arc<dyn Target>, OptionError>,
    /// It opens nothing and connects to nothing.
    pub is_within_process: bool,
}

/// How it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// It will be written.
    pub writable: bool,
    /// Past caches of this machine.
    pub direct: bool,
    /// A flush does nothing.
    pub no_flush: bool,
}

/// Storage that checked options name.
pub trait Target: Any + fmt::Debug + Send + Sync {
    /// What messages call it, and what is the same for the same storage only.
    fn name(&self) -> String;

    /// All options, where [`Target::name`] leaves some out that say which storage it is.
    fn beyond_name(&self) -> Option<Map<String, Value>> {
        None
    }

    /// The first option, by its full name, that `other` has otherwise; all of them stay as they are while it is open.
    fn first_difference(&self, other: &dyn Target) -> Option<String>;

    /// Whether a user who allows names in images to lead to this allows `other` with it.
    fn covers(&self, other: &dyn Target) -> bool {
        self.first_difference(other).is_none()
    }

    /// Checks what can be checked without opening it: a command reports the error at once.
    fn check(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Whether [`Target::create`] can make it.
    fn is_creatable(&self) -> bool {
        false
    }

    /// Whether [`Target::create`] makes nothing new: it prepares what is there to be overwritten.
    fn is_overwritable(&self) -> bool {
        false
    }

    /// Makes it, with so many bytes, which read as zeroes; or finds that what is there has them at least, and that it may be overwritten.
    ///
    /// # Errors
    /// When something new would be made and is there, when what is there is too short, or the driver makes nothing.
    fn create(&self, bytes: u64) -> IoFuture<'_, io::Result<()>> {
        let _ = bytes;
        Box::pin(async { Err(io::Error::new(io::ErrorKind::Unsupported, "its driver creates nothing")) })
    }

    /// Opens it. Finding out who else uses it is the driver's job.
    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>>;
}

impl PartialEq for dyn Target {
    fn eq(&self, other: &Self) -> bool {
        self.first_difference(other).is_none()
    }
}

impl Eq for dyn Target {}
