//! What the log warns of when a disk is opened: a file, or its format, that only the author of an image chose.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;

use black_box::peer::qemu_img;
use black_box::{Run, Scratch, Server, cowhand};

use super::create;
use crate::drop_in::ours;

/// What the two warnings say.
const WARNINGS: [&str; 2] =
    ["the image over it does not say in which format it is", "by this image's own word its guest"];

/// The header extension that has the format of a backing file, and one that means nothing.
const BACKING_FORMAT: u32 = 0xe279_2aca;
const UNKNOWN: u32 = 0x6e6f_6e65;

/// The warnings of a server of this drive.
fn warned(drive: &str) -> Vec<String> {
    let log = Server::start([drive]).stderr_at_end();
    let is_one = |line: &&str| line.contains("WARN") && WARNINGS.iter().any(|text| line.contains(text));
    log.lines().filter(is_one).map(str::to_owned).collect()
}

/// What a tool that ends well warns of.
fn warned_by<S: AsRef<OsStr>>(tool: impl IntoIterator<Item = S>) -> Vec<String> {
    let ended = cowhand(tool).outcome();
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.stderr.lines().filter(|line| line.starts_with("cowhand: warning: ")).map(str::to_owned).collect()
}

/// Takes the format of its backing file out of an image. QEMU makes such images no more, and there are many.
pub fn forget_backing_format(image: &str) {
    let file = File::options().read(true).write(true).open(image).expect("the image");
    let mut header = [0; 4096];
    file.read_exact_at(&mut header, 0).expect("its header");
    let mark = BACKING_FORMAT.to_be_bytes();
    let at = header.windows(mark.len()).position(|bytes| bytes == mark).expect("the format");
    file.write_all_at(&UNKNOWN.to_be_bytes(), at as u64).expect("its header");
}

/// A guest whose raw disk the file was once, before an image was put over it, writes the header of an image there.
#[test]
fn a_backing_file_without_a_format_is_warned_of_until_one_is_given_or_recorded() {
    let scratch = Scratch::new();
    create(&scratch, "base.qcow2", "1M");
    scratch.write("base.raw", &[7; 1 << 20]);
    for (base, format) in [("base.raw", "raw"), ("base.qcow2", "qcow2")] {
        let top = scratch.name("top.qcow2");
        qemu_img(["create", "-q", "-f", "qcow2", "-b", base, "-F", format, &top]).ok();
        assert_eq!(warned(&top), [""; 0], "{base}");
        forget_backing_format(&top);
        let lines = warned(&top);
        let [line] = &lines[..] else { panic!("{base}: {lines:?}") };
        let found = format!("{base}: {}; its content looks like {format}.", WARNINGS[0]);
        assert!(line.contains(&found), "{line}");
        assert_eq!(warned(&format!("file={top},backing.driver={format}")), [""; 0], "{base}");
        // As the warning says.
        cowhand(["rebase", "-u", "-b", base, "-F", format, &top]).current_dir(scratch.path()).ok();
        assert_eq!(warned(&top), [""; 0], "{base}");
    }
}

#[test]
fn a_data_file_that_only_its_image_names_is_warned_of_until_it_is_named() {
    let scratch = Scratch::new();
    let (image, data) = (scratch.name("disk.qcow2"), scratch.name("disk.data"));
    let options = format!("data_file={data}");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", &options, &image, "1M"]).ok();
    let real = std::fs::canonicalize(&data).expect("the data file");
    for (more, does) in [("", "reads and writes"), (",read-only=on", "reads")] {
        let drive = format!("file={image}{more}");
        let lines = warned(&drive);
        let [line] = &lines[..] else { panic!("{drive}: {lines:?}") };
        let found = format!("disk.qcow2: {} {does} {};", WARNINGS[1], real.display());
        assert!(line.contains(&found), "{line}");
        assert_eq!(warned(&format!("{drive},data-file.filename={data}")), [""; 0], "{drive}");
    }
}

#[test]
fn tools_warn_once_of_what_they_open_and_under_the_names_of_qemu_of_guessed_formats_alone() {
    let scratch = Scratch::new();
    create(&scratch, "base.qcow2", "1M");
    let (top, data, copy) = (scratch.name("top.qcow2"), scratch.name("data.qcow2"), scratch.name("copy.raw"));
    qemu_img(["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", &top]).ok();
    forget_backing_format(&top);
    let options = format!("data_file={}", scratch.name("disk.data"));
    qemu_img(["create", "-q", "-f", "qcow2", "-o", &options, &data, "1M"]).ok();
    for (image, warning) in [(&top, WARNINGS[0]), (&data, WARNINGS[1])] {
        let tools = [
            vec!["convert", "-O", "raw", image, &copy],
            vec!["compare", image, image],
            vec!["map", image],
            vec!["io", image, "-c", "read 0 4k"],
        ];
        for tool in tools {
            let lines = warned_by(&tool);
            assert!(matches!(&lines[..], [line] if line.contains(warning)), "{tool:?}: {lines:?}");
        }
        // Nothing is opened of which one could warn.
        assert_eq!(warned_by(["check", "-q", image]), [""; 0]);
        for (program, words) in [
            ("qemu-img", vec!["convert", "-O", "raw", image, &copy]),
            ("qemu-io", vec!["-r", "-c", "read 0 4k", image]),
        ] {
            let as_qemu = Run::new(ours(program)).args(words).outcome();
            let lines: Vec<_> = as_qemu.stderr.lines().collect();
            let is_right = match &lines[..] {
                [] => warning != WARNINGS[0],
                [line] => warning == WARNINGS[0] && line.starts_with(program) && line.contains(warning),
                _ => false,
            };
            assert!(as_qemu.status.success() && is_right, "{image}: {as_qemu}");
        }
        for words in [vec!["info", image], vec!["check", "-q", image], vec!["snapshot", "-l", image]] {
            assert_eq!(Run::new(ours("qemu-img")).args(words).outcome().stderr, "", "{image}");
        }
    }
}
