//! `cowhand io` beside `qemu-io`: the same commands give the same results, exit codes and disks.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::peer::{Bench, Ran};

/// Commands, one script a line, and between them the semicolons of a script. Each script begins with a disk of 4 MiB of 7s in its
/// first MiB, over an image with 9s in the second one.
const SCRIPTS: &str = include_str!("io.scripts");

/// Those on a raw disk alone.
const RAW_SCRIPTS: &str = include_str!("io.raw.scripts");

const DISK_BYTES: usize = 4 << 20;

fn disks(bench: &Bench) {
    let mut base = vec![0_u8; DISK_BYTES];
    base[1 << 20..2 << 20].fill(9);
    fs::write(bench.path("base.raw"), &base).unwrap();
    base[..1 << 20].fill(7);
    fs::write(bench.path("from.raw"), &base).unwrap();
    fs::write(bench.path("pattern"), (0..3000).map(|at| (at % 251) as u8).collect::<Vec<u8>>()).unwrap();
    fs::write(bench.path("empty"), "").unwrap();
    let words = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "base.raw", "from.qcow2"];
    bench.qemu("qemu-img", &words);
    bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -q -P 7 0 1M", "from.qcow2"]);
    for whose in ["ours", "theirs"] {
        fresh(bench, whose);
    }
}

fn fresh(bench: &Bench, whose: &str) {
    for format in ["qcow2", "raw"] {
        fs::copy(bench.path(&format!("from.{format}")), bench.path(&format!("{whose}.{format}"))).unwrap();
    }
}

/// What is the same in both programs' output: times and rates are not, nor are the names of files.
fn masked(out: &str, whose: &str) -> String {
    let mask = |line: &str| {
        let line = line.replace(&format!("{whose}."), "disk.");
        match (line.split_once(" ops; "), line.split_once(",0:00:")) {
            (Some((before, _)), _) => format!("{before} ops"),
            (_, Some((before, _))) => before.to_owned(),
            _ => line,
        }
    };
    // Usage errors have each program's own words.
    let is_usage = |line: &&str| {
        let usages =
            ["Parsing error", "length cannot exceed", "Only one of", "requires -z", "is not a valid pattern"];
        let more = [
            "command nonsense not found",
            "pattern verification range",
            "sector-aligned value",
            "-- ",
            "supports only a single",
        ];
        usages.iter().chain(&more).any(|usage| line.contains(usage))
    };
    out.lines().filter(|line| !is_usage(line)).map(mask).collect::<Vec<_>>().join("\n")
}

/// Runs a script with the options before it: `[OPTIONS |] COMMAND; COMMAND`.
fn script(bench: &Bench, program: &Path, format: &str, whose: &str, line: &str) -> Ran {
    let (options, commands) = line.split_once(" | ").unwrap_or(("", line));
    let disk = format!("{whose}.{format}");
    let commands: Vec<String> =
        commands.split(';').map(|command| command.trim().replace("DISK", &disk)).collect();
    let mut words: Vec<&str> = if whose == "ours" { vec!["io"] } else { Vec::new() };
    words.extend(["-f", format]);
    words.extend(options.split_whitespace());
    words.extend(commands.iter().flat_map(|command| ["-c", command.as_str()]));
    words.push(&disk);
    bench.run(program, &words)
}

fn compare(bench: &Bench, format: &str, scripts: &str) -> usize {
    let scripts = scripts.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut commands, mut differences) = (0, String::new());
    for line in scripts {
        let cowhand = Path::new(env!("CARGO_BIN_EXE_cowhand"));
        let ours = script(bench, cowhand, format, "ours", line);
        let theirs = script(bench, Path::new("qemu-io"), format, "theirs", line);
        let ended = |ran: &Ran, whose| format!("{}\nexit code {}\n", masked(&ran.out, whose), ran.code);
        let (our_end, their_end) = (ended(&ours, "ours"), ended(&theirs, "theirs"));
        let disks = [format!("ours.{format}"), format!("theirs.{format}")];
        let words = ["compare", "-f", format, "-F", format, &disks[0], &disks[1]];
        let compared = bench.run(Path::new("qemu-img"), &words);
        if our_end != their_end || compared.code != 0 {
            let said = format!("{}{}{}", ours.err, theirs.err, compared.out);
            differences += &format!("{format}: {line}\n{our_end}but qemu-io:\n{their_end}{said}\n");
        }
        if format == "qcow2" {
            bench.qemu("qemu-img", &["check", "-q", "ours.qcow2"]);
        }
        commands += line.split(';').count();
        ["ours", "theirs"].iter().for_each(|whose| fresh(bench, whose));
    }
    assert!(differences.is_empty(), "{differences}");
    commands
}

