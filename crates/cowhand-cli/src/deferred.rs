//! Arguments of a subcommand, made when that subcommand is asked for.
//!
//! The command line has some hundred options with their help. Making all of them took half of the processor time of
//! `cowhand info` on a small image.

use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// The arguments `T` of a subcommand whose `about` the subcommand's own list gives.
///
/// Until clap comes to the subcommand, or [`Command::build`] was called, it has no arguments.
#[derive(Debug)]
pub struct Deferred<T>(pub T);

impl<T: Args> Args for Deferred<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(with_arguments::<T>)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Args> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// `command` with the arguments `T`, and its own `about` instead of the doc comment of `T`.
pub fn with_arguments<T: Args>(command: Command) -> Command {
    let about = command.get_about().cloned();
    let command = T::augment_args(command);
    match about {
        Some(about) => command.about(about),
        None => command,
    }
}
