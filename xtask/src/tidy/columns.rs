//! Documents are read in terminals and beside code: prose keeps to a width, and the two front pages to a length.

use super::tree::Tree;

/// Columns of a line of prose. Tables, code and what has no space to break at are as long as they are.
const COLUMNS_MAX: usize = 120;

/// Lines of pages that one reads before any other.
const LINES_MAX: [(&str, usize); 2] = [("README.md", 60), ("ARCHITECTURE.md", 120)];

pub fn complaints(tree: &Tree) -> Vec<String> {
    let wide = tree.ending(".md").flat_map(|(path, text)| {
        let found = wide_lines(text).into_iter();
        found.map(move |(line, columns)| {
            format!("{path}:{line}: {columns} columns, of at most {COLUMNS_MAX}: break the line")
        })
    });
    let long = LINES_MAX.into_iter().filter_map(|(path, most)| {
        let lines = tree.text(path).lines().count();
        (lines > most).then(|| format!("{path}: {lines} lines, of at most {most}"))
    });
    wide.chain(long).collect()
}

/// Numbers and columns of the lines of prose that are too long.
fn wide_lines(text: &str) -> Vec<(usize, usize)> {
    let (mut is_code, mut found) = (false, Vec::new());
    for (number, line) in (1_usize..).zip(text.lines()) {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let columns = line.chars().count();
        let is_prose =
            !is_code && !is_fence && !line.starts_with(['|', '#', '<']) && !line.starts_with("    ");
        if is_prose && columns > COLUMNS_MAX && can_break(line) {
            found.push((number, columns));
        }
    }
    found
}

/// Whether there is a space within the width at which a line may end: none in a code span or a link, and none of the mark of a list.
fn can_break(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches("- ");
    let start = line.len() - text.len();
    let (mut in_code, mut in_link, mut before) = (false, false, ' ');
    for (at, sign) in text.char_indices() {
        match (before, sign) {
            (_, '`') => in_code = !in_code,
            (_, '[') | (']', '(') if !in_code => in_link = true,
            (_, ']' | ')') => in_link = false,
            (_, ' ') if !in_code && !in_link && start + at <= COLUMNS_MAX => return true,
            _ => {}
        }
        before = sign;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_that_is_too_wide_is_found_and_code_and_tables_are_not() {
        let wide = "word ".repeat(25);
        assert_eq!(wide_lines(&format!("# Title\n\n- {wide}\nshort\n")), [(3, 127)]);
        assert_eq!(wide_lines(&format!("| {wide} |\n    {wide}\n```sh\n{wide}\n```\n## {wide}\n")), []);
    }

    #[test]
    fn what_has_no_space_to_break_at_stays() {
        assert_eq!(wide_lines(&format!("- `{}`\n", "code ".repeat(30))), []);
        assert_eq!(wide_lines(&format!("[{}](page.md)\n", "text ".repeat(30))), []);
        assert_eq!(wide_lines(&format!("One [{}](page.md)\n", "text ".repeat(30))).len(), 1);
    }

    #[test]
    fn the_front_pages_have_a_length() {
        let tree = Tree::of(&[("README.md", &"\n".repeat(61)), ("docs/x.md", &"\n".repeat(500))]);
        assert_eq!(complaints(&tree), ["README.md: 61 lines, of at most 60"]);
    }
}
