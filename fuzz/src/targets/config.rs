//! The configuration file of `cowhand serve`: what it says, and what it then means beside a command line.

use cowhand_cli::serve::args::Args;
use cowhand_cli::serve::config::{Given, parse};
use cowhand_cli::serve::drives::ConfigDrive;
use graph::options::DiskOptions;

use crate::input::Input;

/// Lines that a case is made of; `=` alone is where bytes of the input follow.
const LINES: [&str; 32] = [
    "[[drive]]\n",
    "drive = [",
    "]\n",
    "file = \"a\"\n",
    "backing.file = ",
    "cache.direct = true\n",
    "l2-cache-size = ",
    "cache-clean-interval = ",
    "throttling.iops-total = ",
    "throttling-group = \"g\"\n",
    "create = ",
    "create-option = [",
    "format = ",
    "read-only = ",
    "allow-path = [",
    "export = ",
    "shared = ",
    "socket = ",
    "listen = ",
    "qmp = ",
    "metrics = ",
    "threads = ",
    "sandbox = ",
    "map-memory = ",
    "trace = ",
    "\"x\"",
    "0",
    "18446744073709551616",
    "true\n",
    "\"1M\"\n",
    "\"127.0.0.1:1\"\n",
    ", ",
];

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.byte();
    let mut text = String::new();
    if how & 1 == 1 {
        for _ in 0..input.byte() % 32 {
            text += *input.pick(&LINES);
        }
    }
    text += &String::from_utf8_lossy(input.rest());
    match parse(&text, "x.toml") {
        Ok(options) => understand(options, how),
        Err(error) => assert!(!error.to_string().is_empty(), "an error says what is wrong"),
    }
}

/// The command line has said some things already, or nothing.
fn understand(options: Args, how: u8) {
    let line: &[&str] = if how & 2 == 2 { &["--shared", "3", "--export", "given"] } else { &[] };
    let given = Given::of(line).expect("it is a command line");
    let args = match given.over(options, "x.toml") {
        Ok(args) => args,
        Err(failure) => return assert!(!failure.to_string().is_empty(), "an error says what is wrong"),
    };
    if how & 2 == 2 {
        assert_eq!((args.shared, args.export.as_deref()), (Some(3), Some("given")), "the command line wins");
    }
    for drive in &args.configured {
        // A text is what the target `options` is about, and may be the name of a file that is there.
        if let (ConfigDrive::Table(_), Ok(tree)) = (&drive.drive, drive.tree()) {
            let _ = DiskOptions::of_tree(tree);
        }
    }
}
