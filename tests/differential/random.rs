//! Lines that a seed makes of the options of each command. `COWHAND_DIFFERENTIAL_SEED` is another seed, `COWHAND_DIFFERENTIAL_LINES` another number of lines.

use black_box::random::Random;

use super::trial::Line;

/// The seed of the lines that every run has.
const SEED: u64 = 1;
const LINES: u64 = 240;

fn set(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// All of them.
pub fn lines() -> Vec<Line> {
    let seed = set("COWHAND_DIFFERENTIAL_SEED", SEED);
    println!("differential: random lines of COWHAND_DIFFERENTIAL_SEED={seed}");
    let mut random = Random::new(seed);
    (0..set("COWHAND_DIFFERENTIAL_LINES", LINES)).map(|_| Line::same(line(&mut random))).collect()
}

/// Images of one disk, over nothing or over others.
const IMAGES: [&str; 12] = [
    "data.qcow2",
    "v2.qcow2",
    "small.qcow2",
    "ext.qcow2",
    "zeroes.qcow2",
    "lazy.qcow2",
    "odd.qcow2",
    "deflate.qcow2",
    "zstd.qcow2",
    "mid.qcow2",
    "top.qcow2",
    "over-raw.qcow2",
];

const CREATION: [&str; 14] = [
    "cluster_size=4k",
    "cluster_size=512",
    "cluster_size=1M",
    "compat=0.10",
    "compat=1.1",
    "lazy_refcounts=on",
    "lazy_refcounts",
    "extended_l2=on",
    "refcount_bits=1",
    "refcount_bits=64",
    "compression_type=zstd",
    "preallocation=metadata",
    "preallocation=falloc",
    "preallocation=off",
];

fn one<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    of[usize::try_from(random.below(of.len() as u64)).expect("an index")]
}

/// Some of them, each with a chance of one in `rarely`, in any order; one of them may be there twice.
fn some<'a>(random: &mut Random, of: &[&'a str], rarely: u64) -> Vec<&'a str> {
    let mut chosen: Vec<&str> = of.iter().copied().filter(|_| random.below(rarely) == 0).collect();
    if let Some(first) = chosen.first().copied()
        && random.below(4) == 0
    {
        chosen.push(first);
    }
    let turned = usize::try_from(random.below(chosen.len() as u64 + 1)).expect("an index");
    chosen.rotate_left(turned);
    chosen
}

