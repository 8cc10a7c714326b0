//! Names in errors, of which there may be hundreds.

/// Names in an error: the first few, and how many more there are. Hundreds of them would hide what is wrong.
pub fn few_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN_MAX: usize = 3;
    let mut names = names.peekable();
    let mut shown: Vec<String> =
        names.by_ref().take(SHOWN_MAX).map(|name| format!("{:?}", shortened(name))).collect();
    if shown.len() == SHOWN_MAX && names.peek().is_some() {
        return format!("{} and {} more", shown.join(", "), names.count());
    }
    let last = shown.pop().unwrap_or_default();
    if shown.is_empty() { last } else { format!("{} and {last}", shown.join(", ")) }
}

/// A name may have 4096 bytes; an error shows its beginning.
pub(crate) fn shortened(name: &str) -> String {
    const CHARS_MAX: usize = 60;
    match name.char_indices().nth(CHARS_MAX) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_a_few_names() {
        let names: Vec<String> = (1..=200).map(|number| format!("disk{number}")).collect();
        let few = |count: usize| few_names(names.iter().take(count).map(String::as_str));
        assert_eq!(few(1), "\"disk1\"");
        assert_eq!(few(3), "\"disk1\", \"disk2\" and \"disk3\"");
        assert_eq!(few(200), "\"disk1\", \"disk2\", \"disk3\" and 197 more");
        assert!(few_names(["x".repeat(4096)].iter().map(String::as_str)).len() < 100);
    }
}
