//! Documents, comments, help and messages use the field's terms: a phrase of the tables is rejected, and the complaint names the plain word. Types
//! are not called by a bare participle.

use super::sizes::without_tests;
use super::tree::Tree;

/// Phrases, and what to write instead. Only phrases that never are the field's term.
const PLAIN: [(&str, &str); 25] = [
    ("told", "reported, returned, logged, notified"),
    ("nobody", "no task, no client, no process"),
    ("somebody", "a client, a process, another request"),
    ("whoever", "the caller, a later request"),
    ("who asks", "the caller"),
    ("stands on", "is backed by"),
    ("stand on", "be backed by, use"),
    ("stood on", "was backed by"),
    ("the image below", "the backing file"),
    ("images below", "backing files"),
    ("lets in", "admits"),
    ("let in", "admitted"),
    ("what lets", "credentials"),
    ("those that are inside", "running requests"),
    ("nobody inside", "no request in flight"),
    ("lets go of", "releases"),
    ("let go of", "release"),
    ("goes on with", "switches to, resumes"),
    ("go on with", "switch to, resume"),
    ("the medium", "the file, the device"),
    ("enciphers", "encrypts"),
    ("enciphered", "encrypted"),
    ("encipher", "encrypt"),
    ("deciphers", "decrypts"),
    ("hands to the kernel", "writes to the page cache"),
];

/// Phrases that users do not read: in documents, in help and messages, and in what is installed.
const OF_READERS: [(&str, &str); 3] =
    [("goes on", "continues"), ("go on", "continue"), ("anybody", "each client, each machine")];

/// What is installed or linked, beside programs: its comments and texts are read.
const INSTALLED: [&str; 8] = [".service", ".socket", ".yml", ".yaml", ".toml", "Containerfile", ".py", ".go"];

/// Participles that say nothing of what a type is.
const NAMES: [&str; 8] = ["Found", "Known", "Asked", "Wanted", "Meant", "Kept", "Held", "Begun"];

/// Sources that are not checked: this table.
const EXEMPT: [&str; 1] = ["xtask/src/tidy/words.rs"];

/// Histories and licences.
const OTHERS: [&str; 1] = ["fuzz/corpus/"];

pub fn complaints(tree: &Tree) -> Vec<String> {
    let documents = tree.ending(".md").flat_map(|(path, text)| of_document(path, text));
    let sources = tree.ending(".rs").filter(|(path, _)| !EXEMPT.iter().any(|start| path.starts_with(start)));
    let installed = INSTALLED.iter().flat_map(|ending| tree.ending(ending));
    let installed = installed.flat_map(|(path, text)| of_lines(path, &readers(), text.lines().enumerate()));
    documents.chain(installed).chain(sources.flat_map(|(path, text)| of_source(path, text))).collect()
}

/// Phrases of both tables.
fn readers() -> Vec<(&'static str, &'static str)> {
    [&PLAIN[..], &OF_READERS].concat()
}

fn of_document(path: &str, text: &str) -> Vec<String> {
    if OTHERS.iter().any(|start| path.starts_with(start)) {
        return Vec::new();
    }
    of_lines(path, &readers(), text.lines().enumerate().filter(|(_, line)| !line.starts_with("    ")))
}

fn of_source(path: &str, text: &str) -> Vec<String> {
    let comments =
        text.lines().enumerate().filter_map(|(index, line)| Some((index, line.split_once("//")?.1)));
    let words = of_lines(path, &PLAIN, comments).into_iter();
    let texts = match path.starts_with("crates/") && path.contains("/src/") && !path.contains("test") {
        true => of_lines(path, &readers(), literals(without_tests(text))),
        false => Vec::new(),
    };
    let words = words.chain(texts);
    words.chain(text.lines().enumerate().filter_map(|(index, line)| of_type(path, index, line))).collect()
}

/// The lines of texts between quotes, which are help and messages. Comments and characters are passed over; a raw text ends at its quote.
fn literals(text: &str) -> impl Iterator<Item = (usize, String)> {
    let (mut lines, mut line, mut is_text, mut escaped) = (Vec::new(), String::new(), false, false);
    for (index, source) in text.lines().enumerate() {
        let mut before = ' ';
        for (at, c) in source.char_indices() {
            let is_comment = !is_text && source.get(at..).is_some_and(|rest| rest.starts_with("//"));
            if is_comment {
                break;
            }
            let is_character = before == '\'' && !is_text;
            match c {
                '"' if !escaped && !is_character => is_text = !is_text,
                _ if is_text => line.push(c),
                _ => {}
            }
            escaped = c == '\\' && !escaped;
            before = c;
        }
        escaped = false;
        lines.push((index, std::mem::take(&mut line)));
    }
    lines.into_iter()
}

