//! Limits as arguments, under all their names.

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use graph::size::parse_size;
use throttle::{Dialect, Limits, LimitsError, Names, Options, Parameter, Part, Setting, Weight};
use tool::failure::Failure;

/// The id of the arguments without a name.
const WORDS: &str = "limits";

/// Limits from the command line: `NAME=VALUE,...` in words of their own, and `--total-iops-sec VALUE`.
#[derive(Clone, Debug, Default)]
pub struct LimitArgs {
    given: Vec<Given>,
}

/// One of them, as it was written.
#[derive(Clone, Debug)]
struct Given {
    name: String,
    value: String,
    dialect: Dialect,
}

impl LimitArgs {
    /// What was given, each value right by itself.
    ///
    /// # Errors
    /// When a name is unknown, a value is none, or something is given twice.
    pub fn options(&self) -> Result<Options, Failure> {
        let mut options = Options::new();
        let mut seen = Vec::new();
        for given in &self.given {
            let setting = given.setting()?;
            if seen.contains(&setting) {
                return Err(Failure::new(format!("{} is given twice; give it once", given.name)));
            }
            seen.push(setting);
            given.put(setting, &mut options)?;
        }
        Ok(options)
    }

    /// Limits that hold, and everything that was given.
    ///
    /// # Errors
    /// As [`LimitArgs::options`], and when the limits break a rule.
    pub fn limits(&self) -> Result<(Options, Limits), Failure> {
        let options = self.options()?;
        let limits = options.check().map_err(|error| self.cannot(&error))?;
        Ok((options, limits))
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// A broken rule, in the dialect of the given options.
    fn cannot(&self, error: &LimitsError) -> Failure {
        let dialect = self.given.first().map_or(Dialect::Drive, |given| given.dialect);
        Failure::new(error.describe(dialect))
    }
}

impl Given {
    fn word(text: &str) -> Result<Self, clap::Error> {
        let wrong = || {
            let message = format!("{text:?} is no limit; write NAME=VALUE, such as iops=100\n");
            clap::Error::raw(clap::error::ErrorKind::InvalidValue, message)
        };
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let dialects = [Dialect::Drive, Dialect::Legacy, Dialect::Limits, Dialect::Virsh];
        let knows = |dialect: &Dialect| Setting::named(name, *dialect).is_some();
        let dialect = dialects.into_iter().find(knows).unwrap_or(Dialect::Drive);
        Ok(Self { name: name.to_owned(), value: value.to_owned(), dialect })
    }

    fn setting(&self) -> Result<Setting, Failure> {
        if let Some(setting) = Setting::named(&self.name, self.dialect) {
            return Ok(setting);
        }
        let known = Setting::all().flat_map(|names| [names.drive, names.limits, names.legacy, names.virsh]);
        let hint = match &nearest::nearest(&self.name, known)[..] {
            [] => String::new(),
            [one] => format!("; did you mean {one}?"),
            several => format!("; did you mean one of {}?", several.join(", ")),
        };
        Err(Failure::new(format!("unknown limit {}{hint}", self.name)))
    }

    fn put(&self, setting: Setting, options: &mut Options) -> Result<(), Failure> {
        match setting {
            Setting::Limit(parameter) => _ = options.set(parameter, self.number(parameter.is_bytes())?),
            Setting::Group => options.group = Some(self.value.clone()).filter(|name| !name.is_empty()),
            Setting::Weight => {
                let weight = Weight::new(self.number(false)?);
                options.weight = Some(weight.map_err(|error| Failure::new(error.describe(self.dialect)))?);
            }
        }
        Ok(())
    }

    fn number(&self, bytes: bool) -> Result<u64, Failure> {
        let Self { name, value, .. } = self;
        if bytes {
            return parse_size(value)
                .map_err(|error| Failure::because(format!("{name} is {value:?}"), &error));
        }
        value.parse().map_err(|_| {
            Failure::new(format!("{name} is {value:?}; must be a whole number from 0 to {}", u64::MAX))
        })
    }
}

impl clap::Args for LimitArgs {
    fn augment_args(command: Command) -> Command {
        let words = Arg::new(WORDS)
            .value_name("LIMITS")
            .num_args(0..)
            .help("Limits as NAME=VALUE, several with commas between them");
        Setting::all().fold(command.arg(words), |command, names| command.arg(virsh_argument(names)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn virsh_argument(names: &Names) -> Arg {
    let (value, unit) = match names.setting {
        Setting::Limit(parameter) if parameter.is_bytes() => ("BYTES", "Bytes"),
        Setting::Limit(Parameter::Rate(_, Part::MaxLength)) => ("SECONDS", "Seconds"),
        Setting::Limit(_) => ("N", "Operations"),
        Setting::Group => ("NAME", "Name"),
        Setting::Weight => ("N", "Number"),
    };
    Arg::new(names.virsh)
        .long(names.virsh)
        .value_name(value)
        .help(format!("{unit}; the same as {}", names.drive))
        .help_heading("As virsh blkdeviotune calls them")
}

impl FromArgMatches for LimitArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for text in matches.get_many::<String>(WORDS).into_iter().flatten() {
            for part in text.split(',').filter(|part| !part.is_empty()) {
                given.push(Given::word(part)?);
            }
        }
        for names in Setting::all() {
            if let Some(value) = matches.get_one::<String>(names.virsh) {
                let (name, value) = (format!("--{}", names.virsh), value.clone());
                given.push(Given { name, value, dialect: Dialect::Virsh });
            }
        }
        Ok(Self { given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    fn parse(words: &[&str]) -> Result<(Options, Limits), String> {
        let command = LimitArgs::augment_args(Command::new("x"));
        let matches = command.try_get_matches_from([&["x"], words].concat()).map_err(|e| e.to_string())?;
        let args = LimitArgs::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        args.limits().map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_same_limits_are_understood_under_every_name() {
        let expected =
            parse(&["throttling.iops-total=100,throttling.bps-read=10M,throttling.group=g"]).unwrap();
        let table: [&[&str]; 4] = [
            &["iops=100", "bps_rd=10485760", "group=g"],
            &["iops=100,bps_rd=10M,group=g"],
            &["--total-iops-sec", "100", "--read-bytes-sec=10485760", "--group-name", "g"],
            &["limits.iops-total=100,x-bps-read=10485760", "--group-name", "g"],
        ];
        for words in table {
            assert_eq!(parse(words).unwrap(), expected, "{words:?}");
        }
    }

    #[test]
    fn a_broken_rule_is_reported_in_the_words_that_were_used() {
        let virsh = parse(&["--total-iops-sec", "5", "--read-iops-sec", "5"]).unwrap_err();
        assert!(virsh.starts_with("total-iops-sec and read-iops-sec are both given"), "{virsh}");
        let short = parse(&["iops=5,iops_rd=5"]).unwrap_err();
        assert!(short.starts_with("iops and iops_rd are both given"), "{short}");
        assert_eq!(parse(&["iosp=5"]).unwrap_err(), "unknown limit iosp; did you mean iops?");
        assert!(parse(&["iops"]).unwrap_err().contains("write NAME=VALUE"));
        assert!(parse(&["iops=1", "--total-iops-sec=1"]).unwrap_err().contains("given twice"));
        assert!(parse(&["iops=many"]).unwrap_err().contains("iops is \"many\"; must be a whole number"));
    }
}
