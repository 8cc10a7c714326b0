//! What ends a command early: said once, with its causes, and an exit code.

use std::error::Error;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use graph::OpenError;
use storage::LockError;

use crate::output::{printable, tell};
use crate::voice;

/// The exit code of a failure that has no code of its own, as in qemu-img. Wrong usage has it too:
/// 2 and 3 are verdicts of `check`.
pub const FAILED: u8 = 1;

/// A command that could not do what was asked.
#[derive(Clone, Debug)]
pub struct Failure {
    what: String,
    causes: Vec<String>,
    hint: Option<&'static str>,
    code: u8,
    /// Our output has no reader any more: nothing is printed.
    silent: bool,
    /// What kind of failure of the system it is, where that was kept.
    io: Option<io::ErrorKind>,
}

impl Failure {
    /// A failure without a cause below it.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), causes: Vec::new(), hint: None, code: FAILED, silent: false, io: None }
    }

    /// A failure that `error` and its sources explain.
    pub fn because(what: impl Into<String>, error: &dyn Error) -> Self {
        let mut failure = Self::new(what);
        let mut cause = Some(error);
        while let Some(error) = cause {
            let text = error.to_string();
            let text = without_subject(&text, &failure.what);
            // Some errors repeat their source in their own text; it is said once.
            let last = failure.causes.last().unwrap_or(&failure.what);
            if !last.contains(text) {
                let text = text.to_owned();
                failure.causes.push(text);
            }
            cause = error.source();
        }
        failure
    }

    /// A failure of the system, whose kind is kept.
    pub fn of_system(what: impl Into<String>, error: &io::Error) -> Self {
        Self { io: Some(error.kind()), ..Self::because(what, error) }
    }

    /// A failure that `cause` explains.
    pub fn explained(what: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { causes: vec![cause.into()], ..Self::new(what) }
    }

    /// The same with what to do about it.
    #[must_use]
    pub fn with_hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// The same with another hint, where it has one.
    #[must_use]
    pub fn with_other_hint(self, hint: &'static str) -> Self {
        Self { hint: self.hint.map(|_| hint), ..self }
    }

    /// The same of a file that was called `from` for a while and that the user calls `to`.
    #[must_use]
    pub fn renamed(self, from: &Path, to: &Path) -> Self {
        let (from, to) = (from.display().to_string(), to.display().to_string());
        let whole =
            std::path::absolute(&from).map_or_else(|_| from.clone(), |path| path.display().to_string());
        let renamed = |text: &str| text.replace(&whole, &to).replace(&from, &to);
        let what = renamed(&self.what);
        let causes = self.causes.iter().map(|cause| renamed(cause));
        let causes = causes.map(|cause| without_subject(&cause, &what).to_owned()).collect();
        Self { what, causes, ..self }
    }

    /// The same with an exit code of its own.
    #[must_use]
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The same with a way around it, if another process's lock kept us from reading.
    #[must_use]
    pub fn with_hint_about_lock(self, error: &(dyn Error + 'static)) -> Self {
        let mut errors = std::iter::successors(Some(error), |&error| error.source());
        let is_busy = |error: &(dyn Error + 'static)| {
            matches!(error.downcast_ref::<LockError>(), Some(LockError::Busy { .. }))
                || matches!(
                    error.downcast_ref::<OpenError>(),
                    Some(OpenError::Lock { source: LockError::Busy { .. }, .. })
                )
        };
        match errors.any(is_busy) {
            true => self
                .with_hint("-U reads it all the same; what its user changes meanwhile may look inconsistent"),
            false => self,
        }
    }

    /// Whether permission was missing: the user has no such right, or the sandbox dropped it.
    pub fn is_forbidden(&self) -> bool {
        self.io == Some(io::ErrorKind::PermissionDenied)
    }

    /// Says it on standard error, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.silent {
            match voice::is_qemu() {
                true => tell(format_args!("{}: {}", voice::name(), self.in_one_line())),
                false => tell(format_args!("{}: {self}", voice::name())),
            }
        }
        ExitCode::from(self.code)
    }

    /// As QEMU's programs say it, whose callers read the line that begins with the program's name, and QMP's errors: what failed, the causes after it.
    pub fn in_one_line(&self) -> String {
        let mut line = printable(&self.what).to_string();
        for cause in &self.causes {
            let lines: Vec<_> = cause.lines().map(|line| printable(line.trim()).to_string()).collect();
            line.push_str(": ");
            line.push_str(&lines.join("; "));
        }
        if let Some(hint) = self.hint {
            line.push_str(&format!(" (hint: {hint})"));
        }
        line
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", printable(&self.what))?;
        for cause in &self.causes {
            // Some causes have more than one line, as those about a configuration file: none looks like another message.
            let lines: Vec<_> = cause.lines().map(printable).collect();
            write!(f, "\n  because: {}", lines.join("\n    "))?;
        }
        self.hint.map_or(Ok(()), |hint| write!(f, "\n  hint: {hint}"))
    }
}

/// `cause` without its subject, if `what` has named that: errors of the libraries name their image, for the
/// log.
fn without_subject<'a>(cause: &'a str, what: &str) -> &'a str {
    let Some((subject, rest)) = cause.split_once(": ") else { return cause };
    // Storage says what it did: "cannot create x", "cannot lock x".
    let named = subject.strip_prefix("cannot ").and_then(|rest| rest.split_once(' '));
    let subject = named.map_or(subject, |(_, name)| name);
    if is_named(subject, what) { rest } else { cause }
}

