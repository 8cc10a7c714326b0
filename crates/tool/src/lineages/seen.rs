//! A lineage as it was found.

use lineage::{DiskPlace, Place, Survey, Unread};

use crate::failure::warn;

/// A lineage that was looked at, and the disk that led to it.
pub struct Seen {
    /// The lineage.
    pub survey: Survey,
    /// The disk; `None` where a directory was named.
    pub disk: Option<DiskPlace>,
}

impl Seen {
    /// The lineage at `place`. Takes no lock. An image that cannot be read is warned of: another disk may need nothing of it.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(place: Place, disk: Option<DiskPlace>) -> Result<Self, lineage::Error> {
        let survey = Survey::look(&place)?;
        for Unread { path, reason } in &survey.unread {
            warn(&format!("{}: {reason}", path.display()));
        }
        Ok(Self { survey, disk })
    }
}
