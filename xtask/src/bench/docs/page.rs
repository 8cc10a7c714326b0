//! docs/internals/performance.md: ten figures of those on record, and two pictures of them.

use std::path::Path;

use super::record::{self, Target};
use crate::bench::table::{Chart, Form};
use crate::bench::{plot, write};

const BEGIN: &str = "<!-- figures: written by `cargo xtask bench` -->";
const END: &str = "<!-- end of figures -->";

/// A figure on the page.
struct Figure {
    /// What a reader calls it.
    name: &'static str,
    /// Its name in the picture, if it is a multiple of QEMU's.
    drawn: Option<&'static str>,
    /// How it is called on record.
    recorded: &'static str,
}

const fn beside_qemu(name: &'static str, drawn: &'static str, recorded: &'static str) -> Figure {
    Figure { name, drawn: Some(drawn), recorded }
}

/// What readers ask for first.
const FIGURES: [Figure; 10] = [
    beside_qemu(
        "random 4 KiB reads over NBD, page cache, depth 16, of qemu-nbd's rate",
        "NBD reads",
        "door, 4k random reads, page cache, depth 16: against qemu-nbd",
    ),
    beside_qemu(
        "random 4 KiB writes over NBD, page cache, depth 16, of qemu-nbd's rate",
        "NBD writes",
        "door, 4k random writes, page cache, depth 16: against qemu-nbd",
    ),
    Figure {
        name: "CPU time of a 4 KiB read from the page cache, in process, depth 1, of QEMU's",
        drawn: None,
        recorded: "process, page cache, depth 1: CPU, of QEMU's",
    },
    beside_qemu(
        "random reads whose map is five times the cache, in order, of QEMU's rate",
        "small cache",
        "A, 64 KiB clusters, 4 KiB slices, 1 MiB: against QEMU",
    ),
    beside_qemu(
        "first random reads of a 1 TiB disk, depth 64, of QEMU's rate",
        "cold map",
        "F, depth 64, cold: against QEMU",
    ),
    Figure {
        name: "reads through 500 layers, of the rate of one image",
        drawn: None,
        recorded: "D, 500 layers: of the rate of one layer, warm",
    },
    beside_qemu(
        "writes to new clusters of 32 KiB and more, depth 32, lowest row, of QEMU's rate",
        "new clusters",
        "G, no backing, 32 KiB clusters and more, depth 32, lowest row: against QEMU",
    ),
    beside_qemu(
        "vhost-user-blk reads, 1 queue, depth 16, of qemu-storage-daemon's rate",
        "vhost-user",
        "M: reads, 1 queue, depth 16",
    ),
    beside_qemu(
        "`convert` of 2 GiB from raw to qcow2, under qemu-img's name, of qemu-img's rate",
        "convert",
        "L, convert raw to qcow2, 2 GiB: times as fast as qemu-img",
    ),
    beside_qemu("mirror of an idle disk, of qemu-storage-daemon's rate", "mirror", "P: mirror, idle guest"),
];

/// Writes the figures into `page`, and the pictures beside the tables on record in `directory`.
pub fn update(page: &Path, directory: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    write(page, &with_figures(&text, directory)?)?;
    for (name, chart) in charts(directory)? {
        write(&directory.join(name), &plot::picture(&chart)?)?;
    }
    Ok(())
}

/// The page with the figures of now in their place.
fn with_figures(text: &str, directory: &Path) -> Result<String, String> {
    let missing = || format!("the lines {BEGIN} and {END} are missing");
    let (before, rest) = text.split_once(BEGIN).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    let mut table = String::from("| figure | found | target | | table |\n|---|---|---|---|---|\n");
    for (figure, found) in found(directory)? {
        let Target { table: id, target, found, outcome, .. } = found;
        table +=
            &format!("| {} | {found} | {target} | {outcome} | [{id}](../bench/{id}.tsv) |\n", figure.name);
    }
    Ok(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

/// Each figure of the page, as it is on record.
fn found(directory: &Path) -> Result<Vec<(&'static Figure, Target)>, String> {
    let targets = record::targets(directory)?;
    let of = |figure: &'static Figure| {
        let recorded = targets.iter().find(|target| target.figure == figure.recorded);
        let target = recorded.ok_or_else(|| format!("there is no figure {:?} on record", figure.recorded))?;
        Ok((figure, target.clone()))
    };
    FIGURES.iter().map(of).collect()
}

/// The pictures and their names.
fn charts(directory: &Path) -> Result<[(&'static str, Chart); 2], String> {
    Ok([("beside-qemu.svg", beside(directory)?), ("layers.svg", layers(directory)?)])
}

fn beside(directory: &Path) -> Result<Chart, String> {
    let drawn: Vec<(String, f64)> = found(directory)?
        .into_iter()
        .filter_map(|(figure, found)| Some((figure.drawn?.to_owned(), leading(&found.found))))
        .collect();
    let (places, values) = drawn.into_iter().unzip();
    let title = "rate, as a multiple of QEMU's".to_owned();
    Ok(Chart { title, form: Form::Bars, places, series: vec![("cowhand".to_owned(), values)] })
}

fn layers(directory: &Path) -> Result<Chart, String> {
    let (heads, rows) = record::read(&record::file(directory, "D"))?;
    let column = |name: &str| {
        let at = heads.iter().position(|head| head == name);
        at.ok_or_else(|| format!("table D has no column {name:?}"))
    };
    let (depth, ours, theirs) = (column("layers")?, column("cowhand /s")?, column("QEMU /s")?);
    let cells = |at: usize| rows.iter().filter_map(move |row| row.get(at));
    let values = |at: usize| cells(at).map(|cell| leading(cell)).collect();
    Ok(Chart {
        title: "4 KiB random reads a second, by layers of the chain".to_owned(),
        form: Form::Lines,
        places: cells(depth).cloned().collect(),
        series: vec![("cowhand".to_owned(), values(ours)), ("QEMU".to_owned(), values(theirs))],
    })
}

/// The number that a cell begins with.
fn leading(cell: &str) -> f64 {
    let number = cell.split_whitespace().next().unwrap_or_default().replace(',', "");
    number.parse().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn the_page_and_its_pictures_are_those_of_the_record() {
        let directory = root().join("docs/bench");
        let page = std::fs::read_to_string(root().join("docs/internals/performance.md")).unwrap();
        assert_eq!(with_figures(&page, &directory).unwrap(), page, "run `cargo xtask bench --page`");
        for (name, chart) in charts(&directory).unwrap() {
            let drawn = std::fs::read_to_string(directory.join(name)).unwrap();
            assert_eq!(plot::picture(&chart).unwrap(), drawn, "{name}: run `cargo xtask bench --page`");
        }
    }
}
