//! The NBD door: fio's nbd engine against cowhand, qemu-nbd and nbdkit.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::fio::{self, Load};
use super::server::{Kind, Server};
use super::table::{self, Series};
use super::{Args, Effort};

/// One row of the table.
struct Case {
    name: &'static str,
    load: Load,
    direct: bool,
    rivals: &'static [Kind],
}

const CACHED: &[Kind] = &[Kind::QemuNbd, Kind::NbdkitFile];
const QEMU: &[Kind] = &[Kind::QemuNbd];

const fn case(
    name: &'static str,
    rw: &'static str,
    depth: u32,
    jobs: u32,
    direct: bool,
    rivals: &'static [Kind],
) -> Case {
    Case { name, load: Load { rw, block: "4k", depth, jobs }, direct, rivals }
}

const fn stream(name: &'static str, rw: &'static str) -> Case {
    Case { name, load: Load { rw, block: "1M", depth: 4, jobs: 1 }, direct: false, rivals: QEMU }
}

const CASES: [Case; 12] = [
    case("4k random reads, page cache, depth 1", "randread", 1, 1, false, CACHED),
    case("4k random reads, page cache, depth 16", "randread", 16, 1, false, CACHED),
    case("4k random reads, page cache, depth 64", "randread", 64, 1, false, CACHED),
    case("4k random reads, page cache, 4 connections x 16", "randread", 16, 4, false, CACHED),
    case("4k random reads, cache=none, depth 1", "randread", 1, 1, true, QEMU),
    case("4k random reads, cache=none, depth 16", "randread", 16, 1, true, QEMU),
    case("4k random reads, cache=none, depth 64", "randread", 64, 1, true, QEMU),
    case("4k random writes, page cache, depth 1", "randwrite", 1, 1, false, QEMU),
    case("4k random writes, page cache, depth 16", "randwrite", 16, 1, false, QEMU),
    case("4k random writes, page cache, 4 connections x 16", "randwrite", 16, 4, false, QEMU),
    stream("1M sequential reads, page cache, depth 4", "read"),
    stream("1M sequential writes, page cache, depth 4", "write"),
];

/// Runs the cases and prints their rows as they are done.
pub fn run(args: &Args, effort: Effort) -> Result<(), String> {
    build()?;
    let unusable = |error: std::io::Error| format!("{}: {error}", args.directory.display());
    std::fs::create_dir_all(&args.directory).map_err(unusable)?;
    // Some servers take absolute paths only.
    let directory = args.directory.canonicalize().map_err(unusable)?;
    let image = directory.join("bench.qcow2");
    let raw = directory.join("bench.raw");
    make_images(&image, &raw)?;
    let mut text = table::head();
    print!("{text}");
    for case in
        CASES.iter().filter(|case| args.only.as_ref().is_none_or(|only| case.name.contains(only.as_str())))
    {
        let rows = table::rows(case.name, &measure(case, effort, &image, &raw, &directory)?);
        print!("{rows}");
        text += &rows;
    }
    command("qemu-img", &["check", "-q", &image.display().to_string()])?;
    for file in [&image, &raw] {
        std::fs::remove_file(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    match &args.report {
        Some(path) => std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    }
}

fn measure(
    case: &Case,
    effort: Effort,
    image: &Path,
    raw: &Path,
    directory: &Path,
) -> Result<Vec<Series>, String> {
    let kinds = [&[Kind::Cowhand], case.rivals].concat();
    let mut all: Vec<Series> =
        kinds.into_iter().map(|kind| Series { kind, rates: Vec::new(), cpu: Vec::new() }).collect();
    for round in 0..effort.rounds {
        for series in &mut all {
            let server = Server::start(series.kind, image, raw, case.direct, directory)?;
            let before = server.cpu_seconds();
            let rate = fio::run(&server.uri(), case.load, effort.seconds, round + 1)?;
            let cpu = server.cpu_seconds() - before;
            series.rates.push(rate);
            series.cpu.push(cpu * 1e6 / (rate * f64::from(effort.seconds)));
        }
    }
    Ok(all)
}

/// Builds the program under test.
pub fn build() -> Result<(), String> {
    command("cargo", &["build", "--quiet", "--release", "--package", "cowhand"])
}

/// The program under test.
pub fn cowhand() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join("release/cowhand")
}

/// A fully written image of 1 GiB, and the same bytes as a raw file, both in the page cache.
fn make_images(image: &Path, raw: &Path) -> Result<(), String> {
    let (image, raw) = (image.display().to_string(), raw.display().to_string());
    command("qemu-img", &["create", "-q", "-f", "qcow2", &image, "1G"])?;
    let fill: Vec<String> =
        (0..8).map(|part| format!("write -q -P {} {}M 128M", part + 1, part * 128)).collect();
    let mut arguments: Vec<&str> = vec!["-f", "qcow2"];
    fill.iter().for_each(|write| arguments.extend(["-c", write]));
    arguments.push(&image);
    command("qemu-io", &arguments)?;
    command("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", "-S", "0", &image, &raw])
}

fn command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{program} {}: {}{}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
