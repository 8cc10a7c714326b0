//! `--object` of the tools: what QEMU's tools make for images that need it.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::create::options::split_commas;
use crate::failure::Failure;

/// The type of passwords.
const SECRET: &str = "secret";

/// The argument's name among matches.
const ID: &str = "object";

/// Types that are taken. No image here uses one of TLS: a caller that gives one loses nothing.
const TAKEN: [&str; 4] = [SECRET, "tls-creds-anon", "tls-creds-psk", "tls-creds-x509"];

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
            .help("An object for the images: secret, tls-creds-anon, tls-creds-psk or tls-creds-x509"),
    )
}

/// Looks at the objects that were given, and makes secrets of those that are.
///
/// # Errors
/// For the first whose type is not known here, that has no id, or that is no good secret.
pub fn make(matches: &ArgMatches) -> Result<(), Failure> {
    let given = matches.try_get_many::<String>(ID).ok().flatten();
    let mut secrets = Vec::new();
    for text in given.into_iter().flatten() {
        if check_one(text)? == SECRET {
            secrets.push(OsString::from(text));
        }
    }
    crate::objects::add_all(&secrets)
}

/// Its type.
fn check_one(text: &str) -> Result<&'static str, Failure> {
    let parts = split_commas(text);
    let mut pairs = parts.iter().enumerate().map(|(index, part)| match part.split_once('=') {
        None if index == 0 => ("qom-type", part.as_str()),
        pair => pair.unwrap_or((part, "")),
    });
    let kind = pairs.clone().find(|(name, _)| *name == "qom-type").map_or("", |(_, kind)| kind);
    // What else was given may be a password.
    let refused = |why: String| Failure::new(format!("--object {kind}: {why}"));
    let Some(taken) = TAKEN.into_iter().find(|taken| *taken == kind) else {
        return Err(refused(format!(
            "objects of type {kind:?} are not known; allowed: {}",
            TAKEN.join(", ")
        )));
    };
    match pairs.any(|(name, value)| name == "id" && !value.is_empty()) {
        true => Ok(taken),
        false => Err(refused("the object has no id".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_taken_by_their_type_and_need_an_id() {
        let check = |text: &str| check_one(text).map(drop).map_err(|failure| failure.to_string());
        for text in ["secret,id=a,data=b,,c", "qom-type=secret,id=a,file=x", "tls-creds-x509,id=t,dir=/x"] {
            assert_eq!(check(text), Ok(()));
        }
        assert_eq!(check("secret,data=b"), Err("--object secret: the object has no id".to_owned()));
        let unknown = "--object iothread: objects of type \"iothread\" are not known; allowed: secret, \
                       tls-creds-anon, tls-creds-psk, tls-creds-x509";
        assert_eq!(check("iothread,id=a"), Err(unknown.to_owned()));
    }
}
