//! Stages of a long run: announced, timed, and summed up at the end.

use std::process::Command;
use std::time::{Duration, Instant};

/// Runs stages and remembers how they went.
#[derive(Debug, Default)]
pub struct Stages {
    done: Vec<Done>,
}

#[derive(Debug)]
struct Done {
    name: String,
    took: Duration,
    failed: bool,
}

impl Stages {
    /// One stage that is a command; says whether it succeeded.
    pub fn command(&mut self, name: &str, command: &mut Command) -> bool {
        self.stage(name, || match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{}: {status}", words(command))),
            Err(error) => Err(format!("{}: {error}", words(command))),
        })
    }

    /// One stage that runs a test program, if it was built, as `set` has it run; says whether it succeeded.
    pub fn tests(
        &mut self,
        name: &str,
        program: Result<Command, String>,
        set: impl FnOnce(&mut Command) -> &mut Command,
    ) -> bool {
        match program {
            Ok(mut program) => self.command(name, set(&mut program)),
            Err(error) => self.stage(name, || Err(error)),
        }
    }

    /// One stage; says whether it succeeded.
    pub fn stage(&mut self, name: &str, work: impl FnOnce() -> Result<(), String>) -> bool {
        println!("\n==== {name}");
        let start = Instant::now();
        let outcome = work();
        let took = start.elapsed();
        match &outcome {
            Ok(()) => println!("==== {name}: {:.1} s", took.as_secs_f64()),
            Err(error) => println!("==== {name}: FAILED after {:.1} s: {error}", took.as_secs_f64()),
        }
        self.done.push(Done { name: name.to_owned(), took, failed: outcome.is_err() });
        outcome.is_ok()
    }

    /// Prints the table of all stages; says whether all succeeded.
    pub fn sum_up(&self) -> bool {
        println!("\n==== wall time of each stage");
        for Done { name, took, failed } in &self.done {
            let verdict = if *failed { "FAILED" } else { "ok" };
            println!("{:>8.1} s  {verdict:<6}  {name}", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|done| done.took).sum();
        let failed = self.done.iter().filter(|done| done.failed).count();
        println!("{:>8.1} s  {}", total.as_secs_f64(), if failed == 0 { "all ok" } else { "NOT ok" });
        failed == 0
    }
}

/// Words of a command that are shown.
const WORDS_SHOWN: usize = 8;

/// What was run, without its environment and all but the first words.
fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut words: Vec<_> = words.map(|word| word.to_string_lossy()).take(WORDS_SHOWN + 1).collect();
    if words.len() > WORDS_SHOWN {
        words[WORDS_SHOWN] = "...".into();
    }
    words.join(" ")
}
