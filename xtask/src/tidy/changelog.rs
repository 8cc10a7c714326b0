//! An entry of CHANGELOG.md is one short line: its story is in the commit and the test.

use super::tree::Tree;

const DOCUMENT: &str = "CHANGELOG.md";

/// Words of an entry: with more it is two entries, or a story.
const WORDS_MAX: usize = 14;

pub fn complaints(tree: &Tree) -> Vec<String> {
    let lines = (1_usize..).zip(tree.text(DOCUMENT).lines());
    lines.filter_map(|(number, line)| Some(format!("{DOCUMENT}:{number}: {}", complaint(line)?))).collect()
}

fn complaint(line: &str) -> Option<String> {
    if line.starts_with(' ') {
        return Some("an entry continues here: it must be one line".to_owned());
    }
    let words = words(line.strip_prefix("- ")?);
    (words > WORDS_MAX).then(|| format!("{words} words, of at most {WORDS_MAX}: shorten it, or make it two"))
}

/// Words of an entry; what is in code style is one, signs alone are none.
fn words(entry: &str) -> usize {
    let text = entry.split('`').step_by(2).collect::<Vec<_>>().join("code");
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        complaints(&Tree::of(&[(DOCUMENT, text)]))
    }

    /// The first entry once had 69 words, about seven changes.
    #[test]
    fn an_entry_with_too_many_words_is_found() {
        let entry = |words: usize| format!("# Changelog\n\n-{}.\n", " word".repeat(words));
        assert_eq!(of(&entry(WORDS_MAX)), [""; 0]);
        let found = of(&entry(WORDS_MAX + 1));
        assert_eq!(found, ["CHANGELOG.md:3: 15 words, of at most 14: shorten it, or make it two"]);
    }

    #[test]
    fn a_code_span_is_one_word_and_a_sign_is_none() {
        assert_eq!(words("`fork --serve` exports - all (`since`), `a`,`b`."), 5);
        assert_eq!(of(&format!("{}\n", "One line a change. ".repeat(9))), [""; 0]);
    }

    #[test]
    fn an_entry_of_two_lines_is_found() {
        let found = of("- One\n  and more\n- Two\n");
        assert_eq!(found, ["CHANGELOG.md:2: an entry continues here: it must be one line"]);
    }
}
