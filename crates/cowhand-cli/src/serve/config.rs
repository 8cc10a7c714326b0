//! The configuration file of `cowhand serve`, and the command line, which wins over it.

use std::path::Path;

use clap::error::Error;
use clap::{ArgMatches, Command, FromArgMatches};
use tool::failure::Failure;

use super::args::Args;
use crate::output::counted;

/// Bytes of a configuration at most: a typing error must not read a disk.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Given {
    /// Its options.
    pub args: Box<Args>,
    /// Which of them were given.
    matches: ArgMatches,
}

impl clap::Args for Given {
    fn augment_args(command: Command) -> Command {
        // Nothing must be given: what is not has the default of its type.
        Args::augment_args_for_update(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut args = Box::<Args>::default();
        args.update_from_arg_matches(matches)?;
        Ok(Self { args, matches: matches.clone() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Given {
    /// What the arguments behind `cowhand serve` say.
    ///
    /// # Errors
    /// When they cannot be understood.
    pub fn of(line: &[&str]) -> Result<Self, Error> {
        let command = <Self as clap::Args>::augment_args(Command::new("serve")).no_binary_name(true);
        Self::from_arg_matches(&command.try_get_matches_from(line)?)
    }

    /// The options, with those of the configuration that the command line leaves open.
    ///
    /// # Errors
    /// When the configuration cannot be read, and for drives both there and on the command line: leaving out
    /// either would lose a disk unnoticed.
    pub fn options(self) -> Result<Args, Failure> {
        match &self.args.config {
            Some(file) => self.over(read(file)?, &file.display().to_string()),
            None => Ok(*self.args),
        }
    }

    /// The options of `file`, with those of the command line in their places.
    ///
    /// # Errors
    /// As [`Given::options`].
    pub fn over(&self, mut options: Args, file: &str) -> Result<Args, Failure> {
        let refused = |what: String| Err(Failure::new(format!("the configuration {file} has {what}")));
        if let (Some(given), false) = (self.args.drives.first(), options.configured.is_empty()) {
            return refused(format!(
                "{} and the command line names {}; give drives in one of them",
                counted(options.configured.len() as u64, "drive"),
                given.display()
            ));
        }
        // A place to listen given on the command line replaces either kind of place.
        if self.args.socket.is_some() || self.args.listen.is_some() {
            (options.socket, options.listen) = (None, None);
        }
        if options.socket.is_some() && options.listen.is_some() {
            return refused("socket and listen; give one of them".to_owned());
        }
        let updated = options.update_from_arg_matches(&self.matches);
        updated.map_err(|error| Failure::because("cannot read the command line again", &error))?;
        Ok(options)
    }
}

/// Reads a file.
fn read(path: &Path) -> Result<Args, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot read the configuration {}", path.display()), error)
    };
    let metadata = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if !metadata.is_file() || metadata.len() > CONFIG_BYTES_MAX {
        return Err(Failure::new(format!(
            "cannot read the configuration {}: not a regular file of at most {CONFIG_BYTES_MAX} bytes",
            path.display()
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    parse(&text, &path.display().to_string()).map_err(|error| failed(&error))
}

/// Reads the text of `file`, and says of each drive where it stands.
///
/// # Errors
/// With the line, for an option that is unknown or means nothing.
pub fn parse(text: &str, file: &str) -> Result<Args, toml::de::Error> {
    let mut options: Args = toml::from_str(text)?;
    let (mut seen, mut line) = (0, 1);
    for (index, drive) in options.configured.iter_mut().enumerate() {
        let between = text.as_bytes().get(seen..drive.begin).unwrap_or_default();
        line += between.iter().filter(|&&byte| byte == b'\n').count();
        seen = drive.begin;
        drive.place = format!("drive {} in {file}, line {line}", index + 1);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Args as _;
    use graph::options::{DiskOptions, Group, Kind, Spec, table};

    use super::super::drives::{ConfigDrive, PlacedDrive};
    use super::*;

    /// What the command line means over the file.
    fn options(line: &[&str], file: &str) -> Result<Args, Failure> {
        Given::of(line).unwrap().over(parse(file, "x.toml").unwrap(), "x.toml")
    }

    const FILE: &str = r#"
        socket = "/run/x.sock"
        shared = 4
        read-only = true
        allow-path = ["/images"]
        allow-name = ["nbd://host/golden"]

        [[drive]]
        file = "a.qcow2"
        l2-cache-size = "2M"
        cache-clean-interval = 0
        lazy-refcounts = true
        backing.l2-cache-size = "1M"
    "#;

    #[test]
    fn a_drive_in_a_table_has_the_options_of_one_in_a_line() {
        catalog::install();
        let drives = options(&[], FILE).unwrap().configured;
        let [drive] = &drives[..] else { panic!("{drives:?}") };
        let line =
            "file=a.qcow2,l2-cache-size=2M,cache-clean-interval=0,lazy-refcounts=on,backing.l2-cache-size=1M";
        let expected = in_line(line).tree().unwrap();
        let found = DiskOptions::of_tree(drive.tree().unwrap());
        assert_eq!(found, DiskOptions::of_tree(expected));
        assert!(found.is_ok());
    }

    fn in_line(line: &str) -> PlacedDrive {
        PlacedDrive { drive: ConfigDrive::Text(line.to_owned()), begin: 0, place: String::new() }
    }

    /// A drive line with the option, and what must stand beside it.
    fn line_with(spec: &Spec) -> String {
        let name = spec.full_name();
        let value = match spec.kind {
            Kind::Switch => "on",
            // The last one is no driver of paths.
            Kind::Storage => "file",
            Kind::Format => "raw",
            Kind::Choice(names) => names[names.len() - 1],
            Kind::Size { .. } => "512",
            Kind::Whole { .. } => "1",
            Kind::Text { .. } | Kind::Path | Kind::File => "x",
            Kind::Image | Kind::List => "",
        };
        let file = match (spec.group, &*name) {
            (Group::Storage("blkdebug"), "file.image") => "file.driver=blkdebug,".to_owned(),
            (Group::Storage("blkdebug"), _) => "file.driver=blkdebug,file.image=y,".to_owned(),
            (Group::Storage("preallocate"), "file.file") => "file.driver=preallocate,".to_owned(),
            (Group::Storage("preallocate"), _) => "file.driver=preallocate,file.file=y,".to_owned(),
            (Group::Storage(driver), _) => format!("file.driver={driver},"),
            (Group::Filter(driver), name) => {
                let driver =
                    graph::drivers::filter_drivers().iter().find(|known| known.name == driver).unwrap();
                let others = driver.children.fewest().into_iter();
                let others = others.filter(|role| role.split('.').next() != Some(name));
                let disks: String = others.map(|role| format!("{role}.file.filename=y,")).collect();
                format!("driver={},{disks}", driver.name)
            }
            (_, "file" | "file.filename") => String::new(),
            _ => "file.filename=y,".to_owned(),
        };
        let of_limit = name.split_once("-max").filter(|_| name.starts_with("throttling."));
        let beside = match (&*name, of_limit) {
            ("force-share", _) => ",read-only=on".to_owned(),
            ("file.tls-hostname", _) => ",file.tls-creds=t".to_owned(),
            ("detect-zeroes", _) => ",discard=unmap".to_owned(),
            ("bitmap.node", _) => ",bitmap.name=x".to_owned(),
            ("bitmap.name", _) => ",bitmap.node=x".to_owned(),
            ("throttling.iops-size", _) => ",throttling.iops-total=1".to_owned(),
            (_, Some((flow, ""))) => format!(",{flow}=1"),
            (_, Some((flow, _))) => format!(",{flow}=1,{flow}-max=1"),
            _ => String::new(),
        };
        format!("{file}{name}={value}{beside}")
    }

    #[test]
    fn every_option_means_the_same_in_a_table_as_in_a_line() {
        catalog::install();
        for line in table::all().filter(|spec| spec.kind != Kind::List).map(line_with) {
            let parts = line.split(',').filter_map(|part| part.split_once('='));
            let toml: String = parts
                .map(|(name, value)| match (value, value.parse::<u32>()) {
                    ("on", _) => format!("{name} = true\n"),
                    (_, Ok(number)) => format!("{name} = {number}\n"),
                    (text, _) => format!("{name} = \"{text}\"\n"),
                })
                .collect();
            let drives = options(&[], &format!("[[drive]]\n{toml}")).unwrap().configured;
            let [found, expected] =
                [&drives[0], &in_line(&line)].map(|drive| DiskOptions::of_tree(drive.tree().unwrap()));
            assert_eq!(found, expected, "{line}");
            assert!(found.is_ok(), "{line}: {found:?}");
        }
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let args = options(&["--shared", "9", "--read-only=false"], FILE).unwrap();
        assert_eq!((args.shared, args.read_only), (Some(9), false));
        assert_eq!(args.socket, Some(PathBuf::from("/run/x.sock")));
        assert_eq!(args.allow_path, [PathBuf::from("/images")]);
        assert_eq!(args.allow_name, ["nbd://host/golden"]);
    }

    #[test]
    fn a_place_to_listen_on_the_command_line_replaces_that_of_the_file() {
        let args = options(&["--listen", "1"], FILE).unwrap();
        assert_eq!((args.socket, args.listen), (None, Some("127.0.0.1:1".parse().unwrap())));
        assert_eq!(args.configured.len(), 1);
    }

    #[test]
    fn drives_in_both_places_are_refused() {
        let refused = options(&["b"], FILE).unwrap_err().to_string();
        assert!(refused.contains("has 1 drive and the command line names b"), "{refused}");
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = parse("sockte = \"x\"", "").unwrap_err().to_string();
        assert!(error.contains("unknown field `sockte`") && error.contains("`socket`"), "{error}");
        let file = "shared = 2\n[[drive]]\nfile = \"a\"\n\n[[drive]]\nfile = \"b\"\nl2-cache = \"1M\"";
        let drives = options(&[], file).unwrap().configured;
        let error = DiskOptions::of_tree(drives[1].tree().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("unknown option l2-cache"), "{error}");
        assert_eq!(drives[1].place, "drive 2 in x.toml, line 5");
    }

    #[test]
    fn two_places_to_listen_are_one_too_many() {
        assert!(options(&[], "socket = \"x\"\nlisten = \"1\"").is_err());
    }

    #[test]
    fn an_option_that_means_nothing_is_an_error_that_says_where_it_stands() {
        catalog::install();
        for (option, expected) in [
            ("format = \"qcow9\"", "allowed: qcow2, raw"),
            ("socket-mode = \"0060\"", "keeps out the owner"),
            ("listen = \"x\"", "not an address"),
            ("metrics = \"x\"", "not an address"),
            ("allow-connect = [\"host\"]", "HOST:PORT"),
            ("map-memory = \"64k\"", "are too few"),
            ("sandbox = \"maybe\"", "expected `on` or `off`"),
            ("background = true", "unknown field"),
        ] {
            let error = parse(&format!("shared = 3\n{option}\n"), "").unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn every_option_of_the_command_line_stands_in_the_file_but_those_of_one_start() {
        let error = parse("x = 1", "").unwrap_err().to_string();
        for option in Given::augment_args(Command::new("serve")).get_opts().filter_map(clap::Arg::get_long) {
            let is_of_one_start =
                ["drive-options", "take-over", "background", "config", "help", "help-all"].contains(&option);
            assert_eq!(error.contains(&format!("`{option}`")), !is_of_one_start, "{option}: {error}");
        }
    }
}
