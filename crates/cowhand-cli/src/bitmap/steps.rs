//! What is to be done with a bitmap, in the order in which it was written.

use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches};

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make it.
    Add,
    /// Remove it.
    Remove,
    /// Clear all its bits.
    Clear,
    /// Let writes set bits.
    Enable,
    /// Let them not.
    Disable,
    /// Set the bits that the bitmap of this name has.
    Merge(String),
}

impl Step {
    /// The option's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Remove => "remove",
            Self::Clear => "clear",
            Self::Enable => "enable",
            Self::Disable => "disable",
            Self::Merge(_) => "merge",
        }
    }
}

/// The options without a value, and what they explain of themselves.
const FLAGS: [(Step, &str); 5] = [
    (Step::Add, "Make the bitmap; it records writes from now on"),
    (Step::Remove, "Remove it, whatever state it is in"),
    (Step::Clear, "Clear all its bits: nothing is dirty"),
    (Step::Enable, "Let it record writes"),
    (Step::Disable, "Let it stay as it is when the disk is written"),
];
const MERGE: &str = "merge";

/// Everything to do, first things first.
#[derive(Clone, Debug)]
pub struct Steps(pub Vec<Step>);

impl clap::Args for Steps {
    fn augment_args(command: Command) -> Command {
        let flag = |(step, help): &(Step, &'static str)| {
            // Of a flag the parser does not keep where each occurrence stood; of an option with values it does.
            let arg = Arg::new(step.name()).long(step.name()).help(*help);
            arg.num_args(0).default_missing_value("").action(ArgAction::Append)
        };
        let merge = Arg::new(MERGE).long(MERGE).value_name("SOURCE").action(ArgAction::Append);
        let merge = merge.help("Make dirty what the bitmap SOURCE has as dirty, too (of FILE with -b)");
        command.args(FLAGS.iter().map(flag)).arg(merge)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Steps {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut found: Vec<(usize, Step)> = Vec::new();
        for (step, _) in &FLAGS {
            found.extend(matches.indices_of(step.name()).into_iter().flatten().map(|at| (at, step.clone())));
        }
        let sources = matches.get_many::<String>(MERGE).into_iter().flatten().cloned().map(Step::Merge);
        found.extend(matches.indices_of(MERGE).into_iter().flatten().zip(sources));
        found.sort_by_key(|(at, _)| *at);
        Ok(Self(found.into_iter().map(|(_, step)| step).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;

    #[test]
    fn steps_keep_their_order() {
        let command = Steps::augment_args(Command::new("bitmap"));
        let words = ["bitmap", "--disable", "--merge", "b", "--add", "--merge=a", "--disable"];
        let steps = Steps::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap();
        let merge = |name: &str| Step::Merge(name.to_owned());
        assert_eq!(steps.0, [Step::Disable, merge("b"), Step::Add, merge("a"), Step::Disable]);
    }
}
