//! Table "process": CPU time of a request whose map and bytes are at hand.

use super::{GIB, KIB};
use crate::bench::Bench;
use crate::bench::image::{Shape, fill, filled};
use crate::bench::load::{Access, Load};
use crate::bench::sample::{Pair, Sample, Series};
use crate::bench::table::{Chart, Form, Table, Verdict, compared, heads};

const DISK_BYTES: u64 = GIB;

/// Table "process".
pub fn run(bench: &Bench) -> Result<Table, String> {
    let image = bench.create("p.qcow2", Shape::allocated(DISK_BYTES, 64 * KIB), None)?;
    fill("qcow2", &image)?;
    let raw = bench.path("p.raw");
    filled("raw", &raw)?;
    let mut pairs = Vec::new();
    for (mode, cached) in [("writeback", "page cache"), ("none", "O_DIRECT")] {
        for depth in [1, 64] {
            for (format, image) in [("qcow2", &image), ("raw", &raw)] {
                let load = Load {
                    format,
                    mode,
                    depth,
                    access: Access::Steps { offset: 0, step: 4 * KIB },
                    warm_up: 2048,
                    limit: Some(raw.clone()),
                    ..Load::random_reads(image.clone(), DISK_BYTES)
                };
                pairs.push((format, format!("{cached}, depth {depth}"), bench.side_by_side(&load)?));
            }
        }
    }
    Ok(table(&pairs))
}

fn table(pairs: &[(&str, String, Pair)]) -> Table {
    let title = "CPU time of a request, in process".to_owned();
    let mut table = Table {
        id: "process",
        title,
        about: "Sequential 4 KiB reads of 1 GiB of real data, 64 KiB clusters, the same command line for `cowhand bench` \
            and `qemu-img bench`. CPU time is that of the process, user and system, less that of a short run before. The limit is fio (io_uring) on the raw file."
            .to_owned(),
        columns: heads(&["format", "case", "user us, ours : QEMU's"]),
        ..Table::default()
    };
    for (format, case, pair) in pairs {
        let user = |series: &Series| format!("{:.2}", series.median(|s| s.user_us));
        let names =
            [(*format).to_owned(), case.clone(), format!("{} : {}", user(&pair.ours), user(&pair.theirs))];
        table.rows.push(names.into_iter().chain(compared(pair)).collect());
    }
    let qcow2 = || pairs.iter().filter(|(format, ..)| *format == "qcow2");
    let cpu = |series: fn(&Pair) -> &Series| {
        qcow2().map(|(_, _, pair)| series(pair).median(Sample::cpu_us)).collect()
    };
    table.charts.push(Chart {
        title: "CPU microseconds per read (qcow2)".to_owned(),
        form: Form::Bars,
        places: qcow2().map(|(_, case, _)| case.clone()).collect(),
        series: vec![
            ("cowhand".to_owned(), cpu(|pair| &pair.ours)),
            ("QEMU".to_owned(), cpu(|pair| &pair.theirs)),
        ],
    });
    for (_, case, pair) in qcow2() {
        if case.starts_with("O_DIRECT") {
            let what = format!("process, {case}: against QEMU");
            table.verdicts.push(Verdict::at_least_or_limit(what, pair.rate_ratio(), 1.1, pair.of_limit()));
        }
        let user = pair.ratio(|sample| sample.user_us);
        table.verdicts.push(Verdict::at_most(format!("process, {case}: user CPU, of QEMU's"), user, 1.0, ""));
        let both = pair.ratio(Sample::cpu_us);
        table.verdicts.push(Verdict::at_most(format!("process, {case}: CPU, of QEMU's"), both, 1.0, ""));
        let raw = pairs.iter().find(|(format, raw_case, _)| *format == "raw" && raw_case == case);
        if let Some((_, _, raw)) = raw {
            let above = pair.ours.median(|s| s.user_us) - raw.ours.median(|s| s.user_us);
            let what = format!("process, {case}: user CPU above the raw file's");
            table.verdicts.push(Verdict::at_most(what, above, 0.5, " us"));
        }
    }
    table
}