/// Whether `what` ends with `subject`, or with another name of the same file.
fn is_named(subject: &str, what: &str) -> bool {
    let ends_with = |name: &str| {
        what.strip_suffix(name)
            .is_some_and(|before| !name.is_empty() && before.ends_with(char::is_whitespace))
    };
    let same_file = |name: &str| std::path::absolute(name).is_ok_and(|path| path.as_os_str() == subject);
    ends_with(subject) || what.split_whitespace().last().is_some_and(same_file)
}

/// Failures of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let silent = error.kind() == io::ErrorKind::BrokenPipe;
        Self { silent, ..Self::because("cannot write the output", &error) }
    }
}

/// Says on standard error what the user should know of a command that does what was asked.
pub fn warn(what: &str) {
    tell(format_args!("{}: warning: {}", voice::name(), printable(what)));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use control::is_denied;

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
    fn a_failure_says_its_subject_once_and_keeps_the_name_of_another_file() {
        let reported =
            |what: &str, cause: &'static str| Failure::because(what, &Layer(cause, None)).to_string();
        let twice = [
            ("cannot serve disk.qcow2", "disk.qcow2: the header is cut"),
            ("cannot serve disk.qcow2", "cannot open disk.qcow2: the header is cut"),
            ("cannot create disk.qcow2", "cannot create disk.qcow2: the header is cut"),
            ("cannot serve /a b/disk.qcow2", "/a b/disk.qcow2: the header is cut"),
        ];
        for (what, cause) in twice {
            assert_eq!(reported(what, cause), format!("{what}\n  because: the header is cut"));
        }
        let here = std::path::absolute("disk.qcow2").unwrap().display().to_string().leak();
        let cause: &'static str = format!("{here}: the header is cut").leak();
        assert_eq!(
            reported("cannot serve disk.qcow2", cause),
            "cannot serve disk.qcow2\n  because: the header is cut"
        );
        for other in ["base.qcow2: is cut", "k.qcow2: is cut", "cannot open base.qcow2: is cut", "is cut"] {
            assert!(
                reported("cannot serve disk.qcow2", other).ends_with(&format!("because: {other}")),
                "{other}"
            );
        }
    }

    /// A program that reads what QEMU's tools say of a failure looks at the line with the tool's name: the reason came in the next line.
    #[test]
    fn as_qemu_a_failure_is_one_line() {
        let failure =
            Failure::because("cannot open a", &Layer("a: in use", Some(Box::new(Layer("by\nb", None)))));
        assert_eq!(
            failure.with_hint("-U reads it").in_one_line(),
            "cannot open a: in use: by; b (hint: -U reads it)"
        );
        assert_eq!(Failure::new("no such file").in_one_line(), "no such file");
    }

    /// A failed `convert` named a file that was gone by then.
    #[test]
    fn a_failure_has_no_name_that_a_file_had_for_a_while() {
        let cause = Layer("/d/.a.part-7: writing data: no space", None);
        let failure = Failure::because("cannot write /d/.a.part-7", &cause);
        let renamed = failure.renamed(Path::new("/d/.a.part-7"), Path::new("/d/a"));
        assert_eq!(renamed.to_string(), "cannot write /d/a\n  because: writing data: no space");
        let other = Failure::because("cannot convert b", &cause);
        let renamed = other.renamed(Path::new("/d/.a.part-7"), Path::new("/d/a"));
        assert_eq!(renamed.to_string(), "cannot convert b\n  because: /d/a: writing data: no space");
    }

    /// A file may have any name: one that clears the screen, or writes a line that looks like ours.
    #[test]
    fn what_a_terminal_would_obey_is_shown_and_not_sent() {
        let cause = Layer("a\u{1b}[2J.qcow2:\r line 1\nline 2", None);
        let text = Failure::because("cannot open a\u{1b}[31m\ncowhand: all is well", &cause).to_string();
        assert_eq!(
            text,
            "cannot open a\\u{1b}[31m\\ncowhand: all is well\n  because: a\\u{1b}[2J.qcow2:\\r line 1\n    line 2"
        );
    }

    /// The sandbox is to be mentioned where it was in the way. "not permitted" in a name, or in the words of another
    /// error, was taken for it.
    #[test]
    fn what_the_system_forbade_is_known_by_its_kind_however_deep_it_is() {
        let denied = || io::Error::from_raw_os_error(libc::EACCES);
        let not_permitted = || io::Error::from_raw_os_error(libc::EPERM);
        let find = OpenError::Find { path: "a".into(), source: denied() };
        let open = storage::OpenError::Io { path: "a".into(), action: "open", source: not_permitted() };
        let lock = OpenError::Lock { path: "a".into(), source: LockError::Io(denied()) };
        let read = qcow2::Error::Io { image: "a".into(), action: "reading", source: Arc::new(denied()) };
        let forbidden: [&(dyn Error + 'static); 5] =
            [&denied(), &find, &OpenError::Storage(open), &lock, &OpenError::Image(read)];
        assert!(forbidden.into_iter().all(is_denied));
        assert!(Failure::of_system("cannot listen on a", &denied()).is_forbidden());
        let by_a_server = io::Error::new(io::ErrorKind::PermissionDenied, "403 Forbidden");
        assert!(!is_denied(&by_a_server));
        let missing = io::Error::new(io::ErrorKind::NotFound, "Permission denied/not permitted.qcow2");
        assert!(!is_denied(&missing) && !Failure::of_system("cannot listen on a", &missing).is_forbidden());
    }

    #[test]
    fn a_failure_names_each_cause_once() {
        let error =
            Layer("middle: bottom", Some(Box::new(Layer("bottom", Some(Box::new(Layer("root", None)))))));
        let text = Failure::because("cannot open x", &error).to_string();
        assert_eq!(text, "cannot open x\n  because: middle: bottom\n  because: root");
    }
}
