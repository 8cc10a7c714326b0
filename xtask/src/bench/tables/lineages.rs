//! Table S: checkpoints, forks and merges, beside what qemu-storage-daemon has for them.

mod density;
mod least;
mod merges;
mod published;
mod taken;

use crate::bench::Bench;
use crate::bench::table::{Table, Verdict};

/// Rows and verdicts of a part.
type Part = Result<(Vec<Vec<String>>, Vec<Verdict>), String>;

/// Table S.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let mut table = Table {
        id: "S",
        title: "checkpoints".to_owned(),
        about: "Both daemons take the same command line. A checkpoint of QEMU's is an overlay that is made (blockdev-create), added (blockdev-add) and put over the disk \
            (blockdev-snapshot); it makes nothing durable. A fork of QEMU's is an overlay that qemu-img makes and blockdev-add opens, and an export. Guests are NBD clients on the same machine. Merges are whole \
            processes: `cowhand forget` makes the merged layer durable, `qemu-img commit -d` writes to the base. QEMU publishes nothing: beside a publish stand the same bytes sent by curl to the same store, moto on this machine."
            .to_owned(),
        columns: ["case", "figure", "ratio", "cowhand", "QEMU"].map(str::to_owned).into(),
        ..Table::default()
    };
    for (rows, verdicts) in
        [taken::ask(bench)?, density::ask(bench)?, merges::ask(bench)?, published::ask(bench)?]
    {
        table.rows.extend(rows);
        table.verdicts.extend(verdicts);
    }
    Ok(table)
}

/// A row whose ratio is how much better we are: both figures are the better the smaller they are.
fn row(case: &str, figure: &str, ours: f64, theirs: f64) -> Vec<String> {
    use crate::bench::table::number;
    let ratio = format!("**{}**", number(theirs / ours));
    vec![case.to_owned(), figure.to_owned(), ratio, number(ours), number(theirs)]
}
