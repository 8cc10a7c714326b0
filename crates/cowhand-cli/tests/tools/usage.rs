//! The command line as a person meets it: help, completion, and what wrong usage ends with.

use std::sync::Arc;

use storage::{FileLock, Role};

use crate::peer::Bench;

#[test]
fn wrong_usage_never_looks_like_a_verdict_of_check() {
    let bench = Bench::new();
    for words in [&["nonsense"][..], &["info"], &["info", "--nonsense", "x"], &["info", "--output=xml", "x"]]
    {
        let ran = bench.cowhand(words);
        assert_eq!(ran.code, 1, "{words:?}");
        assert!(ran.err.contains("Usage:") || ran.err.contains("--help"), "{words:?}: {}", ran.err);
    }
}

#[test]
fn of_equal_options_the_last_counts_with_a_warning() {
    let bench = Bench::new();
    for (words, given, shown) in [
        (
            &["create", "-f", "qcow2", "-o", "cluster_size=4k", "-o", "cluster_size=8k", "a", "1M"][..],
            "-o cluster_size",
            "8 KiB",
        ),
        (
            &["create", "-f", "qcow2", "-o", "cluster_size=4k,cluster_size=16k", "b", "1M"],
            "-o cluster_size",
            "16 KiB",
        ),
        (&["create", "-f", "raw", "-f", "qcow2", "c", "1M"], "-f", "qcow2"),
        (&["info", "driver=raw,driver=qcow2,file=nowhere,file=a"], "option driver", "file format: qcow2"),
        (
            &["info", "--output=json", "--output", "human", "-fraw", "-f", "qcow2", "a"],
            "--output",
            "file format: qcow2",
        ),
        (&["convert", "-O", "raw", "-O", "qcow2", "a", "d"], "-O", ""),
        (
            &["io", "-c", "reopen -o l2-cache-size=1M,l2-cache-size=2M", "-c", "length", "a"],
            "option l2-cache-size",
            "1 MiB",
        ),
    ] {
        let ran = bench.cowhand(words);
        assert!(ran.code == 0 && ran.out.contains(shown), "{words:?}: {} {}", ran.out, ran.err);
        let warning = format!("warning: {given} is given twice");
        assert!(ran.err.contains(&warning), "{words:?}: {}", ran.err);
    }
    assert!(bench.cowhand(&["info", "d"]).out.contains("file format: qcow2"));
    // Options that exclude each other do not become one.
    assert_eq!(bench.cowhand(&["convert", "-c", "-C", "-O", "qcow2", "a", "e"]).code, 1);
}

#[test]
fn help_teaches_what_a_drive_is() {
    let bench = Bench::new();
    let ran = bench.cowhand(&["info", "--help"]);
    assert_eq!(ran.code, 0);
    assert!(ran.out.contains("file=disk.qcow2,l2-cache-size=2M"), "{}", ran.out);
    assert_eq!(bench.cowhand(&["--version"]).code, 0);
}

#[test]
fn each_shell_gets_a_script_that_knows_the_subcommands() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = bench.cowhand(&["completion", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("completion") && ran.out.contains("info"), "{shell}");
    }
    let script = bench.path("cowhand.bash");
    std::fs::write(&script, bench.cowhand(&["completion", "bash"]).out).unwrap();
    bench.qemu("bash", &["-n", "cowhand.bash"]);
}

#[test]
fn a_shell_completes_the_values_of_options() {
    let bench = Bench::new();
    std::fs::write(bench.path("cowhand.bash"), bench.cowhand(&["completion", "bash"]).out).unwrap();
    // What bash calls when a user presses Tab behind these words.
    let complete = |words: [&str; 3]| {
        let [program, command, option] = words;
        let script = format!(
            "source ./cowhand.bash; COMP_WORDS=({program} {command} {option} \"\"); COMP_CWORD=3; \
             _cowhand {program} \"\" {option}; echo ${{COMPREPLY[@]}}"
        );
        bench.qemu("bash", &["-c", &script]).out.trim().to_owned()
    };
    assert_eq!(complete(["cowhand", "info", "-f"]), "qcow2 raw luks vdi vpc vmdk qcow vhdx");
    assert_eq!(complete(["cowhand", "serve", "--format"]), "qcow2 raw luks vdi vpc vmdk qcow vhdx");
    assert_eq!(complete(["cowhand", "create", "-F"]), "qcow2 raw luks vdi vpc vmdk qcow vhdx");
    assert_eq!(complete(["cowhand", "bench", "-t"]), "writeback writethrough none off directsync unsafe");
    assert_eq!(complete(["cowhand", "bench", "-i"]), "io_uring threads native");
    let refused = bench.cowhand(&["info", "-f", "qed", "x"]);
    assert!(refused.err.contains("qcow2, raw"), "{}", refused.err);
}

