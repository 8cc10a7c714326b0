//! `--object` of the tools: what QEMU's tools make for images that need it.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};
use tool::failure::Failure;

use crate::objects::add_all;

/// The argument's name among matches.
const ID: &str = "object";

/// `command` with the option, unless it has it.
pub fn add_to(command: Command) -> Command {
    if command.get_arguments().any(|argument| argument.get_id() == ID) {
        return command;
    }
    command.arg(
        Arg::new(ID)
            .long(ID)
            .value_name("TYPE,id=ID,...")
            .action(ArgAction::Append)
            .help("An object for the images: secret, secret_keyring, tls-creds-x509 or throttle-group"),
    )
}

/// Makes the objects that were given.
///
/// # Errors
/// For the first whose type is not known here, that has no id, or that cannot be made.
pub fn make(matches: &ArgMatches) -> Result<(), Failure> {
    let given = matches.try_get_many::<String>(ID).ok().flatten();
    add_all(&given.into_iter().flatten().map(OsString::from).collect::<Vec<_>>())
}
