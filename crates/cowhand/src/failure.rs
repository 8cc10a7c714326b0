//! What ends a command early: said once, with its causes, and an exit code.

use std::error::Error;
use std::io;
use std::process::ExitCode;

/// The exit code of a failure that has no code of its own, as in qemu-img. Wrong usage has it too:
/// 2 and 3 are verdicts of `check`.
pub const FAILED: u8 = 1;

/// A command that could not do what was asked.
#[derive(Debug)]
pub struct Failure {
    what: String,
    causes: Vec<String>,
    hint: Option<&'static str>,
    code: u8,
    /// Nobody reads our output any more: nothing is to be said about it.
    silent: bool,
}

impl Failure {
    /// A failure without a cause below it.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), causes: Vec::new(), hint: None, code: FAILED, silent: false }
    }

    /// A failure that `error` and its sources explain.
    pub fn because(what: impl Into<String>, error: &dyn Error) -> Self {
        let mut failure = Self::new(what);
        let mut cause = Some(error);
        while let Some(error) = cause {
            let text = error.to_string();
            // Some errors repeat their source in their own text; it is said once.
            let last = failure.causes.last().unwrap_or(&failure.what);
            if !last.contains(&text) {
                failure.causes.push(text);
            }
            cause = error.source();
        }
        failure
    }

    /// The same with what to do about it.
    #[must_use]
    pub fn with_hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// Says it on standard error, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.silent {
            eprintln!("cowhand: {self}");
        }
        ExitCode::from(self.code)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.what)?;
        self.causes.iter().try_for_each(|cause| write!(f, "\n  because: {cause}"))?;
        self.hint.map_or(Ok(()), |hint| write!(f, "\n  hint: {hint}"))
    }
}

/// Failures of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let silent = error.kind() == io::ErrorKind::BrokenPipe;
        Self { silent, ..Self::because("cannot write the output", &error) }
    }
}

/// Shows help where it was asked for, and what is wrong where it was not.
pub fn usage(error: &clap::Error) -> ExitCode {
    // Nothing to do if even that cannot be shown.
    let _ = error.print();
    match error.use_stderr() {
        true => ExitCode::from(FAILED),
        false => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl std::fmt::Display for Layer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|layer| layer as &(dyn Error + 'static))
        }
    }

    #[test]
    fn a_failure_names_each_cause_once() {
        let error =
            Layer("middle: bottom", Some(Box::new(Layer("bottom", Some(Box::new(Layer("root", None)))))));
        let text = Failure::because("cannot open x", &error).to_string();
        assert_eq!(text, "cannot open x\n  because: middle: bottom\n  because: root");
    }
}
