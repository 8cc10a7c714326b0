//! Table R: encrypted disks.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{GIB, MIB};
use crate::bench::fio::{self, Load};
use crate::bench::image::check;
use crate::bench::sample::{Pair, Sample, Series, in_rounds, median};
use crate::bench::server::{Kind, Served, Server};
use crate::bench::table::{Table, Verdict, number};
use crate::bench::{Bench, process};

const DISK_BYTES: u64 = GIB;
/// The disk is filled in so many parts, each with a pattern of its own.
const PARTS: u64 = 8;
/// A password that takes this time to be tried is asked for, where opening is measured.
const ITER_TIME_MS: u32 = 2000;
/// Likewise with `--quick`.
const ITER_TIME_QUICK_MS: u32 = 400;

/// What a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Ours,
    Theirs,
    /// cowhand with the same bytes, not encrypted.
    OursPlain,
    /// The cipher alone, on all processors, in sectors.
    Cipher,
}

const CONTENDERS: [Contender; 4] =
    [Contender::Ours, Contender::Theirs, Contender::OursPlain, Contender::Cipher];

/// One load, and what is to be reached.
struct Case {
    name: &'static str,
    load: Load,
    request_bytes: f64,
    /// Requests per second against qemu-nbd.
    rate_min: f64,
    /// CPU time of the server for each byte against qemu-nbd.
    cpu_max: Option<f64>,
    /// Requests per second against the plain image.
    plain_min: Option<f64>,
}

const fn large(name: &'static str, rw: &'static str) -> Case {
    let load = Load { rw, block: "64k", depth: 16, jobs: 1, disk_bytes: DISK_BYTES };
    Case { name, load, request_bytes: 65536.0, rate_min: 3.0, cpu_max: Some(0.4), plain_min: Some(0.7) }
}

const CASES: [Case; 3] = [
    large("64 KiB reads, depth 16", "randread"),
    large("64 KiB writes, depth 16", "randwrite"),
    Case {
        name: "4 KiB random reads, depth 32",
        load: Load { rw: "randread", block: "4k", depth: 32, jobs: 1, disk_bytes: DISK_BYTES },
        request_bytes: 4096.0,
        rate_min: 2.0,
        cpu_max: None,
        plain_min: None,
    },
];

/// The images, and the password of those that are encrypted.
struct Files {
    encrypted: PathBuf,
    plain: PathBuf,
    password: PathBuf,
}

/// Table R.
pub fn run(bench: &Bench) -> Result<Table, String> {
    let files = Files::make(bench)?;
    let mut table = Table {
        id: "R",
        title: "encrypted disks".to_owned(),
        about: "LUKS in qcow2 (aes-256-xts-plain64), 1 GiB of real data in the page cache, 64 KiB clusters, fio's nbd engine over a unix \
            socket; the same against an image that is not encrypted. The limit is the cipher alone, by OpenSSL on all processors in sectors of 512 bytes. The server's CPU time is in microseconds per request. Opening: \
            the time from start to end of a process that opens the image and reads 4 KiB, less that of a plain image."
            .to_owned(),
        columns: ["case", "server", "cowhand is", "its CPU is", "requests/s", "spread", "server CPU us"]
            .map(str::to_owned)
            .into(),
        ..Table::default()
    };
    for case in &CASES {
        let all = case.measure(bench, &files)?;
        table.rows.extend(case.rows(&all));
        table.verdicts.extend(case.verdicts(&all));
    }
    check_encrypted(&files)?;
    check(&files.plain)?;
    opening(bench, &files, &mut table)?;
    Ok(table)
}

