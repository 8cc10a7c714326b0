//! The list of options that `-o help` prints.

use graph::drive::split_text;
use graph::probe::Format;

use super::definition::Sets;
use super::foreign::SWITCH;
use super::options_of;
use crate::option_list;
use crate::voice;

/// The list that `-o help` prints. `names_file`: the user gave the name of the image, too.
pub fn help(format: Format, names_file: bool) -> String {
    if voice::is_qemu() {
        return option_list::of_creation(format, listed(format), names_file);
    }
    let lines = options_of(format).map(|(name, known)| {
        let takes = known.sets.takes();
        format!("  {:<40} {}\n", format!("{name}={takes}"), known.help)
    });
    format!("Creation options of {format} (-o name=value,...):\n{}", lines.collect::<String>())
}

fn listed(format: Format) -> impl Iterator<Item = option_list::Listed<'static>> {
    options_of(format).map(|(name, known)| match known.sets {
        // A word of two.
        Sets::Word(SWITCH, _) => (name, "on|off", known.help),
        _ => (name, known.sets.takes(), known.help),
    })
}

/// Whether the user asks for the list instead. A text that is no list of options is an error, whatever else is in it.
pub fn asks_for_help(texts: &[String]) -> bool {
    texts.iter().all(|text| is_list(text))
        && texts.iter().flat_map(|text| split_text(text)).any(|part| part == "help" || part == "?")
}

/// Whether no option at either end is empty. Two commas stand for one inside a value.
fn is_list(text: &str) -> bool {
    let at_end = text.len() - text.trim_end_matches(',').len();
    !text.starts_with(',') && at_end.is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use graph::drivers::formats;

    use super::*;

    #[test]
    fn under_qemus_names_the_list_has_its_form() {
        for format in formats() {
            let list = option_list::of_creation(format, listed(format), true);
            assert_eq!(list.lines().count(), options_of(format).count() + 1, "{list}");
            assert!(list.lines().skip(1).all(|line| line.contains(" - ")), "{list}");
        }
        let list = option_list::of_creation(Format::Raw, listed(Format::Raw), false);
        assert!(list.starts_with("Supported raw options:\n  size=<size>            - "), "{list}");
        assert!(!list.contains("nocow") && !list.contains("preallocation"), "{list}");
    }

    #[test]
    fn help_is_asked_for_in_a_list_of_options() {
        let asks =
            |texts: &[&str]| asks_for_help(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        for texts in [
            &["help"][..],
            &["size=1M,help"],
            &["?,size=1M"],
            &["size=1M", "help"],
            &["backing_file=a,,,help"],
        ] {
            assert!(asks(texts), "{texts:?}");
        }
        for texts in [
            &["size=1M"][..],
            &[",help"],
            &["help,"],
            &["help", ",,"],
            &["backing_file=a,", "help"],
            &["backing_file=a,,help"],
        ] {
            assert!(!asks(texts), "{texts:?}");
        }
    }
}