/// A type that is called by one of [`NAMES`].
fn of_type(path: &str, index: usize, line: &str) -> Option<String> {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words.find(|word| ["struct", "enum", "trait", "type"].contains(word))?;
    let name = words.next().filter(|name| NAMES.contains(name))?;
    let declares = !line.trim_start().starts_with("//");
    declares.then(|| format!("{path}:{}: a type is called {name}: say what it is", index + 1))
}

/// The line without what is in code style: names are not words.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The phrases in lines with their indices, also those that begin at the end of the line before.
fn of_lines(
    path: &str,
    table: &[(&str, &str)],
    lines: impl Iterator<Item = (usize, impl AsRef<str>)>,
) -> Vec<String> {
    let (mut found, mut before) = (Vec::new(), (0, String::new()));
    for (index, line) in lines {
        let line = without_code(line.as_ref()).to_lowercase();
        let carried = if before.0 == index { ending(&before.1) } else { String::new() };
        let text = format!("{carried} {}", line.trim_start_matches(['/', '!', ' ']));
        let phrases =
            table.iter().filter(|(phrase, _)| has_words(&text, phrase) && !has_words(&carried, phrase));
        found.extend(
            phrases.map(|(phrase, plain)| format!("{path}:{}: \"{phrase}\": write {plain}", index + 1)),
        );
        before = (index + 1, line);
    }
    found
}

/// The last words of a line, as many as a phrase may have there.
fn ending(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().rev().take(3).collect();
    words.reverse();
    words.join(" ")
}

/// Whether `text` has `phrase` as whole words.
fn has_words(text: &str, phrase: &str) -> bool {
    let letter = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(phrase).any(|(at, _)| {
        let before = text.get(..at).is_some_and(|before| before.ends_with(letter));
        let after = text.get(at + phrase.len()..).is_some_and(|after| after.starts_with(letter));
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, text: &str) -> Vec<String> {
        complaints(&Tree::of(&[(path, text)]))
    }

    #[test]
    fn a_phrase_of_the_table_is_found_with_its_plain_word() {
        let found = of("docs/a.md", "# A\n\nThe kernel is Told; whoever comes waits.\n");
        assert_eq!(
            found,
            [
                "docs/a.md:3: \"told\": write reported, returned, logged, notified",
                "docs/a.md:3: \"whoever\": write the caller, a later request"
            ]
        );
        assert_eq!(of("fuzz/src/lib.rs", "fn told() {} // nobody waits\n").len(), 1);
    }

    /// Two stood in the tree until the lines of documents were broken elsewhere.
    #[test]
    fn a_phrase_that_two_lines_share_is_found() {
        let found = of("docs/a.md", "It is what the\nmedium has.\n\nIt is the\n\nmedium\n");
        assert_eq!(found, ["docs/a.md:2: \"the medium\": write the file, the device"]);
        assert_eq!(of("fuzz/src/lib.rs", "/// What the\n/// medium has.\n").len(), 1);
    }

    #[test]
    fn names_parts_of_words_and_code_are_no_phrases() {
        assert_eq!(of("docs/a.md", "`told.rs`, a stolen untold; letting in\n\n    cowhand told\n"), [""; 0]);
        assert_eq!(of("fuzz/src/lib.rs", "let told = \"nobody\";\n"), [""; 0]);
    }

    /// A page was corrected, and the help of the command still had the phrase.
    #[test]
    fn help_messages_and_what_is_installed_are_checked() {
        let help = "const HELP: &str = \"\\\nGuests go on \\\n    writing\"; // goes on\n";
        let found = of("crates/a/src/b.rs", help);
        assert_eq!(found, ["crates/a/src/b.rs:2: \"go on\": write continue"]);
        assert_eq!(of("crates/a/src/b.rs", "f('\"', told, \"a\\\"b nobody\", who)\n").len(), 1);
        assert_eq!(of("crates/a/src/b.rs", "/// Requests go on.\nfn go() {}\n"), [""; 0]);
        assert_eq!(of("packaging/a.service", "# The old one goes on.\n").len(), 1);
    }

    #[test]
    fn a_type_says_what_it_is() {
        let found = of("fuzz/src/lib.rs", "pub(crate) struct Held {\n// a type Found\nenum Holder {}\n");
        assert_eq!(found, ["fuzz/src/lib.rs:1: a type is called Held: say what it is"]);
    }

    #[test]
    fn no_phrase_stands_in_a_plain_word() {
        for (phrase, plain) in readers() {
            assert!(readers().iter().all(|(other, _)| !has_words(plain, other)), "{phrase}: {plain}");
        }
    }
}
