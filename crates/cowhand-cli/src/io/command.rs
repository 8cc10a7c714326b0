//! The commands of a script: one table, which finds them and helps with them.

use std::io::{self, Write};
use std::ops::RangeInclusive;

use tool::failure::Failure;

use super::request::Form;

/// A command.
#[derive(Debug)]
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// A shorter one.
    alias: Option<&'static str>,
    /// How many words may follow it, options among them.
    words: RangeInclusive<usize>,
    /// What may follow it.
    usage: &'static str,
    /// What it does.
    help: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// Which it is.
    pub verb: Verb,
}

/// What a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// An open disk.
    Disk,
    /// An open disk that can be written.
    Writing,
}

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Abort,
    AioFlush,
    Alloc,
    Break,
    Close,
    Discard,
    Flush,
    Help,
    Info,
    Length,
    Map,
    Open,
    Quit,
    Read(Form),
    RemoveBreak,
    Reopen,
    Resume,
    SigRaise,
    Sleep,
    Truncate,
    WaitBreak,
    Write(Form),
}

/// Any number of words, as far as a line can have them.
const MANY: usize = usize::MAX;

/// All commands, by name.
pub const COMMANDS: [Command; 26] = [
    command("abort", 0..=0, "", "end as in a crash, with abort(3)", Needs::Nothing, Verb::Abort),
    command(
        "aio_flush",
        0..=0,
        "",
        "wait for all requests that no command waits for",
        Needs::Disk,
        Verb::AioFlush,
    ),
    command(
        "aio_read",
        2..=MANY,
        "[-Ciqrv] [-P BYTE] OFFSET LENGTH...",
        "read, without waiting for the end",
        Needs::Disk,
        Verb::Read(Form::Aside),
    ),
    command(
        "aio_write",
        2..=MANY,
        "[-Cfiqruz] [-P BYTE] OFFSET LENGTH...",
        "write, without waiting for the end",
        Needs::Writing,
        Verb::Write(Form::Aside),
    ),
    command(
        "alloc",
        1..=2,
        "OFFSET [LENGTH]",
        "say how much of a range is allocated",
        Needs::Disk,
        Verb::Alloc,
    )
    .alias("a"),
    command(
        "break",
        2..=2,
        "EVENT TAG",
        "hold back the next request after an event",
        Needs::Disk,
        Verb::Break,
    ),
    command("close", 0..=0, "", "close the disk", Needs::Disk, Verb::Close).alias("c"),
    command("discard", 2..=MANY, "[-Cq] OFFSET LENGTH", "discard a range", Needs::Writing, Verb::Discard)
        .alias("d"),
    command("flush", 0..=0, "", "make everything durable", Needs::Disk, Verb::Flush).alias("f"),
    command("help", 0..=1, "[COMMAND]", "explain all commands, or one", Needs::Nothing, Verb::Help)
        .alias("?"),
    command("info", 0..=0, "", "show the format, and what the header says", Needs::Disk, Verb::Info)
        .alias("i"),
    command("length", 0..=0, "", "show the size of the disk", Needs::Disk, Verb::Length).alias("l"),
    command("map", 0..=0, "", "show which parts are allocated", Needs::Disk, Verb::Map),
    command(
        "open",
        1..=MANY,
        "[-rsnU] [-t CACHE] [-d DISCARD] [-i AIO] [-o OPTIONS] [DRIVE]",
        "open a disk",
        Needs::Nothing,
        Verb::Open,
    )
    .alias("o"),
    command("quit", 0..=MANY, "", "end the script", Needs::Nothing, Verb::Quit).alias("q"),
    command(
        "read",
        2..=MANY,
        "[-bCqrv] [-P BYTE [-s START] [-l LENGTH]] OFFSET LENGTH",
        "read a range",
        Needs::Disk,
        Verb::Read(Form::Plain),
    )
    .alias("r"),
    command(
        "readv",
        2..=MANY,
        "[-Cqrv] [-P BYTE] OFFSET LENGTH...",
        "read a range into several buffers",
        Needs::Disk,
        Verb::Read(Form::Vectored),
    ),
    command("remove_break", 1..=1, "TAG", "forget a breakpoint", Needs::Disk, Verb::RemoveBreak),
    command(
        "reopen",
        0..=MANY,
        "[-r|-w] [-c CACHE] [-o OPTIONS]",
        "close the disk and open it with other options",
        Needs::Disk,
        Verb::Reopen,
    ),
    command("resume", 1..=1, "TAG", "resume a request that is held back", Needs::Disk, Verb::Resume),
    command("sigraise", 1..=1, "SIGNAL", "raise a signal, by number", Needs::Nothing, Verb::SigRaise),
    command("sleep", 1..=1, "MILLISECONDS", "wait", Needs::Nothing, Verb::Sleep),
    command("truncate", 1..=3, "[-m MODE] SIZE", "change the size", Needs::Writing, Verb::Truncate)
        .alias("t"),
    command("wait_break", 1..=1, "TAG", "wait until a request is held back", Needs::Disk, Verb::WaitBreak),
    command(
        "write",
        2..=MANY,
        "[-bcCfnqruz] [-P BYTE | -s FILE] OFFSET LENGTH",
        "write a range",
        Needs::Writing,
        Verb::Write(Form::Plain),
    )
    .alias("w"),
    command(
        "writev",
        2..=MANY,
        "[-Cfqr] [-P BYTE] OFFSET LENGTH...",
        "write a range from several buffers",
        Needs::Writing,
        Verb::Write(Form::Vectored),
    ),
];

