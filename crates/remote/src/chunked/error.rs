//! What can go wrong with a chunked image.

use std::io;

use crate::chunked::key::{KeyError, KeyId};
use crate::chunked::manifest_error::ManifestError;
use crate::chunked::start_list::StartListError;
use crate::s3::StoreError;

/// Why a chunked image cannot be read or made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store, or the way to it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The server, or the way to it.
    #[error(transparent)]
    Server(#[from] crate::http::Error),
    /// There is no such image.
    #[error("there is no chunked image: {manifest} is not there")]
    NoImage {
        /// Its manifest.
        manifest: String,
    },
    /// The manifest is none, or is not read.
    #[error("{manifest}: {source}")]
    Manifest {
        /// Its name.
        manifest: String,
        /// What is wrong with it.
        source: ManifestError,
    },
    /// The start list is none, or is not read.
    #[error("{list}: {source}")]
    StartList {
        /// Its name.
        list: String,
        /// What is wrong with it.
        source: StartListError,
    },
    /// A pack is not what a start list says.
    #[error("{pack}: this pack {reason}")]
    Pack {
        /// Its name.
        pack: String,
        /// What is wrong with it.
        reason: String,
    },
    /// None of the chunks that were named has data in the image.
    #[error("{image}: none of what is read has data there: there is nothing to pack")]
    NothingToPack {
        /// The image.
        image: String,
    },
    /// An object that the image leads to is not there.
    #[error("{object}: the image is damaged: this {what} is missing")]
    Missing {
        /// Its name.
        object: String,
        /// What it is.
        what: &'static str,
    },
    /// An object is shorter or longer than what it stands for.
    #[error("{object}: the image is damaged: this {what} has {found} bytes and must have {needed}")]
    Length {
        /// Its name.
        object: String,
        /// What it is.
        what: &'static str,
        /// Its bytes.
        found: u64,
        /// What it must have.
        needed: u64,
    },
    /// An object is a zstd frame that cannot be decompressed.
    #[error("{object}: the image is damaged: this {what} is no zstd frame of {needed} bytes: {reason}")]
    Frame {
        /// Its name.
        object: String,
        /// What it is.
        what: &'static str,
        /// The bytes that it must have when it is decompressed.
        needed: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The content of an object is not what its name says.
    #[error("{object}: the image is damaged: this {what} has another content than its name says")]
    Content {
        /// Its name.
        object: String,
        /// What it is.
        what: &'static str,
    },
    /// An object was changed, or is that of another name.
    #[error(
        "{object}: the image is damaged: this {what} was not encrypted with the image's key under this name, or was changed"
    )]
    Encryption {
        /// Its name.
        object: String,
        /// What it is.
        what: &'static str,
    },
    /// A table of deltas, or a delta, is not what was written.
    #[error("{object}: the image is damaged: this {what} {reason}")]
    Delta {
        /// Its name.
        object: String,
        /// What it is.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// It takes a key.
    #[error("{image} is encrypted with the key {key}: give the secret that holds it (encrypt-key-secret)")]
    Encrypted {
        /// The image.
        image: String,
        /// Its key.
        key: KeyId,
    },
    /// It takes another key.
    #[error("{image} is encrypted with the key {key}; the key that was given is {given}")]
    OtherKey {
        /// The image.
        image: String,
        /// Its key.
        key: KeyId,
        /// That of the secret.
        given: KeyId,
    },
    /// A client without the key may have put it there.
    #[error(
        "{image} is not encrypted, and a key was given (encrypt-key-secret): each user who may write there may have made it"
    )]
    NotEncrypted {
        /// The image.
        image: String,
    },
    /// The manifest has no proof, or that of another one.
    #[error(
        "{manifest}: it was changed, or written under another name: its mac is not that of the key {key}"
    )]
    Unproven {
        /// Its name.
        manifest: String,
        /// The key.
        key: KeyId,
    },
    /// The key, or the random bytes that go with it.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Equal chunks have other names in the other image.
    #[error("{one} and {other} cannot be compared by the names of their chunks: {reason}")]
    Incomparable {
        /// The one.
        one: String,
        /// The other.
        other: String,
        /// Why their names differ.
        reason: String,
    },
    /// There is no such checkpoint.
    #[error(
        "{image} has no checkpoint {name:?} below it; allowed: its name or id, as published to this image"
    )]
    NoCheckpoint {
        /// The image.
        image: String,
        /// The name that was given.
        name: String,
    },
    /// A process removes chunks that nothing leads to.
    #[error("chunks of this folder are being removed{}: {object} says so", ago(*.begun_s))]
    Removing {
        /// Who says so.
        object: String,
        /// How long ago it began.
        begun_s: Option<u64>,
    },
    /// A process pushes, and may rely on chunks that nothing leads to yet.
    #[error("an image is being pushed to this folder{}: {object} says so", ago(*.begun_s))]
    Pushing {
        /// Who says so.
        object: String,
        /// How long ago it began.
        begun_s: Option<u64>,
    },
    /// A removal ends before pushes take it for dead.
    #[error("chunks have been removed for 12 hours; what is left takes another call")]
    RemovalTooLong,
    /// What was found could not be reported.
    #[error("the output: {0}")]
    Output(io::Error),
    /// It is only read.
    #[error("{image} is only read: open it with read-only=on, or as the backing file of an overlay")]
    ReadOnly {
        /// The image.
        image: String,
    },
}

