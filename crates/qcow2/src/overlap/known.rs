//! The place of all metadata of one image that is in use.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sync::{Arc, ArcSwapOption, Mutex};

use super::clusters::Clusters;
use super::places::is_one_cluster;
use super::{OverlapCheck, Places, Section, Sections};

/// The place of every piece of metadata of one image.
///
/// Law: a look-up takes no lock, and sees every piece that was entered before; one that is entered meanwhile belongs to clusters that
/// no request has yet.
#[derive(Debug)]
pub(crate) struct MetadataMap {
    /// Held while something is changed.
    known: Mutex<KnownPlaces>,
    /// What it was after the last change, for look-ups.
    shown: ArcSwapOption<KnownPlaces>,
}

/// What is looked at, and where it is. Clones share what did not change.
#[derive(Clone, Debug)]
struct KnownPlaces {
    check: OverlapCheck,
    cluster_bits: u32,
    /// Pieces that are one whole cluster: all L2 tables and refcount blocks.
    clusters: Clusters,
    /// The others. Start -> end (excluded) and sections; two meet in a corrupt image only.
    others: Arc<BTreeMap<u64, (u64, Sections)>>,
}

/// Memory of one of those others: a leaf of the map has room for eleven and is two thirds full, more or less.
const OTHER_BYTES: u64 = size_of::<(u64, (u64, Sections))>() as u64 * 3 / 2;

impl MetadataMap {
    pub(crate) fn new(check: OverlapCheck, places: Places) -> Self {
        let known = KnownPlaces::new(check, places);
        let shown = ArcSwapOption::empty();
        shown.store(Some(Arc::new(known.clone())));
        Self { known: Mutex::new(known), shown }
    }

    /// Changes what is known, and shows it.
    fn changing<T>(&self, change: impl FnOnce(&mut KnownPlaces) -> T) -> T {
        let mut known = self.known.lock();
        let result = change(&mut known);
        self.shown.store(Some(Arc::new(known.clone())));
        result
    }

    /// Looks at other sections from now on; `places` are all there are of them.
    pub(crate) fn change(&self, check: OverlapCheck, places: Places) {
        let other = KnownPlaces::new(check, places);
        self.changing(|known| *known = other);
    }

    /// The sections that are looked at.
    pub(crate) fn check(&self) -> OverlapCheck {
        self.known.lock().check
    }

    /// Whether `section` is looked at.
    pub(crate) fn checks(&self, section: Section) -> bool {
        self.check().checks(section)
    }

    /// Bytes of memory, more or less.
    pub(crate) fn footprint(&self) -> u64 {
        let known = self.known.lock();
        known.clusters.footprint() + known.others.len() as u64 * OTHER_BYTES
    }

    /// Enters a new piece.
    pub(crate) fn add(&self, start: u64, len: u64, section: Section) {
        self.changing(|known| {
            if known.check.checks(section) {
                known.enter(start, len, section);
            }
        });
    }

    /// Forgets a piece of one section. What else begins there stays.
    pub(crate) fn remove(&self, start: u64, section: Section) {
        self.changing(|known| known.leave(start, section));
    }

    /// An L2 table is no longer the active image's, but still a snapshot's. Its place is known without reading
    /// anything, so it is looked at from now on as it was before, whatever is said of [`Section::InactiveL2`].
    pub(crate) fn leave_to_snapshot(&self, start: u64) {
        self.changing(|known| {
            let cluster = start >> known.cluster_bits;
            known.clusters.turn(cluster, Section::ActiveL2, Section::InactiveL2);
        });
    }

    /// Enters such a table.
    pub(crate) fn add_to_snapshot(&self, start: u64) {
        self.changing(|known| known.clusters.enter(start >> known.cluster_bits, Section::InactiveL2));
    }

    /// Where L2 tables of snapshots are, as far as it is known, in no order.
    pub(crate) fn inactive_l2(&self) -> Vec<u64> {
        let known = self.known.lock();
        known.clusters.with(Section::InactiveL2).map(|cluster| cluster << known.cluster_bits).collect()
    }

    /// Forgets all pieces of `sections`, and enters `pieces` of them: section, offset and length.
    pub(crate) fn replace(&self, sections: &[Section], pieces: impl Iterator<Item = (Section, u64, u64)>) {
        self.changing(|known| {
            let gone = Sections::of(sections);
            known.clusters.forget(gone);
            Arc::make_mut(&mut known.others).retain(|_, (_, there)| {
                *there = there.without(gone);
                *there != Sections::NONE
            });
            let check = known.check;
            for (section, start, len) in pieces.filter(|(section, ..)| check.checks(*section)) {
                known.enter(start, len, section);
            }
            known.clusters.merge_many();
        });
    }

    /// The metadata, other than `except`, that `start..start + len` would touch. Takes no lock.
    #[inline]
    pub(crate) fn touched(&self, start: u64, len: u64, except: Option<Section>) -> Option<(u64, Section)> {
        let except = except.map_or(Sections::NONE, |section| Sections::of(&[section]));
        let end = start.saturating_add(len);
        let shown = self.shown.load();
        let known = shown.as_ref()?;
        let bits = known.cluster_bits;
        let cluster = known.clusters.last_in(start >> bits, end.div_ceil(1 << bits), except);
        let cluster = cluster.map(|(cluster, section)| (cluster << bits, section));
        // They do not meet, so the nearest few tell.
        let mut below = known.others.range(..end).rev().take(2).filter(|(_, (end, _))| *end > start);
        let other = below.find_map(|(&at, (_, there))| Some((at, there.without(except).first()?)));
        cluster.into_iter().chain(other).max_by_key(|&(at, section)| (at, Reverse(section)))
    }
}

impl KnownPlaces {
    fn new(check: OverlapCheck, places: Places) -> Self {
        let Places { cluster_bits, clusters, others, .. } = places;
        let clusters = Clusters::new(clusters, check.into());
        let mut known = Self { check, cluster_bits, clusters, others: Default::default() };
        for (start, end, section) in others.into_iter().filter(|(.., section)| check.checks(*section)) {
            known.enter(start, end - start, section);
        }
        known
    }

    fn enter(&mut self, start: u64, len: u64, section: Section) {
        if is_one_cluster(start, len, self.cluster_bits) {
            self.clusters.enter(start >> self.cluster_bits, section);
        } else if len > 0 {
            let end = start.saturating_add(len);
            let (there, sections) =
                Arc::make_mut(&mut self.others).entry(start).or_insert((end, Sections::NONE));
            *there = end.max(*there);
            *sections = sections.with(Sections::of(&[section]));
        }
    }

    /// Forgets what begins at `start`, of whatever length; says whether there was something of that section.
    fn leave(&mut self, start: u64, section: Section) -> bool {
        let cluster = start >> self.cluster_bits;
        let is_aligned = cluster << self.cluster_bits == start;
        let was_cluster = is_aligned && self.clusters.leave(cluster, section);
        if !self.others.contains_key(&start) {
            return was_cluster;
        }
        let others = Arc::make_mut(&mut self.others);
        let Some((_, sections)) = others.get_mut(&start) else { return was_cluster };
        let was = sections.has(section);
        *sections = sections.without(Sections::of(&[section]));
        if *sections == Sections::NONE {
            others.remove(&start);
        }
        was_cluster || was
    }
}
