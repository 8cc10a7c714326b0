//! The package for Python: its own tests, as the system's interpreter runs them.

use std::process::{Command, Stdio};

use crate::installed::{project, with_library};
use crate::store::Store;

/// Debian's, which has Debian's cffi.
const PYTHON: &str = "/usr/bin/python3";

/// An interpreter that finds the package and the library.
pub fn python() -> Command {
    let mut python = Command::new(PYTHON);
    python.env("PYTHONPATH", project().join("bindings/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    with_library(&mut python);
    python
}

#[test]
fn the_packages_own_tests_pass() {
    let mut tests = python();
    tests.args(["-W", "error", "-m", "unittest", "discover", "--start-directory", "tests"]);
    tests.current_dir(project().join("bindings/python"));
    let store = Store::start();
    let output = store.below(&mut tests).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // It also succeeds where it finds none.
    assert!(!said.contains("skipped") && said.contains("Ran 16 tests"), "{said}");
}
