//! What is said of an image in words, beside bars and maps: the same in a terminal and on a page.

use graph::size::human_size;
use tool::output::printable;

use super::kind::Kind;
use super::picture::{Clusters, Image, Layer, Picture};
use crate::info::date::utc;

/// A name, and what is said of it.
pub type Fact = (&'static str, String);

/// Snapshots, and bitmaps, that are shown by name; the format allows 65,536 of each.
const SHOWN_MAX: usize = 8;

/// The first line: what the disk is.
pub fn headline(picture: &Picture) -> String {
    let mut text = format!("{} disk", human_size(picture.virtual_size));
    match &picture.image {
        Some(image) => text += &format!(", qcow2 in {} clusters", human_size(image.cluster_size)),
        None => text += ", raw",
    }
    if picture.layers.len() > 1 {
        text += &format!(", {} images", picture.layers.len());
    }
    text
}

/// How large each kind of the disk is, in bytes.
pub fn of_disk(picture: &Picture) -> Vec<(Kind, u64)> {
    let sum = picture.disk.sum();
    let parts = Kind::OF_DISK.into_iter().map(|kind| (kind, sum.of(kind)));
    parts.filter(|(kind, bytes)| *bytes > 0 || *kind == Kind::Data).collect()
}

/// How large each kind of the file is, in bytes.
pub fn of_file(image: &Image) -> Vec<(Kind, u64)> {
    let sum = image.file.sum();
    Kind::OF_FILE.into_iter().map(|kind| (kind, sum.of(kind))).filter(|(_, bytes)| *bytes > 0).collect()
}

/// What is said of an image below the maps.
pub fn of_image(image: &Image) -> Vec<Fact> {
    let mut facts = vec![("clusters", clusters(&image.clusters))];
    if let Some(subclusters) = &image.clusters.subclusters {
        let (data, zeroes, unallocated) = (subclusters.data, subclusters.zeroes, subclusters.unallocated);
        facts.push(("subclusters", format!("{data} data, {zeroes} zeroes, {unallocated} unallocated")));
    }
    facts.push(("runs", runs(image)));
    facts.push(("refcounts", refcounts(image)));
    facts.push(("reclaimable", reclaimable(image)));
    let snapshots = image.snapshots.iter().map(|one| (&*one.name, utc(one.date_sec)));
    facts.push(("snapshots", list(snapshots, image.snapshots.len())));
    let bitmaps = image.bitmaps.iter().map(|one| (&*one.name, human_size(one.granularity) + " a bit"));
    facts.push(("bitmaps", list(bitmaps, image.bitmaps.len())));
    facts
}

/// What a layer is, without its name.
pub fn of_layer(layer: &Layer) -> String {
    let on_medium =
        layer.actual_size.map_or_else(String::new, |size| format!(", {} on the device", human_size(size)));
    format!("{}, {}{on_medium}", layer.format, human_size(layer.virtual_size))
}

/// `bytes` of `whole`, in percent.
pub fn percent(bytes: u64, whole: u64) -> String {
    let whole = u128::from(whole.max(1));
    let tenths = (u128::from(bytes) * 1000 + whole / 2) / whole;
    match tenths {
        0 if bytes > 0 => "< 0.1 %".to_owned(),
        tenths => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

fn clusters(clusters: &Clusters) -> String {
    let states = [
        ("data", clusters.data),
        ("compressed", clusters.compressed),
        ("zeroes", clusters.zeroes),
        ("mixed", clusters.mixed),
        ("unallocated", clusters.unallocated),
    ];
    let states = states.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}"));
    format!("{} in all: {}", clusters.total, states.collect::<Vec<_>>().join(", "))
}

fn runs(image: &Image) -> String {
    let figures = &image.fragmentation;
    match figures.runs {
        0 => "no data to read in runs".to_owned(),
        1 => format!("1 of {}: the data is in one piece", human_size(figures.longest_run_bytes)),
        runs => format!(
            "{runs}, {} on average, {} the longest; half of the jumps are of at most {}, the furthest of {}",
            human_size(figures.average_run_bytes),
            human_size(figures.longest_run_bytes),
            human_size(figures.median_jump_bytes),
            human_size(figures.furthest_jump_bytes),
        ),
    }
}

fn refcounts(image: &Image) -> String {
    let check = &image.check;
    if let Some(error) = &check.error {
        return format!("not checked: {}", printable(error));
    }
    match (check.corruptions, check.leaks) {
        (0, 0) => "sound, nothing leaked".to_owned(),
        (0, leaks) => format!("{leaks} clusters leaked; check -r leaks gives them back"),
        (errors, leaks) => format!("{errors} errors and {leaks} leaked clusters; see cowhand check"),
    }
}

fn reclaimable(image: &Image) -> String {
    let usage = &image.usage;
    let parts = [("leaked", usage.leaked), ("kept for zeroes", usage.reserved)];
    let free = usage.reclaimable.saturating_sub(usage.leaked + usage.reserved);
    let parts = parts.into_iter().chain([("free and no hole", free)]).filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<_> = parts.map(|(name, bytes)| format!("{} {name}", human_size(bytes))).collect();
    match parts.as_slice() {
        [] => "nothing".to_owned(),
        parts => format!("about {}: {}", human_size(usage.reclaimable), parts.join(", ")),
    }
}

fn list<'a>(named: impl Iterator<Item = (&'a str, String)>, count: usize) -> String {
    if count == 0 {
        return "none".to_owned();
    }
    let mut shown: Vec<_> =
        named.take(SHOWN_MAX).map(|(name, more)| format!("{} ({more})", printable(name))).collect();
    if count > SHOWN_MAX {
        shown.push(format!("and {} more", count - SHOWN_MAX));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_is_not_nothing() {
        assert_eq!(percent(0, 100), "0.0 %");
        assert_eq!(percent(1, 1 << 40), "< 0.1 %");
        assert_eq!(percent(1 << 40, 1 << 40), "100.0 %");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(0, 0), "0.0 %");
    }

    #[test]
    fn long_lists_are_cut_and_say_so() {
        let named = (0..100).map(|_| ("a\u{1b}", "x".to_owned()));
        let text = list(named, 100);
        assert!(text.ends_with("and 92 more") && !text.contains('\u{1b}'), "{text}");
    }
}
