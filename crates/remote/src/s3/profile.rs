//! AWS's files of profiles: `[NAME]` and lines of `KEY = VALUE`.

/// The value of `key` in the section called `section` or `profile SECTION`; the last one, as AWS's tools take it.
pub(crate) fn value<'t>(text: &'t str, section: &str, key: &str) -> Option<&'t str> {
    let (mut is_inside, mut found) = (false, None);
    for line in text.lines() {
        if let Some(name) = line.trim().strip_prefix('[').and_then(|line| line.split_once(']')) {
            let name = name.0.trim();
            is_inside = name == section || name.strip_prefix("profile ").map(str::trim) == Some(section);
        } else if is_inside
            && !line.starts_with([' ', '\t', '#', ';'])
            && let Some((name, value)) = line.split_once('=')
            && name.trim() == key
        {
            found = Some(value.trim());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_their_section_and_not_of_what_is_nested_or_a_comment() {
        let text = "[default]\naws_access_key_id = A\n# aws_access_key_id = no\n[profile other]\nregion=x\ns3 =\n  region = nested\n[third]\nregion = y\n";
        assert_eq!(value(text, "default", "aws_access_key_id"), Some("A"));
        assert_eq!(value(text, "other", "region"), Some("x"));
        assert_eq!(value(text, "third", "region"), Some("y"));
        assert_eq!(value(text, "default", "region"), None);
    }
}
