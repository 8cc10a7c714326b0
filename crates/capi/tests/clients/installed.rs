//! The library as `install.sh` installs it, in a directory of the build: with the files of a package.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

/// The directory of this package.
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The root of the project.
pub fn project() -> PathBuf {
    here().join("../..").canonicalize().unwrap()
}

/// Where cargo has built the static library: examples are beside the directory of test programs.
pub fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(Path::parent).unwrap();
    profile.join("examples")
}

/// Where the library is installed for the tests, with `lib` and `include` below it. Made once for a run of this program.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = built().join("installed");
        let mut install = Command::new(here().join("install.sh"));
        succeed(install.arg(built().join("libcowhand.a")).arg(&prefix).arg(env!("CARGO_PKG_VERSION")));
        prefix
    })
}

/// Has a command find the installed library, when it builds and when it runs.
pub fn with_library(command: &mut Command) -> &mut Command {
    let lib = prefix().join("lib");
    command.env("LD_LIBRARY_PATH", &lib).env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
}

/// A directory for images.
pub fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Runs a command that must succeed; gives what it printed.
pub fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{printed}{errors}", output.status);
    printed
}

/// Compiles C sources, with what pkg-config says, into a program.
pub fn compile(sources: &[PathBuf], options: &[&str], program: &Path) {
    let flags = succeed(with_library(Command::new("pkg-config").args(["--cflags", "--libs", "cowhand"])));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"]).args(options);
    succeed(compiler.arg("-o").arg(program).args(sources).args(flags.split_whitespace()));
}