#[test]
fn each_command_gives_what_qemu_io_gives_on_qcow2() {
    let bench = Bench::new();
    disks(&bench);
    assert!(compare(&bench, "qcow2", SCRIPTS) >= 150);
}

#[test]
fn each_command_gives_what_qemu_io_gives_on_raw_disks() {
    let bench = Bench::new();
    disks(&bench);
    assert!(compare(&bench, "raw", RAW_SCRIPTS) >= 30);
}

/// What a pipe holds without a reader.
const PIPE_BYTES: usize = 64 << 10;

fn typed(bench: &Bench, program: &str, words: &[&str], script: &str) -> (String, i32) {
    let mut command = Command::new(program);
    let command = command.args(words).current_dir(bench.path("")).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let written = child.stdin.take().unwrap().write_all(script.as_bytes());
    // A program that refuses a line reads no more.
    assert!(written.is_ok() || script.len() > PIPE_BYTES, "{script}");
    let output = child.wait_with_output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap_or(-1))
}

#[test]
fn a_script_on_standard_input_has_the_prompts_of_qemu_io() {
    let bench = Bench::new();
    disks(&bench);
    let scripts = [
        "length\n\n  \nread 0 512\nnonsense\nquit\nlength\n",
        "write -P 3 0 1k\nread -P 3 0 1k\nlength",
        "",
        "close\nlength\n",
        "aio_write -P 5 0 64k\naio_flush\nread -P 5 0 64k\n",
    ];
    for script in scripts {
        let ours = typed(&bench, env!("CARGO_BIN_EXE_cowhand"), &["io", "-f", "qcow2", "ours.qcow2"], script);
        let theirs = typed(&bench, "qemu-io", &["-f", "qcow2", "theirs.qcow2"], script);
        assert_eq!(masked(&ours.0, "ours"), masked(&theirs.0, "theirs"), "{script}");
        assert_eq!(ours.1, theirs.1, "{script}");
    }
    let long = format!("read {} 512\n", " ".repeat(70_000));
    let (_, code) = typed(&bench, env!("CARGO_BIN_EXE_cowhand"), &["io", "ours.qcow2"], &long);
    assert_eq!(code, 1);
}

/// Writes with -s are visible in the script only, and nothing of them stays.
#[test]
fn a_disk_that_is_opened_with_s_stays_as_it_was() {
    let bench = Bench::new();
    disks(&bench);
    for format in ["qcow2", "raw"] {
        let disk = format!("ours.{format}");
        let before = fs::read(bench.path(&disk)).unwrap();
        let commands = ["write -q -P 3 64k 1k", "read -q -P 3 64k 1k", "read -q -P 7 0 64k", "length"];
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let words: Vec<&str> =
            ["io", "-s", "-f", format].into_iter().chain(commands).chain([disk.as_str()]).collect();
        let directory = bench.path("");
        let mut run = Command::new(env!("CARGO_BIN_EXE_cowhand"));
        let ran = run.args(words).current_dir(&directory).env("TMPDIR", &directory).output().unwrap();
        assert!(ran.status.success(), "{format}: {}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(String::from_utf8(ran.stdout).unwrap(), "4 MiB\n", "{format}");
        assert_eq!(fs::read(bench.path(&disk)).unwrap(), before, "{format}");
        let left = fs::read_dir(&directory)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("cowhand-io"));
        assert_eq!(left.count(), 0, "{format}");
    }
}

#[test]
fn disks_are_opened_and_closed_by_commands() {
    let bench = Bench::new();
    disks(&bench);
    let ran = |words: &[&str]| {
        let ran = bench.cowhand(&[&["io"], words].concat());
        (ran.out, ran.code)
    };
    let opened = ["-c", "length", "-c", "open -r -o driver=raw ours.raw", "-c", "length", "-c", "write 0 1k"];
    assert_eq!(ran(&opened), ("4 MiB\n".to_owned(), 1));
    let by_options = ["-c", "open -o driver=raw,file.filename=ours.raw", "-c", "read -q -P 7 0 1M"];
    assert_eq!(ran(&by_options), (String::new(), 0));
    let twice =
        ["-f", "qcow2", "-c", "open ours.qcow2", "-c", "close", "-c", "open ours.qcow2", "ours.qcow2"];
    assert_eq!(ran(&twice), (String::new(), 1));
    let image_opts = ["--image-opts", "-c", "length", "driver=raw,file.filename=ours.raw"];
    assert_eq!(ran(&image_opts), ("4 MiB\n".to_owned(), 0));
    let changes = ["-f", "qcow2", "-c", "reopen -o driver=raw", "-c", "reopen -o nonsense=1", "-c", "length"];
    assert_eq!(ran(&[&changes[..], &["ours.qcow2"]].concat()), ("4 MiB\n".to_owned(), 1));
}

