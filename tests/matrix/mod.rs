//! Everything that QEMU writes opens here, and everything written here opens there.
//!
//! For each shape of image: the same bytes as `qemu-img convert` gives, the same `map`, the same
//! `info`; then random requests over NBD against a model, a clean `qemu-img check`, QEMU goes on
//! writing, and we go on after it.
//!
//! By default the shapes are chosen so that every two values that can meet do meet. `COWHAND_MATRIX=full`
//! runs all of them; any other value runs those whose name contains it.

#![forbid(unsafe_code)]

mod image;
mod model;
mod shape;

use black_box::peer::{assert_clean, dirty_by_qemu, qemu_img, qemu_io_ok};
use black_box::{Random, Server, cowhand};
use serde_json::Value;

use image::{BITMAP, Image};
use model::Model;
use shape::{Backing, Shape};

#[test]
fn images_without_a_backing_file_are_read_and_continued_on_both_sides() {
    check_shapes(Backing::None);
}

#[test]
fn overlays_of_qcow2_are_read_and_continued_on_both_sides() {
    check_shapes(Backing::Qcow2);
}

#[test]
fn overlays_of_raw_are_read_and_continued_on_both_sides() {
    check_shapes(Backing::Raw);
}

#[test]
fn chains_of_four_are_read_and_continued_on_both_sides() {
    check_shapes(Backing::Deep);
}

#[test]
fn the_choice_of_shapes_has_every_value() {
    let chosen = shape::pairwise();
    for shape in shape::all() {
        let like = |same: fn(&Shape, &Shape) -> bool| chosen.iter().any(|chosen| same(chosen, &shape));
        assert!(like(|a, b| (a.version, a.cluster_bytes) == (b.version, b.cluster_bytes)), "{shape}");
        assert!(like(|a, b| (a.refcount_bits, a.backing) == (b.refcount_bits, b.backing)), "{shape}");
        assert!(like(|a, b| (a.extended_l2, a.compression) == (b.extended_l2, b.compression)), "{shape}");
        assert!(like(|a, b| (a.data, a.snapshot, a.bitmap) == (b.data, b.snapshot, b.bitmap)), "{shape}");
    }
    println!("{} of {} shapes", chosen.len(), shape::all().len());
}

/// Checks every chosen shape, also after one was bad, and fails with the list of the bad ones.
fn check_shapes(backing: Backing) {
    let wanted = std::env::var("COWHAND_MATRIX").unwrap_or_default();
    let shapes = if wanted.is_empty() { shape::pairwise() } else { shape::all() };
    let chosen = |shape: &Shape| {
        let named = wanted.is_empty() || wanted == "full" || shape.to_string().contains(&wanted);
        shape.backing == backing && named
    };
    let chosen: Vec<Shape> = shapes.into_iter().filter(chosen).collect();
    let bad: Vec<String> = chosen.iter().filter_map(|shape| why_bad(*shape)).collect();
    println!("looked at in matrix: {} shapes as QEMU has them", chosen.len() - bad.len());
    assert!(
        bad.is_empty(),
        "{} of {} shapes are bad (one alone: COWHAND_MATRIX=SHAPE cargo test -p black-box --test all matrix::)\n{}",
        bad.len(),
        chosen.len(),
        bad.join("\n")
    );
}

/// The shape and the first thing that is wrong with it, if there is one.
fn why_bad(shape: Shape) -> Option<String> {
    let panic = std::panic::catch_unwind(|| check(shape)).err()?;
    let why = panic.downcast_ref::<String>().cloned();
    let why = why.or_else(|| panic.downcast_ref::<&str>().map(|why| (*why).to_owned()));
    let bad = format!("{shape}: {}", why.unwrap_or_else(|| "a panic without words".to_owned()));
    eprintln!("bad: {bad}");
    Some(bad)
}

fn check(shape: Shape) {
    let mut random = Random::of_name(&shape.to_string());
    let image = Image::new(shape, &mut random);
    let mut model = Model { disk: image.converted() };
    assert_same_view(&image);
    assert_reading_changes_nothing(&image, &model);

    let before = model.disk.clone();
    serve_and_write(&image, &mut model, &mut random, 12);
    assert_well(&image, &model);
    assert_same_view(&image);
    if shape.bitmap {
        assert_bitmap_knows(&image, &before, &model.disk);
    }

    write_with_qemu(&image, &mut model, &mut random);
    serve_and_write(&image, &mut model, &mut random, 6);
    assert_well(&image, &model);
}

/// `info` and `map` say what qemu-img says.
fn assert_same_view(image: &Image) {
    let path = image.path();
    let theirs = qemu_img(["info", "--output=json", "--backing-chain", &path]).json();
    let ours = cowhand(["info", "--output=json", "--backing-chain", &path]).json();
    let (theirs, ours) = (comparable_info(&theirs), comparable_info(&ours));
    assert_eq!(ours, theirs, "info: ours (left) and qemu-img's (right) differ");
    let theirs = qemu_img(["map", "--output=json", &path]).json();
    let ours = cowhand(["map", "--output=json", &path]).json();
    assert_same_map(&comparable_map(&ours), &comparable_map(&theirs));
}

/// Without what only later versions of qemu-img say.
fn comparable_info(info: &Value) -> Value {
    match info {
        Value::Array(infos) => infos.iter().map(comparable_info).collect(),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| *name != "children");
            let mut kept: Vec<_> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
            kept.sort_by(|(a, _), (b, _)| a.cmp(b));
            kept.into_iter().collect()
        }
        other => other.clone(),
    }
}

