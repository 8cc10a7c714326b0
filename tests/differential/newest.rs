//! All lines beside the newest QEMU, in three parts, which run beside each other. Nothing is run where it was not unpacked: `cargo xtask peers` does that,
//! and so does `cargo xtask test --full`.

use super::trial::{Line, Rival};
use super::{changing, foreign, newer, notation, random, reading, run_beside, writing};

/// A command, and its lines.
type Table = (&'static str, fn() -> Vec<Line>);

fn run(tables: &[Table]) {
    match Rival::newest() {
        Some(rival) => tables.iter().for_each(|(command, lines)| run_beside(&rival, command, &lines())),
        None => println!("differential: QEMU's newest release is not unpacked; `cargo xtask peers` does it"),
    }
}

#[test]
fn commands_that_read_say_what_the_newest_qemu_says() {
    run(&[
        ("info", reading::info),
        ("check", reading::check),
        ("map", reading::map),
        ("measure", reading::measure),
        ("compare", reading::compare),
        ("bench", reading::bench),
        ("qemu-img", reading::program),
        ("formats", foreign::lines),
        ("notation", notation::lines),
    ]);
}

#[test]
fn commands_that_make_images_make_what_the_newest_qemu_makes() {
    run(&[
        ("create", writing::create),
        ("convert", writing::convert),
        ("dd", writing::dd),
        ("newer", newer::lines),
    ]);
}

#[test]
fn commands_that_change_images_change_what_the_newest_qemu_changes() {
    run(&[
        ("qemu-io", writing::io),
        ("resize", writing::resize),
        ("snapshot", writing::snapshot),
        ("commit", writing::commit),
        ("rebase", writing::rebase),
        ("check -r", writing::repair),
        ("amend", changing::amend),
        ("bitmap", changing::bitmap),
        ("random", random::lines),
    ]);
}
