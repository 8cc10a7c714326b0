//! Programs that only compute, run beside others that mostly wait.
//!
//! They have a processor while nobody else wants one, so that whoever measures or awaits something beside them does not notice. They
//! should hold nothing that others wait for: no lock, no build, no file system.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::stage::words;

/// Stages that are running.
#[derive(Debug)]
pub struct Beside {
    thread: JoinHandle<Vec<Done>>,
}

/// A stage that has ended.
#[derive(Debug)]
pub struct Done {
    /// Its name.
    pub name: String,
    /// How long it was under way.
    pub took: Duration,
    /// Whether all its programs succeeded, or which did not.
    pub outcome: Result<(), String>,
    /// What its programs printed.
    pub said: String,
}

impl Beside {
    /// Begins to run `stages`, a name and its programs each, one program after the other. A stage ends with its first program that fails.
    /// What they print is kept for the end.
    pub fn begin(stages: Vec<(String, Vec<Command>)>) -> Self {
        let run = |(name, programs): (String, Vec<Command>)| {
            let (start, mut said) = (Instant::now(), String::new());
            let outcome = programs.iter().try_for_each(|program| run(program, &mut said));
            Done { name, took: start.elapsed(), outcome, said }
        };
        Self { thread: std::thread::spawn(move || stages.into_iter().map(run).collect()) }
    }

    /// Waits for all of them.
    pub fn done(self) -> Vec<Done> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Runs `program` to its end; what it prints goes behind `said`.
fn run(program: &Command, said: &mut String) -> Result<(), String> {
    let mut idle = when_idle(program);
    let ended = capture(&mut idle, said).and_then(|mut child| child.wait());
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{}: {status}", words(program))),
        Err(error) => Err(format!("{}: {error}", words(&idle))),
    }
}

/// Starts `program` and follows it until it has closed its output.
fn capture(program: &mut Command, said: &mut String) -> io::Result<std::process::Child> {
    let (mut reader, writer) = io::pipe()?;
    let child = program.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command has the pipe's other end, too: it would never be closed.
    program.stdout(Stdio::null()).stderr(Stdio::null());
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    said.push_str(&String::from_utf8_lossy(&bytes));
    Ok(child)
}

/// The same program, which gets a processor only while nobody else wants it.
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

    #[test]
    fn programs_run_when_others_do_not_as_they_were_to_be_run() {
        let script = "echo $GIVEN; pwd; chrt --pid $$ | grep -o SCHED_IDLE >&2";
        let done = Beside::begin(vec![("first".to_owned(), vec![sh(script)])]).done();
        assert_eq!((&done[0].said[..], &done[0].outcome), ("a value\n/\nSCHED_IDLE\n", &Ok(())));
    }

    #[test]
    fn a_program_that_fails_ends_its_stage_and_no_other() {
        let stages = vec![
            ("fails".to_owned(), vec![sh("echo one"), sh("echo two; exit 3"), sh("echo three")]),
            ("does not".to_owned(), vec![sh("echo four")]),
        ];
        let done = Beside::begin(stages).done();
        let found: Vec<_> = done.iter().map(|done| (&done.name[..], &done.said[..])).collect();
        assert_eq!(found, [("fails", "one\ntwo\n"), ("does not", "four\n")]);
        assert_eq!(done[0].outcome, Err("sh -c echo two; exit 3: exit status: 3".to_owned()));
        assert_eq!(done[1].outcome, Ok(()));
    }
}
