//! Stages of a long run: announced, timed, and summed up at the end.

use std::io::{self, Write};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::beside::{Beside, Done};
use crate::watched::{self, TEST_MAX};

/// Runs stages and remembers how they went.
#[derive(Debug)]
pub struct Stages {
    begun: Instant,
    ended: Vec<Ended>,
}

impl Default for Stages {
    fn default() -> Self {
        Self { begun: Instant::now(), ended: Vec::new() }
    }
}

#[derive(Debug)]
struct Ended {
    name: String,
    took: Duration,
    error: Option<String>,
}

impl Stages {
    /// One stage that is a command; says whether it succeeded.
    pub fn command(&mut self, name: &str, command: &mut Command) -> bool {
        self.stage(name, || {
            let status = command.status();
            outcome(command, status)
        })
    }

    /// One stage that runs a test program, if it was built, as `set` has it run; says whether it succeeded.
    pub fn tests(
        &mut self,
        name: &str,
        program: Result<Command, String>,
        set: impl FnOnce(&mut Command) -> &mut Command,
    ) -> bool {
        self.stage(name, || {
            let mut program = program?;
            watch(set(&mut program))
        })
    }

    /// One stage that is programs, all of which run, whether those before them succeeded or not; says whether all did.
    pub fn programs(&mut self, name: &str, programs: Vec<Command>) -> bool {
        self.stage(name, || {
            let run = |mut program: Command| watch(&mut program).err();
            let failed: Vec<String> = programs.into_iter().filter_map(run).collect();
            if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
        })
    }

    /// Stages that ran beside the others: waits for each, and shows what it printed.
    pub fn beside(&mut self, stages: Vec<Beside>) {
        for stage in stages {
            let name = stage.name().to_owned();
            println!("\n==== {name} (beside the others)");
            let Done { took, outcome, said } = stage.done();
            println!("{said}");
            self.tell(&name, took, outcome);
        }
    }

    /// One stage; says whether it succeeded.
    pub fn stage(&mut self, name: &str, work: impl FnOnce() -> Result<(), String>) -> bool {
        self.making(name, work).is_some()
    }

    /// One stage that makes something; gives it if it succeeded.
    pub fn making<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T, String>) -> Option<T> {
        println!("\n==== {name}");
        let start = Instant::now();
        let (made, outcome) = match work() {
            Ok(made) => (Some(made), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.tell(name, start.elapsed(), outcome);
        made
    }

    /// Says how a stage ended.
    fn tell(&mut self, name: &str, took: Duration, outcome: Result<(), String>) {
        match &outcome {
            Ok(()) => println!("==== {name}: {:.1} s", took.as_secs_f64()),
            Err(error) => println!("==== {name}: FAILED after {:.1} s: {error}", took.as_secs_f64()),
        }
        self.ended.push(Ended { name: name.to_owned(), took, error: outcome.err() });
    }

    /// Prints the table of all stages, and what failed once more, last: a reader may have only the end. Says whether all succeeded.
    pub fn sum_up(&self) -> bool {
        println!("\n==== wall time of each stage");
        for Ended { name, took, error } in &self.ended {
            let verdict = if error.is_some() { "FAILED" } else { "ok" };
            println!("{:>8.1} s  {verdict:<6}  {name}", took.as_secs_f64());
        }
        let total = self.begun.elapsed();
        let ok = self.ended.iter().all(|stage| stage.error.is_none());
        println!("{:>8.1} s  {}", total.as_secs_f64(), if ok { "all ok" } else { "NOT ok" });
        for Ended { name, error, .. } in &self.ended {
            if let Some(error) = error {
                println!("\n==== {name}: FAILED: {error}");
            }
        }
        ok
    }
}

/// Runs a test program; what it prints is shown as it comes, and a test that takes too long ends it.
fn watch(program: &mut Command) -> Result<(), String> {
    let mut said = Vec::new();
    let ended = io::pipe().and_then(|(reader, writer)| {
        let mut show = |piece: &[u8]| {
            said.extend_from_slice(piece);
            let mut out = io::stdout().lock();
            // Who does not want to read it any more still wants to know how it ends.
            let _ = out.write_all(piece).and_then(|()| out.flush());
        };
        watched::run(program.stdout(writer), reader, TEST_MAX, &mut show)
    });
    outcome(program, ended).map_err(|error| with_findings(&error, &String::from_utf8_lossy(&said)))
}

/// Lines of a failed test program that are repeated behind its error.
const LINES_REPEATED: usize = 60;

/// Lines that are repeated of a program that failed without a list of failures.
const LAST_LINES: usize = 20;

/// `error`, and below it what the test program, which printed `said`, found: the beginning of the harness's report on the failed tests and
/// their names, or the program's last lines if it ended without a report.
pub fn with_findings(error: &str, said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    let is_heading = |line: &&str| **line == *"failures:";
    let found = match (lines.iter().position(&is_heading), lines.iter().rposition(is_heading)) {
        (Some(report), Some(names)) if report < names => {
            let shown = &lines[report + 1..names.min(report + 1 + LINES_REPEATED)];
            [shown, &lines[names..]].concat()
        }
        _ => lines[lines.len().saturating_sub(LAST_LINES)..].to_vec(),
    };
    std::iter::once(error)
        .chain(found.into_iter().filter(|line| !line.is_empty()))
        .collect::<Vec<_>>()
        .join("\n")
}

/// What a program printed.
#[derive(Clone, Debug)]
pub struct Printed {
    /// On standard output.
    pub out: String,
    /// On standard error.
    pub err: String,
}

/// Runs `command`, and keeps what it prints.
///
/// # Errors
/// If it fails, with what it printed.
pub fn printed(command: &mut Command) -> Result<Printed, String> {
    let ended = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = Printed { out: text(&ended.stdout), err: text(&ended.stderr) };
    outcome(command, Ok(ended.status)).map_err(|error| format!("{error}\n{}{}", printed.out, printed.err))?;
    Ok(printed)
}

/// Runs `command`, and gives its standard output.
///
/// # Errors
/// As [`printed`].
pub fn output(command: &mut Command) -> Result<String, String> {
    printed(command).map(|printed| printed.out)
}

/// Words of a command that are shown.
const WORDS_SHOWN: usize = 8;

/// Whether `command` has succeeded, which ended with `status`; if not, what was run, and how it ended.
///
/// # Errors
/// If it has not.
pub fn outcome(command: &Command, status: io::Result<ExitStatus>) -> Result<(), String> {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{}: {status}", words(command))),
        Err(error) => Err(format!("{}: {error}", words(command))),
    }
}

/// What was run, without its environment and all but the first words.
fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut words: Vec<_> = words.map(|word| word.to_string_lossy()).take(WORDS_SHOWN + 1).collect();
    if words.len() > WORDS_SHOWN {
        words[WORDS_SHOWN] = "...".into();
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_program_found_is_repeated_with_the_names() {
        let long: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let said = format!(
            "test a ... ok\nfailures:\n\n---- b stdout ----\n{long}\nfailures:\n    b\n\ntest result: FAILED\n"
        );
        let repeated = with_findings("exit status: 101", &said);
        assert!(repeated.starts_with("exit status: 101\n---- b stdout ----\nline 0\n"), "{repeated}");
        assert!(repeated.ends_with("\nfailures:\n    b\ntest result: FAILED"), "{repeated}");
        assert!(repeated.lines().count() < 70, "{repeated}");
        assert_eq!(
            with_findings("signal: 6", "test a ... ok\ntest b ... "),
            "signal: 6\ntest a ... ok\ntest b ... "
        );
    }
}
