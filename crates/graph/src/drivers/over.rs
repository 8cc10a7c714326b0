//! Storage over a file that another driver opens: what a driver of it brings.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

use storage::Storage;

use crate::drive::OptionTree;
use crate::options::{OptionError, Reader, Spec};

/// What a driver says of itself.
#[derive(Debug)]
pub struct Over {
    /// Its option that is the file below.
    pub child: &'static str,
    /// Its options, `child` among them, beside those that every file has.
    pub specs: fn() -> Vec<&'static Spec>,
    /// The options that a file name with its prefix stands for; otherwise what is wrong with the name, as the rest of a sentence.
    pub options_of: fn(&str) -> Result<OptionTree, String>,
    /// Takes its options but `child`, checked.
    pub read: fn(&mut Reader) -> Result<Arc<dyn Wrap>, OptionError>,
}

/// What checked options make of the file below.
pub trait Wrap: Any + fmt::Debug + Send + Sync {
    /// The first option, by its full name, that `other` has otherwise; all of them stay as they are while it is open.
    fn first_difference(&self, other: &dyn Wrap) -> Option<String>;

    /// The name of a file that stands for the same storage over a file called `below`; `None` where only options say what it does.
    fn name_over(&self, below: &str) -> Option<String> {
        let _ = below;
        None
    }

    /// Checks whether it can be put over a file: a command reports the error at once.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// The storage over `below`, which stays open and locked as long as this is there.
    fn wrap(&self, below: Arc<dyn Storage>) -> io::Result<Arc<dyn Storage>>;
}
