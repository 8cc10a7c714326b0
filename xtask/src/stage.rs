//! Stages of a long run: announced, timed, and summed up at the end.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::beside::Beside;

/// Runs stages and remembers how they went.
#[derive(Debug)]
pub struct Stages {
    begun: Instant,
    done: Vec<Done>,
}

impl Default for Stages {
    fn default() -> Self {
        Self { begun: Instant::now(), done: Vec::new() }
    }
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

    /// One stage that is programs, all of which run, whether those before them succeeded or not; says whether all did.
    pub fn programs(&mut self, name: &str, programs: Vec<Command>) -> bool {
        self.stage(name, || {
            let run = |mut program: Command| match program.status() {
                Ok(status) if status.success() => None,
                Ok(status) => Some(format!("{}: {status}", words(&program))),
                Err(error) => Some(format!("{}: {error}", words(&program))),
            };
            let failed: Vec<String> = programs.into_iter().filter_map(run).collect();
            if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
        })
    }

    /// The stages that ran beside the others, once they are done; says whether all succeeded.
    pub fn beside(&mut self, beside: Beside) -> bool {
        println!("\n==== what ran beside the others");
        let mut well = true;
        for done in beside.done() {
            println!("\n==== {}\n{}", done.name, done.said);
            well &= self.tell(&done.name, done.took, done.outcome);
        }
        well
    }

    /// One stage; says whether it succeeded.
    pub fn stage(&mut self, name: &str, work: impl FnOnce() -> Result<(), String>) -> bool {
        println!("\n==== {name}");
        let start = Instant::now();
        let outcome = work();
        self.tell(name, start.elapsed(), outcome)
    }

    /// Says how a stage ended, and whether it succeeded.
    fn tell(&mut self, name: &str, took: Duration, outcome: Result<(), String>) -> bool {
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
        let total = self.begun.elapsed();
        let failed = self.done.iter().filter(|done| done.failed).count();
        println!("{:>8.1} s  {}", total.as_secs_f64(), if failed == 0 { "all ok" } else { "NOT ok" });
        failed == 0
    }
}

/// Words of a command that are shown.
const WORDS_SHOWN: usize = 8;

/// What was run, without its environment and all but the first words.
pub fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut words: Vec<_> = words.map(|word| word.to_string_lossy()).take(WORDS_SHOWN + 1).collect();
    if words.len() > WORDS_SHOWN {
        words[WORDS_SHOWN] = "...".into();
    }
    words.join(" ")
}
