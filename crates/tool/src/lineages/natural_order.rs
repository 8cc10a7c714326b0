//! Names in the order in which people count: run-2 before run-10.

/// A part of a name: what is no number comes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part<'a> {
    /// Neither digits nor a number.
    Text(&'a str),
    /// A number, and its digits: numbers may differ in leading zeroes alone.
    Number(u64, &'a str),
}

/// What `name` is sorted by.
pub fn key(name: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(end);
        // More digits than a number has are a text.
        parts.push(part.parse().map_or(Part::Text(part), |number| Part::Number(number, part)));
        rest = behind;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_counted() {
        let mut names =
            ["run-10", "run-2b", "run-2", "run", "7", "run-02", "a", "run-99999999999999999999999"];
        names.sort_by(|one, other| key(one).cmp(&key(other)));
        assert_eq!(
            names,
            ["a", "run", "run-99999999999999999999999", "run-02", "run-2", "run-2b", "run-10", "7"]
        );
    }
}
