//! Of several equal options the last one counts, and the value of an earlier one is not looked at: scripts put defaults first.

use std::ffi::OsString;
use std::ops::RangeInclusive;

use clap::{Arg, ArgAction, Command};

/// Where an option stands: the words that it takes, and how many bytes of the first one are flags before it (`-qfraw`).
struct Occurrence {
    name: String,
    /// As a user writes it.
    shown: String,
    words: RangeInclusive<usize>,
    flags_bytes: usize,
}

/// What is left of a command line.
#[derive(Debug, PartialEq, Eq)]
pub struct RemainingWords {
    /// Its words.
    pub words: Vec<OsString>,
    /// The options that stood there more than once.
    pub repeated: Vec<String>,
}

/// `words`, the program's name before them, without options of `command` that stand again later; `None` if there are none.
pub fn without_replaced(command: &Command, words: &[OsString]) -> Option<RemainingWords> {
    let (mut command, mut first) = (command.clone(), 1);
    while let Some((at, found)) = subcommand(&command, words, first) {
        (command, first) = (found, at + 1);
    }
    command.build();
    let found = occurrences(&command, words, first);
    let mut repeated = Vec::new();
    let mut kept = words.to_vec();
    let mut dropped = Vec::new();
    for (at, occurrence) in found.iter().enumerate() {
        if found.iter().skip(at + 1).any(|later| later.name == occurrence.name) {
            dropped.extend(occurrence.words.clone().skip(usize::from(occurrence.flags_bytes > 0)));
            if !repeated.contains(&occurrence.shown) {
                repeated.push(occurrence.shown.clone());
            }
            let word = &mut kept[*occurrence.words.start()];
            let flags = word.to_str().and_then(|text| text.get(..occurrence.flags_bytes));
            *word = flags.unwrap_or_default().into();
        }
    }
    let is_changed = kept != words;
    let kept = kept.into_iter().enumerate().filter(|(at, _)| !dropped.contains(at));
    is_changed.then(|| RemainingWords { words: kept.map(|(_, word)| word).collect(), repeated })
}

/// The first of `words`, from `first` on, that is a command below `command`.
fn subcommand(command: &Command, words: &[OsString], first: usize) -> Option<(usize, Command)> {
    words.iter().enumerate().skip(first).find_map(|(at, word)| {
        let found = command.find_subcommand(word.to_str()?)?;
        Some((at, found.clone()))
    })
}

/// The options with a value of which one counts, from word `first` on.
fn occurrences(command: &Command, words: &[OsString], first: usize) -> Vec<Occurrence> {
    let (mut found, mut at) = (Vec::new(), first);
    while let Some(word) = words.get(at) {
        let Some(text) = word.to_str() else {
            at += 1;
            continue;
        };
        if text == "--" {
            break;
        }
        let (argument, flags_bytes, has_value) = match text.strip_prefix("--") {
            Some(long) => {
                let (name, has_value) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
                (of_long(command, name), 0, has_value)
            }
            None => of_letters(command, text),
        };
        let argument = argument.filter(|argument| takes_value(argument));
        let is_behind = argument.is_some_and(|argument| !has_value && !argument.is_require_equals_set());
        let last = if is_behind { at + 1 } else { at };
        if let Some(argument) = argument.filter(|argument| matches!(argument.get_action(), ArgAction::Set)) {
            let name = argument.get_id().to_string();
            let long = argument.get_long().unwrap_or_default();
            let shown =
                argument.get_short().map_or_else(|| format!("--{long}"), |letter| format!("-{letter}"));
            found.push(Occurrence { name, shown, words: at..=last, flags_bytes });
        }
        at = last + 1;
    }
    found
}

fn takes_value(argument: &Arg) -> bool {
    argument.get_action().takes_values() && argument.get_num_args().is_none_or(|count| count.takes_values())
}

/// The option called `--name`, or the only one whose name begins so.
fn of_long<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let names = |argument: &'a Arg| argument.get_long_and_visible_aliases().unwrap_or_default();
    let hidden = |argument: &'a Arg| argument.get_all_aliases().unwrap_or_default();
    let all = |argument: &'a Arg| [names(argument), hidden(argument)].concat();
    let exact = command.get_arguments().find(|argument| all(argument).contains(&name));
    let mut begins =
        command.get_arguments().filter(|argument| all(argument).iter().any(|long| long.starts_with(name)));
    exact.or_else(|| begins.next().filter(|_| begins.next().is_none()))
}

/// The first option with a value among the letters of `text`, the bytes before it, and whether its value is in `text` too.
fn of_letters<'a>(command: &'a Command, text: &str) -> (Option<&'a Arg>, usize, bool) {
    let Some(letters) = text.strip_prefix('-') else { return (None, 0, false) };
    for (place, letter) in letters.char_indices() {
        let is_called = |argument: &&Arg| {
            argument.get_short() == Some(letter)
                || argument.get_all_short_aliases().unwrap_or_default().contains(&letter)
        };
        let Some(argument) = command.get_arguments().find(is_called) else { break };
        if takes_value(argument) {
            let has_value = place + letter.len_utf8() < letters.len();
            return (Some(argument), if place == 0 { 0 } else { place + 1 }, has_value);
        }
    }
    (None, 0, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::img;

    #[test]
    fn an_option_that_stands_again_later_is_left_out_with_its_value() {
        let table: [(&[&str], Option<&[&str]>); 7] = [
            (&["create", "-f", "foo", "-f", "qcow2", "x"], Some(&["create", "-f", "qcow2", "x"])),
            (&["create", "-ffoo", "-qf", "qcow2", "x"], Some(&["create", "-qf", "qcow2", "x"])),
            (&["create", "-qffoo", "x", "-fqcow2"], Some(&["create", "-q", "x", "-fqcow2"])),
            (&["info", "--form=foo", "--format", "raw", "x"], Some(&["info", "--format", "raw", "x"])),
            // What adds up stays; behind -- there are no options.
            (&["create", "-o", "a", "-o", "b", "x"], None),
            (&["info", "-f", "raw", "--", "-f", "x"], None),
            (&["create", "-f", "qcow2", "x"], None),
        ];
        for (words, expected) in table {
            let words: Vec<OsString> = ["qemu-img"].iter().chain(words).map(OsString::from).collect();
            let expected =
                expected.map(|words| ["qemu-img"].iter().chain(words).map(OsString::from).collect());
            let found = without_replaced(&img::command(), &words).map(|kept| kept.words);
            assert_eq!(found, expected, "{words:?}");
        }
    }
}
