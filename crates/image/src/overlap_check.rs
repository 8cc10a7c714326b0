//! Which metadata a host write is checked against before it happens (`overlap-check`, FACTS 1.4).

/// The regions that are checked. A write into one that is not meant for it is refused, and the
/// image marked corrupt, before anything is overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlapChecks {
    /// The header cluster.
    pub main_header: bool,
    /// The L1 table in use.
    pub active_l1: bool,
    /// The L2 tables in use.
    pub active_l2: bool,
    /// The refcount table.
    pub refcount_table: bool,
    /// The refcount blocks.
    pub refcount_block: bool,
    /// The snapshot table.
    pub snapshot_table: bool,
    /// L1 tables of snapshots.
    pub inactive_l1: bool,
    /// L2 tables of snapshots: the one check that reads from the disk.
    pub inactive_l2: bool,
    /// The bitmap directory.
    pub bitmap_directory: bool,
}

impl OverlapChecks {
    /// Nothing is checked.
    pub const NONE: Self = Self {
        main_header: false,
        active_l1: false,
        active_l2: false,
        refcount_table: false,
        refcount_block: false,
        snapshot_table: false,
        inactive_l1: false,
        inactive_l2: false,
        bitmap_directory: false,
    };

    /// What costs the same for every image: a handful of fixed ranges.
    pub const CONSTANT: Self = Self {
        main_header: true,
        active_l1: true,
        refcount_table: true,
        snapshot_table: true,
        bitmap_directory: true,
        ..Self::NONE
    };

    /// What is known without reading the disk.
    pub const CACHED: Self =
        Self { active_l2: true, refcount_block: true, inactive_l1: true, ..Self::CONSTANT };

    /// Everything.
    pub const ALL: Self = Self { inactive_l2: true, ..Self::CACHED };

    /// The sets by name.
    pub const NAMED: [(&'static str, Self); 4] =
        [("none", Self::NONE), ("constant", Self::CONSTANT), ("cached", Self::CACHED), ("all", Self::ALL)];

    /// The set of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, checks)| *checks)
    }

    /// Each region's switch, with the name that overrides it.
    pub fn switches(&mut self) -> [(&'static str, &mut bool); 9] {
        [
            ("main-header", &mut self.main_header),
            ("active-l1", &mut self.active_l1),
            ("active-l2", &mut self.active_l2),
            ("refcount-table", &mut self.refcount_table),
            ("refcount-block", &mut self.refcount_block),
            ("snapshot-table", &mut self.snapshot_table),
            ("inactive-l1", &mut self.inactive_l1),
            ("inactive-l2", &mut self.inactive_l2),
            ("bitmap-directory", &mut self.bitmap_directory),
        ]
    }
}

impl Default for OverlapChecks {
    fn default() -> Self {
        Self::CACHED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_holds_the_one_before_it() {
        let mut sets = OverlapChecks::NAMED.map(|(_, checks)| checks);
        let on: Vec<Vec<bool>> =
            sets.iter_mut().map(|set| set.switches().map(|(_, on)| *on).to_vec()).collect();
        assert_eq!(
            on.iter().map(|set| set.iter().filter(|on| **on).count()).collect::<Vec<_>>(),
            [0, 5, 8, 9]
        );
        for pair in on.windows(2) {
            assert!(pair[0].iter().zip(&pair[1]).all(|(small, large)| !small || *large));
        }
    }
}
