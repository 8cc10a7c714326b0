//! The programs that tests are, found by building them. Run by themselves they are the ones of that build; `cargo test` of one package
//! would build much of it again, because a package alone needs fewer features of what it depends on.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::{cargo, root};

/// All of the workspace, built.
#[derive(Debug, Default)]
pub struct TestPrograms {
    found: Vec<TestProgram>,
}

#[derive(Debug, PartialEq, Eq)]
struct TestProgram {
    /// The package's directory.
    directory: PathBuf,
    /// The name of the file of tests, without `.rs`.
    name: String,
    program: PathBuf,
}

impl TestPrograms {
    /// Builds all tests, and the programs that they run.
    ///
    /// # Errors
    /// When something cannot be built; what, cargo has said.
    pub fn build() -> Result<Self, String> {
        let mut command = cargo();
        command.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("cargo does not run: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo test --workspace --no-run: {}", output.status));
        }
        let said = String::from_utf8_lossy(&output.stdout);
        Ok(Self { found: said.lines().filter_map(test_program).collect() })
    }

    /// The tests in `tests/NAME.rs`, or `tests/NAME/main.rs`, of the package in `directory`, to be run there. Arguments are the test
    /// harness's.
    ///
    /// # Errors
    /// When there are none.
    pub fn command(&self, directory: &str, name: &str) -> Result<Command, String> {
        let directory = root().join(directory);
        let is_it = |found: &&TestProgram| found.directory == directory && found.name == name;
        let found = self.found.iter().find(is_it);
        let found = found.ok_or_else(|| format!("{}: no tests {name} were built", directory.display()))?;
        let mut command = Command::new(&found.program);
        command.current_dir(&found.directory).stdin(Stdio::null());
        Ok(command)
    }
}

/// The test program that a line of cargo's tells of, if it is one.
fn test_program(line: &str) -> Option<TestProgram> {
    let said: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_test = said.pointer("/target/kind")?.as_array()?.iter().any(|kind| kind == "test");
    let program = said.get("executable")?.as_str().filter(|_| is_test)?;
    let manifest = Path::new(said.get("manifest_path")?.as_str()?);
    Some(TestProgram {
        directory: manifest.parent()?.to_owned(),
        name: said.pointer("/target/name")?.as_str()?.to_owned(),
        program: program.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_what_cargo_says() {
        let tests = r#"{"reason":"compiler-artifact","manifest_path":"/p/fuzz/Cargo.toml","target":{"kind":["test"],"name":"corpus"},"executable":"/t/corpus-1"}"#;
        let expected =
            TestProgram { directory: "/p/fuzz".into(), name: "corpus".into(), program: "/t/corpus-1".into() };
        assert_eq!(test_program(tests), Some(expected));
        for other in [
            r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"executable":"/t/a-1"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"kind":["test"],"name":"a"},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "error: something else",
        ] {
            assert_eq!(test_program(other), None, "{other}");
        }
    }
}
