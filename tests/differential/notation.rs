//! Lines that say the same in other ways: names with options in them, options twice, numbers in each form.

use super::trial::{Line, combined, same};

/// All of them.
pub fn lines() -> Vec<Line> {
    let mut lines = named();
    lines.extend(described());
    lines.extend(repeated());
    lines.extend(numbers());
    lines.extend(encrypted());
    lines
}

/// Images by their options.
fn named() -> Vec<Line> {
    let images = ["data.qcow2", "top.qcow2", "ext.qcow2"];
    let forms = |name: &str| {
        [
            format!("json:{{'driver':'qcow2','file':{{'driver':'file','filename':'{name}'}}}}"),
            format!("json:{{\"driver\":\"qcow2\",\"file\":{{\"filename\":\"{name}\"}}}}"),
            format!("json:{{'driver':'qcow2','file.driver':'file','file.filename':'{name}'}}"),
            format!("json:{{'file.filename':'{name}'}}"),
            format!("file:{name}"),
            format!("./{name}"),
        ]
    };
    let mut lines = Vec::new();
    for name in images {
        for form in forms(name) {
            for command in ["map --output=json", "check", "measure -O qcow2", "compare data.qcow2"] {
                lines.push(Line::same(format!("{command} {form}")));
            }
            lines.push(Line::same(format!("convert -O raw {form} new.img")));
        }
    }
    lines.extend(same(&[
        "convert -O raw json:{'driver':'raw','file':{'driver':'file','filename':'plain.raw'},'offset':65536,'size':131072} new.img",
        "convert -O qcow2 json:{'driver':'raw','file.filename':'plain.raw','offset':'64k','size':'128k'} new.img",
        "map --output=json json:{'driver':'raw','file.filename':'plain.raw','offset':65536}",
        "measure -O raw json:{'driver':'raw','file.filename':'plain.raw','size':1000}",
        "info json:{'driver':'qcow2'}",
        "info json:{'driver':'nonsense','file.filename':'data.qcow2'}",
        "info json:{'driver':'qcow2','file.filename':'data.qcow2','nonsense':1}",
        "info json:{",
        "info json:[]",
        "info json:{'driver':'qcow2','file.filename':'missing.qcow2'}",
        "convert -O raw nbd://localhost:1/none new.img",
        "compare null-co:// plain.raw",
        "convert -O raw --image-opts driver=null-co,size=1M,read-zeroes=on new.img",
        "convert -O raw --image-opts driver=raw,file.driver=null-co,file.size=64k,file.read-zeroes=on new.img",
    ]));
    lines
}

/// The same where the form of the result differs.
fn described() -> Vec<Line> {
    let row = "An image that only options describe";
    let lines = [
        "info json:{'driver':'raw','file':{'driver':'file','filename':'plain.raw'},'offset':65536,'size':131072}",
        "info --image-opts driver=null-co,size=1M",
    ];
    lines.into_iter().map(|line| Line::known(row, line)).collect()
}

/// The last of equal options counts.
fn repeated() -> Vec<Line> {
    let mut lines = combined(&[
        &["convert -f nonsense", "convert -f raw", "convert -f qcow2"],
        &["-f qcow2"],
        &["-O nonsense -O raw", "-O raw -O qcow2", "-O qcow2 -o cluster_size=4k -o lazy_refcounts=on"],
        &["-S 64k -S 4k", "-m 1 -m 4 -W -W", "-t none -t unsafe", "-T none -T writeback -p -p"],
        &["data.qcow2 new.img"],
    ]);
    lines.extend(combined(&[
        &["create -f raw -f qcow2", "create -f nonsense -f qcow2 -q -q"],
        &[
            "-o cluster_size=4k,cluster_size=8k",
            "-o cluster_size=4k -o cluster_size=8k",
            "-o size=1M -o size=2M -o compat=0.10",
            "-o lazy_refcounts",
            "-o lazy_refcounts,extended_l2",
            "-o nolazy_refcounts",
            "-o nocow=on,extent_size_hint=1M",
            "-o encryption=off",
        ],
        &["new.qcow2"],
        &["", "1M"],
    ]));
    let lines = lines.into_iter().filter(|line| {
        // The size is missing, or there twice.
        !line.ends_with("new.qcow2") || line.contains("size=2M")
    });
    let mut lines: Vec<Line> =
        lines.filter(|line| !(line.contains("size=2M") && line.ends_with(" 1M"))).map(Line::same).collect();
    lines.extend(same(&[
        "info --output=json --output=human data.qcow2",
        "info -f raw -f qcow2 --output human --output json data.qcow2",
        "map -f raw -f qcow2 --output=human --output=json data.qcow2",
        "map --start-offset 1M --start-offset 0 --output=json data.qcow2",
        "check -r all -r leaks leak.qcow2",
        "check -T none -T writeback -f qcow2 -f qcow2 data.qcow2",
        "measure -O raw -O qcow2 --size 1M --size 2M",
        "measure -O qcow2 -o cluster_size=4k -o cluster_size=64k --size 1G",
        "compare -f raw -f qcow2 -F raw -F qcow2 data.qcow2 same.qcow2",
        "resize --preallocation=full --preallocation=off data.qcow2 8M",
        "resize -f raw -f qcow2 data.qcow2 8M",
        "rebase -b missing.qcow2 -b base.qcow2 -F raw -F qcow2 top.qcow2",
        "rebase -u -u -b base.qcow2 -F qcow2 top.qcow2",
        "commit -b mid.qcow2 -b base.qcow2 top.qcow2",
        "commit -t none -t writeback -d -d top.qcow2",
        "amend -o lazy_refcounts=on -o lazy_refcounts=off data.qcow2",
        "amend -f raw -f qcow2 -o compat=0.10 -o compat=1.1 data.qcow2",
        "bitmap -f raw -f qcow2 --add -g 64k -g 128k data.qcow2 new",
        "dd -f raw -f qcow2 -O raw -O qcow2 bs=4k bs=64k count=2 if=data.qcow2 of=new.img",
    ]));
    lines
}

