//! Lines that make or change images.

use super::trial::{Line, combined, same};

/// `create`.
pub fn create() -> Vec<Line> {
    let options = [
        "",
        "-o cluster_size=4k",
        "-o cluster_size=2M",
        "-o compat=0.10",
        "-o compat=v3",
        "-o refcount_bits=1",
        "-o refcount_bits=64",
        "-o lazy_refcounts=on",
        "-o extended_l2=on",
        "-o compression_type=zstd",
        "-o preallocation=metadata",
        "-o preallocation=falloc",
        "-o preallocation=full",
        "-o preallocation=off",
        "-o cluster_size=64K,lazy_refcounts=off -o extended_l2=off",
    ];
    let mut lines: Vec<_> =
        combined(&[&["create -f qcow2"], &options, &["new.qcow2"], &["0", "1M", "1000", "1.5M"]])
            .into_iter()
            .map(Line::same)
            .collect();
    lines.extend(
        combined(&[&["create"], &["", "-f raw", "-q"], &["new.raw"], &["0", "1M", "1k", "1536"]])
            .into_iter()
            .map(Line::same),
    );
    lines.extend(same(&[
        "create -f raw -o preallocation=falloc new.raw 1M",
        "create -f raw -o preallocation=full new.raw 64k",
        "create -f raw -o size=2M new.raw",
        "create -f qcow2 -o size=2M new.qcow2",
        "create -f qcow2 -q new.qcow2 1G",
        "create -f qcow2 new.qcow2 64T",
        "create -f qcow2 -b base.qcow2 -F qcow2 new.qcow2",
        "create -f qcow2 -b base.qcow2 -F qcow2 new.qcow2 10M",
        "create -f qcow2 -b base.qcow2 -F qcow2 new.qcow2 1M",
        "create -f qcow2 -b base.raw -F raw new.qcow2",
        "create -f qcow2 -b top.qcow2 -F qcow2 -o cluster_size=4k new.qcow2",
        "create -f qcow2 -o backing_file=base.qcow2,backing_fmt=qcow2 new.qcow2",
        "create -f qcow2 -u -b missing.qcow2 -F qcow2 new.qcow2 1M",
        "create -f qcow2 -u -b missing.qcow2 -F qcow2 new.qcow2",
        "create -f qcow2 -b missing.qcow2 -F qcow2 new.qcow2 1M",
        "create -f qcow2 -b base.qcow2 new.qcow2",
        "create -f qcow2 -F qcow2 new.qcow2 1M",
        "create -f raw -b base.qcow2 -F qcow2 new.raw 1M",
        "create -f qcow2 -b text.txt -F qcow2 new.qcow2",
        "create -f qcow2 -o data_file=new.data,data_file_raw=on new.qcow2 1M",
        "create -f qcow2 -o data_file=new.data new.qcow2 1M",
        "create -f qcow2 -o data_file_raw=on new.qcow2 1M",
        "create -f qcow2 -o compat=0.10,lazy_refcounts=on new.qcow2 1M",
        "create -f qcow2 -o compat=0.10,refcount_bits=8 new.qcow2 1M",
        "create -f qcow2 -o compat=0.10,extended_l2=on new.qcow2 1M",
        "create -f qcow2 -o compat=0.10,compression_type=zstd new.qcow2 1M",
        "create -f qcow2 -o compat=2 new.qcow2 1M",
        "create -f qcow2 -o cluster_size=3 new.qcow2 1M",
        "create -f qcow2 -o cluster_size=4M new.qcow2 1M",
        "create -f qcow2 -o cluster_size=8k,extended_l2=on new.qcow2 1M",
        "create -f qcow2 -o refcount_bits=3 new.qcow2 1M",
        "create -f qcow2 -o refcount_bits=128 new.qcow2 1M",
        "create -f qcow2 -o preallocation=some new.qcow2 1M",
        "create -f qcow2 -o lazy_refcounts=maybe new.qcow2 1M",
        "create -f qcow2 -o nonsense=1 new.qcow2 1M",
        "create -f qcow2 new.qcow2",
        "create -f qcow2 new.qcow2 nonsense",
        "create -f qcow2 new.qcow2 -1M",
        "create -f nonsense new.img 1M",
        "create -f qcow2",
        "create -f qcow2 missing/new.qcow2 1M",
        "create -f qcow2 data.qcow2 1M",
        "create -f qcow2 -o help",
        "create -f raw -o help",
        "create -f qcow2 new.qcow2 1M 2M",
        "create --object secret,id=a,data=b -f qcow2 new.qcow2 1M",
        "create --object secret,id=s,data=b -f luks -o key-secret=s,iter-time=10 new.luks 1M",
        "create --object secret,id=s,data=b -f luks -q -o key-secret=s,iter-time=10,size=2M new.luks",
        "create --object secret,id=s,data=b -f luks -o key-secret=s,iter-time=10,cipher-alg=aes-128,hash-alg=sha1 new.luks 1M",
        "create --object secret,id=s,data=b -f luks -o iter-time=10,cipher-mode=cbc,ivgen-alg=essiv,key-secret=s new.luks 1M",
        "create --object secret,id=s,data=b -f luks -o key-secret=s,iter-time=10,preallocation=full new.luks 1M",
        "create --object secret,id=s,data=b -f luks -o key-secret=s,iter-time=10 new.luks 1000",
        "create --object secret,id=s,data=b -f luks -o key-secret=s,preallocation=some new.luks 1M",
        "create --object secret,id=s,data=b -f luks -o key-secret=s,cipher-alg=rot-13 new.luks 1M",
        "create --object secret,id=s,data=b -f luks -o encrypt.key-secret=s new.luks 1M",
        "create --object secret,id=s,data=b -f luks -o key-secret=s new.luks",
        "create --object secret,id=s,data=b -f luks -o key-secret=s -b base.qcow2 -F qcow2 new.luks 1M",
        "create -f luks -o key-secret=s new.luks 1M",
        "create -f luks new.luks 1M",
    ]));
    lines.push(Line::known(
        "`-o detached-header` of LUKS files",
        "create --object secret,id=s,data=b -f luks -o key-secret=s,detached-header=on new.luks 1M",
    ));
    lines
}

