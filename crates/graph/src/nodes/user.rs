//! Who uses a node.

use std::fmt;

/// A user of something, as a message names it: `export "disk"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// What it is: `node`, `export`.
    pub kind: &'static str,
    /// What it is called.
    pub name: String,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.name)
    }
}
