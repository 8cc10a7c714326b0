//! The package for Python: its own tests, as the system's interpreter runs them; it and the client of servers as wheels, and their types.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::installed::{built, project, scratch, succeed, with_library};
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
    assert!(!said.contains("skipped") && said.contains("Ran 24 tests"), "{said}");
}

/// Wheels of PyPI that `cargo xtask peers` has brought: cffi, setuptools, mypy and what they need.
fn wheels() -> PathBuf {
    let wheels = built().join("../../wheels");
    assert!(wheels.is_dir(), "{} is not there: cargo xtask peers brings it", wheels.display());
    wheels
}

/// pip, without a network.
fn pip(python: &Path, verb: &str) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", verb, "--quiet", "--no-index", "--disable-pip-version-check", "--find-links"]);
    pip.arg(wheels());
    pip
}

/// An installation was never tried: the tests found the package in the tree, and nothing compared its types with its code.
#[test]
fn wheels_install_into_an_empty_environment_and_their_types_are_strict() {
    let directory = scratch();
    let at = |name: &str| directory.path().join(name);
    for package in ["bindings/python", "clients/python"] {
        let source = at(package);
        std::fs::create_dir_all(source.parent().unwrap()).unwrap();
        succeed(Command::new("cp").arg("-r").arg(project().join(package)).arg(&source));
        let mut wheel = pip(Path::new(PYTHON), "wheel");
        succeed(wheel.args(["--no-deps", "--wheel-dir"]).arg(at("dist")).arg(&source));
    }
    succeed(Command::new(PYTHON).args(["-m", "venv"]).arg(at("venv")));
    let inside = at("venv/bin/python");
    let mut install = pip(&inside, "install");
    succeed(install.arg("--find-links").arg(at("dist")).args([
        "cowhand",
        "cowhand-client",
        "mypy",
        "types-cffi",
    ]));

    let script = "import cowhand, cowhand.aio, cowhand_client; cowhand.create('disk.qcow2', 1 << 20); print(cowhand.__file__)";
    let mut imported = Command::new(&inside);
    let place = succeed(with_library(imported.args(["-c", script]).current_dir(directory.path())));
    assert!(place.starts_with(at("venv").to_str().unwrap()), "{place}");
    let mut example = Command::new(&inside);
    example.arg(at("bindings/python/examples/changed_blocks.py")).arg(at("disk.qcow2"));
    succeed(with_library(&mut example));

    for (checked, paths) in [
        ("bindings/python", &["cowhand", "examples", "tests"][..]),
        // A user's program, which sees the installed package alone.
        ("bindings/python/examples", &["changed_blocks.py"]),
        ("clients/python", &["cowhand_client", "tests"]),
    ] {
        let mut mypy = Command::new(&inside);
        mypy.args(["-m", "mypy", "--strict", "--cache-dir"]).arg(at("types")).args(paths);
        succeed(mypy.current_dir(at(checked)));
    }
}
