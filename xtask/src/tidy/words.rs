//! Documents and comments use the field's terms: a phrase of the table is rejected, and the complaint names the plain word. Types are not
//! called by a bare participle.

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

/// Participles that say nothing of what a type is.
const NAMES: [&str; 8] = ["Found", "Known", "Asked", "Wanted", "Meant", "Kept", "Held", "Begun"];

/// Sources that are not checked: this table.
const EXEMPT: [&str; 1] = ["xtask/src/tidy/words.rs"];

/// Histories and licences.
const OTHERS: [&str; 1] = ["fuzz/corpus/"];

pub fn complaints(tree: &Tree) -> Vec<String> {
    let documents = tree.ending(".md").flat_map(|(path, text)| of_document(path, text));
    let sources = tree.ending(".rs").filter(|(path, _)| !EXEMPT.iter().any(|start| path.starts_with(start)));
    documents.chain(sources.flat_map(|(path, text)| of_source(path, text))).collect()
}

fn of_document(path: &str, text: &str) -> Vec<String> {
    if OTHERS.iter().any(|start| path.starts_with(start)) {
        return Vec::new();
    }
    of_lines(path, text.lines().enumerate().filter(|(_, line)| !line.starts_with("    ")))
}

fn of_source(path: &str, text: &str) -> Vec<String> {
    let comments =
        text.lines().enumerate().filter_map(|(index, line)| Some((index, line.split_once("//")?.1)));
    let words = of_lines(path, comments).into_iter();
    words.chain(text.lines().enumerate().filter_map(|(index, line)| of_type(path, index, line))).collect()
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
fn of_lines<'t>(path: &str, lines: impl Iterator<Item = (usize, &'t str)>) -> Vec<String> {
    let (mut found, mut before) = (Vec::new(), (0, String::new()));
    for (index, line) in lines {
        let line = without_code(line).to_lowercase();
        let carried = if before.0 == index { ending(&before.1) } else { String::new() };
        let text = format!("{carried} {}", line.trim_start_matches(['/', '!', ' ']));
        let phrases =
            PLAIN.iter().filter(|(phrase, _)| has_words(&text, phrase) && !has_words(&carried, phrase));
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

    #[test]
    fn a_type_says_what_it_is() {
        let found = of("fuzz/src/lib.rs", "pub(crate) struct Held {\n// a type Found\nenum Holder {}\n");
        assert_eq!(found, ["fuzz/src/lib.rs:1: a type is called Held: say what it is"]);
    }

    #[test]
    fn no_phrase_stands_in_a_plain_word() {
        for (phrase, plain) in PLAIN {
            assert!(PLAIN.iter().all(|(other, _)| !has_words(plain, other)), "{phrase}: {plain}");
        }
    }
}