fn line(random: &mut Random) -> String {
    let command = one(
        random,
        &[
            "info", "map", "check", "measure", "compare", "convert", "convert", "convert", "create",
            "create", "dd", "resize", "snapshot", "bitmap", "rebase", "commit", "amend",
        ],
    );
    let words = match command {
        "info" => reading(random, &["--output=json", "--output=human", "-U", "--backing-chain"]),
        "map" => reading(random, &["--output=json", "-U", "--start-offset 100k", "--max-length 1M"]),
        "check" => reading(random, &["--output=json", "-q", "-T none"]),
        "measure" => reading(random, &["--output=json", "-O qcow2", "-O raw", "-U"]),
        "compare" => {
            let options = some(random, &["-s", "-q", "-U", "-T none"], 4).join(" ");
            format!("{options} {} {}", one(random, &IMAGES), one(random, &IMAGES))
        }
        "convert" => {
            let options = some(
                random,
                &[
                    "-c",
                    "-q",
                    "-W",
                    "-m 4",
                    "-r 100M",
                    "-S 64k",
                    "-S 0",
                    "-T none",
                    "--salvage",
                    "-U",
                    "-t unsafe",
                ],
                5,
            )
            .join(" ");
            let creation = some(random, &CREATION, 9).join(",");
            let creation =
                if creation.is_empty() { String::new() } else { format!("-O qcow2 -o {creation}") };
            let format = one(random, &["-O qcow2", "-O raw", "-O qcow2 -f qcow2"]);
            format!("{options} {format} {creation} {} new.img", named(random))
        }
        "create" => {
            let creation = some(random, &CREATION, 5);
            let creation =
                if creation.is_empty() { String::new() } else { format!("-o {}", creation.join(",")) };
            let backing = one(
                random,
                &["", "", "-b base.qcow2 -F qcow2", "-b base.raw -F raw", "-u -b missing -F raw"],
            );
            let size = one(random, &["1M", "1000", "3M", "123456789", "0", "64G"]);
            format!("-f qcow2 {creation} {backing} new.qcow2 {size}")
        }
        "dd" => {
            let parts = some(random, &["bs=4k", "bs=1000", "count=7", "skip=3"], 2).join(" ");
            format!(
                "{} {parts} if={} of=new.img",
                one(random, &["-O raw", "-O qcow2", "-f qcow2 -O raw"]),
                one(random, &IMAGES)
            )
        }
        "resize" => {
            let options = some(
                random,
                &["--shrink", "-q", "--preallocation=off", "--preallocation=metadata", "-f qcow2"],
                3,
            )
            .join(" ");
            format!(
                "{options} {} {}",
                one(random, &IMAGES),
                one(random, &["8M", "+1M", "1M", "-512k", "+1", "1234567"])
            )
        }
        "snapshot" => format!(
            "{} {}",
            one(random, &["-l", "-c new", "-a first", "-d first", "-d second", "-a second -q", "-l -U"]),
            one(random, &["snap.qcow2", "data.qcow2", "ext.qcow2", "top.qcow2"])
        ),
        "bitmap" => {
            let step = one(
                random,
                &[
                    "--add",
                    "--add --disable",
                    "--remove",
                    "--clear",
                    "--enable",
                    "--disable",
                    "--add --merge daily",
                ],
            );
            let options = some(random, &["-g 64k", "-g 4k", "-f qcow2"], 4).join(" ");
            format!(
                "{step} {options} {} {}",
                one(random, &["bitmap.qcow2", "data.qcow2", "small.qcow2"]),
                one(random, &["daily", "off", "new"])
            )
        }
        "rebase" => {
            let options = some(random, &["-q", "-p", "-u", "-t none", "-T none", "-f qcow2"], 4).join(" ");
            let backing = one(
                random,
                &["-b base.qcow2 -F qcow2", "-b base.raw -F raw", "-b other.qcow2 -F qcow2", "-b ''"],
            );
            format!(
                "{options} {backing} {}",
                one(random, &["top.qcow2", "mid.qcow2", "over-raw.qcow2", "short-over.qcow2"])
            )
        }
        "commit" => {
            let options =
                some(random, &["-d", "-q", "-t none", "-r 100M", "-b base.qcow2", "-f qcow2"], 4).join(" ");
            format!("{options} {}", one(random, &["top.qcow2", "mid.qcow2"]))
        }
        _ => {
            let options = one(
                random,
                &["compat=0.10", "compat=1.1", "lazy_refcounts=on", "size=8M", "lazy_refcounts=on,size=6M"],
            );
            format!(
                "-o {options} {} {}",
                some(random, &["-q", "-f qcow2", "-t none"], 4).join(" "),
                one(random, &IMAGES)
            )
        }
    };
    format!("{command} {words}").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An image, by its name or its options.
fn named(random: &mut Random) -> String {
    let name = one(random, &IMAGES);
    match random.below(4) {
        0 => format!("json:{{'driver':'qcow2','file':{{'driver':'file','filename':'{name}'}}}}"),
        1 => format!("file:{name}"),
        _ => name.to_owned(),
    }
}

fn reading(random: &mut Random, options: &[&str]) -> String {
    let options = some(random, options, 3).join(" ");
    let image = one(random, &IMAGES);
    match random.below(4) {
        0 => format!("{options} --image-opts driver=qcow2,file.filename={image}"),
        1 => format!("{options} -f qcow2 {image}"),
        _ => format!("{options} {image}"),
    }
}
