//! What `--log` may say: a level, and levels of single parts.

use tool::failure::Failure;

/// The levels, from nothing to everything.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The parts of the program that log, as a filter names them.
const PARTS: [&str; 31] = [
    "block",
    "catalog",
    "checkpoints",
    "control",
    "cowhand",
    "cowhand_cli",
    "door_fuse",
    "door_nbd",
    "door_ublk",
    "door_vhost_user_blk",
    "export",
    "filter",
    "formats",
    "graph",
    "job",
    "lineage",
    "luks",
    "map_cache",
    "memory",
    "monitor",
    "nearest",
    "net",
    "qcow2",
    "qcow2_layout",
    "reactor",
    "remote",
    "storage",
    "sync",
    "throttle",
    "tool",
    "wire",
];

/// The level of what is not named.
pub const DEFAULT_LEVEL: &str = "warn";

/// Likewise under QEMU's names. Those daemons answer a failed request or job and log neither: programs compare what they write on standard error.
pub const LEVEL_AS_QEMU: &str = "warn,export::repeats=off,job=off,monitor::jobs=off,graph::drive=off";

/// The filter in the subscriber's language, where a word that is no level would be taken for a part, and everything else be silent: errors too.
///
/// # Errors
/// For a word that is no level, or a part that there is not.
pub fn parse(filter: &str) -> Result<String, Failure> {
    let mut everything = DEFAULT_LEVEL;
    let mut parts = Vec::new();
    for word in filter.split(',').map(str::trim) {
        match word.split_once('=') {
            None => everything = level(word).ok_or_else(|| refused(filter, word))?,
            Some((part, level_name)) => {
                let part = known(part).ok_or_else(|| unknown(filter, part))?;
                let level = level(level_name).ok_or_else(|| refused(filter, level_name))?;
                parts.push(format!(",{part}={level}"));
            }
        }
    }
    Ok(format!("{everything}{}", parts.concat()))
}

fn level(word: &str) -> Option<&'static str> {
    LEVELS.into_iter().find(|level| level.eq_ignore_ascii_case(word))
}

/// A part, or something in it, such as `qcow2::commit`.
fn known(path: &str) -> Option<String> {
    let path = path.trim().replace('-', "_");
    let name = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let part = path.split("::").next().unwrap_or_default();
    (PARTS.contains(&part) && name(&path)).then_some(path)
}

fn refused(filter: &str, word: &str) -> Failure {
    Failure::new(format!(
        "--log {filter}: {word:?} is no level; allowed: {}, or PART=LEVEL,...",
        LEVELS.join(", ")
    ))
}

fn unknown(filter: &str, part: &str) -> Failure {
    Failure::new(format!("--log {filter}: there is no part {part:?}; allowed: {}", PARTS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_keeps_its_level() {
        let table = [
            ("info", "info"),
            ("WARN", "warn"),
            ("qcow2=debug", "warn,qcow2=debug"),
            ("error, door-nbd=trace,qcow2::commit=off", "error,door_nbd=trace,qcow2::commit=off"),
        ];
        for (filter, expected) in table {
            assert_eq!(parse(filter).unwrap(), expected);
            assert!(tracing_subscriber::EnvFilter::try_new(expected).is_ok());
        }
        assert_eq!(parse(LEVEL_AS_QEMU).unwrap(), LEVEL_AS_QEMU);
    }

    #[test]
    fn a_word_that_means_nothing_is_an_error_with_what_is_allowed() {
        for filter in ["wran", "", "warn,", "qcow2=loud", "qcow2"] {
            let refused = parse(filter).unwrap_err().to_string();
            assert!(refused.contains("allowed: off, error, warn, info, debug, trace"), "{filter}: {refused}");
        }
        for filter in ["qcow3=debug", "[x]=debug", "qcow2[{x}]=debug", "=debug"] {
            let refused = parse(filter).unwrap_err().to_string();
            assert!(
                refused.contains(
                    "allowed: block, catalog, checkpoints, control, cowhand, cowhand_cli, door_fuse"
                ),
                "{filter}: {refused}"
            );
        }
    }

    #[test]
    fn every_crate_of_the_program_is_a_part() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let entries = std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.to_str().unwrap().replace('-', "_")).collect();
        // For tests only, or for other programs.
        names.retain(|name| !["sim", "adapters", "capi"].contains(&name.as_str()));
        names.sort();
        assert_eq!(names, PARTS);
    }
}
