//! `name=value` between commas: the form of `-o` arguments, without their meaning.

use std::collections::{BTreeMap, BTreeSet};

use graph::drive::split_text;

use super::definition::BadOption;
use super::is_known;
use crate::voice;

/// Options and their values, as they were written.
pub type Assignments = BTreeMap<String, String>;

/// What `-o` arguments say, in order; a later value replaces an earlier one.
pub fn assignments(texts: &[String]) -> Assignments {
    in_order(texts).collect()
}

/// Each option with its value, as they stand.
pub(super) fn in_order(texts: &[String]) -> impl Iterator<Item = (String, String)> + '_ {
    let parts = texts.iter().flat_map(|text| split_text(text)).filter(|part| !part.is_empty());
    parts.map(|part| assignment(&part, is_known))
}

/// An option and its value. A name alone is `on`; with `no` before it, where no option is called so, `off`.
pub fn assignment(part: &str, is_known: impl Fn(&str) -> bool) -> (String, String) {
    let (name, value) = match (part.split_once('='), part.strip_prefix("no")) {
        (Some(both), _) => both,
        (None, Some(rest)) if !is_known(part) && is_known(rest) => (rest, "off"),
        (None, _) => (part, "on"),
    };
    (name.to_owned(), value.to_owned())
}

/// Warns of options that are given more than once; under QEMU's names no caller looks for that.
pub fn warn_of_repeated(assignments: impl Iterator<Item = (String, String)>) {
    let mut met = BTreeSet::new();
    for (name, _) in assignments {
        if !met.insert(name.clone()) {
            tracing::warn!("-o {name} is given twice; the last one counts");
        }
    }
}

/// Refuses a list that begins or ends with a comma, as qemu-img does.
pub(super) fn check_lists(texts: &[String]) -> Result<(), BadOption> {
    match texts.iter().find(|text| voice::is_qemu() && !is_list(text)) {
        Some(text) => Err(BadOption(format!("-o {text:?} has an empty option; write name=value,..."))),
        None => Ok(()),
    }
}

/// Whether `text` begins and ends with an option.
fn is_list(text: &str) -> bool {
    let parts: Vec<_> = split_text(text).collect();
    [parts.first(), parts.last()].into_iter().flatten().all(|part| !part.is_empty())
}
