//! `cowhand top`: the disks of a running server, watched.

mod rates;
mod screen;
mod view;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::value_parser;
use tool::failure::Failure;

use self::rates::{Rates, rates};
use crate::remote::figures::{self, DiskFigures};
use crate::remote::{Remote, RemoteArgs};

/// Arguments of `cowhand top`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Watch the disks of a running server: requests and bytes a second, latency, queue, hit rate of the \
        map cache, its memory, limits, and the part of the time at them. Those that do most are first. Arrows, PgUp and PgDn scroll, \
        s sorts them as the server lists them, q ends it.",
    after_help = "\
Examples:
  cowhand top /run/vm1.qmp
  cowhand top --once --interval 5 /run/vm1.qmp     # one table over five seconds, as text"
)]
pub struct Args {
    #[command(flatten)]
    remote: RemoteArgs,

    /// Seconds between two looks
    #[arg(short = 'd', long, value_name = "SECONDS", default_value_t = 1, value_parser = value_parser!(u32).range(1..=3600))]
    interval: u32,

    /// Print one table as text, and end; so it is too where output is no terminal
    #[arg(long)]
    once: bool,
}

/// Watches.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut remote = args.remote.connect()?;
    let interval = Duration::from_secs(u64::from(args.interval));
    if args.once || !std::io::stdout().is_terminal() {
        return once(&mut remote, interval, out);
    }
    screen::watch(&mut remote, interval)?;
    Ok(ExitCode::SUCCESS)
}

fn once(remote: &mut Remote, interval: Duration, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let first = Look::take(remote)?;
    std::thread::sleep(interval);
    let second = Look::take(remote)?;
    let mut rates = second.since(&first);
    rates.sort_by_key(|disk| std::cmp::Reverse(disk.load()));
    for row in text(&rates) {
        writeln!(out, "{row}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The figures at a moment.
#[derive(Debug)]
struct Look {
    at: Instant,
    disks: Vec<DiskFigures>,
}

impl Look {
    fn take(remote: &mut Remote) -> Result<Self, Failure> {
        Ok(Self { disks: figures::read(remote)?, at: Instant::now() })
    }

    /// What happened between an earlier look and this one. A disk that was not there began with nothing.
    fn since(&self, earlier: &Self) -> Vec<Rates> {
        let elapsed = self.at - earlier.at;
        let before = |name: &str| earlier.disks.iter().find(|disk| disk.name == name);
        let nothing = DiskFigures::default();
        self.disks.iter().map(|disk| rates(before(&disk.name).unwrap_or(&nothing), disk, elapsed)).collect()
    }
}

/// A table as lines of text, columns under one another.
fn text(rates: &[Rates]) -> Vec<String> {
    let rows: Vec<[String; Rates::COLUMNS.len()]> =
        std::iter::once(Rates::COLUMNS.map(str::to_owned)).chain(rates.iter().map(Rates::cells)).collect();
    let widths: Vec<usize> = (0..Rates::COLUMNS.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    rows.iter()
        .map(|row| {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_one_another() {
        let disk = DiskFigures { name: "a-long-name".into(), ..DiskFigures::default() };
        let lines = text(&[rates(&disk, &disk, Duration::from_secs(1))]);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].find("READ/s"), lines[1].find('0'), "{lines:?}");
    }
}
