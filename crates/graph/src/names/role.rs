//! What a name in an image is for.

/// What a name in an image is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The backing file.
    Backing,
    /// The external data file.
    Data,
    /// A file of a vmdk image's disk.
    Extent,
}

impl Role {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Backing => "backing file",
            Self::Data => "data file",
            Self::Extent => "extent",
        }
    }

    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::Backing => "backing.file=PATH",
            Self::Data => "data-file=PATH",
            Self::Extent => "with a descriptor that names a file beside it",
        }
    }
}
