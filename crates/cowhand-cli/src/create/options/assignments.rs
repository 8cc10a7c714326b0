//! `name=value` between commas: what `-o` arguments say, before anybody asks what it means.

use std::collections::BTreeMap;

/// Options and their values, as they were written.
pub type Assignments = BTreeMap<String, String>;

/// What `-o` arguments say, in order; a later value replaces an earlier one.
pub fn assignments(texts: &[String]) -> Assignments {
    let parts = texts.iter().flat_map(|text| split_commas(text));
    parts
        .filter_map(|part| part.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect()
}

/// Parts between single commas; a doubled one stands for itself.
pub fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == ',' && letters.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    parts
}
