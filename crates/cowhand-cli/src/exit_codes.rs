//! Exit codes, described once: docs/reference/exit-codes.md and the help of commands that have codes of their own read them from here.

use monitor::supervise::ENDED_AT_ONCE;
use tool::failure::FAILED;

use crate::check::report::code as check;
use crate::compare::code as compare;

/// Done.
const DONE: u8 = 0;

/// A code of a command.
struct Row {
    /// The command, or all of them, as the page names it.
    command: &'static str,
    code: u8,
    means: &'static str,
}

const fn row(command: &'static str, code: u8, means: &'static str) -> Row {
    Row { command, code, means }
}

const CHECK: &str = "`check`";
const COMPARE: &str = "`compare`";
const VERIFY: &str = "`verify`";
const SERVE: &str = "`serve`";

static TABLE: [Row; 20] = [
    row("every command", DONE, "done"),
    row("every command, but `check` and `compare`", FAILED, "failed, or wrong usage"),
    row(CHECK, check::CLEAN, "nothing is wrong, or nothing any more (-r)"),
    row(CHECK, check::FAILED, "the check could not be completed, or wrong usage"),
    row(CHECK, check::CORRUPT, "the image is corrupt"),
    row(CHECK, check::LEAKS, "clusters are leaked, nothing else is wrong"),
    row(CHECK, check::UNSUPPORTED, "the format has nothing to check (raw)"),
    row(COMPARE, DONE, "the same content"),
    row(COMPARE, compare::DIFFERENT, "different content"),
    row(COMPARE, compare::CANNOT_OPEN, "an image cannot be opened, or wrong usage"),
    row(COMPARE, compare::CANNOT_MAP, "a map cannot be read"),
    row(COMPARE, compare::CANNOT_READ, "data cannot be read"),
    row(VERIFY, DONE, "all disks could be read and, with --check, have their checksums"),
    row(VERIFY, FAILED, "a checksum is another one, or a disk cannot be read"),
    row("`backup --verify`", FAILED, "a point is not sound"),
    row("`io`", FAILED, "a command of the script failed"),
    row(SERVE, DONE, "ended in order, also after SIGTERM, SIGINT, SIGHUP and SIGQUIT"),
    row(SERVE, FAILED, "it could not start, or something could not be written at the end"),
    row(
        SERVE,
        ENDED_AT_ONCE,
        "ended at once by the third SIGINT or SIGQUIT: what was not flushed may be lost",
    ),
    row(
        "`serve --background`, `mount --background`",
        DONE,
        "clients are served by a process in the background",
    ),
];

/// The codes of `check`, for its help.
pub fn of_check() -> String {
    help_of(CHECK)
}

/// The codes of `compare`, for its help.
pub fn of_compare() -> String {
    help_of(COMPARE)
}

/// The codes of `verify`, for its help.
pub fn of_verify() -> String {
    help_of(VERIFY)
}

fn help_of(command: &str) -> String {
    let rows = TABLE.iter().filter(|row| row.command == command);
    let lines = rows.map(|Row { code, means, .. }| format!("\n  {code:<2}  {means}"));
    format!("Exit codes:{}", lines.collect::<String>())
}

const BEGINNING: &str = "\
# Exit codes

**Question it answers:** with which code does each command end, and what may a script conclude from it?

Made from the program's own table by `cowhand manual --markdown=exit-codes`. The codes are those of QEMU's programs of
the same purpose. A reason is printed on standard error with every code but 0.

| command | code | means |
|---|---|---|
";

const END: &str = "
Under the names `qemu-img`, `qemu-io`, `qemu-nbd` and `qemu-storage-daemon` the codes are those of that program
([from-qemu.md](../guide/from-qemu.md)).

A command that a signal ends has no code: the shell shows 128 and the signal's number. What it leaves is in
[write-order.md](../internals/write-order.md).
";

/// docs/reference/exit-codes.md.
pub fn markdown() -> String {
    let mut above = "";
    let rows = TABLE.iter().map(|Row { command, code, means }| {
        let shown = if *command == above { "" } else { command };
        above = command;
        format!("| {shown} | {code} | {means} |\n")
    });
    let rows: String = rows.collect();
    format!("{BEGINNING}{rows}{END}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_of_exit_codes_is_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/exit-codes.md");
        let found = std::fs::read_to_string(path).unwrap();
        assert!(found == markdown(), "cowhand manual --markdown=exit-codes > docs/reference/exit-codes.md");
    }

    #[test]
    fn a_command_has_each_code_once() {
        let codes: std::collections::BTreeSet<_> = TABLE.iter().map(|row| (row.command, row.code)).collect();
        assert_eq!(codes.len(), TABLE.len());
    }
}
