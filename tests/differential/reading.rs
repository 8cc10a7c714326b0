//! Lines that change nothing.

use super::fixtures::{COMPRESSED, OVERLAYS, PLAIN, WRONG};
use super::trial::{Line, combined, same};

fn images() -> Vec<&'static str> {
    let all =
        [&PLAIN[..], &COMPRESSED, &OVERLAYS, &["base.qcow2", "kept.qcow2", "allocated.qcow2", "base.raw"]];
    all.concat()
}

/// `info`.
pub fn info() -> Vec<Line> {
    let mut lines: Vec<_> = combined(&[&["info", "info --output=json", "info -f qcow2"], &images()])
        .into_iter()
        .filter(|line| !line.ends_with(".raw") || !line.contains("qcow2"))
        .map(Line::same)
        .collect();
    lines.extend(
        combined(&[&["info --backing-chain", "info --backing-chain --output=json"], &OVERLAYS])
            .into_iter()
            .map(Line::same),
    );
    lines.extend(same(&[
        "info -f raw plain.raw",
        "info -f raw data.qcow2",
        "info -f qcow2 plain.raw",
        "info -f raw --output json sectors.raw",
        "info --output=human sectors.raw",
        "info text.txt",
        "info -f qcow2 text.txt",
        "info -U data.qcow2",
        "info --force-share data.qcow2",
        "info --out json data.qcow2",
        "info --format qcow2 data.qcow2",
        "info -fqcow2 data.qcow2",
        "info -f raw -f qcow2 data.qcow2",
        "info --image-opts driver=qcow2,file.filename=data.qcow2",
        "info --image-opts driver=qcow2,file.driver=file,file.filename=data.qcow2",
        "info --image-opts driver=raw,file.filename=data.qcow2",
        "info --object secret,id=a,data=b data.qcow2",
        "info --object secret,data=b data.qcow2",
        "info --object nonsense,id=a data.qcow2",
        "info missing.qcow2",
        "info --output=xml data.qcow2",
        "info --nonsense data.qcow2",
        "info data.qcow2 same.qcow2",
        "info -f nonsense data.qcow2",
        "info",
        "info --image-opts driver=nonsense,file.filename=data.qcow2",
    ]));
    lines.push(Line::known("QEMU takes a node's name there", "info --image-opts data.qcow2"));
    lines
}

/// `check` without a repair.
pub fn check() -> Vec<Line> {
    let all = [&images()[..], &WRONG].concat();
    let mut lines: Vec<_> = combined(&[&["check", "check --output=json", "check -q"], &all])
        .into_iter()
        .map(Line::same)
        .collect();
    lines.extend(same(&[
        "check -f qcow2 data.qcow2",
        "check --format qcow2 data.qcow2",
        "check -T none data.qcow2",
        "check -T nonsense data.qcow2",
        "check -T writeback data.qcow2",
        "check -U data.qcow2",
        "check -f raw data.qcow2",
        "check -f qcow2 plain.raw",
        "check text.txt",
        "check missing.qcow2",
        "check",
        "check data.qcow2 same.qcow2",
        "check -r nonsense data.qcow2",
        "check --output=xml data.qcow2",
        "check --image-opts driver=qcow2,file.filename=leak.qcow2",
        "check --image-opts driver=qcow2,file.filename=missing.qcow2",
    ]));
    lines
}

/// `map`.
pub fn map() -> Vec<Line> {
    let preallocated = "preallocation=metadata";
    let mut lines = Vec::new();
    for line in combined(&[&["map", "map --output=json"], &images()]) {
        lines.push(match line.as_str() {
            "map kept.qcow2" => Line::known("The table for people names the image", line),
            _ if line.ends_with("allocated.qcow2") => Line::known(preallocated, line),
            _ => Line::same(line),
        });
    }
    lines.extend(same(&[
        "map -f qcow2 data.qcow2",
        "map -U --output json data.qcow2",
        "map --output=json --start-offset 1M data.qcow2",
        "map --output=json --start-offset=100k --max-length=1M data.qcow2",
        "map --start-offset 512k top.qcow2",
        "map --max-length 1M --output=json top.qcow2",
        "map --max-length nonsense top.qcow2",
        "map --output=json -f raw data.qcow2",
        "map --image-opts driver=qcow2,file.filename=data.qcow2",
        "map missing.qcow2",
        "map text.txt",
        "map -f qcow2 text.txt",
        "map",
        "map data.qcow2 same.qcow2",
        "map --output=xml data.qcow2",
    ]));
    lines
}

