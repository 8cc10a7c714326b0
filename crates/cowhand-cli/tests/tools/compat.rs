//! Cowhand under the names of QEMU's programs: the links, and what it says of itself.

use std::fs;
use std::os::unix::fs::symlink;

use cowhand_cli::compat::PROGRAMS;

use crate::peer::Bench;

#[test]
fn links_are_made_once_and_only_ours_are_removed() {
    let bench = Bench::new();
    let names: Vec<_> = PROGRAMS.iter().map(|program| program.name).collect();
    // The directory is made: the help's second example failed on a machine without it.
    let install = |words: &[&str]| bench.cowhand(&[&["compat", "install", "bin"], words].concat());
    let made = install(&[]);
    assert_eq!((made.code, made.out.lines().count()), (0, names.len()), "{}", made.err);
    assert_eq!((install(&[]).code, install(&[]).out), (0, String::new()), "they are there");

    // Another program of that name is not replaced without --force, and never removed.
    let other = bench.path("bin").join(names[0]);
    fs::remove_file(&other).unwrap();
    fs::write(&other, "theirs").unwrap();
    let refused = install(&[]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains(names[0]) && refused.err.contains("--force"), "{}", refused.err);
    assert_eq!(bench.cowhand(&["compat", "remove", "bin"]).code, 0);
    let left: Vec<_> =
        fs::read_dir(bench.path("bin")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [names[0]]);
    assert_eq!(fs::read_to_string(&other).unwrap(), "theirs");
    assert_eq!(install(&["--force"]).code, 0);
    assert!(other.is_symlink());
    assert_eq!(bench.cowhand(&["compat", "remove", "bin"]).code, 0);
    assert_eq!(fs::read_dir(bench.path("bin")).unwrap().count(), 0);
    fs::write(bench.path("file"), "").unwrap();
    assert_eq!(bench.cowhand(&["compat", "install", "file"]).code, 1);
}

#[test]
fn a_link_that_leads_elsewhere_is_not_ours() {
    let bench = Bench::new();
    fs::create_dir(bench.path("bin")).unwrap();
    symlink("/bin/true", bench.path("bin/qemu-img")).unwrap();
    assert_eq!(bench.cowhand(&["compat", "install", "bin"]).code, 1);
    assert_eq!(bench.cowhand(&["compat", "remove", "bin"]).code, 0);
    assert_eq!(fs::read_link(bench.path("bin/qemu-img")).unwrap().to_str(), Some("/bin/true"));
}

#[test]
fn every_program_tells_its_version_where_scripts_look_for_it() {
    let bench = Bench::new();
    fs::create_dir(bench.path("bin")).unwrap();
    assert_eq!(bench.cowhand(&["compat", "install", "bin"]).code, 0);
    let listed = bench.cowhand(&["compat", "list"]).out;
    for program in &PROGRAMS {
        let link = bench.path("bin").join(program.name);
        let reported = bench.run(&link, &["--version"]);
        // As QEMU's own: scripts read the number as the second word of qemu-nbd's, and as the third of the others.
        let version = if program.name == "qemu-nbd" { "11.1.0" } else { "version 11.1.0" };
        let expected = format!("{} {version} (cowhand {})\n", program.name, env!("CARGO_PKG_VERSION"));
        assert_eq!((reported.code, reported.out), (0, expected));
        let helped = bench.run(&link, &["--help"]);
        assert!(helped.code == 0 && helped.out.contains("Usage:"), "{}", helped.err);
        let refused = bench.run(&link, &["--nonsense"]);
        assert_eq!(refused.code, 1);
        let prefix = format!("{}: ", program.name);
        assert!(refused.err.starts_with(&prefix) && refused.err.contains("--nonsense"), "{}", refused.err);
        assert!(listed.contains(program.name));
    }
}
