//! The programs that tests are, found by building them. Run by themselves they are the ones of that build; `cargo test` of one package
//! would build much of it again, because a package alone needs fewer features of what it depends on.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::{cargo, root};

/// Test programs, built.
#[derive(Debug, Default)]
pub struct TestPrograms {
    found: Vec<TestProgram>,
}

#[derive(Debug, PartialEq, Eq)]
struct TestProgram {
    /// The package's directory.
    directory: PathBuf,
    /// The name of the file of tests, without `.rs`; of a library's own tests none.
    name: Option<String>,
    program: PathBuf,
}

impl TestPrograms {
    /// Builds the tests that `which` chooses, arguments of `cargo test`, and the programs that they run.
    ///
    /// # Errors
    /// When something cannot be built; what, cargo has said.
    pub fn build(which: &[&str]) -> Result<Self, String> {
        let mut command = cargo();
        command.arg("test").args(which).args(["--no-run", "--message-format=json-render-diagnostics"]);
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("cargo does not run: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo test {} --no-run: {}", which.join(" "), output.status));
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
        self.run(directory, Some(name))
    }

    /// As [`TestPrograms::command`], for the tests inside the library in `directory`.
    ///
    /// # Errors
    /// When there are none.
    pub fn library(&self, directory: &str) -> Result<Command, String> {
        self.run(directory, None)
    }

    fn run(&self, directory: &str, name: Option<&str>) -> Result<Command, String> {
        let directory = root().join(directory);
        let is_it = |found: &&TestProgram| found.directory == directory && found.name.as_deref() == name;
        let found = self.found.iter().find(is_it);
        let name = name.unwrap_or("of the library");
        let found = found.ok_or_else(|| format!("{}: no tests {name} were built", directory.display()))?;
        let mut command = Command::new(&found.program);
        command.current_dir(&found.directory).stdin(Stdio::null());
        Ok(command)
    }

    /// As [`TestPrograms::command`], for the tests of the module `suite` alone: the harness's own filter takes every test that has the
    /// name anywhere.
    ///
    /// # Errors
    /// When there are none.
    pub fn suite(&self, directory: &str, name: &str, suite: &str) -> Result<Command, String> {
        let mut command = self.command(directory, name)?;
        let mut tests = tests_of(self.command(directory, name)?)?;
        tests.retain(|test| test.starts_with(&format!("{suite}::")));
        if tests.is_empty() {
            return Err(format!("no tests {name} are in {suite}"));
        }
        command.arg("--exact").args(tests);
        Ok(command)
    }
}

/// The names of the tests of a program.
///
/// # Errors
/// When it does not list them.
pub fn tests_of(mut program: Command) -> Result<Vec<String>, String> {
    let listed = program.args(["--list", "--format", "terse"]).output();
    match listed {
        Ok(listed) if listed.status.success() => Ok(names(&String::from_utf8_lossy(&listed.stdout))),
        Ok(listed) => Err(format!("{program:?}: {}", listed.status)),
        Err(error) => Err(format!("{program:?}: {error}")),
    }
}

/// The tests that the harness has listed.
fn names(listed: &str) -> Vec<String> {
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The test program that a line of cargo's tells of, if it is one.
fn test_program(line: &str) -> Option<TestProgram> {
    let said: serde_json::Value = serde_json::from_str(line).ok()?;
    let kinds = said.pointer("/target/kind")?.as_array()?;
    let program = said.get("executable")?.as_str()?;
    let manifest = Path::new(said.get("manifest_path")?.as_str()?);
    let name = match kinds.first()?.as_str()? {
        "test" => Some(said.pointer("/target/name")?.as_str()?.to_owned()),
        "lib" => None,
        _ => return None,
    };
    Some(TestProgram { directory: manifest.parent()?.to_owned(), name, program: program.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_tests_is_read() {
        assert_eq!(
            names("locks::one: test\nawaited_locks::two: test\n\n2 tests, 0 benchmarks\n"),
            ["locks::one", "awaited_locks::two"]
        );
    }

    #[test]
    fn test_programs_are_found_among_what_cargo_says() {
        let tests = r#"{"reason":"compiler-artifact","manifest_path":"/p/fuzz/Cargo.toml","target":{"kind":["test"],"name":"corpus"},"executable":"/t/corpus-1"}"#;
        let expected = TestProgram {
            directory: "/p/fuzz".into(),
            name: Some("corpus".into()),
            program: "/t/corpus-1".into(),
        };
        assert_eq!(test_program(tests), Some(expected));
        let library = r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"executable":"/t/a-1"}"#;
        let expected = TestProgram { directory: "/p/a".into(), name: None, program: "/t/a-1".into() };
        assert_eq!(test_program(library), Some(expected));
        for other in [
            r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"kind":["bin"],"name":"a"},"executable":"/t/a-2"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"executable":null}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"kind":["test"],"name":"a"},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "error: something else",
        ] {
            assert_eq!(test_program(other), None, "{other}");
        }
    }
}
