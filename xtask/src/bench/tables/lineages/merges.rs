//! Layers merged into one.

use std::path::Path;
use std::process::Command;

use super::{Part, row};
use crate::bench::image::{Shape, remove};
use crate::bench::table::Verdict;
use crate::bench::tables::GIB;
use crate::bench::{Bench, process};

const SHAPE: Shape =
    Shape { disk_bytes: 4 * GIB, cluster_bytes: 64 << 10, extended: false, allocated: false };
/// Clusters that each layer writes, of which every layer above hides some.
const WRITES: u64 = 64;

/// Chains of the depths that people have, merged into one layer. Bytes grow with the depth: CPU that grows faster is seen in the verdict.
pub fn ask(bench: &Bench) -> Part {
    let depths: &[usize] = if bench.effort.quick { &[10, 20] } else { &[50, 100, 200, 400] };
    let (mut rows, mut verdicts, mut each) = (Vec::new(), Vec::new(), Vec::new());
    for &depth in depths {
        let (ours, theirs) = (ours(bench, depth)?, theirs(bench, depth)?);
        let case = format!("{depth} layers merged into one, {WRITES} clusters each");
        rows.push(row(&case, "CPU seconds", ours.0, theirs.0));
        rows.push(row(&case, "seconds", ours.1, theirs.1));
        verdicts.push(Verdict::at_most(format!("S: {case}, CPU, of QEMU's"), ours.0 / theirs.0, 1.0, " x"));
        each.push(ours.0 / depth as f64);
    }
    if let [first, .., last] = each[..] {
        verdicts.push(Verdict::at_most(
            "S: CPU of a merge for each layer, the most layers to the least",
            last / first,
            1.2,
            " x",
        ));
    }
    Ok((rows, verdicts))
}

/// CPU seconds and seconds.
type Time = (f64, f64);

fn time(outcome: &process::Outcome) -> Time {
    ((outcome.cpu_us.0 + outcome.cpu_us.1) / 1e6, outcome.seconds)
}

/// Random clusters of the disk, others for each layer. qemu-io takes seconds to open some hundred layers.
fn write(bench: &Bench, image: &Path, layer: usize) -> Result<(), String> {
    let mut command = Command::new(&bench.cowhand);
    command.args(["io", "-f", "qcow2"]);
    let clusters = SHAPE.disk_bytes / SHAPE.cluster_bytes;
    for number in 0..WRITES {
        let at = (layer as u64 * 7919 + number * number * 613) % clusters;
        command.args(["-c", &format!("write -q -P {} {} 64k", layer % 255 + 1, at * SHAPE.cluster_bytes)]);
    }
    process::run(command.arg(image)).map(drop)
}

fn ours(bench: &Bench, depth: usize) -> Result<Time, String> {
    let image = bench.create("merged.qcow2", SHAPE, None)?;
    for layer in 0..=depth {
        write(bench, &image, layer)?;
        process::run(Command::new(&bench.cowhand).args(["checkpoint", "-q"]).arg(&image))?;
    }
    let forgotten =
        process::run(Command::new(&bench.cowhand).args(["forget", "-q", "--keep", "last:1"]).arg(&image))?;
    remove(&image)?;
    let layers = bench.path("layers");
    std::fs::remove_dir_all(&layers).map_err(|error| format!("{}: {error}", layers.display()))?;
    Ok(time(&forgotten))
}

fn theirs(bench: &Bench, depth: usize) -> Result<Time, String> {
    let name = |layer: usize| format!("layer-{layer}.qcow2");
    for layer in 0..=depth {
        let below = layer.checked_sub(1).map(name);
        write(bench, &bench.create(&name(layer), SHAPE, below.as_deref())?, layer)?;
    }
    let top = bench.path(&name(depth));
    let committed =
        process::run(Command::new("qemu-img").args(["commit", "-q", "-d", "-b", &name(0)]).arg(&top))?;
    for layer in 0..=depth {
        remove(&bench.path(&name(layer)))?;
    }
    Ok(time(&committed))
}
