//! Each option that the `--help` of QEMU's programs lists: taken here, or refused by its name with what to do. None is unknown, and
//! none is taken and does nothing.
//!
//! A platform started a program with an option of a newer QEMU. It was unknown here, and the message did not help.

use std::process::Command;

use black_box::{Run, Scratch};

use super::ours;

/// An option as a help lists it: its names, and whether a value stands behind it.
#[derive(Debug)]
struct Listed {
    names: Vec<String>,
    has_value: bool,
}

/// The options of a help text. Each stands at the start of a line, its names with a comma between.
fn listed(help: &str) -> Vec<Listed> {
    help.lines().filter_map(option_of).filter(|option| !option.names.is_empty()).collect()
}

fn option_of(line: &str) -> Option<Listed> {
    let mut rest = line.trim_start();
    let (mut names, mut has_value) = (Vec::new(), false);
    while rest.starts_with('-') {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(rest.len());
        names.push(rest[..end].to_owned());
        rest = &rest[end..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None => break,
        }
    }
    // `--name=VALUE`, `--name VALUE`, `--name <value>` or `--name help`: words for people are two spaces away.
    let value =
        rest.strip_prefix('=').or_else(|| rest.strip_prefix(' ').filter(|rest| !rest.starts_with(' ')));
    has_value |= value.is_some_and(|value| !value.trim().is_empty() && !value.starts_with('|'));
    (line.starts_with(' ') && line.trim_start().starts_with('-')).then_some(Listed { names, has_value })
}

fn help(program: &str, command: Option<&str>) -> String {
    let output = Command::new(program).args(command).arg("--help").output().expect("QEMU's program");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Fails for options that our `program` does not know. Options are tried one by one, with a disk that is not there: nothing is served
/// or written.
fn all_are_known(program: &str, command: Option<&str>, expected: usize, skipped: &[&str]) {
    let scratch = Scratch::new();
    let (mut unknown, mut tried) = (Vec::new(), 0);
    for Listed { names, has_value } in listed(&help(program, command)) {
        for name in names.iter().filter(|name| !skipped.contains(&name.as_str())) {
            let mut words: Vec<String> = command.map(str::to_owned).into_iter().collect();
            words.push(name.clone());
            if has_value {
                words.push("1".to_owned());
            }
            let run = Run::new(ours(program)).args(&words).current_dir(scratch.path()).outcome();
            assert!(!run.panicked() && !run.timed_out, "{words:?}: {run}");
            let is_unknown =
                run.stderr.contains("unexpected argument") || run.stderr.contains("unrecognized");
            if is_unknown {
                unknown.push(format!("{words:?}"));
            }
            tried += 1;
        }
    }
    // 7.2 lists fewer, and a help that is not understood lists none.
    assert!(tried >= expected, "{program} {command:?}: {tried} options are listed");
    assert!(unknown.is_empty(), "{program} does not know {}", unknown.join(", "));
    println!("{program} {}: {tried} options are known", command.unwrap_or_default());
}

#[test]
fn every_option_of_qemu_nbd_is_known() {
    all_are_known("qemu-nbd", None, 40, &[]);
}

#[test]
fn every_option_of_qemu_storage_daemon_is_known() {
    // Without a step it serves for ever; each of these is tried with others in `storage_daemon`.
    all_are_known("qemu-storage-daemon", None, 10, &["--daemonize", "--pidfile"]);
}

#[test]
fn every_option_of_qemu_io_is_known() {
    all_are_known("qemu-io", None, 25, &[]);
}

#[test]
fn every_option_of_qemu_imgs_commands_is_known() {
    let commands = [
        "amend", "bench", "bitmap", "check", "commit", "compare", "convert", "create", "dd", "info", "map",
        "measure", "rebase", "resize", "snapshot",
    ];
    // Before 10.0 the help tells of all commands together, in prose.
    if !help("qemu-img", Some("dd")).contains("--output-format") {
        return println!("qemu-img: this version lists no options by command");
    }
    all_are_known("qemu-img", None, 4, &[]);
    commands.into_iter().for_each(|command| all_are_known("qemu-img", Some(command), 5, &[]));
}

#[test]
fn what_is_refused_is_named_and_says_what_to_do() {
    for (program, words, named) in [
        ("qemu-nbd", "-c /dev/nbd0", "FILE"),
        ("qemu-nbd", "-c /dev/null disk.raw", "/dev/nbd0"),
        ("qemu-nbd", "-d /dev/null", "/dev/nbd0"),
        ("qemu-nbd", "-f raw -l a disk.raw", "snapshots"),
        ("qemu-nbd", "--tls-authz a disk.raw", "--tls-authz"),
        ("qemu-nbd", "--tls-hostname a disk.raw", "--tls-hostname"),
        ("qemu-nbd", "-L disk.raw", "-L"),
        ("qemu-nbd", "--selinux-label a disk.raw", "--selinux-label"),
        ("qemu-nbd", "-T a disk.raw", "-T"),
        ("qemu-io", "-m disk.raw", "-m"),
        ("qemu-io", "-k disk.raw", "-k"),
        ("qemu-io", "-T a disk.raw", "-T"),
        ("qemu-img", "-T a info disk.raw", "-T"),
        ("qemu-img", "info --object tls-creds-psk,id=a,dir=/x disk.raw", "tls-creds-psk"),
        ("qemu-img", "info --object iothread,id=a disk.raw", "iothread"),
        ("qemu-storage-daemon", "-T a", "-T"),
        ("qemu-storage-daemon", "--chardev pty,id=a", "pty"),
        ("qemu-storage-daemon", "--export type=fuse,id=a,node-name=b,mountpoint=c", "fuse"),
        ("qemu-storage-daemon", "--export vduse-blk,id=a,node-name=b,name=c", "vduse-blk"),
        ("qemu-storage-daemon", "--nbd-server addr.type=unix,addr.path=s,tls-authz=a", "tls-authz"),
        ("qemu-storage-daemon", "--object tls-creds-psk,id=a,dir=/x", "tls-creds-psk"),
    ] {
        let scratch = Scratch::new();
        scratch.write("disk.raw", &[0; 512]);
        let run = Run::new(ours(program)).args(words.split(' ')).current_dir(scratch.path()).outcome();
        assert_eq!(run.status.code(), Some(1), "{words}: {run}");
        assert!(
            run.stderr.starts_with(&format!("{program}: ")) || run.stderr.starts_with("error: "),
            "{run}"
        );
        assert!(run.stderr.contains(named), "{words}: {run}");
    }
}