/// `convert`.
pub fn convert() -> Vec<Line> {
    let sources = [
        "empty.qcow2",
        "data.qcow2",
        "v2.qcow2",
        "small.qcow2",
        "ext.qcow2",
        "zeroes.qcow2",
        "odd.qcow2",
        "deflate.qcow2",
        "zstd.qcow2",
        "top.qcow2",
        "over-raw.qcow2",
        "kept.qcow2",
        "plain.raw",
        "sectors.raw",
    ];
    let how = ["-O raw", "-O qcow2", "-O qcow2 -c", "-O qcow2 -o cluster_size=4k"];
    let mut lines: Vec<_> =
        combined(&[&["convert"], &how, &sources, &["new.img"]]).into_iter().map(Line::same).collect();
    lines.extend(same(&[
        "convert data.qcow2 new.img",
        "convert -p -O raw data.qcow2 new.img",
        "convert -q -p -O raw data.qcow2 new.img",
        "convert -f qcow2 -O qcow2 data.qcow2 new.img",
        "convert -f raw -O qcow2 plain.raw new.img",
        "convert -f qcow2 -O raw plain.raw new.img",
        "convert -O qcow2 -o compat=0.10 data.qcow2 new.img",
        "convert -O qcow2 -o compression_type=zstd -c data.qcow2 new.img",
        "convert -O qcow2 -o extended_l2=on data.qcow2 new.img",
        "convert -O qcow2 -o preallocation=metadata data.qcow2 new.img",
        "convert -O qcow2 -o preallocation=full data.qcow2 new.img",
        "convert -O raw -S 0 data.qcow2 new.img",
        "convert -O qcow2 -S 64k data.qcow2 new.img",
        "convert -O qcow2 -m 4 -W data.qcow2 new.img",
        "convert -O raw -t none -T none data.qcow2 new.img",
        "convert -O raw -t unsafe data.qcow2 new.img",
        "convert -O qcow2 data.qcow2 small.qcow2 new.img",
        "convert -O raw plain.raw sectors.raw new.img",
        "convert -O qcow2 -B base.qcow2 -F qcow2 mid.qcow2 new.img",
        "convert -O qcow2 -o backing_file=base.qcow2,backing_fmt=qcow2 mid.qcow2 new.img",
        "convert -n -O qcow2 data.qcow2 empty.qcow2",
        "convert -n -O raw base.raw plain.raw",
        "convert -n -O qcow2 data.qcow2 odd.qcow2",
        "convert -n --target-is-zero -O qcow2 data.qcow2 empty.qcow2",
        "convert -n --target-image-opts data.qcow2 driver=qcow2,file.filename=empty.qcow2",
        "convert --image-opts -O raw driver=qcow2,file.filename=data.qcow2 new.img",
        "convert -r 100M -O raw data.qcow2 new.img",
        "convert --salvage -O raw data.qcow2 new.img",
        "convert -U -O raw data.qcow2 new.img",
        "convert -O qcow2 data.qcow2 base.qcow2",
        "convert --object secret,id=a,data=b -O raw data.qcow2 new.img",
        "convert --object secret,id=s,data=b -O luks -o key-secret=s,iter-time=10 data.qcow2 new.img",
        "convert --object secret,id=s,data=b -O luks -o key-secret=s,iter-time=10 odd.qcow2 new.img",
        "convert --object secret,id=s,data=b -O luks -o key-secret=s -c data.qcow2 new.img",
        "convert --object secret,id=s,data=b -O luks -o key-secret=s -B base.qcow2 -F qcow2 mid.qcow2 new.img",
        "convert -O luks data.qcow2 new.img",
        "convert -O raw -c data.qcow2 new.img",
        "convert -O raw missing.qcow2 new.img",
        "convert -O nonsense data.qcow2 new.img",
        "convert -O qcow2 -o nonsense=1 data.qcow2 new.img",
        "convert -O qcow2 -B base.qcow2 mid.qcow2 new.img",
        "convert -O raw -m 17 data.qcow2 new.img",
        "convert -O raw -m 0 data.qcow2 new.img",
        "convert -O raw -S 1 data.qcow2 new.img",
        "convert -O raw -t nonsense data.qcow2 new.img",
        "convert -O raw data.qcow2",
        "convert",
        "convert -n -O raw data.qcow2 missing.raw",
        "convert -O raw data.qcow2 missing/new.img",
        "convert --target-is-zero -O raw data.qcow2 new.img",
        "convert --bitmaps -O qcow2 bitmap.qcow2 new.img",
        "convert --bitmaps -O qcow2 -o cluster_size=4k bitmap.qcow2 new.img",
        "convert --bitmaps -c -O qcow2 bitmap.qcow2 new.img",
        "convert --bitmaps -O qcow2 data.qcow2 new.img",
        "convert --bitmaps -n -O qcow2 bitmap.qcow2 empty.qcow2",
        "convert --bitmaps -n -O qcow2 bitmap.qcow2 bitmap.qcow2",
        "convert --bitmaps --skip-broken-bitmaps -O qcow2 broken.qcow2 new.img",
        "convert --bitmaps --skip-broken-bitmaps -O qcow2 bitmap.qcow2 new.img",
        "convert --bitmaps -O qcow2 broken.qcow2 new.img",
        "convert -O qcow2 broken.qcow2 new.img",
        "convert --skip-broken-bitmaps -O qcow2 broken.qcow2 new.img",
        "convert --bitmaps -O raw bitmap.qcow2 new.img",
        "convert --bitmaps -O qcow2 -o compat=0.10 bitmap.qcow2 new.img",
        "convert --bitmaps -O qcow2 v2.qcow2 new.img",
        "convert --bitmaps -O qcow2 plain.raw new.img",
        "convert --bitmaps -O qcow2 bitmap.qcow2 data.qcow2 new.img",
        "convert -O qcow2 -o help",
    ]));
    lines
}