/// An extent as every version of qemu-img describes it: start, length, depth, present, zero, data,
/// offset.
type Row = (u64, u64, u64, bool, bool, bool, Option<u64>);

/// Without `compressed` (since 8.2), and neighbours that only it kept apart put together.
fn comparable_map(map: &Value) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for extent in map.as_array().expect("a list of extents") {
        let number = |name: &str| extent[name].as_u64();
        let flag = |name: &str| extent[name].as_bool().unwrap_or_else(|| panic!("no {name} in {extent}"));
        let (start, length) = (number("start").expect("start"), number("length").expect("length"));
        let depth = number("depth").expect("depth");
        // Where the file is sparser than its refcounts say, qemu-img asks the file system for holes in data
        // (docs/reference/compat.md): the data is there all the same.
        let zero = flag("zero") && !flag("data");
        let row = (start, length, depth, flag("present"), zero, flag("data"), number("offset"));
        match rows.last_mut() {
            Some(last) if continues(last, &row) => last.1 += length,
            _ => rows.push(row),
        }
    }
    rows
}

fn continues(before: &Row, after: &Row) -> bool {
    let place = match (before.6, after.6) {
        (None, None) => true,
        (Some(before_offset), Some(offset)) => before_offset + before.1 == offset,
        _ => false,
    };
    before.0 + before.1 == after.0
        && (before.2, before.3, before.4, before.5) == (after.2, after.3, after.4, after.5)
        && place
}

fn assert_same_map(ours: &[Row], theirs: &[Row]) {
    let differs = (0..ours.len().max(theirs.len())).find(|&row| ours.get(row) != theirs.get(row));
    if let Some(row) = differs {
        panic!(
            "map: row {row} is {:?}, qemu-img has {:?} (start, length, depth, present, zero, data, offset)",
            ours.get(row),
            theirs.get(row)
        );
    }
}

/// Served read-only, the disk is the same and every file stays as it is, byte for byte.
fn assert_reading_changes_nothing(image: &Image, model: &Model) {
    let before = image.files();
    let server = Server::start(["--read-only", &image.path()]);
    let read = server.client("").read_all().expect("read");
    server.stop();
    model.compare(&read, "served read-only");
    for ((name, before), (_, after)) in before.iter().zip(image.files()) {
        assert!(*before == after, "serving read-only changed {name}");
    }
}

/// Options that must not change what a disk holds.
const VARIANTS: [&str; 9] = [
    "",
    ",cache=none",
    ",cache=writethrough,aio=threads",
    ",cache=directsync",
    ",cache=unsafe",
    ",l2-cache-size=4k,l2-cache-entry-size=512",
    ",refcount-cache-size=1k,cache-clean-interval=1",
    ",detect-zeroes=unmap",
    ",overlap-check=all,pass-discard-other=on",
];

fn serve_and_write(image: &Image, model: &mut Model, random: &mut Random, batches: usize) {
    let variant = random.pick(&VARIANTS);
    let lazy = image.shape.version == 3 && random.one_in(4);
    let lazy = if lazy { ",lazy-refcounts=on" } else { "" };
    let server = Server::start([format!("file={},discard=unmap{variant}{lazy}", image.path())]);
    let mut client = server.client("");
    model.compare(&client.read_all().expect("read"), "before writing");
    model.exercise(&mut client, random, batches);
    model.compare(&client.read_all().expect("read"), "after writing");
    client.disconnect();
    server.stop();
}

/// QEMU finds nothing wrong, and the same bytes; the snapshot is what it was.
fn assert_well(image: &Image, model: &Model) {
    assert_clean(&image.scratch.file("disk.qcow2"));
    cowhand(["check", &image.path()]).ok();
    model.compare(&image.converted(), "qemu-img convert");
    if let Some(snapshot) = &image.snapshot {
        assert!(image.converted_snapshot() == *snapshot, "the snapshot has changed");
    }
}

/// QEMU finds all that we wrote in the bitmap.
fn assert_bitmap_knows(image: &Image, before: &[u8], now: &[u8]) {
    let dirty = dirty_by_qemu(&image.path(), BITMAP);
    let sectors = (0..).step_by(512).zip(before.chunks(512).zip(now.chunks(512)));
    for (at, _) in sectors.filter(|(_, (before, now))| before != now) {
        let known = dirty.iter().any(|(start, len)| (*start..start + len).contains(&at));
        assert!(known, "{at:#x} was written and is clean: {dirty:?}");
    }
}

fn write_with_qemu(image: &Image, model: &mut Model, random: &mut Random) {
    let sectors = model.disk.len() as u64 / 512;
    let mut lines = Vec::new();
    for _ in 0..8 {
        let start = random.below(sectors);
        let len = random.between(1, 512).min(sectors - start) * 512;
        let pattern = u8::try_from(random.below(256)).expect("a byte");
        let zero = random.one_in(4);
        lines.push(match zero {
            true => format!("write -z {} {len}", start * 512),
            false => format!("write -P {pattern} {} {len}", start * 512),
        });
        let range =
            usize::try_from(start * 512).expect("small")..usize::try_from(start * 512 + len).expect("small");
        model.disk[range].fill(if zero { 0 } else { pattern });
    }
    qemu_io_ok(&["-f", "qcow2"], &image.path(), &lines);
}
