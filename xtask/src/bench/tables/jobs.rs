//! Table P: jobs of a disk that is in use, beside qemu-storage-daemon.

mod backups;
mod bitmaps;
mod copies;
pub mod daemon;
pub mod guest;
mod pauses;

use crate::bench::Bench;
use crate::bench::table::Table;

/// Table P.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let halves = copies::Halves::make(bench)?;
    let mut table = Table {
        id: "P",
        title: "jobs".to_owned(),
        about: "Each daemon takes the same command line and the same QMP commands; the guest is an NBD client on the same machine. Copies: a disk of 4 GiB, \
            every second MiB written, qcow2 to qcow2, page cache, in rounds that alternate; until the job is ready, or has ended where it does not \
            wait. Free memory is used and given back before each: the host of a virtual machine takes back what lies idle. MB/s and CPU seconds per GB are of the bytes that are copied. Pauses: 500 snapshots, each committed again."
            .to_owned(),
        columns: ["case", "figure", "ratio", "cowhand", "spread", "qemu-storage-daemon", "spread"].map(str::to_owned).into(),
        ..Table::default()
    };
    let parts = [
        copies::idle(bench, &halves)?,
        copies::written(bench, &halves)?,
        backups::ask(bench)?,
        pauses::ask(bench)?,
        bitmaps::ask(bench)?,
    ];
    for (rows, verdicts) in parts {
        table.rows.extend(rows);
        table.verdicts.extend(verdicts);
    }
    Ok(table)
}
