//! The known names that a mistyped one may have meant.

#![forbid(unsafe_code)]

/// Names offered at most: more would not be read.
const OFFERED_MAX: usize = 3;

/// Typing errors (letters added, left out or changed) that still count as the same word.
const ERRORS_MAX: usize = 3;

/// Longer texts are no typing errors, and the comparison costs the product of the lengths.
const COMPARED_BYTES_MAX: usize = 64;

/// The names closest to `found`, best first, at most three.
pub fn nearest<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    if found.len() > COMPARED_BYTES_MAX {
        return Vec::new();
    }
    let mut scored: Vec<(usize, &str)> = known.map(|name| (errors(found, name), name)).collect();
    scored.retain(|(errors, name)| {
        *errors <= ERRORS_MAX.min(found.len() / 2) || (found.len() > 3 && name.contains(found))
    });
    scored.sort_unstable();
    scored.into_iter().take(OFFERED_MAX).map(|(_, name)| name).collect()
}

/// Levenshtein distance, `_` and `-` being the same letter.
fn errors(a: &str, b: &str) -> usize {
    let letters = |text: &str| text.replace('_', "-").to_ascii_lowercase().into_bytes();
    let (a, b) = (letters(a), letters(b));
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_the_name_that_was_meant() {
        let known =
            ["l2-cache-size", "cache-size", "refcount-cache-size", "lazy-refcounts", "cache", "discard"];
        let table: [(&str, &[&str]); 6] = [
            ("l2_cache_size", &["l2-cache-size", "cache-size"]),
            ("l2-cache-sizee", &["l2-cache-size"]),
            ("discrad", &["discard"]),
            ("lazy-refcount", &["lazy-refcounts"]),
            ("refcount-cache", &["refcount-cache-size"]),
            ("zzz", &[]),
        ];
        for (found, names) in table {
            assert_eq!(nearest(found, known.into_iter()), names, "{found}");
        }
        assert!(nearest(&"l2-cache-size".repeat(1000), known.into_iter()).is_empty());
    }
}
