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

/// Parts that had other names in earlier releases, and what those names mean now.
const FORMER: [(&str, &[&str]); 17] = [
    ("bench", &["cowhand_cli::bench"]),
    ("buffer", &["memory"]),
    ("cowhand_cli::serve", &["monitor"]),
    ("cowhand_cli", &["cowhand_cli", "monitor", "tool"]),
    ("dial", &["net::dial"]),
    ("http_wire", &["wire::http"]),
    ("luks_layout", &["luks::layout"]),
    ("nbd_wire", &["wire::nbd"]),
    ("secret", &["memory::secret"]),
    ("storage_cache", &["remote::cache"]),
    ("storage_chunked", &["remote::chunked"]),
    ("storage_http", &["remote::http"]),
    ("storage_luks", &["luks"]),
    ("storage_nbd", &["remote::nbd"]),
    ("storage_rbd", &["remote::rbd"]),
    ("storage_s3", &["remote::s3"]),
    ("tls", &["net::tls"]),
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
                let named = known(part).ok_or_else(|| unknown(filter, part))?;
                let level = level(level_name).ok_or_else(|| refused(filter, level_name))?;
                parts.extend(named.iter().map(|part| format!(",{part}={level}")));
            }
        }
    }
    Ok(format!("{everything}{}", parts.concat()))
}

fn level(word: &str) -> Option<&'static str> {
    LEVELS.into_iter().find(|level| level.eq_ignore_ascii_case(word))
}

/// The parts that a name means: a part, or something in it, such as `qcow2::commit`; also by a former name.
fn known(path: &str) -> Option<Vec<String>> {
    let path = path.trim().replace('-', "_");
    let is_name = path.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let behind =
        |name: &str| path.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with("::"));
    let former = FORMER.iter().find_map(|(name, now)| Some((behind(name)?, now)));
    if let Some((rest, now)) = former.filter(|_| is_name) {
        return Some(now.iter().map(|part| format!("{part}{rest}")).collect());
    }
    let part = path.split("::").next().unwrap_or_default();
    (PARTS.contains(&part) && is_name).then(|| vec![path.clone()])
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
            ("storage-nbd=debug,buffer=info", "warn,remote::nbd=debug,memory=info"),
            ("cowhand_cli=info", "warn,cowhand_cli=info,monitor=info,tool=info"),
            ("cowhand_cli::serve::qmp=info", "warn,monitor::qmp=info"),
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
