//! One command line, run by both programs on copies of the same images.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use black_box::Outcome;
use black_box::run::Run;
use black_box::scratch::Scratch;
use black_box::{peer, program};
use serde_json::Value;

use super::{fixtures, masks};

/// Whose programs cowhand is compared with.
#[derive(Clone, Debug)]
pub struct Rival {
    /// Where they are; `None`: where the system has them.
    programs: Option<PathBuf>,
    version: (u32, u32),
}

impl Rival {
    /// The system's.
    pub fn system() -> Self {
        Self { programs: None, version: peer::qemu_version() }
    }

    /// Those of the newest release, if `cargo xtask peers` has unpacked it.
    pub fn newest() -> Option<Self> {
        let programs = peer::newest_qemu()?;
        Some(Self { version: peer::version_of(&programs.join("qemu-img")), programs: Some(programs) })
    }

    /// Whether lists of options are its own, word by word.
    fn is_newest(&self) -> bool {
        self.version >= (11, 0)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.as_ref().map_or_else(|| name.into(), |programs| programs.join(name))
    }
}

/// A command line.
#[derive(Debug)]
pub struct Line {
    /// The program.
    program: &'static str,
    /// The words, with single spaces between them; `''` is an empty one.
    pub words: String,
    /// It differs, for the reason that stands in this row of docs/reference/compat.md.
    pub known: Option<&'static str>,
    /// Older versions have no such options, or do otherwise what the newest does.
    since: (u32, u32),
}

impl Line {
    /// A line that both treat alike.
    pub fn same(words: impl Into<String>) -> Self {
        Self { program: "qemu-img", words: words.into(), known: None, since: (0, 0) }
    }

    /// A line that is known to differ: `row` stands in docs/reference/compat.md.
    pub fn known(row: &'static str, words: impl Into<String>) -> Self {
        Self { known: Some(row), ..Self::same(words) }
    }

    /// A line that QEMU treats so from this version on, as its major and minor number.
    pub fn since(since: (u32, u32), words: impl Into<String>) -> Self {
        Self { since, ..Self::same(words) }
    }

    /// Whether programs of `rival` can be asked.
    pub fn is_for(&self, rival: &Rival) -> bool {
        rival.version >= self.since
    }

    /// A line of `qemu-io`, in which `_` stands for the spaces in a command.
    pub fn of_qemu_io(words: impl Into<String>) -> Self {
        Self { program: "qemu-io", ..Self::same(words) }
    }
}

/// How the lines of one command went.
#[derive(Debug, Default)]
pub struct Tally {
    same: usize,
    known: usize,
    wrong: Vec<String>,
}

impl Tally {
    /// Counts a line.
    pub fn add(&mut self, line: &Line, found: Result<(), String>) {
        match (line.known, found) {
            (None, Ok(())) => self.same += 1,
            (None, Err(difference)) => {
                self.wrong.push(format!("{} {}\n{difference}", line.program, line.words))
            }
            (Some(row), _) if !is_documented(row) => {
                self.wrong.push(format!("docs/reference/compat.md has no row with {row:?}"))
            }
            // What one version of QEMU does otherwise, another may do as we do.
            (Some(_), _) => self.known += 1,
        }
    }

    /// Prints the counts; fails if a line went wrong.
    pub fn sum_up(&self, command: &str) {
        println!("differential: {command}: {} lines agree, {} differ as documented", self.same, self.known);
        assert!(self.wrong.is_empty(), "{} lines differ:\n\n{}", self.wrong.len(), self.wrong.join("\n\n"));
    }
}

fn is_documented(row: &str) -> bool {
    static TEXT: OnceLock<String> = OnceLock::new();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/compat.md");
    TEXT.get_or_init(|| fs::read_to_string(path).expect("docs/reference/compat.md")).contains(row)
}

/// Commands that change nothing: they run among the fixtures themselves.
const READING: [&str; 5] = ["info", "map", "measure", "compare", "check"];

/// Runs a line by both.
///
/// # Errors
/// With what differs.
pub fn run(line: &Line, rival: &Rival) -> Result<(), String> {
    let is_img = line.program == "qemu-img";
    let word = |word: &str| match (word, is_img) {
        ("''", _) => String::new(),
        (word, true) => word.to_owned(),
        (word, false) => word.replace('_', " "),
    };
    let words: Vec<String> = line.words.split(' ').map(word).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let command = words.first().copied().unwrap_or_default();
    let reads = READING.contains(&command)
        && !words.iter().any(|word| word.starts_with("-r") || word.starts_with("--repair"));
    let scratch = [Scratch::new(), Scratch::new()];
    let names = fixtures::named(&line.words);
    for directory in scratch.iter().filter(|_| !reads) {
        for name in &names {
            fs::copy(fixtures::directory().join(name), directory.file(name)).expect("a copy");
        }
    }
    let place = |which: usize| if reads { fixtures::directory() } else { scratch[which].path() };
    let ran = |program: &Path, which| {
        Run::new(program).args(&words).current_dir(place(which)).env("TZ", "UTC").outcome()
    };
    let (theirs, ours) = (ran(&rival.program(line.program), 0), ran(&links().join(line.program), 1));
    assert!(!ours.panicked() && !ours.timed_out, "{ours}");
    same_outcome(line, &words, rival, &theirs, &ours)?;
    match reads || !theirs.status.success() {
        true => Ok(()),
        false => same_files(scratch[0].path(), scratch[1].path()),
    }
}