/// `dd`.
pub fn dd() -> Vec<Line> {
    let parts = [
        "",
        "bs=4k",
        "bs=1M count=1",
        "bs=64k skip=3",
        "bs=1000 count=100",
        "count=5",
        "bs=64k count=10 skip=2",
        "skip=100000",
    ];
    let sources = ["if=data.qcow2 of=new.img", "if=top.qcow2 of=new.img", "if=plain.raw of=new.img"];
    let mut lines: Vec<_> =
        combined(&[&["dd", "dd -O qcow2"], &sources, &parts]).into_iter().map(Line::same).collect();
    lines.extend(same(&[
        "dd -f qcow2 -O raw if=data.qcow2 of=new.img",
        "dd -O luks if=data.qcow2 of=new.img",
        "dd -U if=data.qcow2 of=new.img",
        "dd --image-opts if=driver=qcow2,file.filename=data.qcow2 of=new.img",
        "dd if=missing.qcow2 of=new.img",
        "dd if=data.qcow2",
        "dd of=new.img",
        "dd",
        "dd if=data.qcow2 of=new.img bs=0",
        "dd if=data.qcow2 of=new.img bs=nonsense",
        "dd if=data.qcow2 of=new.img nonsense=1",
        "dd -O nonsense if=data.qcow2 of=new.img",
    ]));
    lines
}

