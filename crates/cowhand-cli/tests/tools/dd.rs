//! `cowhand dd` beside `qemu-img dd`: the same bytes for the same operands.

use std::fs;
use std::path::Path;

use crate::peer::Bench;

fn source(bench: &Bench) {
    let bytes: Vec<u8> =
        (0..3 << 20).map(|at: u32| if at % 700_000 < 9000 { 0 } else { (at / 513) as u8 }).collect();
    fs::write(bench.path("a.raw"), bytes).unwrap();
    bench.qemu("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "a.raw", "a.qcow2"]);
}

#[test]
fn the_same_operands_copy_the_same_part() {
    let bench = Bench::new();
    source(&bench);
    let operands = [
        "",
        "bs=1k",
        "count=2 skip=1",
        "bs=1M count=2",
        "bs=64k skip=3",
        "bs=700 count=9 skip=2",
        "skip=99999",
    ];
    for operands in operands {
        for (format, input) in [("raw", "if=a.raw"), ("qcow2", "if=a.qcow2")] {
            for output in ["raw", "qcow2"] {
                let run = |program: &str, of: &str| {
                    let words = ["dd", "-f", format, "-O", output, input, of];
                    let words: Vec<_> = words.into_iter().chain(operands.split_whitespace()).collect();
                    let program = if program == "cowhand" { env!("CARGO_BIN_EXE_cowhand") } else { program };
                    bench.run(Path::new(program), &words).code
                };
                let codes = (run("cowhand", "of=ours"), run("qemu-img", "of=theirs"));
                assert_eq!(codes, (0, 0), "{operands} {input} {output}");
                // Sizes and content; zeroes may be holes in one and written in the other.
                let ours = bench.cowhand(&["compare", "-f", output, "-F", output, "ours", "theirs"]);
                assert_eq!(ours.code, 0, "{operands} {input}: {}{}", ours.out, ours.err);
                let size =
                    |name: &str| bench.cowhand(&["info", "-f", output, "--output", "json", name]).json();
                assert_eq!(size("ours")["virtual-size"], size("theirs")["virtual-size"], "{operands}");
            }
        }
    }
}

#[test]
fn wrong_operands_end_with_1_and_make_nothing() {
    let bench = Bench::new();
    source(&bench);
    for words in
        [&["if=a.raw"][..], &["of=x"], &["if=a.raw", "of=x", "bs=0"], &["if=a.raw", "of=x", "conv=sync"]]
    {
        let words = [&["dd"], words].concat();
        assert_eq!(bench.run(Path::new("qemu-img"), &words).code, 1, "{words:?}");
        assert_eq!(bench.cowhand(&words).code, 1, "{words:?}");
    }
    assert!(!bench.path("x").exists());
}
