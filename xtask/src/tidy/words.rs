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
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with("    "));
    lines.flat_map(|(index, line)| of_line(path, index, &without_code(line))).collect()
}

fn of_source(path: &str, text: &str) -> Vec<String> {
    let comments =
        text.lines().enumerate().filter_map(|(index, line)| Some((index, line.split_once("//")?.1)));
    let words = comments.flat_map(|(index, comment)| of_line(path, index, &without_code(comment)));
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

fn of_line(path: &str, index: usize, line: &str) -> Vec<String> {
    let lower = line.to_lowercase();
    let found = PLAIN.iter().filter(|(phrase, _)| has_words(&lower, phrase));
    let number = index + 1;
    found.map(|(phrase, plain)| format!("{path}:{number}: \"{phrase}\": write {plain}")).collect()
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