/// `measure`.
pub fn measure() -> Vec<Line> {
    let preallocated = "An image with `preallocation=metadata` measures as full";
    let mut lines = Vec::new();
    for line in combined(&[&["measure", "measure -O qcow2", "measure --output=json -O qcow2"], &images()]) {
        lines.push(match line.ends_with("allocated.qcow2") {
            true => Line::known(preallocated, line),
            false => Line::same(line),
        });
    }
    let sizes = ["--size 0", "--size 1", "--size 1000k", "--size 1G", "--size 1T", "--size=17G"];
    let options = [
        "",
        "-o cluster_size=4k",
        "-o compat=0.10",
        "-o refcount_bits=1",
        "-o preallocation=full",
        "-o extended_l2=on,cluster_size=32k",
    ];
    lines.extend(combined(&[&["measure -O qcow2"], &sizes, &options]).into_iter().map(Line::same));
    lines.push(Line::known(
        "`-o detached-header` of LUKS files",
        "measure -O luks --object secret,id=s,data=b -o key-secret=s,detached-header=on --size 1M",
    ));
    lines.extend(same(&[
        "measure --size 1G",
        "measure -O luks --object secret,id=s,data=b -o key-secret=s --size 1M",
        "measure -O luks --object secret,id=s,data=b -o key-secret=s,cipher-mode=cbc,cipher-alg=aes-128 --size 1M",
        "measure -O luks --object secret,id=s,data=b -o key-secret=s,preallocation=full --output=json --size 1T",
        "measure -O luks --object secret,id=s,data=b -o key-secret=s data.qcow2",
        "measure -O luks --size 1M",
        "measure -O raw --size 1G --output=json",
        "measure -O qcow2 -o cluster_size=512 --size 64G",
        "measure -O nonsense --size 1G",
        "measure -O qcow2 -o nonsense=1 --size 1G",
        "measure -O qcow2 -o cluster_size=3 --size 1G",
        "measure -O qcow2 --size nonsense",
        "measure -O qcow2",
        "measure -O qcow2 --size 1G data.qcow2",
        "measure -O qcow2 missing.qcow2",
        "measure -f qcow2 -O qcow2 -U data.qcow2",
        "measure --image-opts -O qcow2 driver=qcow2,file.filename=data.qcow2",
    ]));
    lines
}

/// `compare`.
pub fn compare() -> Vec<Line> {
    let others = [
        "same.qcow2",
        "other.qcow2",
        "deflate.qcow2",
        "zstd.qcow2",
        "empty.qcow2",
        "large.qcow2",
        "top.qcow2",
        "plain.raw",
    ];
    let lines = combined(&[&["compare", "compare -q", "compare -p"], &["data.qcow2"], &others]);
    let mut lines: Vec<_> = lines.into_iter().map(Line::same).collect();
    lines.extend(same(&[
        "compare -s data.qcow2 same.qcow2",
        "compare -s data.qcow2 large.qcow2",
        "compare -f qcow2 -F qcow2 data.qcow2 same.qcow2",
        "compare -f qcow2 -F raw over-raw.qcow2 base.raw",
        "compare -f raw -F raw base.raw plain.raw",
        "compare -f raw base.raw base.raw",
        "compare mid.qcow2 top.qcow2",
        "compare top.qcow2 base.qcow2",
        "compare base.qcow2 short-over.qcow2",
        "compare short-over.qcow2 base.qcow2",
        "compare sectors.raw plain.raw",
        "compare -T none data.qcow2 same.qcow2",
        "compare -U data.qcow2 same.qcow2",
        "compare --image-opts driver=qcow2,file.filename=data.qcow2 driver=qcow2,file.filename=same.qcow2",
        "compare data.qcow2 missing.qcow2",
        "compare missing.qcow2 data.qcow2",
        "compare data.qcow2",
        "compare",
        "compare data.qcow2 same.qcow2 other.qcow2",
        "compare -f qcow2 plain.raw data.qcow2",
        "compare --nonsense data.qcow2 same.qcow2",
        "compare -T nonsense data.qcow2 same.qcow2",
    ]));
    lines
}

/// `bench`.
pub fn bench() -> Vec<Line> {
    same(&[
        "bench -c 10 data.qcow2",
        "bench -c 10 -d 2 -s 64k data.qcow2",
        "bench -c 100 -d 8 -s 4k -S 64k -o 64k data.qcow2",
        "bench -c 10 -f raw plain.raw",
        "bench -w -c 10 -d 2 data.qcow2",
        "bench -w -c 100 -d 4 --pattern 7 --flush-interval 8 data.qcow2",
        "bench -w -c 100 -d 4 --flush-interval 8 --no-drain data.qcow2",
        "bench -c 10 -t none data.qcow2",
        "bench -c 10 -t unsafe -i threads data.qcow2",
        "bench -c 10 -U data.qcow2",
        "bench -c 10 missing.qcow2",
        "bench -c nonsense data.qcow2",
        "bench -c 10 --flush-interval 8 data.qcow2",
        "bench",
        "bench -c 10 --image-opts driver=qcow2,file.filename=data.qcow2",
    ])
}

/// The program without a command, or with one that does not exist.
pub fn program() -> Vec<Line> {
    same(&["nonsense", "nonsense --help", "--nonsense", "serve data.qcow2", "help"])
}