/// Letters of options, and what they mean.
const OPTIONS: &str = "\
Options of reading and writing:
  -b          the state of a virtual machine beside the disk
  -c          write compressed clusters
  -C          show the result in a form for programs
  -f          durable at once (FUA)
  -i          count the request as one that makes no sense, and do nothing
  -l, -s      where the bytes of -P are: START in the range, LENGTH
  -n          with -z: not by writing zeroes one by one
  -P BYTE     what is written; what must have been read
  -q          show no result
  -r          no effect here (register the buffer first)
  -s FILE     what is written, again and again
  -u          with -z: space may be given back
  -v          show the bytes
  -z          write zeroes
";

const fn command(
    name: &'static str,
    words: RangeInclusive<usize>,
    usage: &'static str,
    help: &'static str,
    needs: Needs,
    verb: Verb,
) -> Command {
    Command { name, alias: None, words, usage, help, needs, verb }
}

impl Command {
    const fn alias(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    /// The command called `name`, followed by so many words.
    ///
    /// # Errors
    /// When there is none, or it takes another number of words.
    pub fn find(name: &str, words: usize) -> Result<&'static Self, Failure> {
        let command = Self::named(name)?;
        if command.words.contains(&words) {
            return Ok(command);
        }
        let (least, most) = command.words.clone().into_inner();
        let allowed = match most {
            MANY => format!("at least {least}"),
            _ if least == most => format!("{least}"),
            _ => format!("{least} to {most}"),
        };
        let what = format!("{name} is followed by {words} words; allowed: {allowed}");
        Err(Failure::explained(what, format!("usage: {} {}", command.name, command.usage)))
    }

    fn named(name: &str) -> Result<&'static Self, Failure> {
        let is_called = |command: &&Self| command.name == name || command.alias == Some(name);
        COMMANDS.iter().find(is_called).ok_or_else(|| {
            let nearest = nearest::nearest(name, COMMANDS.iter().map(|command| command.name));
            let hint = nearest.first().map(|name| format!("; did you mean {name}?")).unwrap_or_default();
            Failure::new(format!("there is no command {name:?}{hint} (help lists them)"))
        })
    }
}

/// `help`: all commands, or the one called `name`.
///
/// # Errors
/// When there is none of that name.
pub fn help(name: Option<&str>, out: &mut dyn Write) -> Result<io::Result<()>, Failure> {
    let Some(name) = name else { return Ok(all(out)) };
    let command = Command::named(name)?;
    let is_request = matches!(command.verb, Verb::Read(_) | Verb::Write(_));
    Ok(line(command, out).and_then(|()| if is_request { write!(out, "\n{OPTIONS}") } else { Ok(()) }))
}

fn all(out: &mut dyn Write) -> io::Result<()> {
    COMMANDS.iter().try_for_each(|command| line(command, out))
}

fn line(command: &Command, out: &mut dyn Write) -> io::Result<()> {
    let gap = if command.usage.is_empty() { "" } else { " " };
    writeln!(out, "{}{gap}{} -- {}", command.name, command.usage, command.help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_means_one_command() {
        let mut names: Vec<&str> =
            COMMANDS.iter().flat_map(|command| [Some(command.name), command.alias]).flatten().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(COMMANDS.is_sorted_by_key(|command| command.name));
    }

    #[test]
    fn what_is_no_command_gets_a_hint_of_what_was_meant() {
        let refused = |name, words| Command::find(name, words).unwrap_err().to_string();
        assert_eq!(refused("raed", 2), "there is no command \"raed\"; did you mean read? (help lists them)");
        let usage = "because: usage: alloc OFFSET [LENGTH]";
        assert_eq!(refused("alloc", 3), format!("alloc is followed by 3 words; allowed: 1 to 2\n  {usage}"));
    }
}
