//! Names that qemu-img 10 and 11 have for options of its commands and cowhand has not: long ones of short options mostly.

use clap::{Arg, Command};

/// Of every command that has the short one, unless its own table says otherwise.
const COMMON: &[(char, &str)] =
    &[('q', "quiet"), ('p', "progress"), ('f', "format"), ('t', "cache"), ('U', "force-share")];

const OF_COMMANDS: &[(&str, &[(char, &str)])] = &[
    ("amend", &[('o', "options")]),
    (
        "bench",
        &[
            ('c', "count"),
            ('s', "buffer-size"),
            ('d', "depth"),
            ('o', "offset"),
            ('S', "step-size"),
            ('i', "aio"),
            ('n', "native"),
            ('w', "write"),
        ],
    ),
    ("bitmap", &[('g', "granularity"), ('b', "source-file"), ('F', "source-format")]),
    ("check", &[('T', "cache"), ('r', "repair")]),
    ("commit", &[('d', "drop"), ('b', "base"), ('r', "rate"), ('r', "rate-limit")]),
    ("compare", &[('f', "a-format"), ('F', "b-format"), ('s', "strict"), ('T', "cache")]),
    (
        "convert",
        &[
            ('f', "source-format"),
            ('l', "source-snapshot"),
            ('l', "snapshot"),
            ('T', "source-cache"),
            ('O', "target-format"),
            ('o', "target-options"),
            ('o', "target-format-options"),
            ('c', "compress"),
            ('t', "target-cache"),
            ('B', "backing"),
            ('F', "backing-format"),
            ('n', "no-create"),
            ('S', "sparse-size"),
            ('r', "rate"),
            ('r', "rate-limit"),
            ('m', "parallel"),
            ('C', "copy-range-offloading"),
            ('W', "oob-writes"),
        ],
    ),
    ("create", &[('o', "options"), ('b', "backing"), ('F', "backing-format"), ('u', "backing-unsafe")]),
    ("dd", &[('O', "output-format")]),
    ("measure", &[('O', "target-format"), ('s', "size"), ('l', "snapshot")]),
    (
        "rebase",
        &[
            ('b', "backing"),
            ('F', "backing-format"),
            ('T', "backing-cache"),
            ('u', "backing-unsafe"),
            ('c', "compress"),
        ],
    ),
    ("snapshot", &[('l', "list"), ('c', "create"), ('a', "apply"), ('d', "delete")]),
];

/// `command` with them.
pub fn add_to(command: Command) -> Command {
    let own =
        OF_COMMANDS.iter().find(|(name, _)| *name == command.get_name()).map_or(&[][..], |(_, own)| own);
    let command = command.mut_args(|argument| {
        let short = argument.get_short();
        let named = |(of, _): &&(char, &'static str)| Some(*of) == short;
        let names = match own.iter().any(|name| named(&name)) {
            true => own,
            false => COMMON,
        };
        names.iter().filter(named).fold(argument, |argument, (_, long)| called(argument, long))
    });
    match command.get_name() {
        "convert" => command.mut_arg("image_opts", |argument| argument.alias("source-image-opts")),
        "create" | "rebase" => command.mut_arg("backing_format", |argument| argument.short_alias('B')),
        "info" => command.mut_arg("backing_chain", |argument| argument.short('b')),
        "measure" => command.mut_arg("size", |argument| argument.short('s')),
        _ => command,
    }
}

fn called(argument: Arg, long: &'static str) -> Arg {
    match argument.get_long() {
        None => argument.long(long),
        Some(known) if known == long => argument,
        Some(_) => argument.alias(long),
    }
}

#[cfg(test)]
mod tests {
    use crate::compat::img;

    #[test]
    fn options_have_the_names_of_qemu_10_and_11() {
        catalog::install();
        let table: [&[&str]; 14] = [
            &["amend", "--options", "lazy_refcounts=on", "x"],
            &["bitmap", "--remove-all", "x"],
            &["commit", "--rate-limit", "1M", "x"],
            &["commit", "--rate", "1M", "x"],
            &["convert", "--rate-limit", "1M", "x", "y"],
            &["convert", "--snapshot", "s", "x", "y"],
            &["convert", "--source-snapshot", "s", "x", "y"],
            &["convert", "--target-format", "qcow2", "--target-format-options", "size=1M", "x", "y"],
            &["create", "-f", "qcow2", "-b", "x", "-B", "qcow2", "y"],
            &["create", "-b", "x", "--backing-format", "qcow2", "y"],
            &["info", "-t", "none", "x"],
            &["info", "--cache", "none", "x"],
            &["info", "--limits", "x"],
            &["rebase", "-b", "x", "-B", "qcow2", "y"],
        ];
        for words in table {
            let parsed = img::command().try_get_matches_from([&["qemu-img"], words].concat());
            assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
        }
    }
}
