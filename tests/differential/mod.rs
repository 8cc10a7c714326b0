//! The same command lines given to QEMU's program and to cowhand under its name: what they print, how they end, and what is in the
//! images afterwards.
//!
//! A line is known to differ only with a reason in docs/reference/compat.md, which its table names. All run beside the system's QEMU; beside the newest one,
//! where `cargo xtask peers` has unpacked it, in `newest`. Where the two differ the newest one is right, and its lines say since when they are so.

mod changing;
mod fixtures;
mod foreign;
mod masks;
mod newer;
mod newest;
mod notation;
mod random;
mod reading;
mod trial;
mod writing;

use self::trial::{Line, Rival, Tally};

/// Runs the lines of one command by both and says how many there were.
fn run_beside(rival: &Rival, command: &str, lines: &[Line]) {
    let mut tally = Tally::default();
    lines.iter().filter(|line| line.is_for(rival)).for_each(|line| tally.add(line, trial::run(line, rival)));
    tally.sum_up(command);
}

/// The same beside the system's QEMU.
fn run(command: &str, lines: Vec<Line>) {
    run_beside(&Rival::system(), command, &lines);
}

#[test]
fn info_says_what_qemu_img_says() {
    run("info", reading::info());
}

#[test]
fn check_says_what_qemu_img_says() {
    run("check", reading::check());
}

#[test]
fn map_says_what_qemu_img_says() {
    run("map", reading::map());
}

#[test]
fn measure_says_what_qemu_img_says() {
    run("measure", reading::measure());
}

#[test]
fn compare_says_what_qemu_img_says() {
    run("compare", reading::compare());
}

#[test]
fn bench_says_what_qemu_img_says() {
    run("bench", reading::bench());
}

#[test]
fn the_program_itself_answers_as_qemu_img_does() {
    run("qemu-img", reading::program());
}

#[test]
fn io_does_what_qemu_io_does() {
    run("qemu-io", writing::io());
}

#[test]
fn create_makes_what_qemu_img_makes() {
    run("create", writing::create());
}

#[test]
fn convert_makes_what_qemu_img_makes() {
    run("convert", writing::convert());
}

#[test]
fn dd_makes_what_qemu_img_makes() {
    run("dd", writing::dd());
}

#[test]
fn resize_makes_what_qemu_img_makes() {
    run("resize", writing::resize());
}

#[test]
fn amend_makes_what_qemu_img_makes() {
    run("amend", changing::amend());
}

#[test]
fn bitmap_makes_what_qemu_img_makes() {
    run("bitmap", changing::bitmap());
}

#[test]
fn snapshot_makes_what_qemu_img_makes() {
    run("snapshot", writing::snapshot());
}

#[test]
fn commit_makes_what_qemu_img_makes() {
    run("commit", writing::commit());
}

#[test]
fn rebase_makes_what_qemu_img_makes() {
    run("rebase", writing::rebase());
}

#[test]
fn repairs_make_what_qemu_img_makes() {
    run("check -r", writing::repair());
}

#[test]
fn images_of_other_hypervisors_are_what_qemu_img_makes_of_them() {
    run("formats", foreign::lines());
}

#[test]
fn options_are_read_as_qemu_img_reads_them() {
    run("notation", notation::lines());
}

#[test]
fn options_of_newer_versions_do_what_they_do_there() {
    run("newer", newer::lines());
}

#[test]
fn lines_of_any_options_do_what_they_do_in_qemu_img() {
    run("random", random::lines());
}
