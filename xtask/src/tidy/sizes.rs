//! A file has one job, a function one thought: neither gets long.

use super::tree::Tree;

/// Lines of a file without its tests.
const FILE_MAX: usize = 600;

/// Lines of a function, from `fn` to its closing brace.
const FUNCTION_MAX: usize = 80;

pub fn complaints(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| !is_test(path)) {
        let shipped = without_tests(text);
        let lines = shipped.lines().count();
        if lines > FILE_MAX {
            complaints
                .push(format!("{path}: {lines} lines, of at most {FILE_MAX}: it has more than one job"));
        }
        let long = functions(shipped).filter(|(_, lines)| *lines > FUNCTION_MAX);
        complaints.extend(
            long.map(|(name, lines)| format!("{path}: {name} has {lines} lines, of at most {FUNCTION_MAX}")),
        );
    }
    complaints
}

/// Tests tell stories as long as they are.
fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.starts_with("tests/") || path.ends_with("tests.rs")
}

/// A file's text up to the tests in it.
pub fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// Names and lines of functions, by the form that rustfmt gives them: the closing brace stands below the `fn`.
fn functions(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let starts = (0..lines.len()).filter_map({
        let lines = lines.clone();
        move |at| Some((at, name_of_function(lines.get(at)?)?))
    });
    starts.collect::<Vec<_>>().into_iter().filter_map(move |(at, name)| {
        let rest = lines.get(at..)?;
        let first = rest.first()?;
        let indent = first.len() - first.trim_start().len();
        let end = |line: &&str| line.trim_end() == format!("{}}}", " ".repeat(indent));
        let open =
            rest.iter().position(|line| line.ends_with('{') || line.ends_with(';') || line.ends_with('}'))?;
        let body = rest.get(open).is_some_and(|line| line.ends_with('{'));
        body.then(|| rest.iter().position(end)).flatten().map(|last| (name, last + 1))
    })
}

/// The name, if a line begins a function.
fn name_of_function(line: &str) -> Option<&str> {
    let words = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe "];
    let mut rest = line.trim_start();
    while let Some(next) = words.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = next;
    }
    rest.strip_prefix("fn ")?.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!(
            "impl X {{\n    pub async fn long(\n        a: u8,\n    ) -> u8 {{\n{}    }}\n}}\n",
            "        a;\n".repeat(lines)
        )
    }

    #[test]
    fn a_long_function_is_found_with_its_lines() {
        assert_eq!(complaints(&Tree::of(&[("src/x.rs", &function(10))])), [""; 0]);
        let found = complaints(&Tree::of(&[("src/x.rs", &function(90))]));
        assert_eq!(found, ["src/x.rs: long has 94 lines, of at most 80"]);
    }

    #[test]
    fn a_long_file_is_found_but_its_tests_do_not_count() {
        let tests =
            format!("const A: u8 = 1;\n\n#[cfg(test)]\nmod tests {{\n{}}}\n", "    // story\n".repeat(500));
        assert_eq!(
            complaints(&Tree::of(&[("src/x.rs", &tests), ("crates/x/tests/y.rs", &"\n".repeat(900))])),
            [""; 0]
        );
        assert_eq!(complaints(&Tree::of(&[("src/x.rs", &"const A: u8 = 1;\n".repeat(601))])).len(), 1);
    }
}
