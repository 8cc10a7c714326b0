//! Table L: the image tools beside `qemu-img`, as whole processes with the same words.

mod codec;
mod images;
mod row;

use std::path::{Path, PathBuf};
use std::process::Command;

use self::row::{Row, Runs};
use black_box::media::Mounted;

use super::{GIB, KIB, MIB, TIB};
use crate::bench::sample::in_rounds;
use crate::bench::table::{Chart, Form, Table, Verdict, bytes};
use crate::bench::{Bench, process};

/// Bytes of the disk that is converted: twice as much takes twice as long for both.
const CONVERTED_BYTES: u64 = 2 * GIB;
/// Bytes of the file system whose files share extents.
const SHARED_BYTES: u64 = 6 * GIB;
/// Bytes that are compressed: likewise, and each cluster is packed by itself.
const COMPRESSED_BYTES: u64 = 64 * MIB;
/// Rounds of a row at most: the table is to take 7 minutes.
const ROUNDS_MAX: u32 = 3;
/// What the peak memory of any tool is to stay below, in MiB.
const MEMORY_MIB_MAX: f64 = 256.0;

/// What is done to the images before a run, so that each run finds the same.
type Prepare<'a> = Box<dyn Fn() -> Result<(), String> + 'a>;

/// One command line.
struct Work<'a> {
    what: String,
    words: Vec<String>,
    prepare: Prepare<'a>,
    /// Files whose pages leave the page cache before a run; without any, they are read before it.
    cold: bool,
    reads: Vec<PathBuf>,
    /// What it writes, whose size is compared.
    target: Option<PathBuf>,
    /// Makes the same target as the kernel does it: no program is faster.
    limit: Option<String>,
    /// Seconds that it takes at least, where that is known: the codec alone, on all processors, and a copy of what is written.
    least_seconds: Option<f64>,
    /// How many times faster it is to be.
    bound: f64,
    rounds: u32,
}

/// Table L.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let mut rows = conversions(bench)?;
    rows.extend(shared_extents(bench)?);
    rows.extend(compressions(bench)?);
    rows.extend(of_a_terabyte(bench)?);
    rows.extend(smaller(bench)?);
    let check = check(bench)?;
    let mut verdicts: Vec<_> = rows.iter().chain([&check]).flat_map(Row::verdicts).collect();
    verdicts.push(Verdict::at_most(
        format!("L, {}: memory, of qemu-img's", check.what),
        check.memory_ratio(),
        1.0 / 3.0,
        "",
    ));
    let compressed = rows.iter().filter(|row| row.what.contains("convert -c"));
    verdicts.extend(compressed.map(|row| {
        let size = row.ours.target_bytes / row.theirs.target_bytes;
        Verdict::at_most(format!("L, {}: size, of qemu-img's", row.what), size, 1.01, "")
    }));
    rows.push(check);
    let most = rows.iter().flat_map(|row| &row.ours.memory_mib).copied().fold(0.0, f64::max);
    verdicts.push(Verdict::at_most("L, every row: memory of cowhand", most, MEMORY_MIB_MAX, " MiB"));
    let heads = [
        "command",
        "ratio",
        "spread",
        "ratio, both durable",
        "of the limit, durable",
        "of the limit",
        "ms, ours : QEMU's",
        "CPU ms",
        "memory MiB",
        "written MiB",
    ];
    Ok(Table {
        id: "L",
        title: "image tools".to_owned(),
        about: "Whole processes, alternating, with the same words. \"Cold\" rows had their files dropped from the page cache \
            (posix_fadvise), others had them read before. Memory is the most that was seen while it ran. The ratio is time: above 1, cowhand is faster; \
            its spread is that of the rounds' ratios. What makes a file runs under qemu-img's name, which leaves the file in the page cache. Under its own \
            name cowhand makes it durable; the column \"both durable\" compares that with `qemu-img convert -t writeback`, and the next one with `cp` and \
            `sync` of the same bytes. \"Of the limit\": `cp` of the same bytes; for what is packed, the time that the codec alone takes on all processors (`zstd -b3`, Python's zlib, in pieces of 64 KiB), \
            and for what is unpacked that of `cp`; for what shares extents within a file system (`-C`), that of `cp --reflink=always`."
            .to_owned(),
        columns: heads.map(str::to_owned).into(),
        rows: rows.iter().map(Row::cells).collect(),
        charts: vec![chart(&rows)],
        verdicts,
    })
}

