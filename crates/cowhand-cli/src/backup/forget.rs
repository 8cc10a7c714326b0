//! The oldest points are removed, in whole runs: a full point and the increments that need it.

use tool::failure::Failure;

use super::manifest::{Kind, Point, Store};

/// Removes the oldest runs while `keep` points that can be restored stay, and those of which none can. Gives what was removed.
///
/// Files go first: after a crash the points are still listed, and the next call does the rest.
///
/// # Errors
/// When a file cannot be removed, or the list not be written.
pub fn forget(store: &mut Store, keep: u32) -> Result<Vec<Point>, Failure> {
    let count = count_to_forget(store.points(), keep, |point| store.has_file(point));
    store.remove_first(count)
}

/// How many points go.
fn count_to_forget(points: &[Point], keep: u32, has_file: impl Fn(&Point) -> bool) -> usize {
    let runs: Vec<&[Point]> = points.chunk_by(|_, next| next.kind == Kind::Incremental).collect();
    // An increment is worth nothing without the points before it.
    let restorable = |run: &[Point]| run.iter().take_while(|point| has_file(point)).count();
    let mut left: usize = runs.iter().map(|run| restorable(run)).sum();
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    let (mut count, last) = (0, runs.len().saturating_sub(1));
    for run in runs.into_iter().take(last) {
        let lost = restorable(run);
        if lost > 0 && left - lost < keep {
            break;
        }
        left -= lost;
        count += run.len();
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::manifest::file_name;
    use super::*;

    /// Points from a text: `f` is a full one, `i` an increment.
    fn points(text: &str) -> Vec<Point> {
        let kinds = text.chars().map(|c| if c == 'f' { Kind::Full } else { Kind::Incremental });
        let point = |(point, kind)| Point {
            point,
            kind,
            file: file_name(point, kind),
            disk_bytes: 1,
            file_bytes: 1,
            sha256: String::new(),
            time_sec: 0,
            copy_rules: 1,
        };
        (1..).zip(kinds).map(point).collect()
    }

    #[test]
    fn whole_runs_go_and_enough_points_stay() {
        let table =
            [("fifii", 3, 2), ("fifii", 4, 0), ("fifii", 1, 2), ("fff", 1, 2), ("fff", 9, 0), ("", 1, 0)];
        for (text, keep, expected) in table {
            assert_eq!(count_to_forget(&points(text), keep, |_| true), expected, "{text} {keep}");
        }
    }

    #[test]
    fn a_run_whose_full_point_was_deleted_goes_and_does_not_count() {
        let missing = |numbers: &'static [u32]| move |point: &Point| !numbers.contains(&point.point);
        assert_eq!(count_to_forget(&points("fifi"), 9, missing(&[1])), 2);
        assert_eq!(count_to_forget(&points("fifi"), 2, missing(&[4])), 0);
        assert_eq!(count_to_forget(&points("fi"), 1, missing(&[1, 2])), 0);
    }
}