#[test]
fn a_mistyped_command_gets_a_hint_of_which_one_is_near() {
    let bench = Bench::new();
    assert!(bench.cowhand(&["creat"]).err.contains("create"));
}

#[test]
fn a_missing_file_is_named_with_the_reason() {
    let bench = Bench::new();
    let ran = bench.cowhand(&["info", "missing.qcow2"]);
    assert_eq!(ran.code, 1);
    assert_eq!(
        ran.err,
        "cowhand: cannot open missing.qcow2\n  because: No such file or directory (os error 2)\n"
    );
}

#[test]
fn an_image_in_use_is_refused_unless_shared_by_force() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "x.qcow2", "1M"]);
    let file = std::fs::File::open(bench.path("x.qcow2")).unwrap();
    let _writer = FileLock::acquire_role(&Arc::new(file.into()), Role::Writer).unwrap();
    let refused = bench.cowhand(&["info", "x.qcow2"]);
    let shared = bench.cowhand(&["info", "-U", "x.qcow2"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains(&std::process::id().to_string()), "names the holder: {}", refused.err);
    assert_eq!(shared.code, 0, "{}", shared.err);
}

#[test]
fn a_quiet_check_tells_by_its_exit_code_alone() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "x.qcow2", "1M"]);
    for words in [&["check", "-q", "x.qcow2"][..], &["check", "-q", "--output", "json", "x.qcow2"]] {
        let ran = bench.cowhand(words);
        assert_eq!((ran.code, &*ran.out, &*ran.err), (0, "", ""), "{words:?}");
    }
}

#[test]
fn formats_that_are_not_supported_say_what_to_do() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "raw", "a.raw", "1M"]);
    for format in ["parallels", "qed"] {
        bench.qemu("qemu-img", &["convert", "-f", "raw", "-O", format, "a.raw", "a"]);
        let known = bench.cowhand(&["info", "a"]);
        assert!(
            known.code == 1 && known.err.contains("is not supported: qemu-img convert"),
            "{format}: {}",
            known.err
        );
        let named = bench.cowhand(&["convert", "-f", format, "a", "b.raw"]);
        let reported = format!(
            "{format} is not supported; allowed: qcow2, raw, luks, vdi, vpc, vmdk, qcow, vhdx (qemu-img convert -O qcow2"
        );
        assert!(named.code == 1 && named.err.contains(&reported), "{format}: {}", named.err);
    }
}

#[test]
fn images_of_other_hypervisors_read_as_qemu_reads_them_and_are_never_written() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "raw", "a.raw", "10M"]);
    bench.qemu("qemu-io", &["-f", "raw", "-c", "write -P 7 0 1M", "-c", "write -P 9 5M 64k", "a.raw"]);
    let kinds = [
        ("vdi", "static=off"),
        ("vdi", "static=on"),
        ("vpc", "subformat=dynamic"),
        ("vpc", "subformat=fixed"),
        ("vmdk", "subformat=monolithicSparse"),
        ("vmdk", "subformat=monolithicFlat"),
        ("vmdk", "subformat=streamOptimized"),
    ];
    for (format, options) in kinds {
        bench.qemu("qemu-img", &["convert", "-f", "raw", "-O", format, "-o", options, "a.raw", "a"]);
        let ran = bench.cowhand(&["convert", "-f", format, "-O", "raw", "a", "b.raw"]);
        assert_eq!(ran.code, 0, "{format} {options}: {}", ran.err);
        bench.qemu("qemu-img", &["compare", "-f", format, "-F", "raw", "a", "b.raw"]);
        let map = ["map", "-f", format, "--output=json", "a"];
        let (ours, theirs) = (bench.cowhand(&map), bench.qemu("qemu-img", &map));
        let extents = |text: &str| {
            let list: Vec<serde_json::Value> = serde_json::from_str(text).expect("a list of extents");
            let state = |extent: &serde_json::Value| {
                ["start", "length", "zero", "data", "offset"].map(|name| extent[name].clone())
            };
            list.iter().map(state).collect::<Vec<_>>()
        };
        assert_eq!(extents(&ours.out), extents(&theirs.out), "{format} {options}");
        let written = bench.cowhand(&["io", "-f", format, "-c", "write 0 512", "a"]);
        assert!(written.code != 0 && written.err.contains("only read"), "{format}: {}", written.err);
    }
    let made = bench.cowhand(&["create", "-f", "vdi", "new", "1M"]);
    assert!(made.code == 1 && made.err.contains("vdi images are not made"), "{}", made.err);
}
