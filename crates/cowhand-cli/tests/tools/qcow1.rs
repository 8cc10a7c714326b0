//! Images of qcow version 1, read as QEMU reads them.

use std::path::Path;

use serde_json::Value;

use crate::peer::Bench;

fn shown(text: &str, names: &[&str]) -> Vec<Vec<Value>> {
    let list: Vec<Value> = serde_json::from_str(text).expect("a list");
    list.iter().map(|extent| names.iter().map(|name| extent[*name].clone()).collect()).collect()
}

fn same(bench: &Bench, name: &str) {
    let map = ["map", "-f", "qcow", "--output=json", name];
    let (ours, theirs) = (bench.cowhand(&map), bench.qemu("qemu-img", &map));
    let names = ["start", "length", "depth", "present", "zero", "data", "offset"];
    assert_eq!(shown(&ours.out, &names), shown(&theirs.out, &names), "{name}: {}", ours.err);
    let info = ["info", "--output=json", name];
    let (ours, theirs) = (bench.cowhand(&info).json(), bench.qemu("qemu-img", &info).json());
    for key in ["format", "virtual-size", "cluster-size", "backing-filename", "full-backing-filename"] {
        assert_eq!(ours[key], theirs[key], "{name}: {key}");
    }
    let copied = bench.cowhand(&["convert", "--verify", "-f", "qcow", "-O", "raw", name, "copy.raw"]);
    assert_eq!((copied.code, &*copied.err), (0, ""), "{name}");
    bench.qemu("qemu-img", &["compare", "-f", "qcow", "-F", "raw", name, "copy.raw"]);
}

#[test]
fn plain_and_compressed_images_and_overlays_read_as_in_qemu() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "raw", "a.raw", "10M"]);
    let content = ["write -P 7 0 1M", "write -P 9 5M 60k", "write -P 3 9437184 70k"];
    let commands: Vec<&str> = content.iter().flat_map(|line| ["-c", line]).collect();
    bench.qemu("qemu-io", &[&["-f", "raw"], &commands[..], &["a.raw"]].concat());
    bench.qemu("qemu-img", &["convert", "-f", "raw", "-O", "qcow", "a.raw", "a.qcow"]);
    same(&bench, "a.qcow");
    let packed = ["write -c -P 5 2M 4k", "write -c -P 6 2101248 4k", "write -c -P 4 5M 4k"];
    let commands: Vec<&str> = packed.iter().flat_map(|line| ["-c", line]).collect();
    bench.qemu("qemu-io", &[&["-f", "qcow"], &commands[..], &["a.qcow"]].concat());
    same(&bench, "a.qcow");
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow", "-b", "a.raw", "-F", "raw", "over.qcow", "12M"]);
    bench.qemu(
        "qemu-io",
        &["-f", "qcow", "-c", "write -P 5 900k 300k", "-c", "write -P 6 11M 4k", "over.qcow"],
    );
    // Without a format in the header the backing file's content decides: of a raw one that is said, and is no error.
    let copied = bench.cowhand(&["convert", "-O", "raw", "over.qcow", "copy.raw"]);
    assert_eq!(copied.code, 0, "{}", copied.err);
    bench.qemu("qemu-img", &["compare", "-f", "qcow", "-F", "raw", "over.qcow", "copy.raw"]);
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow", "-b", "a.qcow", "-F", "qcow", "top.qcow"]);
    bench.qemu("qemu-io", &["-f", "qcow", "-c", "write -P 8 512k 8k", "top.qcow"]);
    let chain = bench.cowhand(&["info", "--backing-chain", "--output=json", "top.qcow"]).json();
    assert_eq!(chain.as_array().map(Vec::len), Some(2));
    let copied = bench.cowhand(&["convert", "-O", "qcow2", "top.qcow", "copy.qcow2"]);
    assert_eq!(copied.code, 0, "{}", copied.err);
    bench.qemu("qemu-img", &["compare", "top.qcow", "copy.qcow2"]);
}

#[test]
fn an_encrypted_one_is_refused_by_name_and_none_is_written() {
    let bench = Bench::new();
    let secret = ["--object", "secret,id=s,data=password"];
    let options = ["-o", "encrypt.format=aes,encrypt.key-secret=s"];
    let create = [&["create", "-q", "-f", "qcow"], &secret[..], &options, &["secret.qcow", "1M"]].concat();
    bench.qemu("qemu-img", &create);
    let refused = bench.cowhand(&["convert", "-O", "raw", "secret.qcow", "x"]);
    assert!(refused.code == 1 && refused.err.contains("encrypted (AES)"), "{}", refused.err);
    assert!(!Path::new(&bench.path("x")).exists());
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow", "a.qcow", "1M"]);
    let written = bench.cowhand(&["io", "-c", "write 0 512", "a.qcow"]);
    assert!(written.code == 1 && written.err.contains("only read"), "{}", written.err);
    let made = bench.cowhand(&["create", "-f", "qcow", "new", "1M"]);
    assert!(made.code == 1 && made.err.contains("qcow images are not made"), "{}", made.err);
}