/// `resize`.
pub fn resize() -> Vec<Line> {
    let sizes = ["8M", "+1M", "+512", "4194304", "+1.5M"];
    let images =
        ["empty.qcow2", "data.qcow2", "small.qcow2", "ext.qcow2", "top.qcow2", "deflate.qcow2", "v2.qcow2"];
    let mut lines: Vec<_> = combined(&[&["resize"], &images, &sizes]).into_iter().map(Line::same).collect();
    lines.extend(
        combined(&[
            &["resize --shrink"],
            &["data.qcow2", "small.qcow2", "zeroes.qcow2"],
            &["1M", "-2M", "64k", "0"],
        ])
        .into_iter()
        .map(Line::same),
    );
    lines.extend(same(&[
        "resize -q data.qcow2 8M",
        "resize -f qcow2 data.qcow2 8M",
        "resize -f raw plain.raw +1M",
        "resize -f raw plain.raw 4000k",
        "resize -f raw sectors.raw 2000",
        "resize -f raw sectors.raw +1",
        "resize plain.raw 8M",
        "resize -f raw --shrink plain.raw 1M",
        "resize -f raw plain.raw 1M",
        "resize --preallocation=metadata empty.qcow2 8M",
        "resize --preallocation=falloc empty.qcow2 8M",
        "resize --preallocation=full empty.qcow2 8M",
        "resize --preallocation=off data.qcow2 8M",
        "resize -f raw --preallocation=falloc plain.raw 4M",
        "resize -f raw --preallocation=full plain.raw 4M",
        "resize -f raw --preallocation=metadata plain.raw 4M",
        "resize --preallocation=nonsense data.qcow2 8M",
        "resize --preallocation=full --shrink data.qcow2 1M",
        "resize data.qcow2 1M",
        "resize data.qcow2 -1M",
        "resize data.qcow2 3000001",
        "resize data.qcow2 nonsense",
        "resize data.qcow2",
        "resize missing.qcow2 1M",
        "resize --shrink data.qcow2 -100M",
        "resize --image-opts driver=qcow2,file.filename=data.qcow2 8M",
        "resize text.txt 1M",
        "resize -f qcow2 text.txt 1M",
        "resize snap.qcow2 8M",
        "resize bitmap.qcow2 8M",
    ]));
    lines
}

/// `snapshot`.
pub fn snapshot() -> Vec<Line> {
    let images =
        ["snap.qcow2", "data.qcow2", "v2.qcow2", "small.qcow2", "top.qcow2", "ext.qcow2", "empty.qcow2"];
    let actions = ["-l", "-c new", "-q -c new"];
    let mut lines: Vec<_> = combined(&[&["snapshot"], &actions, &images])
        .into_iter()
        .filter(|line| line != "snapshot -l snap.qcow2")
        .map(Line::same)
        .collect();
    lines.extend(same(&[
        "snapshot -a first snap.qcow2",
        "snapshot -a second snap.qcow2",
        "snapshot -a 1 snap.qcow2",
        "snapshot -a missing snap.qcow2",
        "snapshot -d first snap.qcow2",
        "snapshot -d second snap.qcow2",
        "snapshot -d missing snap.qcow2",
        "snapshot -l -U snap.qcow2",
        "snapshot -l --image-opts driver=qcow2,file.filename=snap.qcow2",
        "snapshot -l snap.qcow2",
        "snapshot -c new plain.raw",
        "snapshot -l missing.qcow2",
        "snapshot -c a -d first snap.qcow2",
        "snapshot -l",
        "snapshot",
    ]));
    lines.push(Line::known("Without an action the snapshots are listed", "snapshot snap.qcow2"));
    lines
}

