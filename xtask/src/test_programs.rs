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
    tests: Tests,
    program: PathBuf,
}

/// Which tests of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tests {
    /// Those inside its library.
    Library,
    /// Those inside one of its programs.
    Program,
    /// Those in a file of tests; its name, without `.rs`.
    File(String),
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
        self.find(directory, &Tests::File(name.to_owned()))
    }

    /// As [`TestPrograms::command`], for the tests inside the library in `directory`.
    ///
    /// # Errors
    /// When there are none.
    pub fn library(&self, directory: &str) -> Result<Command, String> {
        self.find(directory, &Tests::Library)
    }

    /// Every test program but those of the packages in the directories `packages`, and but the files of tests `files` (a package's
    /// directory, a name as [`TestPrograms::command`] takes it), in the order in which they were built.
    pub fn all_but(&self, packages: &[&str], files: &[(&str, &str)]) -> Vec<Command> {
        let root = root();
        let is_left_out = |found: &&TestProgram| {
            let is_in = |directory: &str| found.directory == root.join(directory);
            let is_file = |name: &str| matches!(&found.tests, Tests::File(own) if own == name);
            packages.iter().any(|package| is_in(package))
                || files.iter().any(|(directory, name)| is_in(directory) && is_file(name))
        };
        self.found.iter().filter(|found| !is_left_out(found)).map(TestProgram::command).collect()
    }

    fn find(&self, directory: &str, tests: &Tests) -> Result<Command, String> {
        let directory = root().join(directory);
        let found = self.found.iter().find(|found| found.directory == directory && found.tests == *tests);
        let found =
            found.ok_or_else(|| format!("{}: no such tests were built: {tests:?}", directory.display()))?;
        Ok(found.command())
    }

    /// As [`TestPrograms::command`], for the tests of the module `suite` alone: the harness's own filter takes every test that has the
    /// name anywhere.
    ///
    /// # Errors
    /// When there are none.
    pub fn suite(&self, directory: &str, name: &str, suite: &str) -> Result<Command, String> {
        let mut tests = tests_of(self.command(directory, name)?)?;
        tests.retain(|test| test.starts_with(&format!("{suite}::")));
        if tests.is_empty() {
            return Err(format!("no tests {name} are in {suite}"));
        }
        self.exactly(directory, name, &tests)
    }

    /// As [`TestPrograms::command`], for these tests alone.
    ///
    /// # Errors
    /// When one of them is not there.
    pub fn exactly(&self, directory: &str, name: &str, tests: &[String]) -> Result<Command, String> {
        let there = tests_of(self.command(directory, name)?)?;
        if let Some(missing) = tests.iter().find(|test| !there.contains(test)) {
            return Err(format!("there is no test {missing}"));
        }
        let mut command = self.command(directory, name)?;
        command.arg("--exact").args(tests);
        Ok(command)
    }
}

impl TestProgram {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.directory).stdin(Stdio::null());
        command
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
    let tests = match kinds.first()?.as_str()? {
        _ if !said.pointer("/profile/test")?.as_bool()? => return None,
        "test" => Tests::File(said.pointer("/target/name")?.as_str()?.to_owned()),
        "lib" => Tests::Library,
        "bin" => Tests::Program,
        _ => return None,
    };
    Some(TestProgram { directory: manifest.parent()?.to_owned(), tests, program: program.into() })
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
        let program = |kind: &str, name: &str, is_test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{is_test}}},"executable":"/t/a-1"}}"#
            )
        };
        for (kind, tests) in
            [("test", Tests::File("corpus".into())), ("lib", Tests::Library), ("bin", Tests::Program)]
        {
            let expected = TestProgram { directory: "/p/a".into(), tests, program: "/t/a-1".into() };
            assert_eq!(test_program(&program(kind, "corpus", true)), Some(expected));
        }
        for other in [
            &program("bin", "a", false),
            &program("example", "a", true),
            r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"profile":{"test":true},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "error: something else",
        ] {
            assert_eq!(test_program(other), None, "{other}");
        }
    }
}
