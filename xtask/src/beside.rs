//! Programs that only compute, run beside others that mostly wait.
//!
//! They have a processor while no other process wants one, so that measurements and waits beside them do not notice. They
//! should hold nothing that others wait for: no lock, no build, no file system.

use std::io;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::stage::{outcome, with_findings};
use crate::watched::{self, IDLE_TEST_MAX};

/// A stage that is running.
#[derive(Debug)]
pub struct Beside {
    name: String,
    thread: JoinHandle<Done>,
}

/// How a stage has ended.
#[derive(Debug)]
pub struct Done {
    /// How long it was under way.
    pub took: Duration,
    /// Whether all its programs succeeded, or which did not.
    pub outcome: Result<(), String>,
    /// What its programs printed.
    pub said: String,
}

impl Beside {
    /// Begins to run `programs` one after the other, until one fails. What they print is kept for the end.
    pub fn begin(name: String, programs: Vec<Command>) -> Self {
        let work = move || {
            let (start, mut said) = (Instant::now(), String::new());
            let outcome = programs.iter().try_for_each(|program| run(program, &mut said));
            Done { took: start.elapsed(), outcome, said }
        };
        Self { name, thread: std::thread::spawn(work) }
    }

    /// What it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for its end.
    pub fn done(self) -> Done {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Runs `program` to its end; what it prints goes behind `said`.
fn run(program: &Command, said: &mut String) -> Result<(), String> {
    let mut idle = when_idle(program);
    let before = said.len();
    let ended = capture(&mut idle, said);
    outcome(program, ended).map_err(|error| with_findings(&error, &said[before..]))
}

/// Runs `program` to its end; its output goes behind `said`.
fn capture(program: &mut Command, said: &mut String) -> io::Result<ExitStatus> {
    let (reader, writer) = io::pipe()?;
    program.stdout(writer.try_clone()?).stderr(writer);
    let mut bytes = Vec::new();
    let ended = watched::run(program, reader, IDLE_TEST_MAX, &mut |piece| bytes.extend_from_slice(piece));
    said.push_str(&String::from_utf8_lossy(&bytes));
    ended
}

/// The same program, which gets a processor only while no other process wants it.
fn when_idle(program: &Command) -> Command {
    let mut idle = Command::new("chrt");
    idle.args(["--idle", "0"]).arg(program.get_program()).args(program.get_args()).stdin(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    if let Some(directory) = program.get_current_dir() {
        idle.current_dir(directory);
    }
    idle
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("GIVEN", "a value").current_dir("/");
        command
    }

    fn done(programs: Vec<Command>) -> Done {
        Beside::begin("a stage".to_owned(), programs).done()
    }

    #[test]
    fn programs_run_when_others_do_not_as_they_were_to_be_run() {
        let Done { outcome, said, .. } =
            done(vec![sh("echo $GIVEN; pwd; chrt --pid $$ | grep -o SCHED_IDLE >&2")]);
        assert_eq!((&said[..], outcome), ("a value\n/\nSCHED_IDLE\n", Ok(())));
    }

    #[test]
    fn the_first_program_that_fails_is_the_last() {
        let Done { outcome, said, .. } = done(vec![sh("echo one"), sh("echo two; exit 3"), sh("echo three")]);
        assert_eq!(
            (&said[..], outcome),
            ("one\ntwo\n", Err("sh -c echo two; exit 3: exit status: 3\ntwo".to_owned()))
        );
    }
}
