//! When a point is a full backup, and why.

use super::manifest::Store;

/// Why a point is a full one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FullBecause {
    /// It is the first.
    First,
    /// The user wants it.
    Asked,
    /// An earlier build took one of the points that the last one needs.
    EarlierBuild,
    /// There is no record of what changed since the last point.
    NoBitmap,
    /// What was to tell missed changes.
    NotTrusted,
}

impl FullBecause {
    /// As JSON has it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Asked => "asked",
            Self::EarlierBuild => "earlier-build",
            Self::NoBitmap => "no-bitmap",
            Self::NotTrusted => "bitmap-missed-changes",
        }
    }

    pub(super) const fn reported(self) -> Option<&'static str> {
        match self {
            Self::First | Self::Asked => None,
            Self::EarlierBuild => Some(
                "an earlier build took the last points and may have left zeroes out of them (docs/reference/advisory-copies.md): this point is a full backup",
            ),
            Self::NoBitmap => {
                Some("no bitmap has what changed since the last point: this one is a full backup")
            }
            Self::NotTrusted => {
                Some("the bitmap of the last point missed changes: this point is a full backup")
            }
        }
    }
}

/// Whether the next point must be a full one. `recording`: there is the bitmap of the last point, and whether it has all changes.
pub(super) fn why_full(store: &Store, asked: bool, recording: Option<bool>) -> Option<FullBecause> {
    match (store.points().is_empty(), asked, recording) {
        (true, _, _) => Some(FullBecause::First),
        (false, true, _) => Some(FullBecause::Asked),
        _ if !store.is_chain_trusted() => Some(FullBecause::EarlierBuild),
        (false, false, None) => Some(FullBecause::NoBitmap),
        (false, false, Some(false)) => Some(FullBecause::NotTrusted),
        (false, false, Some(true)) => None,
    }
}