fn chart(rows: &[Row]) -> Chart {
    Chart {
        title: "Times as fast as qemu-img".to_owned(),
        form: Form::Bars,
        places: rows.iter().map(|row| row.what.clone()).collect(),
        series: vec![("ratio".to_owned(), rows.iter().map(Row::ratio).collect())],
    }
}

/// Large copies, in the page cache and from the device.
fn conversions(bench: &Bench) -> Result<Vec<Row>, String> {
    let disk_bytes = if bench.effort.quick { 256 * MIB } else { CONVERTED_BYTES };
    let (raw, image) = (bench.path("l.raw"), bench.path("l.qcow2"));
    images::half_full(&raw, disk_bytes)?;
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &name(&raw), &name(&image)])?;
    let target = bench.path("l.out");
    let mut rows = Vec::new();
    for cold in [false, true] {
        for (source, from, to) in [(&image, "qcow2", "raw"), (&raw, "raw", "qcow2")] {
            let what =
                format!("convert {from} to {to}, {}{}", bytes(disk_bytes), if cold { ", cold" } else { "" });
            let words = ["convert", "-f", from, "-O", to, &name(source), &name(&target)];
            // The device is less steady than a processor.
            let rounds = bench.effort.rounds * if cold { 2 } else { 1 };
            let copy = format!("cp {} {}", name(&raw), name(&target));
            let made = to_target(bench, what, &words, source, &target);
            let work = Work { cold, bound: 1.2, rounds, limit: Some(copy), ..made };
            rows.push(measure(bench, &work)?);
        }
    }
    remove_all(&[&raw, &image, &target])?;
    Ok(rows)
}

/// Copies within a file system whose files can share what they hold. None where nothing may be mounted.
fn shared_extents(bench: &Bench) -> Result<Vec<Row>, String> {
    let disk_bytes = if bench.effort.quick { 256 * MIB } else { CONVERTED_BYTES };
    let Some(xfs) = Mounted::xfs(SHARED_BYTES, true) else { return Ok(Vec::new()) };
    let [raw, image, target] = ["l.raw", "l.qcow2", "l.out"].map(|name| xfs.file(name));
    images::half_full(&raw, disk_bytes)?;
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &name(&raw), &name(&image)])?;
    let mut rows = Vec::new();
    for (source, from, to) in [(&image, "qcow2", "raw"), (&raw, "raw", "qcow2"), (&raw, "raw", "raw")] {
        let what = format!("convert -C {from} to {to}, {}, XFS", bytes(disk_bytes));
        let words = ["convert", "-C", "-f", from, "-O", to, &name(source), &name(&target)];
        let share = process::run(Command::new("cp").arg("--reflink=always").arg(source).arg(&target))?;
        let least_seconds = Some(share.seconds);
        let work = Work { bound: 1.0, least_seconds, ..to_target(bench, what, &words, source, &target) };
        rows.push(measure(bench, &work)?);
    }
    Ok(rows)
}

fn compressions(bench: &Bench) -> Result<Vec<Row>, String> {
    let data_bytes = if bench.effort.quick { 16 * MIB } else { COMPRESSED_BYTES };
    let (packed, target) = (bench.path("l.packed"), bench.path("l.out"));
    let mut rows = Vec::new();
    for (kind, fill) in [("text", images::text as fn(&Path, u64) -> _), ("binary", images::binary)] {
        let raw = bench.path("l.raw");
        fill(&raw, data_bytes)?;
        for (method, bound) in [("zlib", 3.0), ("zstd", 2.0)] {
            let option = format!("compression_type={method}");
            let words =
                ["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", &option, &name(&raw), &name(&packed)];
            let what = format!("convert -c, {method}, {} of {kind}", bytes(data_bytes));
            let [packing, unpacking] = codec::seconds(method, &raw, data_bytes)?;
            let work =
                Work { bound, least_seconds: Some(packing), ..to_target(bench, what, &words, &raw, &packed) };
            rows.push(measure(bench, &work)?);
            let what = format!("{method} to raw, {} of {kind}", bytes(data_bytes));
            let words = ["convert", "-f", "qcow2", "-O", "raw", &name(&packed), &name(&target)];
            let least_seconds = Some(unpacking + copied_seconds(&raw, &target)?);
            let work = Work { bound: 2.0, least_seconds, ..to_target(bench, what, &words, &packed, &target) };
            rows.push(measure(bench, &work)?);
        }
        remove_all(&[&raw, &packed, &target])?;
    }
    Ok(rows)
}

fn copied_seconds(from: &Path, to: &Path) -> Result<f64, String> {
    process::run(Command::new("cp").arg(from).arg(to)).map(|outcome| outcome.seconds)
}

