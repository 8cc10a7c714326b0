//! The examples of the page about the library run as they are written.

use std::process::Command;

use crate::go::go;
use crate::installed::{compile, project, scratch, succeed, with_library};
use crate::python::python;

/// The only block of a language on the page.
fn block(language: &str) -> String {
    let page = std::fs::read_to_string(project().join("docs/guide/library.md")).unwrap();
    let mut blocks = page.split("\n```").skip(1).step_by(2);
    let found = blocks.find_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    format!("{}\n", found.unwrap_or_else(|| panic!("the page has no block of {language}")))
}

#[test]
fn the_example_in_c_runs() {
    let directory = scratch();
    let source = directory.path().join("example.c");
    std::fs::write(&source, block("c")).unwrap();
    let program = directory.path().join("example");
    compile(&[source], &[], &program);
    succeed(with_library(Command::new(&program).current_dir(directory.path())));
    succeed(Command::new("qemu-img").arg("check").arg(directory.path().join("disk.qcow2")));
}

#[test]
fn the_example_in_python_runs() {
    let directory = scratch();
    let source = directory.path().join("example.py");
    std::fs::write(&source, block("python")).unwrap();
    succeed(python().arg(&source).current_dir(directory.path()));
    succeed(Command::new("qemu-img").arg("check").arg(directory.path().join("disk.qcow2")));
}

#[test]
fn the_example_in_go_runs() {
    let directory = scratch();
    std::fs::write(directory.path().join("main.go"), block("go")).unwrap();
    let run = |arguments: &[&str]| succeed(go().args(arguments).current_dir(directory.path()));
    run(&["mod", "init", "example"]);
    // As the package's page has it.
    let replaced = format!("github.com/cowhand/cowhand/bindings/go={}/bindings/go", project().display());
    run(&["mod", "edit", "-replace", &replaced]);
    run(&["mod", "tidy"]);
    run(&["build", "-o", "example"]);
    let program = directory.path().join("example");
    succeed(with_library(Command::new(&program).current_dir(directory.path())));
    succeed(Command::new("qemu-img").arg("check").arg(directory.path().join("disk.qcow2")));
}

/// That page's own test runs it.
#[test]
fn the_example_in_rust_is_that_of_the_crates_page() {
    let page = std::fs::read_to_string(project().join("crates/cowhand/README.md")).unwrap();
    assert!(page.contains(&format!("```rust\n{}```", block("rust"))), "{}", block("rust"));
}