impl Files {
    fn make(bench: &Bench) -> Result<Self, String> {
        let files = Self {
            encrypted: bench.path("r.qcow2"),
            plain: bench.path("r-plain.qcow2"),
            password: bench.path("r.password"),
        };
        std::fs::write(&files.password, "swordfish").map_err(|error| error.to_string())?;
        // Opening is measured by itself.
        files.create(bench, 10)?;
        process::run(
            Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&files.plain).arg("1G"),
        )?;
        let mut fill = Command::new("qemu-io");
        process::run(with_patterns(fill.args(["-f", "qcow2"])).arg(&files.plain))?;
        let mut fill = Command::new("qemu-io");
        fill.arg("--object").arg(files.object()).arg("--image-opts");
        process::run(with_patterns(&mut fill).arg(files.drive()))?;
        Ok(files)
    }

    /// Makes the encrypted image anew: a password takes `iter_time_ms` to be tried.
    fn create(&self, bench: &Bench, iter_time_ms: u32) -> Result<(), String> {
        let options = format!("encrypt.format=luks,encrypt.key-secret=key,encrypt.iter-time={iter_time_ms}");
        let mut create = Command::new(&bench.cowhand);
        create.args(["create", "-q", "--object"]).arg(self.object()).args(["-o", &options]);
        process::run(create.arg(&self.encrypted).arg("1G")).map(drop)
    }

    fn object(&self) -> String {
        format!("secret,id=key,file={}", self.password.display())
    }

    /// The encrypted image, as both programs understand it.
    fn drive(&self) -> String {
        format!("driver=qcow2,encrypt.key-secret=key,file.filename={}", self.encrypted.display())
    }
}

fn with_patterns(fill: &mut Command) -> &mut Command {
    let part = DISK_BYTES / PARTS / MIB;
    for index in 0..PARTS {
        fill.args(["-c", &format!("write -q -P {} {}M {part}M", index + 1, index * part)]);
    }
    fill
}

fn check_encrypted(files: &Files) -> Result<(), String> {
    let mut command = Command::new("qemu-img");
    command.args(["check", "-q", "--object"]).arg(files.object()).arg("--image-opts");
    process::run(command.arg(files.drive())).map(drop)
}

impl Case {
    /// What each contender did, round by round.
    fn measure(&self, bench: &Bench, files: &Files) -> Result<Vec<(Contender, Series)>, String> {
        let mut all: Vec<_> =
            CONTENDERS.into_iter().map(|contender| (contender, Series::default())).collect();
        // fio counts in whole seconds.
        let seconds = bench.effort.seconds.ceil() as u32;
        in_rounds(bench.effort.rounds, &mut all, |all, round| {
            for (contender, series) in all {
                if *contender == Contender::Cipher {
                    series.0.push(Sample { rate: ciphered()? / self.request_bytes, ..Sample::default() });
                    continue;
                }
                let plain = *contender == Contender::OursPlain;
                let served = Served {
                    image: if plain { &files.plain } else { &files.encrypted },
                    raw: Path::new(""),
                    direct: false,
                    options: "",
                    password: (!plain).then_some(&*files.password),
                };
                let kind = if *contender == Contender::Theirs { Kind::QemuNbd } else { Kind::Cowhand };
                let server = Server::start(bench, kind, &served)?;
                let run = || fio::run(&server.uri(), self.load, seconds, round + 1);
                series.0.push(fio::sample_of_server(|| server.cpu_seconds(), seconds, run)?);
            }
            Ok(())
        })?;
        Ok(all)
    }

    fn rows(&self, all: &[(Contender, Series)]) -> Vec<Vec<String>> {
        let row = |(contender, series): &(Contender, Series)| {
            let server = match contender {
                Contender::Ours => "cowhand",
                Contender::Theirs => "qemu-nbd",
                Contender::OursPlain => "cowhand, not encrypted",
                Contender::Cipher => "limit",
            };
            let ratios =
                ratios(all, *contender).map(|ratios| ratios.map(|ratio| format!("{} x", number(ratio))));
            let [rate, cpu] = ratios.unwrap_or(["-".to_owned(), "-".to_owned()]);
            let spread = format!("{:.0} %", series.spread_percent());
            let cpu_us = number(series.median(Sample::cpu_us));
            vec![self.name.to_owned(), server.to_owned(), rate, cpu, number(series.rate()), spread, cpu_us]
        };
        all.iter().map(row).collect()
    }