/// `commit`.
pub fn commit() -> Vec<Line> {
    same(&[
        "commit top.qcow2",
        "commit mid.qcow2",
        "commit over-raw.qcow2",
        "commit short-over.qcow2",
        "commit -d top.qcow2",
        "commit -q top.qcow2",
        "commit -p top.qcow2",
        "commit -b mid.qcow2 top.qcow2",
        "commit -b base.qcow2 top.qcow2",
        "commit -d -b base.qcow2 top.qcow2",
        "commit -t none top.qcow2",
        "commit -f qcow2 -t writeback top.qcow2",
        "commit -r 100M top.qcow2",
        "commit --image-opts driver=qcow2,file.filename=top.qcow2",
        "commit data.qcow2",
        "commit -f raw plain.raw",
        "commit -b missing.qcow2 top.qcow2",
        "commit -b data.qcow2 top.qcow2",
        "commit missing.qcow2",
        "commit -t nonsense top.qcow2",
        "commit",
        "commit --nonsense top.qcow2",
    ])
}

/// `rebase`.
pub fn rebase() -> Vec<Line> {
    let images = ["top.qcow2", "mid.qcow2", "over-raw.qcow2", "data.qcow2"];
    let below = [
        "-b base.qcow2 -F qcow2",
        "-b base.raw -F raw",
        "-b ''",
        "-u -b base.qcow2 -F qcow2",
        "-u -b missing.qcow2 -F raw",
        "-u -b ''",
        "-p -b other.qcow2 -F qcow2",
    ];
    let mut lines: Vec<_> = combined(&[&["rebase"], &below, &images]).into_iter().map(Line::same).collect();
    lines.extend(same(&[
        "rebase -f qcow2 -t none -T none -b base.qcow2 -F qcow2 top.qcow2",
        "rebase -q -b base.qcow2 -F qcow2 top.qcow2",
        "rebase -b missing.qcow2 -F qcow2 top.qcow2",
        "rebase -b base.qcow2 top.qcow2",
        "rebase -u -b base.qcow2 top.qcow2",
        "rebase -b text.txt -F qcow2 top.qcow2",
        "rebase -b base.qcow2 -F qcow2 plain.raw",
        "rebase -b base.qcow2 -F qcow2 missing.qcow2",
        "rebase -b base.qcow2 -F nonsense top.qcow2",
        "rebase top.qcow2",
        "rebase",
        "rebase -t nonsense -b base.qcow2 -F qcow2 top.qcow2",
    ]));
    lines
}

/// `check -r`.
pub fn repair() -> Vec<Line> {
    let images =
        ["leak.qcow2", "data.qcow2", "snap.qcow2", "lazy.qcow2", "small.qcow2", "top.qcow2", "vast.qcow2"];
    let how = ["-r leaks", "-r all", "-r all --output=json", "-q -r all"];
    let mut lines: Vec<_> = combined(&[&["check"], &how, &images]).into_iter().map(Line::same).collect();
    lines.push(Line::known("Repairs are counted by what is changed", "check -r all corrupt.qcow2"));
    lines.extend(same(&["check -r all -f raw plain.raw", "check -r leaks missing.qcow2"]));
    lines
}

/// `qemu-io`: that `cowhand io` is what the name leads to. Its own tests have all commands.
pub fn io() -> Vec<Line> {
    let lines = [
        "-c read_-P_1_0_64k data.qcow2",
        "-f qcow2 -c write_-P_9_64k_128k -c read_-P_9_64k_128k data.qcow2",
        "-f raw -c write_-P_9_64k_128k plain.raw",
        "-r -c read_-v_0_16 data.qcow2",
        "-c write_-z_0_64k -c read_-P_0_0_64k data.qcow2",
        "-c discard_0_64k -c flush -c length data.qcow2",
        "-c write_-c_-P_3_2M_64k data.qcow2",
        "-c map top.qcow2",
        "-c alloc_0_1M top.qcow2",
        "-c read_-P_2_0_64k data.qcow2",
        "-s -c write_-P_9_0_64k -c read_-P_9_0_64k data.qcow2",
        "-t none -c read_0_64k data.qcow2",
        "-n -c read_0_64k data.qcow2",
        "-U -r -c read_0_4k data.qcow2",
        "--image-opts -c read_0_4k driver=qcow2,file.filename=data.qcow2",
        "-c nonsense data.qcow2",
        "-c read_8M_64k data.qcow2",
        "-c quit data.qcow2",
        "-c read_0_64k missing.qcow2",
        "--nonsense data.qcow2",
        "data.qcow2 same.qcow2",
    ];
    lines.into_iter().map(Line::of_qemu_io).collect()
}
