//! The check of an image: each grain that is stored lies inside its file.

use block::{Blame, Error};

use super::{Content, Vmdk};
use crate::pieces::Layout;

/// Reads all tables of the image. Costs no reads of data.
///
/// # Errors
/// The first contradiction, as [`block::ErrorKind::Corrupt`], and what reading the tables reports.
pub async fn check(image: &Vmdk) -> Result<(), Error> {
    let layout = &image.layout;
    for extent in &layout.extents {
        let mut at = extent.start;
        let end = extent.start + extent.bytes;
        if let Content::Flat { file, at: first } = &extent.content
            && *first >= file.length()
        {
            return Err(Blame::new(file.name()).corrupt(format!(
                "a flat extent begins at {first}, beyond the end of the file ({} bytes)",
                file.length()
            )));
        }
        while at < end && !matches!(extent.content, Content::Flat { .. }) {
            at += layout.locate(at, end - at).await?.len;
        }
    }
    Ok(())
}
