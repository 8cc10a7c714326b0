//! The committed header is what the sources say, the version script and the shared library have the same functions, and nothing else.

use std::collections::BTreeSet;
use std::process::Command;

use cbindgen::{Builder, Config};
use cowhand::{Format, formats};

use crate::installed::{here, prefix, project, succeed};

/// Sources in the order in which the header has their functions.
const SOURCES: [&str; 15] = [
    "failure",
    "pointers",
    "image",
    "disk",
    "properties",
    "requests",
    "queue",
    "blocking",
    "extents",
    "limits",
    "snapshots",
    "jobs",
    "checkpoints",
    "stores",
    "secrets",
];

/// Writes the header rather than compare it, when set.
const WRITE: &str = "COWHAND_WRITE_HEADER";

fn generated() -> String {
    let config = Config::from_file(here().join("cbindgen.toml")).unwrap();
    let builder = SOURCES.iter().fold(Builder::new().with_config(config), |builder, name| {
        builder.with_src(here().join(format!("src/{name}.rs")))
    });
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_committed_headers_are_what_the_sources_say() {
    let generated = generated();
    for place in [here().join("include/cowhand.h"), project().join("bindings/python/cowhand/cowhand.h")] {
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&place, &generated).unwrap();
        }
        let committed = std::fs::read_to_string(&place).unwrap();
        let place = place.display();
        assert!(committed == generated, "{place} is old: {WRITE}=1 cargo test -p cowhand-capi header");
    }
}

/// Two formats were added, and the header went on with those before them.
#[test]
fn the_header_names_every_format() {
    let text = generated();
    let of_create =
        text.split("/**").find(|part| part.contains("int cowhand_create(const char *driver")).unwrap();
    let missing = |format: &Format| !of_create.contains(&format!("\"{format}\""));
    assert_eq!(formats().find(missing), None, "{of_create}");
}

/// Names of functions in a text that has each of them before `end`.
fn functions(text: &str, end: char) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let before = text.match_indices(end).map(|(at, _)| &text[..at]);
    let names = before.filter_map(|before| before.rsplit(|c| !is_name(c)).next());
    names.filter(|name| name.starts_with("cowhand_")).map(str::to_owned).collect()
}

#[test]
fn the_library_has_the_functions_of_the_header_with_versions_and_no_other_symbol() {
    let header = generated();
    let code: Vec<&str> = header.lines().filter(|line| !line.trim_start().starts_with('*')).collect();
    let declared = functions(&code.join("\n"), '(');
    assert!(declared.len() > 30, "{declared:?}");
    let script = std::fs::read_to_string(here().join("cowhand.map")).unwrap();
    assert_eq!(functions(&script, ';'), declared, "cowhand.map and the header");

    let library = prefix().join("lib/libcowhand.so");
    let symbols = succeed(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&library));
    let defined: BTreeSet<_> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let versioned: BTreeSet<_> = declared.iter().map(|name| format!("{name}@@COWHAND_0.1")).collect();
    let expected: BTreeSet<_> = versioned.iter().map(String::as_str).chain(["COWHAND_0.1"]).collect();
    assert_eq!(defined, expected);
    let dynamic = succeed(Command::new("readelf").arg("--dynamic").arg(&library));
    assert!(dynamic.contains("Library soname: [libcowhand.so.0]"), "{dynamic}");
}

#[test]
fn pkg_config_knows_the_library() {
    let pc = prefix().join("lib/pkgconfig");
    let mut asked = Command::new("pkg-config");
    let version = succeed(asked.args(["--modversion", "cowhand"]).env("PKG_CONFIG_PATH", pc));
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
}
