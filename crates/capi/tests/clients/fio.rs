//! fio over the library, by an engine of ours that fio loads: it writes, reads back and compares.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::installed::{here, prefix, scratch, succeed, with_library};

/// fio's sources, configured, where `cargo xtask test` puts them.
fn sources() -> PathBuf {
    let target = prefix().ancestors().nth(3).unwrap();
    let sources = target.join("fio-sources");
    assert!(
        sources.join("config-host.h").exists(),
        "{} is missing: `cargo xtask test` unpacks fio's sources there",
        sources.display()
    );
    sources
}

fn engine(directory: &Path) -> PathBuf {
    let built = directory.join("engine.so");
    let sources = sources();
    let flags = succeed(with_library(Command::new("pkg-config").args(["--cflags", "--libs", "cowhand"])));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-g", "-D_GNU_SOURCE", "-fPIC", "-shared", "-Wno-multichar"]);
    compiler
        .arg("-DFIO_EXTERNAL_ENGINE")
        .arg("-I")
        .arg(&sources)
        .arg("-include")
        .arg(sources.join("config-host.h"));
    compiler.arg("-o").arg(&built).arg(here().join("tests/fio/engine.c"));
    succeed(compiler.args(flags.split_whitespace()));
    built
}

#[test]
fn fio_reads_back_what_it_has_written() {
    let directory = scratch();
    let image = directory.path().join("disk.qcow2");
    succeed(Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("64M"));
    let engine = engine(directory.path());
    let mut fio = Command::new("fio");
    fio.arg(format!("--ioengine=external:{}", engine.display()));
    fio.arg(format!("--filename={}", image.display())).current_dir(directory.path());
    fio.args(["--name=verify", "--rw=randwrite", "--bsrange=512-128k", "--blockalign=512", "--size=32M"]);
    fio.args(["--iodepth=16", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--fsync=64"]);
    fio.args(["--randseed=7", "--output-format=json"]);
    let printed = succeed(with_library(&mut fio));
    let report: serde_json::Value = serde_json::from_str(printed.trim_start()).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{printed}");
    for kind in ["read", "write"] {
        assert!(job[kind]["io_bytes"].as_u64().unwrap() >= 32 << 20, "{kind}: {printed}");
    }
    succeed(Command::new("qemu-img").arg("check").arg(&image));
    succeed(Command::new("qemu-img").args(["compare"]).arg(&image).arg(&image));
}