impl Error {
    /// Whether an image takes another key than the one that was given, or none.
    pub fn is_of_another_key(&self) -> bool {
        matches!(self, Self::OtherKey { .. } | Self::NotEncrypted { .. })
    }

    /// Whether an object that a manifest leads to is not there, or is not what was written.
    pub fn is_of_lost_object(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. }
                | Self::Length { .. }
                | Self::Frame { .. }
                | Self::Content { .. }
                | Self::Encryption { .. }
                | Self::Delta { .. }
        )
    }

    /// Whether the store says that it must not be asked for this.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.status(), Some(401 | 403))
    }

    /// The status with which the store or server refused.
    pub(crate) fn status(&self) -> Option<u16> {
        let (Self::Server(error) | Self::Store(StoreError::Http(error))) = self else { return None };
        match error {
            crate::http::Error::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

fn ago(seconds: Option<u64>) -> String {
    seconds.map_or_else(String::new, |seconds| match seconds {
        0..120 => format!(", since {seconds} s"),
        120..7200 => format!(", since {} min", seconds / 60),
        _ => format!(", since {} h", seconds / 3600),
    })
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            // They know their kinds.
            Error::Server(error) | Error::Store(StoreError::Http(error)) => error.into(),
            Error::Output(error) => error,
            Error::Store(_) => Self::other(error),
            Error::Removing { .. } | Error::Pushing { .. } | Error::RemovalTooLong => {
                Self::new(io::ErrorKind::ResourceBusy, error)
            }
            Error::NoImage { .. } | Error::NoCheckpoint { .. } => Self::new(io::ErrorKind::NotFound, error),
            Error::Manifest { .. }
            | Error::StartList { .. }
            | Error::Pack { .. }
            | Error::Missing { .. }
            | Error::Length { .. }
            | Error::Frame { .. }
            | Error::Content { .. }
            | Error::Encryption { .. }
            | Error::Delta { .. }
            | Error::Unproven { .. } => Self::new(io::ErrorKind::InvalidData, error),
            Error::Incomparable { .. }
            | Error::NothingToPack { .. }
            | Error::Encrypted { .. }
            | Error::OtherKey { .. }
            | Error::NotEncrypted { .. }
            | Error::Key(_) => Self::new(io::ErrorKind::InvalidInput, error),
            Error::ReadOnly { .. } => Self::new(io::ErrorKind::ReadOnlyFilesystem, error),
        }
    }
}
