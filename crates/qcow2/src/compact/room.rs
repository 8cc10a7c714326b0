//! Room for metadata that lies in several clusters: what is in the way goes elsewhere.

use std::ops::Range;

use super::layout::Layout;
use super::moves::{Leaving, Plan};
use super::units::{KINDS, units};
use super::{CompactError, Compaction, require_sound};
use crate::check::Owner;
use crate::check::pass::Pass;

/// Times that something is moved out of the way in one compaction: once for its tables and once for its data, for as many tables as
/// there are of the kinds that an image has one of, and some snapshots. Each time all metadata is read.
const ROOMS_MAX: u32 = 256;

impl Compaction<'_> {
    /// Moves what is in the way of a table that lies in several clusters, reaches behind the end, and finds no run of free clusters
    /// before it. False if there is none, or nothing can be moved.
    pub(super) async fn make_room(
        &mut self,
        pass: &mut Pass<'_>,
        layout: &Layout,
    ) -> Result<bool, CompactError> {
        if self.rooms >= ROOMS_MAX {
            return Ok(false);
        }
        let Some(clusters) = wanted_run(pass, layout).await? else { return Ok(false) };
        let Some(window) = best_window(pass, layout, clusters) else { return Ok(false) };
        self.rooms += 1;
        let leaving = Leaving::Inside(pass.offset_of(window.start).0..pass.offset_of(window.end).0);
        let room = || layout.room_outside(&window);
        let tables = Plan::new(pass, leaving.clone(), room(), false);
        if self.move_tables(pass, tables).await? {
            return Ok(true);
        }
        let data = Plan::new(pass, leaving, room(), true);
        self.move_data(pass, data).await
    }
}

/// Clusters of the first table that wants room.
async fn wanted_run(pass: &mut Pass<'_>, layout: &Layout) -> Result<Option<u64>, CompactError> {
    let end = pass.offset_of(layout.end).0;
    for kind in KINDS {
        for unit in units(pass, kind).await? {
            let clusters = pass.geometry.clusters_for(unit.len);
            let reaches_behind = unit.start + pass.offset_of(clusters).0 > end;
            if clusters > 1 && reaches_behind && layout.room().take(clusters).is_none() {
                require_sound(pass)?;
                return Ok(Some(clusters));
            }
        }
    }
    Ok(None)
}

/// The run of so many clusters with the fewest in use, all of which can move; the lowest of those.
fn best_window(pass: &Pass<'_>, layout: &Layout, clusters: u64) -> Option<Range<u64>> {
    // What is free behind what the layout lists is not found when the room has been made.
    let end = layout.end.min(layout.listed_end());
    let used = |cluster| u64::from(pass.claims.count(cluster) > 0);
    let fixed = |cluster| {
        let movable = matches!(pass.claims.owner(cluster), Owner::Data | Owner::L2);
        u64::from(pass.claims.count(cluster) > 0 && !movable)
    };
    let (mut in_use, mut in_the_way) = (0, 0);
    let mut best: Option<(u64, u64)> = None;
    for last in 1..end {
        in_use += used(last);
        in_the_way += fixed(last);
        if last > clusters {
            in_use -= used(last - clusters);
            in_the_way -= fixed(last - clusters);
        }
        if last >= clusters && in_the_way == 0 && best.is_none_or(|(fewest, _)| in_use < fewest) {
            best = Some((in_use, last + 1 - clusters));
        }
    }
    best.map(|(_, first)| first..first + clusters)
}
