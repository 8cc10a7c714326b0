//! Files in which images are made.

use std::sync::Arc;

use serde_json::{Value, json};
use storage::Storage;

use super::description::Described;
use super::description_error::DescriptionError;
use super::error::NodeError;
use super::holders::Hold;
use super::user::User;
use super::{Change, Graph};
use crate::file::{Origin, Source};
use crate::options::DiskOptions;

/// A file in which an image is made: open for writing and locked. The nodes that it was found by stay until this is dropped.
#[derive(Debug)]
pub struct FileToFill {
    /// The file.
    pub storage: Arc<dyn Storage>,
    /// What an image calls it that has it as its data file: a full path, or what its driver calls it.
    pub full_name: String,
    _origin: Origin,
    _holds: Vec<Hold>,
}

impl Graph {
    /// Opens the file that `file` names as a node or describes with blockdev-add's options, for `user`, who writes to it what it likes.
    /// Costs one or two descriptors; nothing is written.
    ///
    /// # Errors
    /// When it leads to no file, or a node, an export, a job or another process uses it. `member` is what the user calls it.
    pub async fn open_to_fill(
        &self,
        _change: &Change<'_>,
        member: &str,
        file: &Value,
        user: &User,
    ) -> Result<FileToFill, NodeError> {
        let over = json!({ "driver": "raw", "file": file });
        let described = over.as_object().map(|over| self.describe(over)).transpose();
        let Described { tree, links } = match described {
            Err(NodeError::Description(DescriptionError::NotAFile { member: found })) if found == "file" => {
                Err(DescriptionError::NotAFile { member: member.to_owned() }.into())
            }
            Ok(None) => Err(NodeError::from(DescriptionError::NotAFile { member: member.to_owned() })),
            Ok(Some(described)) => Ok(described),
            Err(error) => Err(error),
        }?;
        self.check_alone(&links.uses, &links.uses)?;
        let holds = links.uses.iter().map(|name| self.hold(name, user.clone())).collect::<Result<_, _>>()?;
        let options = DiskOptions::of_tree(tree)?;
        self.find_files(&options)?;
        self.open_described(&options, holds).await
    }

    async fn open_described(&self, options: &DiskOptions, holds: Vec<Hold>) -> Result<FileToFill, NodeError> {
        let path = options.filename.clone();
        let failed = |source| NodeError::Open { path: path.clone(), source: Box::new(source) };
        let layer = &options.layer;
        let source = Source::by_options(&layer.file, &self.rules.fd_sets, true).map_err(failed)?;
        let source = source.ok_or(DescriptionError::Missing { argument: "filename" })?;
        let name = path.display().to_string();
        let opened = source.open(&name, &layer.file, layer, true).await.map_err(failed)?;
        let full_name = opened.origin.full_name();
        Ok(FileToFill { storage: opened.storage, full_name, _origin: opened.origin, _holds: holds })
    }
}