#[test]
fn what_is_read_from_below_is_kept_with_copy_on_read() {
    let bench = Bench::new();
    disks(&bench);
    let base = ["io", "-f", "qcow2", "-c", "write -P 7 0 256k", "ours.qcow2"];
    assert_eq!(bench.cowhand(&base).code, 0);
    for (number, words) in [
        &["-f", "qcow2", "-C", "-c", "read -P 7 0 128k"][..],
        &["-c", "open -C over.qcow2", "-c", "read -P 7 0 128k"],
        &["-c", "open -o copy-on-read=on over.qcow2", "-c", "read -P 7 0 128k"],
    ]
    .into_iter()
    .enumerate()
    {
        bench.qemu(
            "qemu-img",
            &["create", "-q", "-f", "qcow2", "-b", "ours.qcow2", "-F", "qcow2", "over.qcow2"],
        );
        let drive: &[&str] = if number == 0 { &["over.qcow2"] } else { &[] };
        let ran = bench.cowhand(&[&["io"], words, drive].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
        bench.qemu("qemu-img", &["rebase", "-u", "-f", "qcow2", "-b", "", "over.qcow2"]);
        let kept = bench.cowhand(&[
            "io",
            "-f",
            "qcow2",
            "-c",
            "read -P 7 0 128k",
            "-c",
            "read -P 0 128k 128k",
            "over.qcow2",
        ]);
        assert_eq!(kept.code, 0, "{words:?}: {}", kept.out);
    }
    // Where an image has subclusters no more than those are copied.
    let create = ["-o", "extended_l2=on", "-b", "ours.qcow2", "-F", "qcow2", "over.qcow2"];
    bench.qemu("qemu-img", &[&["create", "-q", "-f", "qcow2"], &create[..]].concat());
    let kept = ["io", "-f", "qcow2", "-C", "-c", "read -q 31k 3k", "-c", "alloc 0 64k", "over.qcow2"];
    let kept = bench.cowhand(&kept);
    assert_eq!(
        (kept.code, &*kept.out),
        (0, "4096/65536 bytes allocated at offset 0 bytes\n"),
        "{}",
        kept.err
    );
    let both = bench.cowhand(&["io", "-C", "-r", "-c", "read 0 1k", "ours.qcow2"]);
    assert!(both.code == 1 && both.err.contains("-C keeps what is read"), "{}", both.err);
}

/// Later versions of qemu-io have it; it asks for no other result.
#[test]
fn registered_buffers_change_no_result() {
    let bench = Bench::new();
    disks(&bench);
    let requests =
        ["write -qr 0 64k", "writev -qr 0 4k 4k", "aio_write -qr 0 4k", "aio_flush", "read -qr 0 64k"];
    let requests = [&requests[..], &["readv -qr 0 4k 4k", "aio_read -qr 0 4k", "aio_flush"]].concat();
    let words: Vec<_> = requests.into_iter().flat_map(|request| ["-c", request]).collect();
    let ran = bench.cowhand(&[&["io", "-f", "qcow2"], &words[..], &["ours.qcow2"]].concat());
    assert_eq!((ran.out.as_str(), ran.code), ("", 0), "{}", ran.err);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let bench = Bench::new();
    disks(&bench);
    for (words, name) in [
        (&["-T", "x"][..], "-T (--trace)"),
        (&["--object", "secret,id=a"], "--object"),
        (&["-m"], "-m (--misalign)"),
        (&["-k"], "-k (--native-aio)"),
    ] {
        let ran = bench.cowhand(&[&["io"], words, &["-c", "write 0 1k", "ours.qcow2"]].concat());
        assert_eq!(ran.code, 1, "{words:?}");
        assert!(ran.err.contains(name), "{words:?}: {}", ran.err);
    }
}

#[test]
fn signals_and_aborts_end_the_program_as_they_do() {
    use std::os::unix::process::ExitStatusExt;
    let bench = Bench::new();
    disks(&bench);
    for (command, signal) in [("abort", 6), ("sigraise 9", 9), ("sigraise 15", 15)] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_cowhand"));
        let words = ["io", "-f", "qcow2", "-c", "length", "-c", command, "ours.qcow2"];
        let ran = run.args(words).current_dir(bench.path("")).output().unwrap();
        assert_eq!(ran.status.signal(), Some(signal), "{command}");
        assert_eq!(String::from_utf8(ran.stdout).unwrap(), "4 MiB\n", "{command}");
    }
}
