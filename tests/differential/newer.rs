//! Lines with options of qemu-img 10.1 to 11.1, and long names that they have since.

use super::trial::{Line, combined};

/// Since when long options have the names of today.
const LONG: (u32, u32) = (10, 1);
/// Since when `-B` is the format of a backing file.
const BACKING: (u32, u32) = (10, 1);
const NEWEST: (u32, u32) = (11, 1);

/// All of them.
pub fn lines() -> Vec<Line> {
    let mut lines = Vec::new();
    let mut since =
        |version, words: &[&str]| lines.extend(words.iter().map(|words| Line::since(version, *words)));
    since(
        BACKING,
        &[
            "create -f qcow2 -b base.qcow2 -B qcow2 new.qcow2",
            "create -f qcow2 --backing base.qcow2 --backing-format qcow2 new.qcow2",
            "create -f qcow2 --backing=base.raw --backing-format=raw new.qcow2 8M",
            "create -f qcow2 --backing missing.qcow2 -B qcow2 --backing-unsafe new.qcow2 1M",
            "create -f qcow2 -B qcow2 new.qcow2 1M",
            "create -f qcow2 -b base.qcow2 -B nonsense new.qcow2",
            "create --format qcow2 --options cluster_size=4k --quiet new.qcow2 1M",
            "rebase -b base.qcow2 -B qcow2 top.qcow2",
            "rebase --backing base.qcow2 --backing-format qcow2 --backing-cache none top.qcow2",
            "rebase --backing '' top.qcow2",
            "rebase --backing-unsafe --backing missing.qcow2 -B raw top.qcow2",
            "rebase --compress --progress --format qcow2 -b base.qcow2 -B qcow2 top.qcow2",
            "rebase -c -b base.qcow2 -B qcow2 mid.qcow2",
            "convert -O qcow2 -b base.qcow2 -F qcow2 mid.qcow2 new.img",
            "convert -O qcow2 --backing base.qcow2 --backing-format qcow2 mid.qcow2 new.img",
        ],
    );
    since(
        LONG,
        &[
            "convert --rate-limit 100M -O raw data.qcow2 new.img",
            "convert --rate-limit=100M --target-format=raw data.qcow2 new.img",
            "convert --snapshot first -O raw snap.qcow2 new.img",
            "convert --snapshot snapshot.name=second -O qcow2 snap.qcow2 new.img",
            "convert --snapshot snapshot.id=1 -O raw snap.qcow2 new.img",
            "convert --snapshot missing -O raw snap.qcow2 new.img",
            "convert -l first -O raw snap.qcow2 new.img",
            "convert -O qcow2 --target-format-options cluster_size=4k data.qcow2 new.img",
            "convert --source-format qcow2 --target-format qcow2 --target-format-options compat=0.10 data.qcow2 new.img",
            "convert --source-cache none --target-cache none -O raw data.qcow2 new.img",
            "convert --sparse-size 64k -O raw data.qcow2 new.img",
            "convert --sparse-size=0 -O raw data.qcow2 new.img",
            "convert --no-create -O qcow2 data.qcow2 empty.qcow2",
            "convert --no-create --target-is-zero -O qcow2 data.qcow2 empty.qcow2",
            "convert --parallel 4 --oob-writes -O qcow2 data.qcow2 new.img",
            "convert --parallel 17 -O qcow2 data.qcow2 new.img",
            "convert --copy-range-offloading -O raw data.qcow2 new.img",
            "convert --copy-range-offloading -S 4k -O raw data.qcow2 new.img",
            "convert --force-share --progress -O raw data.qcow2 new.img",
            "convert --quiet --progress -O raw data.qcow2 new.img",
            "commit --rate-limit 100M top.qcow2",
            "commit --drop --format qcow2 --cache none top.qcow2",
            "commit --base base.qcow2 top.qcow2",
            "commit --base mid.qcow2 --progress top.qcow2",
            "commit --quiet top.qcow2",
            "amend --options lazy_refcounts=on data.qcow2",
            "amend --options compat=0.10 --format qcow2 --quiet data.qcow2",
            "amend --options size=8M --cache none data.qcow2",
            "info -t none data.qcow2",
            "info --cache none data.qcow2",
            "info --cache nonsense data.qcow2",
            "info --format qcow2 --force-share --output json data.qcow2",
            "bitmap --remove-all bitmap.qcow2",
            "bitmap --remove-all data.qcow2",
            "bitmap --remove-all bitmap.qcow2 daily",
            "bitmap --remove-all v2.qcow2",
            "bitmap --add --granularity 64k data.qcow2 new",
            "bitmap --add --merge daily --source-file bitmap.qcow2 --source-format qcow2 data.qcow2 new",
            "bitmap --add --granularity=1M --disable --format qcow2 data.qcow2 new",
            "measure -l first -O qcow2 snap.qcow2",
            "measure --snapshot second --target-format raw snap.qcow2",
            "measure -l missing -O qcow2 snap.qcow2",
            "measure -s 1G -O qcow2",
            "measure --size=1G --target-format qcow2 -o cluster_size=4k",
            "measure --format qcow2 --force-share --target-format qcow2 data.qcow2",
            "map -s 1M -l 1M --output json data.qcow2",
            "map --format qcow2 --force-share data.qcow2",
            "map -s 512k top.qcow2",
            "map -l 1M top.qcow2",
            "compare --a-format qcow2 --b-format qcow2 data.qcow2 same.qcow2",
            "compare --strict --cache none data.qcow2 same.qcow2",
            "compare --progress --quiet data.qcow2 other.qcow2",
            "compare --force-share data.qcow2 large.qcow2",
            "snapshot --list snap.qcow2",
            "snapshot -f raw -f qcow2 -l data.qcow2",
            "snapshot --create third --quiet snap.qcow2",
            "snapshot --apply first snap.qcow2",
            "snapshot --delete first snap.qcow2",
            "snapshot --delete missing snap.qcow2",
            "snapshot --list --format qcow2 --force-share snap.qcow2",
            "check --repair leaks leak.qcow2",
            "check --repair=all --cache none leak.qcow2",
            "check --quiet --format qcow2 data.qcow2",
            "resize --format qcow2 --quiet data.qcow2 8M",
            "dd --format qcow2 --output-format raw bs=4k count=4 if=data.qcow2 of=new.img",
            "dd --force-share -O qcow2 if=data.qcow2 of=new.img",
            "bench --count 10 --depth 2 --buffer-size 64k data.qcow2",
            "bench --write --count 10 --pattern 7 data.qcow2",
        ],
    );
    since(
        NEWEST,
        &[
            "create -f qcow2 -o data_file=kept.raw,keep_data_file=on new.qcow2 2M",
            "create -f qcow2 -o data_file=kept.raw,data_file_raw=on,keep_data_file=on new.qcow2 2M",
            "create -f qcow2 -o data_file=missing.raw,keep_data_file=on new.qcow2 2M",
            "create -f qcow2 -o keep_data_file=on new.qcow2 2M",
            "create -f qcow2 -o help",
            "create -f qcow2 -o help new.qcow2",
            "create -f raw -o help new.raw",
            "create -f luks -o help",
            "amend -f qcow2 -o help",
            "amend -f luks -o help",
            "amend -f raw -o help",
            "amend -o help data.qcow2",
            "amend -o help",
            "convert -O qcow2 -o help",
            "convert -O qcow2 -o help data.qcow2 new.img",
            "measure -O qcow2 -o help --size 1M",
        ],
    );
    // Options of new names, shortened.
    let shortened =
        combined(&[&["info"], &["--form qcow2", "--forc", "--backing-c", "--outp json"], &["data.qcow2"]]);
    lines.extend(shortened.into_iter().map(|line| Line::since(LONG, line)));
    lines
}