    fn verdicts(&self, all: &[(Contender, Series)]) -> Vec<Verdict> {
        let what = format!("R, {}", self.name);
        let mut verdicts = Vec::new();
        if let Some([rate, cpu]) = ratios(all, Contender::Theirs) {
            let of_limit = ratios(all, Contender::Cipher).map_or(f64::NAN, |[rate, _]| rate);
            let against = format!("{what}: against qemu-nbd");
            verdicts.push(Verdict::at_least_or_limit(against, rate, self.rate_min, of_limit));
            let cpu = self
                .cpu_max
                .map(|max| Verdict::at_most(format!("{what}: CPU against qemu-nbd"), cpu, max, " x"));
            verdicts.extend(cpu);
        }
        if let (Some([rate, _]), Some(min)) = (ratios(all, Contender::OursPlain), self.plain_min) {
            verdicts.push(Verdict::at_least(format!("{what}: against the plain image"), rate, min, " x"));
        }
        verdicts
    }
}

/// Bytes a second that OpenSSL ciphers on all processors.
fn ciphered() -> Result<f64, String> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut speed = Command::new("openssl");
    speed.args(["speed", "-elapsed", "-seconds", "1", "-bytes", "512", "-multi", &processors]);
    let said = process::run(speed.args(["-evp", "aes-256-xts"]))?.text;
    let thousands = said.lines().last().and_then(|line| line.split_whitespace().last()?.strip_suffix('k'));
    let thousands: Option<f64> = thousands.and_then(|number| number.parse().ok());
    thousands.map(|thousands| thousands * 1e3).ok_or_else(|| format!("openssl speed said: {said}"))
}

/// Our rate and CPU time in terms of another contender's.
fn ratios(all: &[(Contender, Series)], other: Contender) -> Option<[f64; 2]> {
    let of =
        |wanted| all.iter().find(|(contender, _)| *contender == wanted).map(|(_, series)| series.clone());
    let pair = Pair {
        ours: of(Contender::Ours)?,
        theirs: of(other).filter(|_| other != Contender::Ours)?,
        ..Pair::default()
    };
    Some([pair.rate_ratio(), pair.ratio(Sample::cpu_us)])
}

/// Opening takes the time that was asked for when the image was made.
fn opening(bench: &Bench, files: &Files, table: &mut Table) -> Result<(), String> {
    let asked_ms = if bench.effort.quick { ITER_TIME_QUICK_MS } else { ITER_TIME_MS };
    let mut took_ms = Vec::new();
    for _ in 0..bench.effort.rounds {
        // Each one is calibrated anew.
        files.create(bench, asked_ms)?;
        let read = |drive: &str, object: Option<String>| -> Result<f64, String> {
            let mut command = Command::new(&bench.cowhand);
            command.args(["bench", "-q", "-c", "1", "-s", "4k"]);
            if let Some(object) = object {
                command.args(["--object", &object]);
            }
            Ok(process::run(command.args(["--image-opts", drive]))?.seconds * 1000.0)
        };
        let plain = read(&format!("driver=qcow2,file.filename={}", files.plain.display()), None)?;
        took_ms.push(read(&files.drive(), Some(files.object()))? - plain);
    }
    let part = median(&took_ms) / f64::from(asked_ms);
    let none = || "-".to_owned();
    let case = format!("opening, iter-time {asked_ms} ms: ms");
    let row = vec![case, "cowhand".to_owned(), none(), none(), number(median(&took_ms)), none(), none()];
    table.rows.push(row);
    let what = "R, opening, of the iteration time asked for";
    table.verdicts.push(Verdict::at_least(what, part, 0.9, ""));
    table.verdicts.push(Verdict::at_most(what, part, 1.1, ""));
    Ok(())
}