/// Commands that are about metadata.
fn of_a_terabyte(bench: &Bench) -> Result<Vec<Row>, String> {
    let disk_bytes = if bench.effort.quick { 16 * GIB } else { TIB };
    let size = bytes(disk_bytes);
    let full = images::allocated(bench, "l.full", disk_bytes)?;
    let (one, other) = (&images::spread(bench, "l.spread", disk_bytes, 0)?, &bench.path("l.other"));
    images::copy(one, other)?;
    let mut rows = Vec::new();
    for (what, words, reads, bound) in [
        ("info", vec!["info", "-f", "qcow2"], vec![&full], 2.0),
        ("map", vec!["map", "-f", "qcow2", "--output=json"], vec![&full], 2.0),
        ("measure", vec!["measure", "-f", "qcow2", "-O", "qcow2"], vec![&full], 2.0),
        ("compare", vec!["compare", "-f", "qcow2", "-F", "qcow2"], vec![one, other], 2.0),
    ] {
        let names = reads.iter().map(|path| name(path));
        let words = words.iter().map(|&word| word.to_owned()).chain(names).collect();
        rows.push(measure(bench, &Work { bound, ..of(bench, format!("{what}, {size}"), words, &reads) })?);
    }
    let snapshot = |what: &str, delete: bool| {
        let action = if delete { "-d" } else { "-c" };
        let words = ["snapshot", action, "s", &name(&full)].map(str::to_owned).into();
        // The fixture has no snapshot between the rows.
        let prepare: Prepare<'_> = Box::new(|| {
            qemu_img(&["snapshot", "-d", "s", &name(&full)]).ok();
            if delete { qemu_img(&["snapshot", "-c", "s", &name(&full)]) } else { Ok(()) }
        });
        measure(bench, &Work { prepare, bound: 2.0, ..of(bench, format!("{what}, {size}"), words, &[&full]) })
    };
    rows.push(snapshot("snapshot -c", false)?);
    rows.push(snapshot("snapshot -d", true)?);
    rows.extend(chains(bench, one, other, disk_bytes)?);
    remove_all(&[&full, one, other])?;
    Ok(rows)
}

/// Commands on an overlay, which is made anew for each run.
fn chains(bench: &Bench, base: &Path, other: &Path, disk_bytes: u64) -> Result<Vec<Row>, String> {
    let (top, fresh) = (bench.path("l.top"), images::spread_over(bench, "l.fresh", base, disk_bytes)?);
    let below = bench.path("l.below");
    let size = bytes(disk_bytes);
    // Only a commit changes what is below.
    let again = |with_base: bool| {
        images::copy(&fresh, &top)?;
        if with_base {
            images::copy(base, &below)?;
        }
        qemu_img(&["rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", &name(&below), &name(&top)])
    };
    let mut rows = Vec::new();
    for (what, words, with_base) in [
        ("commit", vec!["commit".to_owned(), "-q".to_owned(), name(&top)], true),
        (
            "rebase",
            ["rebase", "-f", "qcow2", "-F", "qcow2", "-b", &name(other), &name(&top)]
                .map(str::to_owned)
                .into(),
            false,
        ),
    ] {
        let prepare: Prepare<'_> = Box::new(move || again(with_base));
        if !with_base {
            images::copy(base, &below)?;
        }
        let reads = [top.as_path(), below.as_path()];
        let work = Work { prepare, bound: 2.0, ..of(bench, format!("{what}, {size}"), words, &reads) };
        // qemu-img takes minutes for a rebase.
        let rounds = if with_base { work.rounds } else { 1 };
        rows.push(measure(bench, &Work { rounds, ..work })?);
    }
    remove_all(&[&top, &fresh, &below])?;
    Ok(rows)
}

/// The whole process, on an image that is nothing.
fn smaller(bench: &Bench) -> Result<Vec<Row>, String> {
    let image = bench.path("l.small");
    qemu_img(&["create", "-q", "-f", "qcow2", &name(&image), "1M"])?;
    let words = vec!["info".to_owned(), name(&image)];
    let rounds = bench.effort.rounds.saturating_mul(5);
    let work = Work { bound: 2.0, rounds, ..of(bench, "info, 1 MiB".to_owned(), words, &[&image]) };
    let row = measure(bench, &work)?;
    remove_all(&[&image])?;
    Ok(vec![row])
}

