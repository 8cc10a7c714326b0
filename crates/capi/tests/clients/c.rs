//! The test programs in C: plain, in the address sanitizer's build, and under valgrind.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::installed::{compile, here, scratch, succeed, with_library};
use crate::store::Store;

/// Programs in `tests/c`, each of which makes an image and prints that all is well.
const PROGRAMS: [&str; 8] =
    ["requests", "disk", "jobs", "checkpoints", "stores", "secrets", "wrong", "threads"];

fn program(name: &str, options: &[&str], directory: &Path) -> PathBuf {
    let built = directory.join(name);
    compile(&[here().join(format!("tests/c/{name}.c"))], options, &built);
    built
}

/// Runs every program, compiled with `options`, with the words of `runner` before it.
fn run_all(options: &[&str], runner: &[&str]) {
    let store = Store::start();
    for name in PROGRAMS {
        let directory = scratch();
        let built = program(name, options, directory.path());
        let words = runner.iter().map(PathBuf::from).chain([built]);
        let words: Vec<PathBuf> = words.collect();
        let (first, rest) = words.split_first().unwrap();
        let mut command = Command::new(first);
        command.args(rest).arg(directory.path().join("disk.qcow2"));
        let printed = succeed(store.below(with_library(&mut command)));
        assert_eq!(printed, format!("{name}: ok\n"));
    }
}

/// A program that runs others for which the kernel has no rings.
fn without_rings(directory: &Path) -> String {
    let built = directory.join("without-rings");
    compile(&[here().join("tests/c/without_rings.c")], &[], &built);
    built.display().to_string()
}

#[test]
fn the_programs_find_what_the_header_promises_with_rings_and_without() {
    run_all(&[], &[]);
    let directory = scratch();
    run_all(&[], &[&without_rings(directory.path())]);
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    run_all(&["-fsanitize=address", "-fno-omit-frame-pointer"], &[]);
}

#[test]
fn valgrind_finds_no_wrong_access_and_no_leak() {
    let directory = scratch();
    let runner = [
        &without_rings(directory.path()),
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--show-leak-kinds=definite",
        "--fair-sched=yes",
    ];
    run_all(&[], &runner);
}

/// A C++ program can include the header: it declares the functions as C's.
#[test]
fn the_header_is_one_for_cpp_too() {
    let directory = scratch();
    let source = directory.path().join("a.cpp");
    let text = "#include <cowhand.h>\nint main() { return cowhand_version()[0] == '0' ? 0 : 1; }\n";
    std::fs::write(&source, text).unwrap();
    let built = directory.path().join("a");
    let flags = succeed(with_library(Command::new("pkg-config").args(["--cflags", "--libs", "cowhand"])));
    let mut compiler = Command::new("c++");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&built).arg(&source);
    succeed(compiler.args(flags.split_whitespace()));
    succeed(with_library(&mut Command::new(&built)));
}
