//! Lines of the commands that change what an image is and what it records.

use super::trial::{Line, combined, same};

/// `amend`. Widths of refcounts are left out: qemu-img 7.2 does not end for some of them.
pub fn amend() -> Vec<Line> {
    let images =
        ["empty.qcow2", "data.qcow2", "v2.qcow2", "small.qcow2", "ext.qcow2", "top.qcow2", "snap.qcow2"];
    let options =
        ["compat=1.1", "compat=v3", "compat=0.10", "lazy_refcounts=on", "lazy_refcounts=off", "size=8M"];
    let mut lines: Vec<_> =
        combined(&[&["amend -o"], &options, &images]).into_iter().map(Line::same).collect();
    lines.extend(same(&[
        "amend -q -o lazy_refcounts=on data.qcow2",
        "amend -f qcow2 -o compat=0.10 data.qcow2",
        "amend -t none -o lazy_refcounts=on data.qcow2",
        "amend -o lazy_refcounts=on -o size=8M data.qcow2",
        "amend -o lazy_refcounts=on,size=8M data.qcow2",
        "amend -o compat=0.10,size=8M data.qcow2",
        "amend -o refcount_bits=16 data.qcow2",
        "amend -o refcount_bits=3 data.qcow2",
        "amend -o cluster_size=4k data.qcow2",
        "amend -o compat=nonsense data.qcow2",
        "amend -o nonsense=1 data.qcow2",
        "amend -o lazy_refcounts=on v2.qcow2",
        "amend -o backing_file=mid.qcow2 base.qcow2",
        "amend -o compat=1.1 missing.qcow2",
        "amend -f raw -o size=8M plain.raw",
        "amend data.qcow2",
        "amend --image-opts -o lazy_refcounts=on driver=qcow2,file.filename=data.qcow2",
    ]));
    lines.push(Line::same("amend -o size=1M data.qcow2"));
    lines
}

/// `bitmap`.
pub fn bitmap() -> Vec<Line> {
    let images = ["empty.qcow2", "data.qcow2", "bitmap.qcow2", "small.qcow2", "ext.qcow2", "top.qcow2"];
    let steps = ["--add", "--add -g 1M", "--add -g 512", "--add --disable", "--add --disable --enable"];
    let lines = combined(&[&["bitmap"], &steps, &images]).into_iter();
    let mut lines: Vec<_> = lines.map(|line| Line::same(format!("{line} new"))).collect();
    lines.extend(same(&[
        "bitmap --remove bitmap.qcow2 daily",
        "bitmap --remove bitmap.qcow2 off",
        "bitmap --clear bitmap.qcow2 daily",
        "bitmap --disable bitmap.qcow2 daily",
        "bitmap --enable bitmap.qcow2 off",
        "bitmap --merge daily bitmap.qcow2 off",
        "bitmap --add --merge daily bitmap.qcow2 new",
        "bitmap --add --merge daily --merge off --disable bitmap.qcow2 new",
        "bitmap --clear --merge daily bitmap.qcow2 off",
        "bitmap --add --merge daily -b bitmap.qcow2 -F qcow2 data.qcow2 new",
        "bitmap --add -f qcow2 data.qcow2 new",
        "bitmap --add bitmap.qcow2 daily",
        "bitmap --remove bitmap.qcow2 missing",
        "bitmap --merge missing bitmap.qcow2 off",
        "bitmap --add -g 3k data.qcow2 new",
        "bitmap --add -g 100 data.qcow2 new",
        "bitmap --add -g nonsense data.qcow2 new",
        "bitmap --remove -g 64k bitmap.qcow2 daily",
        "bitmap --add v2.qcow2 new",
        "bitmap --add -f raw plain.raw new",
        "bitmap --add missing.qcow2 new",
        "bitmap bitmap.qcow2 daily",
        "bitmap --add bitmap.qcow2",
        "bitmap --add --image-opts driver=qcow2,file.filename=data.qcow2 new",
    ]));
    lines
}