/// Sizes as QEMU reads them. Files are small: their bytes are compared.
fn numbers() -> Vec<Line> {
    let small = [
        "1048576", "1048576b", "1048576B", "1024k", "1024K", "1M", "1m", "0x100000", "0.5M", "1.0M",
        "1024.0k", "1e3", "1MiB", "1MB", "0.1k", "1.", ".5M", "1k5", "08M", "+1M", "1.5b", "0x10k", "1Y",
        "nan", "inf", "0x", "-0", "1.5.5", "1,5M", "M",
    ];
    let large =
        ["4096T", "7E", "8E", "16E", "18446744073709551615", "18446744073709551616", "0xffffffffffffffff"];
    let mut lines =
        combined(&[&["create -f raw new.img", "measure -O raw --size", "resize -f raw plain.raw"], &small]);
    lines.extend(combined(&[&["measure -O raw --size"], &large]));
    // Older versions take a suffix behind a hexadecimal number, and no number that begins with a point.
    let is_new = |line: &str| line.contains("0x10k") || line.contains(" .5M");
    let line = |line: String| match is_new(&line) {
        true => Line::since((10, 1), line),
        false => Line::same(line),
    };
    // There it is more.
    lines.into_iter().filter(|line| line != "resize -f raw plain.raw +1M").map(line).collect()
}

/// LUKS files, and images that are encrypted so. Keys are derived quickly.
fn encrypted() -> Vec<Line> {
    const SECRET: &str = "--object secret,id=s,data=b";
    let creates = [
        "-f luks -o key-secret=s,iter-time=10",
        "-f luks -o key-secret=s,iter-time=10,cipher-alg=aes-192",
        "-f luks -o key-secret=s,iter-time=10,cipher-alg=aes-128,cipher-mode=xts,ivgen-alg=plain",
        "-f luks -o key-secret=s,iter-time=10,hash-alg=sha512",
        "-f luks -o key-secret=s,iter-time=10,ivgen-alg=plain64,ivgen-hash-alg=sha256",
        "-f qcow2 -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
        "-f qcow2 -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10,cluster_size=4k",
        "-f qcow2 -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10,encrypt.cipher-alg=aes-128",
        "-f qcow2 -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 -b base.qcow2 -F qcow2",
        "-f qcow2 -o encrypt.format=luks,encrypt.key-secret=missing",
        "-f qcow2 -o encrypt.format=luks",
        "-f qcow2 -o encrypt.format=nonsense,encrypt.key-secret=s",
        "-f qcow2 -o encrypt.key-secret=s",
        "-f luks -o key-secret=missing",
        "-f luks -o key-secret=s,iter-time=0",
    ];
    let mut lines: Vec<Line> = combined(&[&["create"], &[SECRET], &creates, &["new.img"], &["1M", "1536k"]])
        .into_iter()
        .map(Line::same)
        .collect();
    let converts = [
        "-O luks -o key-secret=s,iter-time=10",
        "-O qcow2 -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
        "-O qcow2 -o encrypt.format=luks,encrypt.key-secret=s",
        "-O luks",
        "-O luks -o key-secret=missing",
    ];
    lines.extend(
        combined(&[
            &["convert"],
            &[SECRET],
            &converts,
            &["data.qcow2", "plain.raw", "top.qcow2"],
            &["new.img"],
        ])
        .into_iter()
        .map(Line::same),
    );
    lines
}
