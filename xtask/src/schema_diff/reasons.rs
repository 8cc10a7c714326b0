//! Why entries differ: a table beside the program, each reason for entries that it names.

use std::fs;

use serde::Deserialize;

use super::{Difference, HERE};
use crate::workspace::root;

/// Where the table is, from the root.
const PLACE: &str = "xtask/src/schema_diff/reasons.toml";

/// All reasons, in the order of the page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasons {
    reason: Vec<Reason>,
}

/// Why some entries differ.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Who meets the difference.
    pub who: String,
    /// Why it is there.
    pub why: String,
    /// It is for what only cowhand has; otherwise for what only QEMU has.
    #[serde(default)]
    here: bool,
    /// The entries, each of which differs; with a `*`, which stands for any text, whatever differs of a kind.
    entries: Vec<String>,
}

/// A reason with what it is for.
#[derive(Debug, PartialEq, Eq)]
pub struct Explained {
    /// Who meets the difference.
    pub who: String,
    /// Why it is there.
    pub why: String,
    /// The entries.
    pub entries: Vec<String>,
    /// Who has them: releases of QEMU, or cowhand.
    pub has_them: Vec<&'static str>,
}

impl Reasons {
    /// Reads the table.
    ///
    /// # Errors
    /// When it cannot be read, or is not one.
    pub fn read() -> Result<Self, String> {
        let path = root().join(PLACE);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Each entry that differs with its reason.
    ///
    /// # Errors
    /// With the entries that have none, and the reasons that are for nothing.
    pub fn of(&self, difference: &Difference) -> Result<Vec<Explained>, String> {
        let mut explained: Vec<Explained> = self.reason.iter().map(Reason::for_nothing_yet).collect();
        let mut complaints = Vec::new();
        for (entry, has_it) in &difference.0 {
            let place = self.reason.iter().position(|reason| reason.is_for(entry, has_it));
            let Some(explained) = place.and_then(|place| explained.get_mut(place)) else {
                let is_here = has_it.contains(&HERE);
                let missing = if is_here { "only here" } else { "not here" };
                complaints
                    .push(format!("{missing} ({}), and no reason in {PLACE}: {entry}", has_it.join(", ")));
                continue;
            };
            explained.entries.push(entry.clone());
            for name in has_it {
                if !explained.has_them.contains(name) {
                    explained.has_them.push(name);
                }
            }
        }
        explained.iter_mut().for_each(|explained| explained.has_them.sort_unstable());
        for (reason, explained) in self.reason.iter().zip(&explained) {
            let is_met = |pattern: &&String| explained.entries.iter().any(|entry| fits(pattern, entry));
            let unmet = reason.entries.iter().filter(|entry| !entry.contains('*') && !is_met(entry));
            complaints.extend(
                unmet.map(|pattern| format!("nothing differs that {PLACE} has a reason for: {pattern}")),
            );
        }
        if complaints.is_empty() { Ok(explained) } else { Err(complaints.join("\n")) }
    }
}

impl Reason {
    fn for_nothing_yet(&self) -> Explained {
        Explained { who: self.who.clone(), why: self.why.clone(), entries: Vec::new(), has_them: Vec::new() }
    }

    fn is_for(&self, entry: &str, has_it: &[&str]) -> bool {
        self.here == has_it.contains(&HERE) && self.entries.iter().any(|pattern| fits(pattern, entry))
    }
}

/// Whether `entry` is what `pattern` describes, in which `*` stands for any text.
fn fits(pattern: &str, entry: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == entry };
    let Some(rest) = entry.strip_prefix(before) else { return false };
    let starts = (0..=rest.len()).filter(|start| rest.is_char_boundary(*start));
    starts.into_iter().any(|start| fits(after, &rest[start..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(entries: &[(&str, &'static str)]) -> Difference {
        Difference(entries.iter().map(|&(entry, release)| (entry.to_owned(), vec![release])).collect())
    }

    #[test]
    fn an_entry_without_a_reason_and_a_reason_without_an_entry_are_complaints() {
        let reasons = Reasons {
            reason: vec![Reason {
                who: "all".to_owned(),
                why: "so".to_owned(),
                here: false,
                entries: vec!["a.*".to_owned(), "b".to_owned()],
            }],
        };
        let explained = reasons.of(&difference(&[("a.x", "1"), ("a.y", "2"), ("b", "1")])).unwrap();
        let [only] = &explained[..] else { panic!("{explained:?}") };
        assert_eq!((only.entries.len(), &only.has_them[..]), (3, &["1", "2"][..]));
        let error = reasons.of(&difference(&[("a.x", "1"), ("c", HERE)])).unwrap_err();
        let lines: Vec<&str> = error.lines().collect();
        assert!(lines[0].starts_with("only here (cowhand)") && lines[0].ends_with(": c"), "{error}");
        assert!(lines[1].ends_with(": b"), "{error}");
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, entry, expected) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*", "b", false),
            ("*.x*", "q.xy", true),
            ("a", "ab", false),
        ] {
            assert_eq!(fits(pattern, entry), expected, "{pattern} {entry}");
        }
    }
}
