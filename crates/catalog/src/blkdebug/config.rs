//! A file with rules: sections `[inject-error]` and `[set-state]` of `name = "value"`, as QEMU reads them.

use std::io::{self, Read};
use std::path::Path;

use graph::drive::{Entry, OptionTree};

/// A file of rules that is larger is something else.
const BYTES_MAX: u64 = 1 << 20;

/// The file's rules, in the form that the same options have on a drive line.
///
/// # Errors
/// When the file cannot be read, or a line is no section, option, comment or empty.
pub fn read(path: &Path) -> io::Result<OptionTree> {
    let mut text = String::new();
    let read = std::fs::File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > BYTES_MAX {
        return Err(invalid(format!("it has more than {BYTES_MAX} bytes")));
    }
    parse(&text)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn parse(text: &str) -> io::Result<OptionTree> {
    let (mut tree, mut section, mut numbers) =
        (OptionTree::default(), None, [("inject-error", 0), ("set-state", 0)]);
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |what: &str| invalid(format!("line {number} {what}"));
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let known = numbers.iter_mut().find(|(known, _)| *known == name);
            let (name, next) = known
                .ok_or_else(|| wrong("begins an unknown section; allowed: [inject-error], [set-state]"))?;
            section = Some(format!("{name}.{next}"));
            *next += 1;
            continue;
        }
        let section = section.as_ref().ok_or_else(|| wrong("stands in no section"))?;
        let (name, value) =
            line.split_once('=').ok_or_else(|| wrong("is not of the form name = \"value\""))?;
        let value = value.trim();
        let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
        let key = format!("{section}.{}", name.trim());
        let entry = Entry::Value(value.into());
        tree.insert(&key, entry).map_err(|error| wrong(&format!("cannot be taken: {error}")))?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_become_numbered_rules() {
        let text = "# rules\n[inject-error]\nevent = \"l2_load\"\nerrno = \"5\"\n\n[set-state]\nevent=\"l2_load\"\nnew_state = 2\n\
                    [inject-error]\n  event = \"write_aio\"  \n";
        let mut expected = OptionTree::default();
        for (key, value) in [
            ("inject-error.0.event", "l2_load"),
            ("inject-error.0.errno", "5"),
            ("set-state.0.event", "l2_load"),
            ("set-state.0.new_state", "2"),
            ("inject-error.1.event", "write_aio"),
        ] {
            expected.insert(key, Entry::Value(value.into())).unwrap();
        }
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn what_is_no_rule_is_reported_with_its_line() {
        let refused = |text| parse(text).unwrap_err().to_string();
        assert_eq!(
            refused("\n[inject]"),
            "line 2 begins an unknown section; allowed: [inject-error], [set-state]"
        );
        assert_eq!(refused("event = \"x\""), "line 1 stands in no section");
        assert_eq!(refused("[set-state]\nevent"), "line 2 is not of the form name = \"value\"");
        assert!(refused("[set-state]\nevent = 1\nevent = 2").starts_with("line 3 cannot be taken: "));
    }
}
