//! The list of options that `-o help` prints.

use graph::probe::Format;

use super::foreign::SWITCH;
use super::{OptionDef, Sets, options_of, split_commas};
use crate::voice;

/// The list that `-o help` prints.
pub fn help(format: Format) -> String {
    if voice::is_qemu() {
        return qemu_help(format);
    }
    let lines = options_of(format).map(|(name, known)| {
        let takes = known.sets.takes();
        format!("  {:<40} {}\n", format!("{name}={takes}"), known.help)
    });
    format!("Creation options of {format} (-o name=value,...):\n{}", lines.collect::<String>())
}

/// The list in qemu-img's form: by name, with types.
fn qemu_help(format: Format) -> String {
    let line = |(name, known): (&str, &OptionDef)| {
        let takes = match known.sets {
            Sets::Size(_) => "size",
            Sets::Switch(_) => "bool (on/off)",
            Sets::Word(SWITCH, _) => "bool (on/off)",
            Sets::Word(..) if ["refcount_bits", "iter-time"].contains(&name) => "num",
            Sets::Word(..) => "str",
        };
        format!("  {:<22} - {}\n", format!("{name}=<{takes}>"), known.help)
    };
    let mut lines: Vec<_> = options_of(format).map(line).collect();
    lines.sort_unstable();
    format!("Supported {format} options:\n{}", lines.concat())
}

/// Whether the user asks for the list instead. A text that is no list of options is an error, whatever else is in it.
pub fn asks_for_help(texts: &[String]) -> bool {
    texts.iter().all(|text| is_list(text))
        && texts.iter().flat_map(|text| split_commas(text)).any(|part| part == "help" || part == "?")
}

/// Whether no option at either end is empty. Two commas stand for one inside a value.
fn is_list(text: &str) -> bool {
    let at_end = text.len() - text.trim_end_matches(',').len();
    !text.starts_with(',') && at_end.is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

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