fn check(bench: &Bench) -> Result<Row, String> {
    let disk_bytes = if bench.effort.quick { 64 * GIB } else { 4 * TIB };
    let image = images::allocated(bench, "l.check", disk_bytes)?;
    let words = ["check", "-f", "qcow2", &name(&image)].map(str::to_owned).into();
    let row = measure(
        bench,
        &Work { bound: 3.0, ..of(bench, format!("check, {}", bytes(disk_bytes)), words, &[&image]) },
    )?;
    remove_all(&[&image])?;
    Ok(row)
}

/// A command that makes `target` of `source`.
fn to_target<'a>(bench: &Bench, what: String, words: &[&str], source: &Path, target: &'a Path) -> Work<'a> {
    let words = words.iter().map(|&word| word.to_owned()).collect();
    let prepare: Prepare<'a> = Box::new(|| crate::bench::image::remove(target));
    Work { prepare, target: Some(target.to_owned()), ..of(bench, what, words, &[source]) }
}

/// A command that changes nothing, with its files in the page cache.
fn of<'a>(bench: &Bench, what: String, words: Vec<String>, reads: &[impl AsRef<Path>]) -> Work<'a> {
    let reads = reads.iter().map(|path| path.as_ref().to_owned()).collect();
    let rounds = bench.effort.rounds.min(ROUNDS_MAX);
    let prepare = Box::new(|| Ok(()));
    Work {
        what,
        words,
        prepare,
        cold: false,
        reads,
        target: None,
        limit: None,
        least_seconds: None,
        bound: 1.0,
        rounds,
    }
}

/// Both programs in turn.
fn measure(bench: &Bench, work: &Work<'_>) -> Result<Row, String> {
    let synced = match work.words.split_first() {
        Some((convert, rest)) if convert == "convert" => {
            let sync = ["convert", "-t", "writeback"].map(str::to_owned);
            Some(sync.into_iter().chain(rest.iter().cloned()).collect::<Vec<_>>())
        }
        _ => None,
    };
    let qemu_img = Path::new("qemu-img");
    let named = named(bench)?;
    let (what, least_seconds, bound) = (work.what.clone(), work.least_seconds, work.bound);
    let mut row = Row { what, least_seconds, bound, ..Row::default() };
    in_rounds(work.rounds, &mut row, |row, _| {
        once(if synced.is_some() { &named } else { &bench.cowhand }, &work.words, work, &mut row.ours)?;
        once(qemu_img, &work.words, work, &mut row.theirs)?;
        let Some(synced) = &synced else { return Ok(()) };
        let durable = row.durable.get_or_insert_default();
        once(&bench.cowhand, &work.words, work, &mut durable.ours)?;
        once(qemu_img, synced, work, &mut durable.theirs)?;
        if let (Some(copy), Some(target)) = (&work.limit, &work.target) {
            let synced = format!("{copy} && sync {}", name(target));
            for (line, runs) in [(copy, &mut row.limit), (&synced, &mut durable.limit)] {
                let words = ["-c".to_owned(), line.clone()];
                once(Path::new("sh"), &words, work, runs.get_or_insert_default())?;
            }
        }
        Ok(())
    })?;
    Ok(row)
}

/// The program under the name of qemu-img.
fn named(bench: &Bench) -> Result<PathBuf, String> {
    let (directory, link) = (bench.path("names"), bench.path("names/qemu-img"));
    let failed = |error: std::io::Error| format!("{}: {error}", link.display());
    if !link.exists() {
        std::fs::create_dir_all(&directory).map_err(failed)?;
        std::os::unix::fs::symlink(&bench.cowhand, &link).map_err(failed)?;
    }
    Ok(link)
}

fn once(program: &Path, words: &[String], work: &Work<'_>, runs: &mut Runs) -> Result<(), String> {
    (work.prepare)()?;
    for file in &work.reads {
        if work.cold { images::drop_pages(file)? } else { images::read_pages(file)? }
    }
    let outcome = process::run(Command::new(program).args(words))?;
    runs.seconds.push(outcome.seconds);
    runs.cpu_seconds.push((outcome.cpu_us.0 + outcome.cpu_us.1) / 1e6);
    runs.memory_mib.push(outcome.resident_bytes_max as f64 / MIB as f64);
    if let Some(target) = &work.target {
        runs.target_bytes = crate::bench::image::host_bytes(target)? as f64;
    }
    Ok(())
}

fn qemu_img(words: &[&str]) -> Result<(), String> {
    process::run(Command::new("qemu-img").args(words)).map(drop)
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn remove_all(paths: &[&Path]) -> Result<(), String> {
    paths.iter().try_for_each(|path| crate::bench::image::remove(path))
}
