//! A file that a command makes, and removes again when the command fails.

use std::path::PathBuf;

use cowhand::{Error, NewImage};

/// Knows whether the file was there before: such a file stays, whatever is written over.
#[derive(Clone, Debug)]
pub struct MadeFile {
    path: PathBuf,
    is_new: bool,
}

impl MadeFile {
    /// Makes `image` in the file `path`.
    ///
    /// # Errors
    /// Those of [`cowhand::create`]. Then nothing is to be removed.
    pub async fn make(path: &str, image: NewImage) -> Result<Self, Error> {
        let path = PathBuf::from(path);
        let is_new = path.symlink_metadata().is_err();
        cowhand::create(&path, image).await?;
        Ok(Self { path, is_new })
    }

    /// As [`MadeFile::make`], where nothing is: a server that is killed leaves nothing at the path.
    ///
    /// # Errors
    /// As there.
    pub async fn make_whole(path: &str, image: NewImage) -> Result<Self, Error> {
        cowhand::create_whole(path, image).await?;
        Ok(Self { path: PathBuf::from(path), is_new: true })
    }

    /// Removes the file, if it was not there before.
    pub fn remove(&self) {
        if !self.is_new {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a file that was made for a failed command stays");
        }
    }
}