/// A directory in which the program under test has the names of QEMU's.
fn links() -> &'static Path {
    static LINKS: OnceLock<Scratch> = OnceLock::new();
    let links = LINKS.get_or_init(|| {
        let scratch = Scratch::new();
        let directory = scratch.path().as_os_str().to_owned();
        drop(program::cowhand([std::ffi::OsString::from("compat"), "install".into(), directory]).ok());
        scratch
    });
    links.path()
}

fn same_outcome(
    line: &Line,
    words: &[&str],
    rival: &Rival,
    theirs: &Outcome,
    ours: &Outcome,
) -> Result<(), String> {
    let both = || format!("--- theirs {theirs}\n--- ours {ours}");
    if theirs.status.code() != ours.status.code() {
        return Err(format!("the exit codes differ\n{}", both()));
    }
    // What is printed before an error is no result; of `check` and `compare` it is.
    let has_result = theirs.status.success() || ["check", "compare"].contains(&words[0]);
    let masked = |outcome: &Outcome| masks::output(words, rival.is_newest(), &outcome.stdout);
    if has_result && masked(theirs) != masked(ours) {
        return Err(format!("the results differ\n{}", both()));
    }
    // Whatever goes wrong is said behind the program's name.
    let first = ours.stderr.lines().next().unwrap_or_default();
    let spoken = has_result || line.program == "qemu-io" || first.starts_with("qemu-img: ");
    if spoken { Ok(()) } else { Err(format!("the error has no name before it: {first}")) }
}

/// The same files, with the same bytes or the same image in them.
fn same_files(theirs: &Path, ours: &Path) -> Result<(), String> {
    let names = |directory: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect()
    };
    if names(theirs) != names(ours) {
        return Err(format!("the files differ: theirs {:?}, ours {:?}", names(theirs), names(ours)));
    }
    names(ours).iter().try_for_each(|name| same_image(name, &theirs.join(name), &ours.join(name)))
}

fn same_image(name: &str, theirs: &Path, ours: &Path) -> Result<(), String> {
    if fs::read(theirs).ok() == fs::read(ours).ok() {
        return Ok(());
    }
    // A data file is looked for from the current directory.
    let directory = ours.parent().expect("a directory");
    let img = |words: &[&str]| Run::new("qemu-img").args(words).current_dir(directory).outcome();
    let text = |path: &Path| path.to_str().expect("a name").to_owned();
    let info = |path: &Path| -> Result<Value, String> {
        let outcome = img(&["info", "--output=json", &text(path)]);
        let info =
            serde_json::from_str(&outcome.stdout).map_err(|_| format!("{name} cannot be read: {outcome}"))?;
        Ok(masks::of_file(info))
    };
    let (their_info, our_info) = (info(theirs)?, info(ours)?);
    if their_info != our_info {
        return Err(format!("{name} differs: theirs {their_info:#}, ours {our_info:#}"));
    }
    // A fixed VHD is known by its end only.
    let format = if name.ends_with(".vpc") { "vpc" } else { our_info["format"].as_str().expect("a format") };
    let format = format.to_owned();
    let compared = img(&["compare", "-f", &format, "-F", &format, &text(theirs), &text(ours)]);
    // Over a backing file that is not there, nothing can be read.
    let is_unreadable = |path: &Path| img(&["compare", &text(path), &text(path)]).status.code() == Some(2);
    if compared.status.code() == Some(2) && is_unreadable(theirs) && is_unreadable(ours) {
        return Ok(());
    }
    if !compared.status.success() || compared.stdout.contains("mismatch") {
        return Err(format!("the content of {name} differs: {compared}"));
    }
    let checked = |path: &Path| img(&["check", "-f", &format, &text(path)]).status.code();
    match checked(theirs) == checked(ours) {
        true => Ok(()),
        false => Err(format!(
            "{name}: qemu-img check ends with {:?}, theirs with {:?}",
            checked(ours),
            checked(theirs)
        )),
    }
}

/// Lines of qemu-img that both treat alike.
pub fn same(lines: &[&str]) -> Vec<Line> {
    lines.iter().map(|line| Line::same(*line)).collect()
}

/// Every combination of words, one of each list.
pub fn combined(lists: &[&[&str]]) -> Vec<String> {
    let mut lines = vec![String::new()];
    for list in lists {
        let longer = |line: &String| {
            let line = line.clone();
            list.iter().map(move |words| {
                let space = if line.is_empty() || words.is_empty() { "" } else { " " };
                format!("{line}{space}{words}")
            })
        };
        lines = lines.iter().flat_map(longer).collect();
    }
    let unique: BTreeMap<_, _> = lines.into_iter().enumerate().map(|(at, line)| (line, at)).collect();
    unique.into_keys().collect()
}
