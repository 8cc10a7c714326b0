//! How the disks of a group share: equal ones, weighed ones, and when one of them stops.

use std::time::{Duration, Instant};

use super::clients::{Counted, Load, Mix, SLOT, Wish, ask_while, keep_asking, side_by_side};
use super::servers::{Disk, Program, cowhand, serve};
use super::{Answer, Extent, create, remove, trend};
use crate::bench::Bench;
use crate::bench::server::Daemon;
use crate::bench::table::{Chart, Verdict};

const IOPS: u64 = 4_000;
const BYTES: u64 = 1 << 20;

/// What a member keeps waiting: a tenth of a second's worth, so that a client that does not get the processor for
/// some milliseconds leaves nothing to the others.
fn load(members: usize) -> Load {
    Load { depth: (IOPS / 10 / members as u64).max(8) as u32, ..LOAD }
}

const LOAD: Load = Load { mix: Mix::Mixed, bytes: 4096, depth: 8, span: BYTES };

pub fn ask(bench: &Bench, extent: Extent) -> Result<Answer, String> {
    let mut answer = Answer::default();
    for members in [2, 8, 64] {
        let ours = equal(bench, Program::Cowhand, members, extent)?;
        let theirs = equal(bench, Program::Qemu, members, extent)?;
        println!("{members} equal members, largest over smallest part: ours {ours:.3}, QEMU's {theirs:.3}");
        let what = format!("largest over smallest part of {members} equal members under iops-total={IOPS}");
        answer.verdicts.push(Verdict::at_most(what, ours, 1.03, ""));
    }
    answer.verdicts.push(weighed(bench, extent)?);
    let (verdict, chart) = idle(bench)?;
    answer.verdicts.push(verdict);
    answer.charts.push(chart);
    Ok(answer)
}

/// Images for so many members; they go with the result.
struct Members(Vec<Disk>);

impl Members {
    fn new(bench: &Bench, count: usize) -> Result<Self, String> {
        let disk = |number: usize| {
            let image = create(bench, &format!("m{number}.qcow2"), BYTES, false)?;
            Ok(Disk { export: format!("m{number}"), image })
        };
        (0..count).map(disk).collect::<Result<_, String>>().map(Self)
    }

    /// What each of them gets.
    fn parts(&self, server: &Daemon, seconds: u32) -> Result<Vec<f64>, String> {
        let ask = |disk: &Disk| {
            let export = disk.export.clone();
            let load = load(self.0.len());
            move || keep_asking(server.socket(), &export, load, seconds)
        };
        let counted = side_by_side(self.0.iter().map(ask))?;
        Ok(counted.iter().map(Counted::mean).collect())
    }

    fn remove(self) -> Result<(), String> {
        self.0.iter().try_for_each(|disk| remove(&disk.image))
    }
}

/// The largest part by the smallest one.
fn equal(bench: &Bench, program: Program, count: usize, extent: Extent) -> Result<f64, String> {
    let members = Members::new(bench, count)?;
    let server = serve(bench, program, "shares.sock", &members.0, &[("iops-total", IOPS)])?;
    // Parts of 64 are small: one request more or less must not show.
    let parts = members.parts(&server, extent.heavy.max(8))?;
    drop(server);
    members.remove()?;
    let (least, most) =
        parts.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &part| (low.min(part), high.max(part)));
    Ok(most / least)
}

/// Weights 1 : 2 : 4, which QEMU does not have.
fn weighed(bench: &Bench, extent: Extent) -> Result<Verdict, String> {
    let members = Members::new(bench, 3)?;
    let drive = |(number, disk): (usize, &Disk)| {
        let limits = format!("throttling.iops-total={IOPS},throttling.group=g");
        let weight = 100 << number;
        format!("file={},id={},{limits},throttling.weight={weight}", disk.image.display(), disk.export)
    };
    let drives: Vec<String> = members.0.iter().enumerate().map(drive).collect();
    let server = cowhand(bench, "shares.sock", &drives, &[])?;
    let parts = members.parts(&server, extent.heavy)?;
    drop(server);
    members.remove()?;
    let wanted = |number: usize| IOPS as f64 * f64::from(1_u32 << number) / 7.0;
    let off = |(number, part): (usize, &f64)| super::clients::percent(*part, wanted(number)).abs();
    let worst = parts.iter().enumerate().map(off).fold(0.0, f64::max);
    println!("weights 1:2:4: {parts:.0?}");
    Ok(Verdict::at_most("parts by weights 1:2:4, worst one off by", worst, 3.0, " %"))
}

/// Seconds in which a member stops and starts again, so many times.
const TURNS: u64 = 8;
const TURN: Duration = Duration::from_millis(1000);

/// One of two members works in the first half of each turn only: how long until the other has all.
fn idle(bench: &Bench) -> Result<(Verdict, Chart), String> {
    let members = Members::new(bench, 2)?;
    let server = serve(bench, Program::Cowhand, "shares.sock", &members.0, &[("iops-total", IOPS)])?;
    let works = |now: Duration| now.as_millis() % TURN.as_millis() < TURN.as_millis() / 2;
    let (start, end) = (Instant::now(), TURN * (TURNS as u32 + 1));
    let ask = |number: usize| {
        let (export, server) = (members.0[number].export.clone(), &server);
        let wish = move |now| if number == 0 || works(now) { Wish::Ask } else { Wish::Rest };
        move || ask_while(server.socket(), &export, LOAD, (start, end), wish)
    };
    let counted = side_by_side([0, 1].map(ask))?;
    drop(server);
    members.remove()?;
    let [steady, other] = counted.as_slice() else { return Err("two members were measured".to_owned()) };
    // Without the first turn, in which the first bucket goes.
    let waits = (1..=TURNS).filter_map(|turn| all_after(steady, TURN * turn as u32 + TURN / 2)).collect();
    let wait = super::median(waits);
    println!("an idle member's part is redistributed within {wait:.0} ms");
    let tenth = |counted: &Counted| {
        counted.slots.chunks(5).map(|slots| slots.iter().sum::<u32>() as f64 * 20.0).collect::<Vec<_>>()
    };
    let series = vec![("always".to_owned(), tenth(steady)), ("half of the time".to_owned(), tenth(other))];
    let chart = trend(format!("Requests a second of two members under iops-total={IOPS}"), 50, series);
    Ok((Verdict::at_most("an idle member's part goes to the other within", wait, 100.0, " ms"), chart))
}

/// Milliseconds from `moment` until the member gets the whole limit, within 5 %, in 30 ms; `None` if it never does.
fn all_after(counted: &Counted, moment: Duration) -> Option<f64> {
    const PIECE: usize = 3;
    let first = (moment.as_millis() / SLOT.as_millis()) as usize;
    let whole = IOPS as f64 * 0.95 * SLOT.as_secs_f64() * PIECE as f64;
    let pieces = counted.slots.get(first..)?.windows(PIECE);
    let at = pieces.map(|piece| f64::from(piece.iter().sum::<u32>())).position(|sum| sum >= whole)?;
    Some((at as f64) * SLOT.as_secs_f64() * 1e3)
}
